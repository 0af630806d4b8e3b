"""Arguments of the commands that are not Hydra's: paths and key=value."""

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from parallelbench.records.files import in_short
from parallelbench.records.record import Run, read_run, readable_runs


class Untrusted(ValueError):
    """What a stored config says is not done, since it could do more than describe a run."""


def whole_number(name: str, text: str, least: int = 1) -> int:
    """An option that counts. Raises ValueError unless it is a number from `least` to 999,999."""
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < least:
        raise ValueError(f"{name}={text}; give a whole number in [{least}, 999999]")
    return int(text)


def yes_or_no(name: str, text: str) -> bool:
    """An option that is on or off. Raises ValueError for another word."""
    if text not in ("true", "false"):
        raise ValueError(f"{name}={text}; give true or false")
    return text == "true"


def without_format(words: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether format=json is among the words, and the others. Raises ValueError as `is_json` does."""
    given = dict(word.split("=", 1) for word in words if word.startswith("format="))
    return is_json(given.get("format", "text")), [word for word in words if not word.startswith("format=")]


def is_json(text: str) -> bool:
    """The option format. Raises ValueError for another than text or json."""
    if text not in ("text", "json"):
        raise ValueError(f"format={text}; give text or json")
    return text == "json"


def points(text: str) -> float:
    """The option max_loss. Raises ValueError unless it is a number between 0 and 100."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < 100:
        raise ValueError(f"max_loss={text} is no number of points between 0 and 100; give one such as max_loss=1.0")
    return number


def split_options(
    arguments: Sequence[str], defaults: Mapping[str, str], needs_paths: bool = True
) -> tuple[list[Path], dict[str, str]]:
    """Paths and key=value options. Raises ValueError for a key that is unknown or has no value, or
    without a path where one is needed."""
    options = dict(defaults)
    paths = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in options:
            if not value:
                raise ValueError(f"{key}= has no value; give one, or leave it out")
            options[key] = value
        elif equals and not os.path.exists(argument):
            known = ", ".join(f"{key}=" for key in defaults) or "none"
            raise ValueError(f"unknown option {argument!r}; choose among {known}")
        else:
            paths.append(Path(argument))
    if needs_paths and not paths:
        raise ValueError("no run directory given; name at least one")
    return paths, options


def with_tables(
    arguments: Sequence[str], out_dir: str, to_do: str, **more: str
) -> tuple[list[Path], list[Path], list[Path], dict[str, str]]:
    """Paths, the CSV and the leaderboard files that options name, and the options, of commands that read published
    tables. more: options of the command with their defaults. Raises ValueError without any of them."""
    defaults = {"csv": "", "leaderboard": "", "generation": "", "out_dir": out_dir, **more}
    paths, options = split_options(arguments, defaults, needs_paths=False)
    csvs, boards = ([Path(name) for name in options[key].split(",") if name] for key in ("csv", "leaderboard"))
    if not (paths or csvs or boards):
        raise ValueError(f"nothing to {to_do}; name run directories, csv=FILE or leaderboard=FILE")
    return paths, csvs, boards, options


def found_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs at or below the paths; folders that hold none are named on stderr. Raises ValueError without any."""
    runs, skipped = readable_runs(paths)
    _name_skipped(skipped)
    return runs


def suite_run(folder: Path) -> Run:
    """The run in a folder. Raises ValueError as `read_run` does, and for trajectories for training."""
    run = read_run(folder)
    if not run.info["choices"]:
        raise ValueError(f"{_no_suite(folder)}; name another")
    return run


def _no_suite(folder: Path) -> str:
    return f"{folder} holds trajectories for training, not a run of a suite"


def suite_runs(paths: Sequence[Path]) -> list[Run]:
    """The same without trajectories for training, which are named like them."""
    runs = found_runs(paths)
    chosen = [run for run in runs if run.info["choices"]]
    others = [run.folder for run in runs if not run.info["choices"]]
    reasons = [_no_suite(folder) for folder in others]
    if not chosen:
        raise ValueError("; ".join(reasons))
    _name_skipped(reasons)
    return chosen


def _name_skipped(reasons: Sequence[str]) -> None:
    for why in reasons:
        print(f"skipped: {in_short(why)}", file=sys.stderr)
