"""What the conf folder offers, read as text: nothing that its files name is imported."""

import re
import sys
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
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


def option_file(group: str, name: str, mine: Path | None = None) -> Path:
    """The file of an option: the user's own, or else ours."""
    own = mine / group / f"{name}.yaml" if mine else None
    return own if own and own.exists() else CONF / group / f"{name}.yaml"


def comments(file: Path) -> list[str]:
    """Whole lines of comment, without those that are for Hydra."""
    lines = (line[1:].strip() for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    return [line for line in lines if not line.startswith("@")]


def verified(model: str, mine: Path | None = None) -> str:
    """What the file of a model says was verified of it, briefly; nothing where it says nothing."""
    said = (
        line.partition("verified: ")[2]
        for line in comments(option_file("model", model, mine))
        if line.startswith("verified: ")
    )
    return next(said, "").partition(";")[0]


@cache
def settings() -> dict[str, tuple[str, str]]:
    """The plain keys of conf/run.yaml with default and comment."""
    text = (CONF / f"{RUN}.yaml").read_text(encoding="utf-8")
    found = re.findall(r"^(\w+): (\S+) # (.+)$", text, flags=re.MULTILINE)
    return {key: (default, about) for key, default, about in found}


def folder(name: str) -> Path:
    """A --config-dir. Raises ValueError where there is no such folder. Modules that its files name are found in it,
    in the folder that holds it, and in the current one."""
    mine = Path(name).resolve()
    if not mine.is_dir():
        raise ValueError(f"--config-dir {name} is not a folder; it holds folders such as decoder with yaml files")
    sys.path += [place for place in map(str, (mine.parent, mine)) if place not in sys.path]
    return Path(name)


def config_dir(words: Sequence[str]) -> Path | None:
    """The --config-dir of a command's words, if there is one. Raises ValueError as `folder` does."""
    for flag, value in pairwise([*(part for word in words for part in word.split("=", 1)), ""]):
        if flag in ("--config-dir", "-cd", "config_dir"):
            return folder(value)
    return None
