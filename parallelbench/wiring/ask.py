"""The command `run`: its words are checked against the conf folder before the libraries that decode are loaded."""

import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

from parallelbench.wiring.catalogue import LISTED, options, settings
from parallelbench.wiring.menu import COMMANDS, VALUED, WIDTH, plain, table

FLAGS = ("--multirun", "--run", "--resolve", "--hydra-help", "--version", "--help", "--info")
OTHER_ROOT = ("--config-name", "-cn", "--config-path", "-cp")
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")  # how launchers count processes


def main(arguments: Sequence[str]) -> None:
    if {"-h", "--help"} & set(arguments):
        print(page())
        return
    if any(word.startswith(("-sc", "--shell-completion")) for word in arguments):
        raise ValueError("write `parallelbench completion bash`; it completes every command")
    refused, overrides, words = "", [], []
    try:
        words = plain(arguments, FLAGS, VALUED)
        sweeps = bool({"-m", "--multirun"} & set(words))
        words = [word if sweeps and "," in word else bracketed(word) for word in words]
        overrides = [word for word in words if "=" in word and not word.startswith("-")]
        _check_words(words)
        if not any(word.startswith(OTHER_ROOT) for word in words):
            from parallelbench.wiring.overrides import check_overrides  # and with it Hydra

            check_overrides([*overrides, *(word for word in words if word.startswith("~"))], _config_dir(words))
    except ValueError as error:
        if all(os.environ.get(name, "1") == "1" for name in SIZES):
            raise
        refused = str(error)  # by all processes together, and said by one
    sys.argv = ["parallelbench run", *(word for word in words if word not in overrides), *overrides]  # side by side
    if sys.stderr.isatty():
        print("loading PyTorch, which takes some seconds", end="\r", file=sys.stderr, flush=True)
    from parallelbench.wiring.sweep import sweep  # and with it everything that decodes

    sweep(refused)


def page() -> str:
    """What `run --help` prints."""
    command = COMMANDS["run"]
    lines = [f"python -m parallelbench run {command.takes}", "", *wrap(command.about, WIDTH), ""]
    lines += [
        "Choose one of each group; `list GROUP` says what they are, `show decoder NAME` what their knobs are:",
        "",
    ]
    lines += table([(f"  {group}=", ", ".join(options(group))) for group in LISTED])
    lines += ["", "Set these; a part's own settings are reached with dots, as in decoder.rule.tau=0.8:", ""]
    lines += table([(f"  {key}={default}", about) for key, (default, about) in settings().items()])
    lines += ["", "--limit 10 is understood as limit=10. Flags:", ""]
    lines += table(
        [
            ("  -m", "sweep: one run per combination of the values that commas separate"),
            ("  --cfg job", "print the whole configuration and run nothing"),
            ("  --config-dir DIR", "a folder with options of your own"),
        ]
    )
    assert max(map(len, lines)) <= WIDTH
    return "\n".join(lines)


def bracketed(word: str) -> str:
    """A list of a suite's, suite.tasks=a,b or suite.tasks=a, as Hydra wants it: suite.tasks=[a,b]."""
    return re.sub(r"^(suite\.(?:tasks|lengths|templates))=([^\[\]'\"$]+)$", r"\1=[\2]", word)


def folder(name: str) -> Path:
    """A --config-dir. Raises ValueError where it is none."""
    if not Path(name).is_dir():
        raise ValueError(f"--config-dir {name} is no folder; it holds folders such as decoder with yaml files")
    return Path(name)


def _check_words(words: Sequence[str]) -> None:
    """Raises ValueError for a word that is neither a setting nor a flag nor a flag's value, and for a plain key
    without a value."""
    for before, word in pairwise(["", *words]):
        if not word.startswith(("-", "~")) and "=" not in word and before not in VALUED:
            raise ValueError(f"{word!r} is no setting of a run; write settings as KEY=VALUE, such as limit=10")
        if word.endswith("=") and word[:-1] in settings():
            raise ValueError(f"{word} has no value; write {word}{settings()[word[:-1]][0]}")


def _config_dir(words: Sequence[str]) -> Path | None:
    """Where options of the user's own are. Raises ValueError where there is no such folder."""
    for flag, value in pairwise([*(part for word in words for part in word.split("=", 1)), ""]):
        if flag in ("--config-dir", "-cd"):
            return folder(value)
    return None
