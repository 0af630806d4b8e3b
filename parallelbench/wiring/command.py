"""From a run back to the command that repeats it."""

import re
import shlex
from collections.abc import Mapping
from functools import lru_cache

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from dllm.validation import shown
from parallelbench.records.facts import flatten, hydra_value
from parallelbench.records.record import Run
from parallelbench.wiring.catalogue import CONF, GROUPS, settings
from parallelbench.wiring.conf import doubt, resolved


def command(run: Run) -> str:
    """The command that repeats a run: its choices, and every value that they alone would not give. A comment instead,
    which says why, where the command could do more than run parts of this package."""
    if found := _doubt(run):
        return f"# no command: its config says {found}; repeat your own command if that run is yours"
    choices = tuple(f"{group}={option}" for group, option in run.info["choices"].items())
    usual = _usual(choices)
    wanted = {key: value for key, value in flatten(run.config).items() if key != "out_dir"}
    changed = {key: value for key, value in wanted.items() if key not in usual or usual[key] != value}
    overrides = [f"{'' if key in usual else '++'}{key}={hydra_value(value)}" for key, value in changed.items()]
    overrides += [f"~{key}" for key in usual if key not in wanted and key != "out_dir"]
    return shlex.join(["python", "-m", "parallelbench", "run", *choices, *overrides])


def _doubt(run: Run) -> str:
    """What a run says of itself that its command must not say."""
    for group, option in run.info["choices"].items():
        if group not in GROUPS or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", option):
            return f"{shown(group, quoted=False)}={shown(option)}, which is not a choice of a run"
    for key in run.config:
        if key not in (*GROUPS, *settings()):
            return f"{shown(key, quoted=False)}={shown(run.config[key])}, which is not a setting of a run"
    return doubt(run.config, GROUPS)


@lru_cache
def _usual(choices: tuple[str, ...]) -> Mapping[str, object]:
    """The settings that choices alone give; the runs of a sweep share theirs."""
    try:
        with hydra.initialize_config_dir(str(CONF), version_base=None):
            return flatten(resolved(hydra.compose("run", list(choices)), missing_ok=True))
    except (HydraException, OmegaConfBaseException):  # an option of the user's own, from a --config-dir
        return {}
