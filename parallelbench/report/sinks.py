"""Where a run's numbers also go: Weights & Biases, TensorBoard, or anything that opens a Log.

The local files are the record. A finished run is read from them and sent, so killing and resuming it changes nothing,
and a sink that fails costs one sentence: `sent.json` beside the run names the sinks that have it, and the same command
sends it to those that have not. A sink is no part of a run's identity.
"""

import json
import netrc
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlparse

import numpy as np
import yaml
from PIL import Image

from parallelbench.records.record import Run, config_hash, read_run
from parallelbench.report import plots
from parallelbench.report.markdown import table_head, table_row
from parallelbench.stats.curves import curve_names, run_names
from parallelbench.stats.metrics import ALL, METRICS, Value, aggregate

SENT = "sent.json"
SAMPLES_SHOWN = 20  # of each task
Row = Sequence[str | int | float]


@runtime_checkable
class Log(Protocol):
    """One run, sweep or training in a sink. log: numbers at a step. close: all is sent."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def table(self, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None: ...
    def plot(self, name: str, png: Path) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class Sink(Protocol):
    """name: a word that is the same for the same run, unlike any other's."""

    def open(self, name: str, config: Mapping[str, Any]) -> Log: ...


Sinks = Mapping[str, Sink]


@dataclass(frozen=True)
class Wandb:
    """Weights & Biases. Offline, below `folder`, without a key (WANDB_API_KEY or a login in ~/.netrc) unless WANDB_MODE
    says otherwise; never asks for one. `wandb sync` sends what was kept."""

    project: str = "parallelbench"
    folder: str = "results/wandb"

    def __post_init__(self) -> None:
        _require("wandb")

    def open(self, name: str, config: Mapping[str, Any]) -> Log:
        import wandb  # pyright: ignore[reportMissingImports]

        Path(self.folder).mkdir(parents=True, exist_ok=True)
        mode = os.environ.get("WANDB_MODE") or ("online" if _wandb_key() else "offline")
        run = wandb.init(
            project=self.project,
            id=name,
            name=name,
            config=dict(config),
            dir=self.folder,
            mode=mode,  # type: ignore[arg-type]
            resume="allow" if mode == "online" else None,  # sent twice it is still one run
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True),
        )
        return _WandbLog(run)


@dataclass(frozen=True)
class _WandbLog:
    run: Any

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self.run.log({name: wandb.Table(columns=list(columns), data=[list(row) for row in rows])}, commit=False)

    def plot(self, name: str, png: Path) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self.run.log({name: wandb.Image(str(png))}, commit=False)

    def close(self) -> None:
        self.run.finish()


@dataclass(frozen=True)
class TensorBoard:
    """Event files for `tensorboard --logdir FOLDER`, a folder each below it."""

    folder: str = "results/tensorboard"

    def __post_init__(self) -> None:
        _require("tensorboard")

    def open(self, name: str, config: Mapping[str, Any]) -> Log:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(Path(self.folder) / name))
        writer.add_text("config", f"```\n{yaml.safe_dump(dict(config), sort_keys=False)}```")
        return _TensorBoardLog(writer)


@dataclass(frozen=True)
class _TensorBoardLog:
    writer: Any

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        cells = ([str(cell).replace("|", "\\|").replace("\n", "<br>") for cell in row] for row in rows)
        self.writer.add_text(name, "\n".join([*table_head(columns), *map(table_row, cells)]))

    def plot(self, name: str, png: Path) -> None:
        self.writer.add_image(name, np.asarray(Image.open(png).convert("RGB")), dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


class Logs:
    """A Log that hands everything to one Log of each sink. A sink that fails is named on stderr and left alone from
    then on; nothing is raised. failed: those sinks."""

    def __init__(self, sinks: Sinks, name: str, config: Mapping[str, Any]) -> None:
        self.name, self.failed = name, set[str]()
        self._logs: dict[str, Log] = {}
        for key, sink in sinks.items():
            self.attempt(key, lambda key=key, sink=sink: self._logs.update({key: sink.open(name, config)}))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._each(lambda log: log.log(step, values))

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self._each(lambda log: log.table(name, columns, rows))

    def plot(self, name: str, png: Path) -> None:
        self._each(lambda log: log.plot(name, png))

    def close(self) -> None:
        self._each(lambda log: log.close())

    def _each(self, work: Callable[[Log], None]) -> None:
        for key, log in list(self._logs.items()):
            self.attempt(key, lambda log=log: work(log))

    def attempt(self, key: str, work: Callable[[], None]) -> None:
        """Does what a sink asks for, whatever comes of it."""
        try:
            work()
        except Exception as error:
            self.failed.add(key)
            if (log := self._logs.pop(key, None)) is not None:
                with suppress(Exception):
                    log.close()
            what = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"sink {key} does not have {self.name} ({what}); the local files do", file=sys.stderr, flush=True)


