"""Rejects settings and options that do not exist, and names the closest that do, before a sweep writes any file."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf

from parallelbench.records.facts import flatten
from parallelbench.wiring.catalogue import CONF
from parallelbench.wiring.conf import in_one_sentence


def check_overrides(overrides: Sequence[str], config_dir: Path | None = None) -> None:
    """Raises ValueError, with the closest match, for a setting or option that does not exist. Tries the first job of
    the sweep as Hydra would make it, and in it each other option that the sweep chooses."""
    with in_one_sentence(), hydra.initialize_config_dir(str(CONF), version_base=None):
        search = [f"hydra.searchpath=[{config_dir.resolve().as_uri()}]"] if config_dir else []
        parsed = [_parsed(override) for override in overrides]
        values = [_values(override) for override in parsed]
        first = [those[0] for those in values if those]
        jobs = [first] + [[*first[:i], value, *first[i + 1 :]] for i, those in enumerate(values) for value in those[1:]]
        for job in jobs:
            try:
                hydra.compose("run", [*search, *job])
            except HydraException as error:
                raise ValueError(_with_nearest(str(error), job, search)) from error


def _parsed(override: str) -> Override:
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException as error:
        key, _, value = override.partition("=")
        raise ValueError(f"{override} is not in Hydra's grammar; quote the value: \"{key}='{value}'\"") from error


def _values(override: Override) -> list[str]:
    """The values to which a sweep expands an override. Of a plain key only the first is checked, because whether the
    key exists does not depend on its value."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    values = [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
    return values if (CONF / override.key_or_group).is_dir() else values[:1]


def _with_nearest(text: str, job: Sequence[str], search: Sequence[str]) -> str:
    """Hydra's message for an override that fits nothing. A likely slip of the pen gets one of ours."""
    key = re.match(r"Could not override '([^']+)'|Could not delete from config. '([^']+)'", text)
    option = re.match(r"In 'run': Could not find '([^']+)/([^'/]+)'\s+Available options in '[^']+':([^:]*)\n", text)
    if key:
        wrong = key[1] or key[2]
        rest = [override for override in job if override.lstrip("~+").split("=")[0] != wrong]
        settings = list(flatten(OmegaConf.to_container(hydra.compose("run", [*search, *rest]))))
        parents = {name.rsplit(".", i)[0] for name in settings for i in range(1, name.count(".") + 1)}
        near = get_close_matches(wrong, [*settings, *sorted(parents), "launcher", "sink", "experiment"], 1)
        what = f"{wrong} is no setting of this run"
    elif option:
        near = [f"{option[1]}={name}" for name in get_close_matches(option[2], option[3].split(), 1)]
        what = f"{option[1]}={option[2]} is not there"
    else:
        return text
    return (
        f"{what}; {f'the nearest is {near[0]}, and ' if near else ''}`python -m parallelbench list` shows the choices"
    )
