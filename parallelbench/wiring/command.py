"""From a run back to the command that repeats it, and from trained weights to the command that decodes with them."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from dllm.validation import shown
from parallelbench.records.facts import flatten
from parallelbench.records.record import Run
from parallelbench.wiring.catalogue import GROUPS, settings
from parallelbench.wiring.conf import CONF, doubt, resolved

WORDS = ("null", "true", "false", "nan", "inf")  # what YAML and Hydra take for something else than text


def command(run: Run) -> str:
    """The command that repeats a run: its choices, and every value that they alone would not give. A comment instead,
    which says why, where the command could do more than run parts of this package."""
    if found := _doubt(run):
        return f"# no command: its config says {found}; repeat your own command if that run is yours"
    choices = tuple(f"{group}={option}" for group, option in run.info["choices"].items())
    usual = _usual(choices)
    wanted = {key: value for key, value in flatten(run.config).items() if key != "out_dir"}
    changed = {key: value for key, value in wanted.items() if key not in usual or usual[key] != value}
    overrides = [f"{'' if key in usual else '++'}{key}={_hydra_value(value)}" for key, value in changed.items()]
    overrides += [f"~{key}" for key in usual if key not in wanted and key != "out_dir"]
    return shlex.join(["python", "-m", "parallelbench", "run", *choices, *overrides])


def _doubt(run: Run) -> str:
    """What a run says of itself that its command must not say."""
    for group, option in run.info["choices"].items():
        if group not in GROUPS or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", option):
            return f"{shown(group, quoted=False)}={shown(option)}, which is no choice of a run"
    for key in run.config:
        if key not in (*GROUPS, *settings()):
            return f"{shown(key, quoted=False)}={shown(run.config[key])}, which is no setting of a run"
    return doubt(run.config, GROUPS)


def trained(weights: Path, loss: str, parts: Sequence[str], model: Mapping[str, object]) -> str:
    """What a training has to say at its end. loss: in words. parts: what is chosen of each group to decode with the
    weights. model: further settings of the model."""
    values = [
        f"{'' if key == 'name_or_path' else '+'}model.{key}={_hydra_value(value)}" for key, value in model.items()
    ]
    shown = shlex.join(["python", "-m", "parallelbench", "run", *parts, *values])
    return f"{weights} has a {loss}; this decodes with it: {shown}"


@lru_cache
def _usual(choices: tuple[str, ...]) -> Mapping[str, object]:
    """The settings that choices alone give; the runs of a sweep share theirs."""
    try:
        with hydra.initialize_config_dir(str(CONF), version_base=None):
            return flatten(resolved(hydra.compose("run", list(choices)), missing_ok=True))
    except (HydraException, OmegaConfBaseException):  # an option of the user's own, from a --config-dir
        return {}


def _hydra_value(value: object) -> str:
    """A value in Hydra's grammar of overrides, quoted where its words would mean something."""
    if isinstance(value, list):
        return f"[{','.join(map(_hydra_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}: {_hydra_value(item)}' for key, item in value.items())}}}"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_/][\w/.-]*", value) and value not in WORDS
    return str(value) if plain else json.dumps(value)
