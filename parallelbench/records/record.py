"""A run on disk: config.yaml, run.json and samples.jsonl in one directory. Everything else reads these files."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from dllm.validation import shown
from parallelbench.records.compat import as_written_today, first_paths, unstated_facts
from parallelbench.records.facts import Facts
from parallelbench.records.files import parse_json, read_bytes, replace_file, to_json
from parallelbench.records.layout import Choices, Config, Info, Scores, SuiteConfig
from parallelbench.records.shape import check
from parallelbench.records.shards import Shards
from parallelbench.tasks.base import Sample

SCHEMA = 1
MOST_KNOBS, MOST_SETTINGS, DEEPEST = 200, 5000, 40  # of a run, and levels of its config
CONFIG, RUN = "config.yaml", "run.json"
NEVER = -1  # of committed_at: no forward did
NEW = {"drafts", "share_s", "cpu_s"}  # not in lines of before they were there
LEAST = {"num_tokens": 0, "nfe": 1, "queried": 0, "batch_size": 1}


@dataclass(frozen=True)
class Record:
    """One decoded and scored sample.

    prompt: the user's text.
    prompt_sha: `prompt_sha` of it.
    data, target: what the scorer needs, and one right answer.
    token_ids: the response before its EOS.
    num_tokens: how many of them were decoded. Tokens that a template gave do not count.
    nfe: forwards.
    queried: columns that all forwards computed.
    committed_at: the forward, from 0, that wrote each response column; NEVER where none did.
    stopped_by: as in `decoders.loop.DecodedRow`.
    latency_s: wall seconds of its forwards, also of those that it shared.
    batch_size, batch: how many samples stood together in the queue, and the id of the first of them.
    drafts: four numbers for each forward that verified drafts: which forward it was, how many drafts it was given, how
        many of them it wrote, and whether (1 or 0) the next tokens were too close to tell.
    share_s: its part of the run's seconds. Those of each forward are divided evenly among the samples in it.
    cpu_s: its part of the CPU seconds of the thread that decoded.
    """

    id: str
    task: str
    task_version: str
    prompt: str
    prompt_sha: str
    data: Mapping[str, Any]
    target: str
    completion: str
    token_ids: Sequence[int]
    num_tokens: int
    scores: Mapping[str, float]
    nfe: int
    queried: int
    committed_at: Sequence[int]
    stopped_by: str
    latency_s: float
    batch_size: int
    batch: str
    drafts: Sequence[Sequence[int]] = ()
    share_s: float | None = None
    cpu_s: float | None = field(default=None, compare=False)

    @property
    def seconds(self) -> float:
        """Its part of the run's seconds. Runs of before share_s decoded batch by batch, and latency_s is a batch's."""
        return self.latency_s / self.batch_size if self.share_s is None else self.share_s

    @property
    def sample(self) -> Sample:
        """What its scorer was given."""
        return Sample(self.id, self.task, [{"role": "user", "content": self.prompt}], self.data, self.target)


def prompt_sha(prompt: str) -> str:
    """What tells equal prompts."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def _record(values: Any) -> Record:
    check(values, Record, "")
    for name, least in LEAST.items():
        if values[name] < least:
            raise ValueError(f"{name} is {values[name]}, less than {least}")
    for name in ("latency_s", "share_s", "cpu_s"):
        if (seconds := values.get(name)) is not None and seconds <= 0:
            raise ValueError(f"{name} is {seconds}, which no forward takes")
    check(values["scores"], Scores, "scores")
    return Record(**values)


SAMPLES = Shards(
    "samples",
    dump=lambda record: to_json({name: value for name, value in asdict(record).items() if name not in NEW or value}),
    load=_record,
    what=("a record", "restore the file or delete it"),
)


