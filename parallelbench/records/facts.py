"""What a run states of itself when it is written, so that no reader has to know its classes."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

WORDS = ("null", "true", "false", "nan", "inf")  # what YAML and Hydra take for something else than text


@dataclass(frozen=True)
class Facts:
    """What readers need to know of a run besides its numbers. Its decoder states all but the last two, and what it does
    not state is as below. run.json has them all: readers take no run that lacks one.

    is_baseline: one token per forward by confidence, or autoregressive, and nothing else.
    is_autoregressive: an autoregressive model writes its own text. It has no blocks, and a cache and an end of its own.
    fixed_number, commits_k, block_is_knob: as `decoders.CommitRule` declares them, false for a loop of its own.
    is_ceiling: its decisions were made with knowledge that no method has; not to be ranked among methods.
    text_of: name and knobs of the decoder whose text it writes in fewer forwards, but for rounding: `threshold
        tau=0.9`. Empty where its text is its own.
    generation: v1 or v2 of ParallelBench's data, empty for other data.
    knobs: the settings of the commit rule and of the revision, or of a loop of its own, by their dotted keys.
    """

    is_baseline: bool = False
    is_autoregressive: bool = False
    fixed_number: bool = False
    commits_k: bool = False
    block_is_knob: bool = False
    is_ceiling: bool = False
    text_of: str = ""
    generation: str = ""
    knobs: Mapping[str, object] = field(default_factory=dict)


def knobs_of(config: Mapping[str, Any]) -> dict[str, object]:
    """A config's knobs, as in `Facts`."""
    prefixes = ("decoder.rule.", "decoder.revise.") if "rule" in config["decoder"] else ("decoder.",)
    settings = flatten(config).items()
    return {key: value for key, value in settings if key.startswith(prefixes) and not key.endswith("_target_")}


def short_names(keys: Collection[str]) -> dict[str, str]:
    """The last parts of dotted keys, as many as tell them apart: `tau`, but `rule.tau` where there is `revise.tau`."""
    parts = {key: key.split(".") for key in keys}

    def short(key: str) -> str:
        for kept in range(1, len(parts[key])):
            if sum(other[-kept:] == parts[key][-kept:] for other in parts.values()) == 1:
                return ".".join(parts[key][-kept:])
        return key

    return {key: short(key) for key in keys}


def flatten(config: object, prefix: str = "") -> dict[str, object]:
    """The values of nested settings by their dotted names."""
    if isinstance(config, Mapping):
        items = config.items()
    elif isinstance(config, list) and any(isinstance(item, Mapping) for item in config):
        items = enumerate(config)
    else:
        return {prefix.rstrip("."): config}
    flat: dict[str, object] = {}
    for key, value in items:
        flat |= flatten(value, f"{prefix}{key}.")
    return flat


def hydra_value(value: object) -> str:
    """A value in Hydra's grammar of overrides, quoted where its words would mean something."""
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}: {hydra_value(item)}' for key, item in value.items())}}}"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_/][\w/.-]*", value) and value not in WORDS
    return str(value) if plain else json.dumps(value)
