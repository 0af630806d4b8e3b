"""Texts of the text tasks, drawn from our own templates in data/*.yaml: word sets with a sentence, sentences with
paraphrases, conversations with a summary. Plain ASCII; every text passes the default grammar backend."""

import random
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Any

import yaml

from parallelbench.tasks.names import FIRST_NAMES

LEVELS = ("easy", "medium", "hard")


def draw_words(level: str, rng: random.Random) -> tuple[list[str], str]:
    """Four words in random order and a sentence that contains them."""
    theme = rng.choice(_data("words")[level])
    frame = rng.choice(theme["frames"])
    kinds = {slot: slot.rstrip("0123456789") for _, slot, _, _ in Formatter().parse(frame) if slot}  # thing2: a thing
    chosen = {slot: rng.choice(theme["slots"][kind]) for slot, kind in kinds.items()}
    while len(set(chosen.values())) < len(chosen):  # two slots of one kind
        chosen = {slot: rng.choice(theme["slots"][kind]) for slot, kind in kinds.items()}
    return rng.sample(list(chosen.values()), len(chosen)), _fill(frame, chosen)


def draw_paraphrases(rng: random.Random) -> tuple[str, list[str]]:
    """A sentence and at least two others that say the same."""
    family = rng.choice(_data("paraphrases"))
    chosen = _choose(family, rng)
    source, *others = (
        _fill(form, {slot: rng.choice(wordings) for slot, wordings in chosen.items()})
        for form in rng.sample(family["forms"], len(family["forms"]))
    )
    return source, others


def draw_dialogue(rng: random.Random) -> tuple[str, str]:
    """A conversation of 3 to 8 turns, `Name: text` a line, and its summary."""
    data = _data("dialogues")
    situation, extra = rng.choice(data["situations"]), rng.choice(data["extras"])
    a, b, *others = rng.sample(FIRST_NAMES, 4)
    names = {"a": a, "b": b, "c": others[0]}
    scene = {slot: rng.choice(wordings) for slot, wordings in _choose(situation, rng).items()} | names
    opening = rng.choice(data["openings"]) if rng.random() < 0.4 else []
    turns = [_fill(rng.choice(turn), scene) for turn in [*opening, *situation["turns"]]]
    summary = _fill(rng.choice(situation["summary"]), scene)
    if rng.random() < 0.5:
        x, y = (a, b) if len(turns) % 2 == 0 else (b, a)
        aside = {slot: rng.choice(wordings) for slot, wordings in _choose(extra, rng).items()}
        aside |= {"x": x, "y": y, "c": others[1]}
        turns += [_fill(rng.choice(turn), aside) for turn in extra["turns"]]
        summary += " " + _fill(rng.choice(extra["summary"]), aside)
    elif rng.random() < 0.5:
        turns.append(rng.choice(data["closings"]))
    return "\n".join(f"{(a, b)[i % 2]}: {turn}" for i, turn in enumerate(turns)), summary


def _choose(template: Mapping[str, Any], rng: random.Random) -> dict[str, list[str]]:
    """One value per slot, as its list of wordings."""
    chosen = {slot: rng.choice(values) for slot, values in template.get("slots", {}).items()}
    return {slot: [value] if isinstance(value, str) else value for slot, value in chosen.items()}


def _fill(template: str, values: Mapping[str, str]) -> str:
    """The template with its slots filled, the article fitted to the next letter, and a capital at the front."""
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", template.format(**values))
    return text[0].upper() + text[1:]


@cache
def _data(name: str) -> Any:
    return yaml.safe_load((files("parallelbench.tasks.text") / "data" / f"{name}.yaml").read_text("utf-8"))
