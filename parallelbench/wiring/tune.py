"""The command `tune`: of the runs of a sweep it decodes what a race needs, and ends with the one to take."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from parallelbench.records.files import printable
from parallelbench.report.options import points
from parallelbench.wiring.ask import bracketed, check_words
from parallelbench.wiring.catalogue import CONF, RUN, config_dir
from parallelbench.wiring.menu import VALUED, WIDTH, plain

if TYPE_CHECKING:
    from omegaconf import DictConfig

OWN = {"max_loss": "1.0", "budget": "", "by": ""}
BY = ("forwards", "columns", "seconds")
USUAL = "experiment=fixed,threshold,entropy,eb,credit,contention,factor,prefix"
SHARED = ("model", "suite", "limit", "seed", "out_dir", "launcher")  # what all configurations have in common


@dataclass(frozen=True)
class Asked:
    """words: settings of run. max_loss: points. budget: samples; minutes: in their place. by: what speed is."""

    words: tuple[str, ...]
    max_loss: float
    budget: int | None
    minutes: float | None
    by: str
    config_dir: Path | None


def main(arguments: Sequence[str]) -> None:
    asked = understood(arguments)
    if sys.stderr.isatty():
        print("loading PyTorch, which takes some seconds", end="\r", file=sys.stderr, flush=True)
    from transformers.utils import logging as transformers_logging

    from parallelbench.report.tuning import verdict
    from parallelbench.stats.racing import Race, run_race
    from parallelbench.wiring.arms import Decoding
    from parallelbench.wiring.command import command

    transformers_logging.disable_progress_bar()  # one bar, the run's
    with configs(asked) as found:
        race = Race(found[0].limit, asked.max_loss, asked.budget, asked.minutes)
        grid = Decoding(found, race, asked.by, say)
        finish = run_race(grid, race, say)
    taken = grid.runs[finish.reference if finish.choice is None else finish.choice]
    say(f"\n{verdict(grid, race, finish)}")
    print(printable(f"    {command(taken)}"))


def understood(arguments: Sequence[str]) -> Asked:
    """What the command line asks for. Raises ValueError for what it cannot mean."""
    words = plain([word for word in arguments if word not in ("-m", "--multirun")], (), VALUED)
    given = OWN | {key: value for key, _, value in (word.partition("=") for word in words) if key in OWN}
    if empty := [word for word in words if word in [f"{key}=" for key in OWN]]:
        raise ValueError(f"{empty[0]} has no value; give one, or leave it out")
    words = [bracketed(word) for word in words if word.partition("=")[0] not in OWN]
    check_words(words)
    mine = config_dir(words)
    minutes = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)min", given["budget"])
    samples = re.fullmatch(r"\d{1,9}", given["budget"])
    if given["budget"] and not re.search("[1-9]", (minutes or samples or [""])[0]):
        raise ValueError(f"budget={given['budget']}; give a number of samples such as 2000, or minutes such as 30min")
    if given["by"] and given["by"] not in BY:
        raise ValueError(f"by={given['by']}; give {', '.join(BY[:-1])} or {BY[-1]}")
    from parallelbench.wiring.overrides import check_overrides  # and with it Hydra

    words, caches = _swept([word for word in words if word.startswith("~") or ("=" in word and word[0] != "-")])
    check_overrides(words, mine)
    return Asked(
        tuple(words),
        points(given["max_loss"]),
        int(samples[0]) if samples else None,
        float(minutes[1]) if minutes else None,
        given["by"] or ("columns" if caches else "forwards"),
        mine,
    )


def _swept(words: Sequence[str]) -> tuple[list[str], bool]:
    """The words, with the usual grids where they sweep nothing, and whether they sweep caches."""
    from parallelbench.wiring.overrides import parsed

    overrides = [parsed(word) for word in words]
    swept = {str(override.key_or_group) for override in overrides if override.is_sweep_override()}
    for override in overrides:
        key = str(override.key_or_group)
        if key == "launcher" or (key in swept and key.split(".")[0] in SHARED):
            raise ValueError(
                f"{override.input_line}: tune compares configurations of one model on one suite, one after the other; "
                + ("leave it out" if key == "launcher" else "give one value")
            )
    return [*([] if swept or _chosen(words) else [USUAL]), *words], "cache" in swept


def _chosen(words: Sequence[str]) -> bool:
    return any(re.match("(decoder|experiment)[.=]", word) for word in words)


@contextmanager
def configs(asked: Asked) -> Iterator[list["DictConfig"]]:
    """The composed configs of the sweep, as long as Hydra knows its folders; each once."""
    import hydra

    from parallelbench.wiring.conf import in_one_sentence, searched
    from parallelbench.wiring.overrides import parsed
    from parallelbench.wiring.sweeper import brought, jobs

    search = [*searched(asked.config_dir), "hydra.mode=MULTIRUN"]

    def compose(words: Sequence[str]) -> "DictConfig":
        return hydra.compose(RUN, [*search, *words], return_hydra_config=True)

    with in_one_sentence(), hydra.initialize_config_dir(str(CONF), version_base=None):
        words = jobs(
            [parsed(word) for word in asked.words],
            lambda name: brought(compose([f"experiment={name}"] if name else []).hydra.sweeper),
        )
        yield [compose(job) for job in words]


def say(text: str) -> None:
    lines = [line for part in text.split("\n") for line in wrap(part, WIDTH, break_on_hyphens=False) or [""]]
    print(printable("\n".join(lines)), flush=True)
