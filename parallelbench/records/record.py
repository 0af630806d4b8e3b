"""A run on disk: config.yaml, run.json and samples.jsonl in one directory. Everything else reads these files."""

import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import yaml

from parallelbench.records.compat import as_written_today, first_paths, unstated_facts
from parallelbench.records.facts import Facts
from parallelbench.records.shards import Shards, replace_file

SCHEMA = 1
CONFIG, RUN = "config.yaml", "run.json"
LOCK = "writer.tmp"
INFO_KEYS = ("status", "config_hash", "choices", "model", "device")  # what every reader counts on
CONFIG_KEYS = ("decoder", "suite", "batch_size")
NEVER = -1  # of committed_at: no forward did


@dataclass(frozen=True)
class Record:
    """One decoded and scored sample.

    prompt: the user's text; data, target: what the scorer needs. num_tokens: decoded tokens before EOS (those of
    token_ids that were not given). nfe: forwards. queried: columns recomputed. committed_at: forward that wrote each
    response column, NEVER for none. latency_s: wall seconds of its batch, which held batch_size samples and is named by
    its first. drafts: for each forward that verified some its number, how many drafts it was given, how many were
    written, and 1 where the verifier's likeliest tokens behind those were too close to tell, else 0.
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


SAMPLES = Shards(
    "samples",
    dump=lambda record: json.dumps(asdict(record), ensure_ascii=False),
    load=lambda values: Record(**values),
    what=("a record", "restore the file or delete it"),
)


@dataclass(frozen=True)
class Run:
    """A run read from disk."""

    folder: Path
    config: dict[str, Any]
    info: dict[str, Any]
    records: list[Record]

    @property
    def facts(self) -> Facts:
        if "knobs" not in self.info:
            return unstated_facts(self.config)
        is_baseline, fixed_number = (self.info.get(key, False) for key in ("is_baseline", "fixed_number"))
        return Facts(is_baseline, fixed_number, self.info["generation"], self.info["knobs"])


def config_hash(config: Mapping[str, Any]) -> str:
    """Identity of a run: its resolved config without where it is written, whatever its classes are called now."""
    kept = {key: value for key, value in first_paths(config).items() if key != "out_dir"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]


def open_run(folder: Path, config: Mapping[str, Any], identity: Mapping[str, Any]) -> list[Record]:
    """Creates a run directory, or opens one of the same config to be resumed; returns the records it already holds.

    What a killed run left is tidied up: shards are merged, and last lines that were cut off are removed, so that their
    samples are decoded again.
    Raises ValueError, leaving all files alone, when the directory belongs to another config or a file is damaged.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose another out_dir")
    if not (folder / CONFIG).exists():
        if folder.exists() and any(path.suffix != ".tmp" for path in folder.iterdir()):
            raise ValueError(f"{folder} is not empty and holds no {CONFIG}; choose another out_dir")
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / CONFIG, yaml.safe_dump(dict(config), sort_keys=False))
        return []
    written = _read_config(folder)
    if config_hash(written) != config_hash(config):
        key, old, new = _first_difference(written, config)
        raise ValueError(f"{folder} holds a run with {key}={old}, not {new}; choose another out_dir or delete that one")
    info = read_info(folder)
    if info.get("identity", identity) != identity:
        raise ValueError(
            f"{folder} holds results of other weights or task versions ({info['identity']}, now {dict(identity)}); "
            "choose another out_dir or delete that one"
        )
    if info.get("status") == "done" and (cut_off := SAMPLES.read(folder)[1]):
        raise ValueError(cut_off[0])
    return SAMPLES.merge(folder)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing this run until the block, or the process that holds it, has ended: the kernel
    lets go of the lock of a process that was killed. The file that is locked says who holds it, and nothing else.

    Raises ValueError naming the process that writes the run. A file system without locks costs a warning: there, two
    processes at one run may decode samples twice and lose what one of them had appended while the other merged.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose another out_dir")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    file = _locked(path)
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)  # before it is unlocked, so that nobody holds a file that is gone
        file.close()