@dataclass(frozen=True)
class Run:
    """A run read from disk."""

    folder: Path
    config: dict[str, Any]
    info: dict[str, Any]
    records: list[Record]

    def check_filled(self) -> None:
        """Raises ValueError for a run without samples."""
        if not self.records:
            raise ValueError(f"{self.folder} has no samples yet; repeat its command to fill it")

    @property
    def facts(self) -> Facts:
        unstated = unstated_facts(self.config)
        if "knobs" not in self.info:
            return unstated
        is_baseline, fixed_number = (self.info.get(key, False) for key in ("is_baseline", "fixed_number"))
        is_ceiling = self.info.get("is_ceiling", unstated.is_ceiling)
        return Facts(is_baseline, fixed_number, self.info.get("generation", ""), self.info["knobs"], is_ceiling)


def config_hash(config: Mapping[str, Any]) -> str:
    """Identity of a run: its resolved config without where it is written, whatever its classes are called now."""
    kept = {key: value for key, value in first_paths(config).items() if key != "out_dir"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]


def open_run(folder: Path, config: Mapping[str, Any], identity: Mapping[str, Any]) -> list[Record]:
    """Begins a run in an empty folder, or opens one of the same config to be resumed; returns the records it already
    holds. A run of a smaller limit may go on to a larger one: a longer list of samples starts with the shorter one.

    What a killed run left is tidied up: shards are merged, and lines that were cut off are removed, so that their
    samples are decoded again. A finished run is left alone.
    Raises ValueError, leaving all files alone, when the folder belongs to another config or a newer version, or a file
    is damaged.
    """
    if not os.path.lexists(folder / CONFIG):
        if any(path.suffix != ".tmp" for path in folder.iterdir()):
            raise ValueError(f"{folder} is not empty and holds no {CONFIG}; choose another out_dir")
        write_config(folder, config)
        return []
    written, info = _read_config(folder), read_info(folder)
    old, new = written.get("limit"), config.get("limit")
    if isinstance(old, int) and isinstance(new, int) and old < new:
        written["limit"] = new
    if config_hash(written) != config_hash(config):
        key, old, new = _first_difference(as_written_today(written), as_written_today(config))
        raise ValueError(f"{folder} holds a run with {key}={old}, not {new}; choose another out_dir or delete that one")
    if info.get("identity", identity) != identity:
        raise ValueError(
            f"{folder} holds results of other weights or task versions ({info['identity']}, now {dict(identity)}); "
            "choose another out_dir or delete that one"
        )
    if info.get("status") == "done":
        return list(_whole(folder).values())
    return SAMPLES.merge(folder)


