"""Where copies of a run's numbers go: Weights & Biases, TensorBoard, or anything that opens a Log.

The local files are the record. A finished run is read from them and sent, so it can be killed and resumed at any time.
A sink that fails costs one sentence (`publish.py`). A sink is no part of a run's identity.
"""

import netrc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlparse

import numpy as np
import yaml

from parallelbench.report.markdown import table

Row = Sequence[str | int | float | None]


@runtime_checkable
class Log(Protocol):
    """One run, sweep or training in a sink. log: numbers at a step. close: all is sent."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def table(self, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None: ...
    def plot(self, name: str, png: Path) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class Sink(Protocol):
    """Opens a Log. name: a word that is the same for the same run and belongs to no other."""

    def open(self, name: str, config: Mapping[str, Any]) -> Log: ...


Sinks = Mapping[str, Sink]


@dataclass(frozen=True)
class Wandb:
    """Weights & Biases. Without a key (WANDB_API_KEY, or a login in ~/.netrc) it writes offline below `folder`, unless
    WANDB_MODE says otherwise. It never asks for a key. `wandb sync` sends what was kept."""

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
        return _WandbLog(run, wandb)


@dataclass(frozen=True)
class _WandbLog:
    run: Any
    wandb: Any

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self.run.log({name: self.wandb.Table(columns=list(columns), data=[list(row) for row in rows])}, commit=False)

    def plot(self, name: str, png: Path) -> None:
        self.run.log({name: self.wandb.Image(str(png))}, commit=False)

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
        cells = (
            ["" if cell is None else str(cell).replace("|", "\\|").replace("\n", "<br>") for cell in row]
            for row in rows
        )
        self.writer.add_text(name, "\n".join(table(columns, cells)))

    def plot(self, name: str, png: Path) -> None:
        from PIL import Image

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
