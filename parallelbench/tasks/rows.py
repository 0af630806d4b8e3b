"""Rows of a published benchmark: from a JSONL file, or from a data set of the `datasets` library."""

import gzip
import hashlib
import json
import os
import random
import re
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from conf.knobs import Count, check
from parallelbench.tasks.base import Sample, Task


@runtime_checkable
class RowTask(Protocol):
    """A task whose samples are rows of a source."""

    @property
    def source(self) -> str: ...

    @property
    def split(self) -> str: ...

    def samples(self, limit: int, seed: int) -> list[Sample]: ...


@runtime_checkable
class SlowTask(RowTask, Protocol):
    """A row task that scores in processes of its own, so that threads can score several samples at once."""

    @property
    def timeout_s(self) -> float: ...


_REFERENCES: dict[str, bool] = {}  # whether a reference scores 1, by its row and scorer


def check_references(task: Task, samples: Sequence[Sample]) -> None:
    """Scores the references that rows bring along, once for a row and scorer in this process, and warns of those that
    fail: every answer to such a row may score 0. Raises ValueError where all fail."""
    own = [sample for sample in samples if sample.target.strip()]
    if not isinstance(task, RowTask) or not own:
        return
    keys = {sample.id: hashlib.sha256(repr((task, sample)).encode(errors="replace")).hexdigest() for sample in own}
    left = [sample for sample in own if keys[sample.id] not in _REFERENCES]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        in_turn = pool.map if isinstance(task, SlowTask) else map  # math-verify wants the main thread
        passed = in_turn(lambda sample: task.score(sample, sample.target)["score"] == 1, left)
        _REFERENCES.update(zip((keys[sample.id] for sample in left), passed, strict=True))
    failing = [sample.id for sample in own if not _REFERENCES[keys[sample.id]]]
    if not failing:
        return
    named = ", ".join(failing[:10]) + (f" and {len(failing) - 10} more" if len(failing) > 10 else "")
    said = f"the references of {len(failing)} of {len(own)} rows of {task.source} do not score 1 ({named})"
    if len(failing) == len(own):
        raise ValueError(f"{said}, so no score would mean anything; mend the rows, or name the packages they need")
    warnings.warn(f"{said}; answers to these rows are scored all the same", stacklevel=2)


@dataclass(frozen=True)
class Row:
    """One row, and where it stands for error messages."""

    index: int
    values: Mapping[str, Any]
    where: str

    def text(self, *names: str, setting: str = "") -> str:
        """The first of the named fields that is there. Raises ValueError when none is, or when it is no text.

        setting: which names the field, for the message.
        """
        for name in names:
            if name in self.values:
                if not isinstance(self.values[name], str):
                    raise ValueError(f"{self.where}: {name!r} is {self.values[name]!r}, not a text")
                if re.search("[\ud800-\udfff]", self.values[name]):
                    raise ValueError(f"{self.where}: {name!r} holds half a character (a lone surrogate); mend the text")
                return self.values[name]
        choice = f"choose {setting}= from" if setting else "it has"
        raise ValueError(f"{self.where}: no field {' or '.join(map(repr, names))}; {choice} {', '.join(self.values)}")

    def texts(self, name: str) -> list[str]:
        """A field that is a list of texts."""
        value = self.values.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise ValueError(f"{self.where}: {name!r} is {value!r}, not a list of texts")
        return value


def draw_rows(source: str, subset: str | None, split: str, limit: Count, seed: int) -> list[Row]:
    """`limit` rows in an order given by the seed, or all where there are fewer; a longer list starts with the shorter
    one.

    source: a .jsonl or .jsonl.gz file, or a folder or hub id for `datasets.load_dataset`, of which `subset` and `split`
    are read. Raises ValueError when it cannot be read.
    """
    check(draw_rows, limit=limit, seed=seed)
    rows = _read_file(Path(source)) if is_file(source) else _read_dataset(source, subset, split)
    if not rows:
        raise ValueError(f"{source} holds no rows; give another source")
    random.Random(seed).shuffle(rows)
    return rows[:limit]


def is_file(source: str) -> bool:
    """Whether a source is a file, there or not, and no data set's id."""
    return Path(source).is_file() or source.endswith((".jsonl", ".jsonl.gz", ".json"))


def _read_file(path: Path) -> list[Row]:
    if not path.exists():
        raise ValueError(f"no file {path}; give source=FILE.jsonl or the id of a data set")
    rows = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}, line {number}"
                if not line.strip():
                    continue
                try:
                    values = json.loads(line)
                except (json.JSONDecodeError, RecursionError) as error:  # nested too deep
                    raise ValueError(f"{where}: not JSON ({error}); write one object per line") from error
                if not isinstance(values, dict):
                    raise ValueError(f"{where}: {line.strip()[:40]!r} is not an object")
                rows.append(Row(len(rows), values, where))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); give a UTF-8 text file, or .gz for a compressed one"
        ) from error
    return rows


def _read_dataset(source: str, subset: str | None, split: str) -> list[Row]:
    from datasets import load_dataset  # a second to import

    try:
        loaded = cast(Sequence[Mapping[str, Any]], load_dataset(source, subset, split=split))
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"data set {source!r} (subset {subset}, split {split}) cannot be read ({reason}); "
            "give source=FILE.jsonl, or an id or folder that datasets can load"
        ) from error
    return [Row(i, dict(values), f"data set {source}, row {i}") for i, values in enumerate(loaded)]
