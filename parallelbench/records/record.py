"""A run on disk: config.yaml, run.json and samples.jsonl in one directory. Everything else reads these files."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from msgspec import Meta, Struct
from msgspec.json import Decoder
from tqdm import tqdm

from dllm.validation import shown
from parallelbench.records.facts import Facts
from parallelbench.records.files import parse_json, read_bytes, replace_file, to_json
from parallelbench.records.layout import Choices, Config, Info, SuiteConfig, Text
from parallelbench.records.shards import Shards
from parallelbench.records.typed import typed
from parallelbench.tasks.base import Sample

SCHEMA = 1
MOST_KNOBS, MOST_TASKS, MOST_SETTINGS, DEEPEST = 200, 200, 5000, 40  # of a run, and levels of its config
CONFIG, RUN = "config.yaml", "run.json"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where PyYAML has it
NEVER = -1  # of committed_at: no forward did
ALL = "all"  # in the place of a task's name: over all tasks
LARGEST = 2**63 - 1  # of numbers; what counts or measures something here is far below

Count = Annotated[int, Meta(ge=1, le=LARGEST)]
Number = Annotated[int, Meta(ge=0, le=LARGEST)]
Forward = Annotated[int, Meta(ge=NEVER, le=LARGEST)]
Score = Annotated[float, Meta(ge=-1e-9, le=1 + 1e-9)]  # in [0, 1] but for rounding
Seconds = Annotated[float, Meta(ge=1e-15, le=LARGEST)]


class Record(Struct, frozen=True, forbid_unknown_fields=True):
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
    cpu_s: its part of the CPU seconds of the thread that decoded, where somebody measured them.
    """

    id: str
    task: Text
    task_version: str
    prompt: str
    prompt_sha: str
    data: Mapping[str, Any]
    target: str
    completion: str
    token_ids: Sequence[Number]
    num_tokens: Number
    scores: Mapping[str, Score]
    nfe: Count
    queried: Number
    committed_at: Sequence[Forward]
    stopped_by: str
    latency_s: Seconds
    share_s: Seconds
    batch_size: Count
    batch: str
    drafts: Sequence[tuple[Number, Number, Number, Literal[0, 1]]] = ()
    cpu_s: Seconds | None = None

    @property
    def sample(self) -> Sample:
        """What its scorer was given."""
        return Sample(self.id, self.task, [{"role": "user", "content": self.prompt}], self.data, self.target)


@lru_cache(2**14)  # every run of a suite has the same prompts
def prompt_sha(prompt: str) -> str:
    """What tells equal prompts."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def _adds_up(record: Record) -> None:
    """Raises ValueError for a record without its scores, and for numbers that no decode has together."""
    for name in ("score", "score_strict"):
        if name not in record.scores:
            raise ValueError(f"nothing says its scores.{name}")
    tokens, columns, last = len(record.token_ids), len(record.committed_at), max(record.committed_at, default=NEVER)
    odd = [at for at, drafted, accepted, _ in record.drafts if accepted > drafted or at >= record.nfe]
    if record.task == ALL:
        raise ValueError(f"its task is {ALL!r}, which stands for all tasks")
    if record.num_tokens > tokens:
        raise ValueError(f"num_tokens is {record.num_tokens}, and it has {tokens} tokens")
    if tokens > columns:
        raise ValueError(f"it has {tokens} tokens in {columns} columns")
    if last >= record.nfe:
        raise ValueError(f"forward {last} wrote a column, and nfe is {record.nfe}")
    if odd:
        raise ValueError(f"drafts of forward {max(odd)} cannot be")
    if record.prompt_sha != prompt_sha(record.prompt):
        raise ValueError("prompt_sha is that of another prompt")


SAMPLES = Shards("samples", Decoder(Record), to_json, _adds_up, ("a record", "restore the file or delete it"))


class Run(Struct, frozen=True):
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
        return typed(self.info, Facts)


def config_hash(config: Mapping[str, Any]) -> str:
    """Identity of a run: its resolved config without where it is written."""
    kept = {key: value for key, value in config.items() if key != "out_dir"}
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
        key, old, new = _first_difference(written, config)
        raise ValueError(f"{folder} holds a run with {key}={old}, not {new}; choose another out_dir or delete that one")
    if info.get("identity", identity) != identity:
        raise ValueError(
            f"{folder} holds results of other weights or task versions ({info['identity']}, now {dict(identity)}); "
            "choose another out_dir or delete that one"
        )
    if info.get("status") == "done":
        return _alike(folder, list(_whole(folder).values()))
    _alike(folder, list(SAMPLES.read(folder)[0].values()))
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
            raise ValueError(f"{folder} is not a run directory: it has no {name}; leave it out")
    info, config = read_info(folder), _read_config(folder)
    try:
        typed(config, SuiteConfig if info["choices"] else Config)
    except ValueError as error:
        raise ValueError(f"{folder} holds no run of this package ({error}); leave it out") from error
    return Run(folder, config, info, _alike(folder, list(_whole(folder).values())))


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
        typed(info, Info)
        typed(info, Facts)
        if unstated := [fact.name for fact in fields(Facts) if fact.name not in info]:
            raise ValueError(f"nothing says its {unstated[0]}")
        for key in ("knobs", "choices"):
            if len(info.get(key, ())) > MOST_KNOBS:
                raise ValueError(f"{RUN} has {len(info[key])} {key}, more than {MOST_KNOBS}")
        if info["choices"]:
            typed(info["choices"], Choices, "choices")
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


def _alike(folder: Path, records: list[Record]) -> list[Record]:
    """Raises ValueError for records of one task with other scores, and for more tasks than any suite has."""
    scored: dict[str, Set[str]] = {}
    for record in records:
        if record.scores.keys() != scored.setdefault(record.task, record.scores.keys()):
            raise ValueError(f"{folder}: sample {record.id!r} has not the scores of its task; score that run again")
    if len(scored) > MOST_TASKS:
        raise ValueError(f"{folder} has samples of {len(scored)} tasks, more than {MOST_TASKS}; leave it out")
    return records


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


def _excess(data: bytes) -> str:
    """What a YAML text has more of than a config, before anything is made of it; empty where it has not. Raises
    YAMLError for a value that refers to another, which could stand for millions of them."""
    depth = nodes = 0
    for event in yaml.parse(data, LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        if depth > DEEPEST or nodes > 2 * MOST_SETTINGS:  # a setting is a key and a value
            return f"{DEEPEST} levels" if depth > DEEPEST else f"{MOST_SETTINGS} settings"
    return ""


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    data = read_bytes(path)
    try:
        excess = _excess(data)
        content = {} if excess else yaml.load(data, LOADER)
        json.dumps(content, sort_keys=True)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} is not valid YAML; restore it or choose another out_dir") from error
    except TypeError as error:
        raise ValueError(f"{path} holds values that no config has ({error}); restore it") from error
    if excess:
        raise ValueError(f"{path} has more than {excess}; leave that run out")
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no config; restore it or choose another out_dir")
    return content
