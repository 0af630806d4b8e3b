"""Rows of a published benchmark or of the user's own, to be asked or trained on: from a file, or from a data set of the
`datasets` library."""

import csv
import gzip
import hashlib
import json
import math
import os
import random
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from dllm.validation import Count, check
from parallelbench.tasks.base import Sample, Task

DELIMITERS = {".csv": ",", ".tsv": "\t"}
FORMATS = (".jsonl", ".json", ".parquet", *DELIMITERS)
Found = tuple[Mapping[str, Any], str]  # a row, and where it is


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

    def text(self, *names: str, setting: str = "", numbers: bool = False) -> str:
        """The first of the named fields that is there. Raises ValueError when none is, or when it is no text.

        setting: which names the field, for the message. numbers: takes a number too, as its digits.
        """
        name, value = self._first(names, setting)
        if numbers and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return f"{Decimal(repr(value)):f}"
        if not isinstance(value, str):
            raise ValueError(f"{self.where}: {name!r} is {repr(value)[:80]}, not a text")
        self._check_whole(name, value)
        return value

    def chat(self, *names: str, setting: str = "") -> list[dict[str, Any]]:
        """The messages of a field: of a text, or of a list of texts, by the user; or those of a list of messages.
        Raises ValueError when they say nothing."""
        name, value = self._first(names, setting)
        if not isinstance(value, list):
            value = [self.text(name)]
        chat = [{"role": "user", "content": one} if isinstance(one, str) else one for one in value]
        for message in chat:
            if not (
                isinstance(message, Mapping)
                and isinstance(message.get("role"), str)
                and isinstance(message.get("content"), str | list)
            ):
                raise ValueError(
                    f"{self.where}: {name!r} has {str(message)[:80]}, not a message; give a text, or a list of "
                    "{'role': ..., 'content': ...}"
                )
            self._check_whole(name, str(message["content"]))
        if not any(message["content"] and str(message["content"]).strip() for message in chat):
            raise ValueError(f"{self.where}: {name!r} is empty; give a prompt, or leave the row out")
        return [{key: message[key] for key in ("role", "content")} for message in chat]

    def _check_whole(self, name: str, text: str) -> None:
        if re.search("[\ud800-\udfff]", text):
            raise ValueError(f"{self.where}: {name!r} holds half a character (a lone surrogate); mend the text")

    def _first(self, names: Sequence[str], setting: str) -> tuple[str, Any]:
        for name in names:
            if name in self.values:
                return name, self.values[name]
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

    source: a file as `read_file` takes it, or a folder or hub id for `datasets.load_dataset`, of which `subset` and
    `split` are read. Raises ValueError when it cannot be read.
    """
    check(draw_rows, limit=limit, seed=seed)
    rows = list(read_file(Path(source))) if is_file(source) else _read_dataset(source, subset, split)
    if not rows:
        raise ValueError(f"{source} holds no rows; give another source")
    random.Random(seed).shuffle(rows)
    return rows[:limit]


def is_file(source: str) -> bool:
    """Whether a source is a file, there or not, and no data set's id."""
    return Path(source).is_file() or source.removesuffix(".gz").endswith(FORMATS)


def read_file(path: Path) -> Iterator[Row]:
    """The rows of a file: objects, one a line or all in one array (.jsonl, .json); a table whose first line names its
    columns (.csv, .tsv); or .parquet. All but the last may be compressed (.gz) and begin with a byte order mark.

    Raises ValueError, with file and line, for what cannot be read.
    """
    if not path.exists():
        raise ValueError(f"no file {path}; give source=FILE.jsonl or the id of a data set")
    try:
        yield from (Row(i, values, where) for i, (values, where) in enumerate(_read(path)))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); give a UTF-8 text file, or .gz for a compressed one"
        ) from error