def publish(run: Run, sinks: Sinks) -> None:
    """Sends a finished run to the sinks that do not have it yet: config, metrics, a table of its tasks, one of its
    first samples, and plots."""
    metrics = aggregate(run.records)
    shown: dict[str, list[Row]] = {}
    for record in run.records:
        row = (record.task, record.id, record.prompt, record.target, record.completion)
        shown.setdefault(record.task, []).append((*row, record.scores["score"], record.nfe, record.num_tokens))

    def fill(log: Log) -> None:
        log.log(0, {f"{task}/{name}": v.value for task, row in metrics.items() for name, v in row.items()})
        rows = [[task, row["score"].n, *_numbers(row)] for task, row in metrics.items()]
        log.table("tasks", ["task", "n", *NUMBERS], rows)
        samples = [row for rows in shown.values() for row in rows[:SAMPLES_SHOWN]]
        log.table("samples", ["task", "id", "prompt", "target", "completion", "score", "nfe", "tokens"], samples)
        with TemporaryDirectory() as folder:
            for name, figure in _figures(run, metrics).items():
                plots.save(figure, Path(folder) / name)
                log.plot(name, Path(folder) / f"{name}.png")

    described = {key: value for key, value in run.info.items() if key not in ("metrics", "schema", "status")}
    _send(run.folder, sinks, _word(run), {**run.config, "run": described}, fill)


def publish_sweep(folders: Sequence[Path], sinks: Sinks) -> None:
    """Sends the summary of a sweep: a row and a point per run."""
    runs = sorted((read_run(folder) for folder in folders), key=lambda run: str(run.folder))
    names, measured = run_names(runs), [aggregate(run.records)[ALL] for run in runs]
    name = f"sweep-{config_hash({'runs': [run.info['config_hash'] for run in runs]})}"
    curves: dict[str, list[tuple[str, Value, Value]]] = {}
    for curve, label, row in zip(curve_names(names, runs), names, measured, strict=True):
        knobs = " ".join(part for part in label.split() if part not in curve.split())
        curves.setdefault(curve, []).append((knobs, row["tpf"], row["score"]))

    def fill(log: Log) -> None:
        rows = [
            [label, str(run.folder), run.info["device"], run.config["batch_size"], row["score"].n, *_numbers(row)]
            for label, run, row in zip(names, runs, measured, strict=True)
        ]
        log.table("runs", ["run", "folder", "device", "batch size", "n", *NUMBERS], rows)
        best = max(row["score"].value for row in measured)
        log.log(
            0, {"runs": float(len(runs)), "best score": best, "most TPF": max(row["tpf"].value for row in measured)}
        )
        with TemporaryDirectory() as folder:
            plots.save(plots.quality_against_tpf(curves, f"{name}: quality against TPF"), Path(folder) / "quality_tpf")
            log.plot("quality_tpf", Path(folder) / "quality_tpf.png")

    _send(runs[0].folder, sinks, name, {"runs": [str(run.folder) for run in runs]}, fill)


def _word(run: Run) -> str:
    """The folder's name with the run's hash, which it mostly has."""
    name, identity = run.folder.resolve().name, run.info["config_hash"]
    return re.sub(r"[^\w.-]", "-", name if name.endswith(identity) else f"{name}-{identity}")


NUMBERS = [f"{name}{part}" for name in METRICS for part in ("", " low", " high")]


def _numbers(row: Mapping[str, Value]) -> list[float]:
    return [number for name in METRICS for number in (row[name].value, row[name].ci_low, row[name].ci_high)]


def _figures(run: Run, metrics: Mapping[str, Mapping[str, Value]]) -> dict[str, plots.Figure]:
    (name,) = run_names([run])
    orders: dict[str, list[Sequence[int]]] = {}
    for record in run.records:
        orders.setdefault(record.task, []).append(record.committed_at)
    bars = {name: {task: row["score"] for task, row in metrics.items()}}
    return {
        "tasks": plots.task_bars(bars, [name], "score per task, 95 % intervals"),
        "commit_order": plots.commit_order({t: _padded(rows) for t, rows in orders.items()}, f"commits, {name}"),
    }


def _padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Responses of a task may differ in length; -1 stands for no commit."""
    return np.array(list(zip_longest(*rows, fillvalue=-1))).T


def _send(folder: Path, sinks: Sinks, name: str, config: Mapping[str, Any], fill: Callable[[Log], None]) -> None:
    """Fills a Log of every sink that `sent.json` does not name for this, and names there those that did not fail."""
    path = folder / SENT
    sent: list[str] = json.loads(path.read_text()) if path.exists() else []
    for key, sink in sinks.items():
        what = f"{name} in {key} ({sink})"
        if what in sent:
            continue
        logs = Logs({key: sink}, name, config)
        logs.attempt(key, lambda logs=logs: fill(logs))
        logs.close()
        if not logs.failed:
            sent.append(what)
            path.with_name(f"{SENT}.tmp").write_text(json.dumps(sent, indent=2) + "\n")
            os.replace(f"{path}.tmp", path)


def _require(package: str) -> None:
    if find_spec(package) is None:
        raise ValueError(f"sink={package} needs {package}; pip install 'dllm-parallelbench[logging]'")


def _wandb_key() -> bool:
    """Whether wandb could log in without asking."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    for path in filter(None, (os.environ.get("NETRC"), Path("~/.netrc"), Path("~/_netrc"))):
        try:
            if netrc.netrc(Path(path).expanduser()).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
