"""What the conf folder offers, read as text: nothing that its files name is imported."""

import os
import re
import sys
from functools import cache
from pathlib import Path

from parallelbench.records.files import CONF

GROUPS = ("model", "decoder", "cache", "stop", "suite")
LISTED = (*GROUPS, "launcher", "sink", "experiment")
RUN = "run"


def options(group: str, mine: Path | None = None) -> dict[str, str]:
    """The options of a group by name, each with the comment on the first line of its file. mine: a folder of the
    user's with further ones."""
    files = [file for folder in (CONF, mine) if folder for file in sorted((folder / group).glob("*.yaml"))]
    return {file.stem: next(iter(comments(file)), "") for file in files}


def comments(file: Path) -> list[str]:
    """Whole lines of comment, without those that are for Hydra."""
    lines = (line[1:].strip() for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    return [line for line in lines if not line.startswith("@")]


def verified(model: str, mine: Path | None = None) -> str:
    """What the file of a model says was verified of it, in short; nothing where it says nothing."""
    file = next(file for folder in (mine, CONF) if folder and (file := folder / "model" / f"{model}.yaml").exists())
    said = (line.partition("verified: ")[2] for line in comments(file) if line.startswith("verified: "))
    return next(said, "").partition(";")[0]


@cache
def settings() -> dict[str, tuple[str, str]]:
    """The plain keys of conf/run.yaml with default and comment."""
    text = (CONF / f"{RUN}.yaml").read_text(encoding="utf-8")
    found = re.findall(r"^(\w+): (\S+) # (.+)$", text, flags=re.MULTILINE)
    return {key: (default, about) for key, default, about in found}


def folder(name: str) -> Path:
    """A --config-dir. Raises ValueError where it is none. Its files may name classes of modules in the current folder,
    which `python -m` looks into and the program `parallelbench` by itself does not."""
    if not Path(name).is_dir():
        raise ValueError(f"--config-dir {name} is no folder; it holds folders such as decoder with yaml files")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    return Path(name)