def _read(path: Path) -> Iterator[Found]:
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind == ".parquet":
        yield from _read_parquet(path)
        return
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        text = cast(TextIOWrapper, file)
        yield from _read_table(path, text, DELIMITERS[kind]) if kind in DELIMITERS else _read_objects(path, text)


def _read_objects(path: Path, file: TextIOWrapper) -> Iterator[Found]:
    begun = False
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if not begun and line.lstrip().startswith("["):
            yield from _read_array(path, line + file.read(), number)
            return
        begun = True
        value, end = _decoded(line.strip(), 0, where)
        if line.strip()[end:]:
            raise ValueError(f"{where}: not JSON (more than one value); write one object per line")
        yield _object(value, where), where


def _read_array(path: Path, text: str, line: int) -> Iterator[Found]:
    """The objects of an array that begins in this line."""
    between, at = re.compile(r"[\s,]*"), text.index("[") + 1
    while True:
        start = cast(re.Match, between.match(text, at)).end()
        line += text.count("\n", at, start)
        where = f"{path}, line {line}"
        if text[start : start + 1] == "]":
            if text[start + 1 :].strip():
                raise ValueError(f"{where}: not JSON (more after the array); write one object per line, or an array")
            return
        value, at = _decoded(text, start, where)
        yield _object(value, where), where
        line += text.count("\n", start, at)


def _decoded(text: str, at: int, where: str) -> tuple[Any, int]:
    """A JSON value, and where it ends."""
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except (json.JSONDecodeError, RecursionError) as error:  # nested too deep
        raise ValueError(f"{where}: not JSON ({error}); write one object per line, or an array of them") from error


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {str(value)[:40]!r} is not an object")
    return value


def _read_table(path: Path, file: TextIOWrapper, delimiter: str) -> Iterator[Found]:
    reader = csv.DictReader(file, delimiter=delimiter, strict=True)
    for values in reader:
        where = f"{path}, line {reader.line_num}"
        if None in values or None in values.values():
            raise ValueError(f"{where}: another number of cells than the first line has names; mend the line")
        yield values, where


def _read_parquet(path: Path) -> Iterator[Found]:
    from pyarrow import ArrowException  # a second to import
    from pyarrow.parquet import ParquetFile

    try:
        rows = (values for batch in ParquetFile(path).iter_batches() for values in batch.to_pylist())
        yield from ((values, f"{path}, row {number}") for number, values in enumerate(rows, start=1))
    except ArrowException as error:
        raise ValueError(f"{path} cannot be read ({str(error).splitlines()[0]}); give a parquet file") from error


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


def stored(path: Path) -> Any:
    """The rows of a file as a `datasets.Dataset`, which keeps them on disk, whatever their types."""
    from datasets import Dataset, Features, Value

    next(read_file(path), None)  # a file that is none is refused before `datasets` tells of its progress
    about = {"path": str(path), "stamp": (path.stat().st_size, path.stat().st_mtime_ns)}
    features = Features({"where": Value("string"), "row": Value("large_string")})
    return Dataset.from_generator(_to_store, features=features, gen_kwargs=about)


def _to_store(path: str, stamp: tuple[int, int]) -> Iterator[dict[str, str]]:
    """stamp: tells one state of the file from another, since `datasets` keeps what it made of equal arguments."""
    for row in read_file(Path(path)):
        yield {"where": row.where, "row": json.dumps(row.values, default=str)}


def rows_of(batch: Mapping[str, Sequence[Any]], indices: Sequence[int], source: str | None) -> list[Row]:
    """Rows of a batch of a data set. source: its name. None: they are `stored` ones."""
    if source is None:
        found = zip(indices, batch["row"], batch["where"], strict=True)
        return [Row(i, json.loads(row), where) for i, row, where in found]
    values = zip(*batch.values(), strict=True)
    return [
        Row(i, dict(zip(batch, row, strict=True)), f"data set {source}, row {i}")
        for i, row in zip(indices, values, strict=True)
    ]
