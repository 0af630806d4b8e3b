"""The command `run`: its words are checked against the conf folder before the libraries that decode are loaded."""

import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from textwrap import wrap

from parallelbench.report.options import without_format
from parallelbench.tasks.wording import whole_name
from parallelbench.wiring.catalogue import LISTED, config_dir, options, settings
from parallelbench.wiring.menu import COMMANDS, VALUED, WIDTH, plain, table

FLAGS = ("--multirun", "--run", "--resolve", "--hydra-help", "--version", "--help", "--info")
SHORT = ("-m", "-r", "-i")
SHOWS = ("job", "hydra", "all")  # of --cfg
OTHER_ROOT = ("--config-name", "-cn", "--config-path", "-cp")
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")  # how launchers count processes


def main(arguments: Sequence[str]) -> None:
    if {"-h", "--help"} & set(arguments):
        print(page())
        return
    if any(word.startswith(("-sc", "--shell-completion")) for word in arguments):
        raise ValueError("write `parallelbench completion bash`; it completes every command")
    refused, overrides, words, wants_json = "", [], [], False
    try:
        wants_json, words = without_format(plain(arguments, FLAGS, VALUED))
        sweeps = bool({"-m", "--multirun"} & set(words)) or any(word.startswith("hydra.mode=") for word in words)
        words = [bracketed(word, sweeps) for word in words]
        overrides = [word for word in words if "=" in word and not word.startswith("-")]
        check_words(words)
        if not any(word.startswith(OTHER_ROOT) for word in words):
            from parallelbench.wiring.overrides import check_given, check_overrides  # and with it Hydra

            given = [*overrides, *(word for word in words if word.startswith("~"))]
            config = check_overrides(given, config_dir(words), sweeps)
            if not {"--cfg", "-c"} & set(words):
                check_given(config)
    except ValueError as error:
        if all(os.environ.get(name, "1") == "1" for name in SIZES):
            raise
        refused = str(error)  # by all processes together, and said by one
    sys.argv = ["parallelbench run", *(word for word in words if word not in overrides), *overrides]  # side by side
    if sys.stderr.isatty():
        print("loading PyTorch, which takes a few seconds", end="\r", file=sys.stderr, flush=True)
    from parallelbench.wiring.sweep import sweep  # and with it everything that decodes

    sweep(refused, wants_json)


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
            ("  --format json", "one object on stdout at the end, and all else on stderr"),
        ]
    )
    assert max(map(len, lines)) <= WIDTH
    return "\n".join(lines)


def bracketed(word: str, sweeps: bool = False) -> str:
    """A list of a suite's, suite.tasks=a,b or suite.tasks=a, as Hydra wants it: suite.tasks=[a,b], and in a sweep
    suite.tasks=[a],[b]. Tasks have their whole names then, `waiting_line/copy` for `copy`."""
    key, _, value = word.partition("=")
    if key not in ("suite.tasks", "suite.lengths", "suite.templates") or re.search("['\"$(]", value):
        return word
    if not value.startswith("["):
        value = f"[{value.replace(',', '],[') if sweeps else value}]" if value else value
    if key == "suite.tasks":
        value = re.sub(r"[^\[\],\s]+", lambda name: whole_name(name[0], _task_names()), value)
    return f"{key}={value}"


@cache
def _task_names() -> tuple[str, ...]:
    from parallelbench.tasks import named_tasks

    return tuple(named_tasks())


def check_words(words: Sequence[str]) -> None:
    """Raises ValueError for a word that is neither a setting nor a flag nor a flag's value, and for a plain key
    or a flag without its value."""
    for flag, value in pairwise([*words, ""]):
        name, equals, inside = flag.partition("=")
        given = inside if equals else value
        if flag.startswith("-") and name not in (*FLAGS, *SHORT, *VALUED):
            raise ValueError(f"{flag} is no flag of run; `parallelbench run --help` shows them")
        if name == "--experimental-rerun":
            raise ValueError(f"{name} would leave out all other words; give the command of the run instead")
        if name in VALUED and (not given or given.startswith("-")):
            raise ValueError(f"{name} has no value; give one after it, or leave it out")
        if name in ("--package", "-p") and given.partition(".")[0] not in (*settings(), *LISTED, "hydra", "_global_"):
            raise ValueError(f"{name} {given} is no part of the config of a run; give one, such as {name} decoder")
        if name in ("--cfg", "-c") and given not in SHOWS:
            raise ValueError(f"{name} {given} shows nothing; give {' or '.join(SHOWS)}")
    for before, word in pairwise(["", *words]):
        if not word.startswith(("-", "~")) and "=" not in word and before not in VALUED:
            raise ValueError(f"{word!r} is not a setting; write settings as KEY=VALUE, such as limit=10")
        if word.endswith("=") and word[:-1] in settings():
            raise ValueError(f"{word} has no value; write {word}{settings()[word[:-1]][0]}")