def _locked(path: Path) -> TextIO:
    while True:
        file = open(path, "a")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            holder = (path.read_text() if path.exists() else "") or "another process"
            raise ValueError(
                f"{path.parent} is being written by {holder}; wait until that ends, or end it, and repeat the command"
            ) from error
        except OSError as error:
            print(f"{path.parent} cannot be locked ({error.strerror}); let one process write it", file=sys.stderr)
            return file
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()  # its holder has just removed it


def write_info(folder: Path, info: Mapping[str, Any]) -> None:
    """Rewrites run.json atomically."""
    replace_file(folder / RUN, json.dumps(info, indent=2) + "\n")


def read_run(folder: Path) -> Run:
    """Reads a run. Raises ValueError naming the file when something is missing, cut off or not a run of this schema."""
    for name in (CONFIG, RUN):
        if not (folder / name).exists():
            raise ValueError(f"{folder} is not a run directory: it has no {name}")
    info, config = _read_json(folder / RUN), _read_config(folder)
    schema = info.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise ValueError(f"{folder / RUN} has schema {schema}, this version reads {SCHEMA}; update it to read that run")
    missing = [key for known, keys in ((info, INFO_KEYS), (config, CONFIG_KEYS)) for key in keys if key not in known]
    if schema != SCHEMA or missing:
        what = f"nothing says its {missing[0]}" if schema == SCHEMA else f"{RUN} has schema {schema}, not {SCHEMA}"
        raise ValueError(f"{folder} holds no run of this package ({what}); leave it out")
    records, cut_off = SAMPLES.read(folder)
    if cut_off:
        raise ValueError(cut_off[0])
    return Run(folder, config, info, list(records.values()))


def read_info(folder: Path) -> dict[str, Any]:
    """What run.json says, nothing where there is none yet."""
    return _read_json(folder / RUN) if (folder / RUN).exists() else {}


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Run directories at or below the paths, sorted. Raises ValueError when a path holds none."""
    found: list[Path] = []
    for path in paths:
        below = sorted(file.parent for file in path.rglob(RUN)) if path.is_dir() else []
        if not below:
            raise ValueError(f"{path} holds no run (no {RUN} at or below it)")
        found += [folder for folder in below if folder not in found]
    return found


def readable_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs at or below the paths in order of their folders, and a sentence for every folder that is skipped:
    foreign, damaged, of a newer version, or samples without a run.json. Deletes nothing.

    Raises ValueError when a path holds no run at all, or when every one is skipped.
    """
    folders: list[Path] = []
    for path in paths:
        below = (
            sorted({file.parent for name in (RUN, f"{SAMPLES.name}.jsonl") for file in path.rglob(name)})
            if path.is_dir()
            else []
        )
        folders += [folder for folder in below or find_runs([path]) if folder not in folders]
    runs, skipped = [], []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except OSError as error:
            skipped.append(f"{folder} cannot be read ({error.strerror})")
        except ValueError as error:
            skipped.append(str(error))
    if not runs:
        raise ValueError("; ".join(skipped))
    return runs, skipped


def provenance() -> dict[str, Any]:
    """Where numbers come from: package versions, and the git commit where the code runs from a checkout."""
    here = Path(__file__).parent
    commit = _git(here, "rev-parse", "HEAD")
    return {
        "git": {"commit": commit, "dirty": bool(_git(here, "status", "--porcelain"))} if commit else None,
        "versions": {name: version(name) for name in ("dllm-parallelbench", "torch", "transformers")},
    }


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _first_difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> tuple[str, Any, Any]:
    for key in [*new, *(key for key in old if key not in new)]:
        a, b = old.get(key, "nothing"), new.get(key, "nothing")
        if isinstance(a, Mapping) and isinstance(b, Mapping) and a != b:
            return _first_difference(a, b, f"{prefix}{key}.")
        if a != b and key != "out_dir":
            return f"{prefix}{key}", a, b
    return "config", "another", "this one"


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML; restore it or choose another out_dir") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no config; restore it or choose another out_dir")
    return as_written_today(content)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); delete it and repeat the run's command") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no run; delete it and repeat the run's command")
    return content