def same_runs(folders: Iterable[Path], config: Mapping[str, Any]) -> dict[int, Path]:
    """Those of the folders that hold this run, whatever its limit, by their limits. Of two with one limit the first."""
    found: dict[int, Path] = {}
    for folder in folders:
        try:
            written = _read_config(folder)
        except (OSError, ValueError):
            continue  # no run, or a damaged one
        limit, asked = written.get("limit"), config["limit"]
        if isinstance(limit, int) and config_hash({**written, "limit": asked}) == config_hash(config):
            found.setdefault(limit, folder)
    return found


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Writes config.yaml of a run that begins, or that has got another limit."""
    if not os.path.lexists(folder / CONFIG) or config_hash(_read_config(folder)) != config_hash(config):
        replace_file(folder / CONFIG, yaml.dump(dict(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def write_info(folder: Path, info: Mapping[str, Any]) -> None:
    """Rewrites run.json atomically."""
    replace_file(folder / RUN, to_json(info, indent=2) + "\n")


def read_run(folder: Path) -> Run:
    """Reads a run. Raises ValueError naming the file when something is missing, cut off or not a run of this schema."""
    for name in (CONFIG, RUN):
        if not os.path.lexists(folder / name):
            raise ValueError(f"{folder} is not a run directory: it has no {name}")
    info, config = read_info(folder), _read_config(folder)
    try:
        check(config, SuiteConfig if info["choices"] else Config, "")
    except ValueError as error:
        raise ValueError(f"{folder} holds no run of this package ({error}); leave it out") from error
    records = list(_whole(folder).values())
    scored: dict[str, set[str]] = defaultdict(set)
    for record in records:
        if record.scores.keys() != (scored[record.task] or record.scores.keys()):
            raise ValueError(f"{folder}: sample {record.id!r} has not the scores of its task; score that run again")
        scored[record.task] |= record.scores.keys()
    return Run(folder, config, info, records)


def read_info(folder: Path) -> dict[str, Any]:
    """What run.json says, nothing where there is none yet. Raises ValueError where it is damaged or of another
    schema."""
    path = folder / RUN
    if not os.path.lexists(path):
        return {}
    data = read_bytes(path)
    try:
        info = parse_json(data.decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); delete it and repeat the run's command") from error
    if not isinstance(info, dict):
        raise ValueError(f"{path} holds no run; delete it and repeat the run's command")
    schema = info.get("schema")
    if type(schema) is int and schema > SCHEMA:
        raise ValueError(f"{path} has schema {schema}, this version reads {SCHEMA}; update it to read that run")
    try:
        if schema != SCHEMA or type(schema) is not int:
            raise ValueError(f"{RUN} has schema {shown(schema)}, not {SCHEMA}")
        check(info, Info, "")
        for key in ("knobs", "choices"):
            if len(info.get(key, ())) > MOST_KNOBS:
                raise ValueError(f"{RUN} has {len(info[key])} {key}, more than {MOST_KNOBS}")
        if info["choices"]:
            check(info["choices"], Choices, "choices")
    except ValueError as error:
        raise ValueError(f"{folder} holds no run of this package ({error}); leave it out") from error
    return info


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Folders at or below the paths that hold a run or samples, sorted. Raises ValueError when a path holds none."""
    found: list[Path] = []
    for path in paths:
        names = (RUN, SAMPLES.file(path).name)
        below = sorted({file.parent for name in names for file in path.rglob(name)}) if os.path.isdir(path) else []
        if not below:
            raise ValueError(f"{path} holds no run (no {RUN} at or below it)")
        found += [folder for folder in below if folder not in found]
    return found


def readable_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs at or below the paths in order of their folders, and a sentence for every folder that is skipped:
    foreign, damaged, of a newer version, or samples without a run.json. Deletes nothing.

    Raises ValueError when a path holds no run at all, or when every one is skipped.
    """
    runs, skipped = [], []
    for folder in tqdm(find_runs(paths), desc="read", unit="run", leave=False, disable=None, delay=1):
        try:
            runs.append(read_run(folder))
        except ValueError as error:
            skipped.append(str(error))
    if not runs:
        raise ValueError("; ".join(skipped))
    return runs, skipped


def _first_difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> tuple[str, Any, Any]:
    for key in [*new, *(key for key in old if key not in new)]:
        a, b = old.get(key, "nothing"), new.get(key, "nothing")
        if isinstance(a, Mapping) and isinstance(b, Mapping) and a != b:
            return _first_difference(a, b, f"{prefix}{key}.")
        if a != b and key != "out_dir":
            return f"{prefix}{key}", a, b
    return "config", "another", "this one"


def _whole(folder: Path) -> dict[str, Record]:
    """The records by their ids. Raises ValueError where a line is cut off."""
    records, cut_off = SAMPLES.read(folder)
    if cut_off:
        raise ValueError(cut_off[0])
    return records


class _Dumper(yaml.SafeDumper):
    """YAML with every value where it belongs."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Loader(yaml.SafeLoader):
    """The same: a value that refers to another could stand for millions of them."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        content = yaml.load(read_bytes(path), _Loader)
        json.dumps(content, sort_keys=True)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML; restore it or choose another out_dir") from error
    except TypeError as error:
        raise ValueError(f"{path} holds values that no config has ({error}); restore it") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no config; restore it or choose another out_dir")
    left, number = [(content, 0)], 0
    while left:
        value, depth = left.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        left += [(one, depth + 1) for one in inner]
        number += isinstance(value, dict)
        if depth > DEEPEST or number + len(left) > MOST_SETTINGS:
            many = f"more than {DEEPEST} levels" if depth > DEEPEST else f"more than {MOST_SETTINGS} settings"
            raise ValueError(f"{path} has {many}; leave that run out")
    return as_written_today(content)
