"""The conf folder, and what every reader of it needs: parts as objects, settings as values, errors in one sentence."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import hydra
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import decoders
import dllm
import parallelbench
from decoders.constraints.patterns import KEYS, Constraint, constraint_of
from dllm.validation import at_home, shown
from parallelbench.records.files import os_sentence
from parallelbench.report.options import Untrusted
from parallelbench.tasks import Task
from parallelbench.wiring.catalogue import CONF, RUN, options

KNOWN = {  # sentences of Hydra, OmegaConf and Python, with ours
    r"Target '([^']*)' is blocklisted": r"_target_=\1 is no part of a run, and could run anything; give a "
    "class such as decoders.Decoder",
    r"Interpolation key '([^']*)' not found\s+full_key: (\S+)": r"\2 refers to ${\1}, which does "
    "not exist; give it a value",
    r"Environment variable '([^']*)' not found[^$]*full_key: (\S+)": r"\2 refers to the environment variable \1, "
    "which is not set; set it, or give a value",
    r"Recursive interpolation detected\s+full_key: (\S+)": r"\1 refers to itself; give it a value",
    r"^(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'": r"\1 has no setting \2; leave it out",
    r"^(\w+)(?:\.__init__)?\(\) missing \d+ required positional arguments?: '(\w+)'": r"\1 has no \2; give it one",
}
PARTS = ("decoder", "cache", "stop", "suite")  # groups of what is built again from a stored config


def make_part(config: DictConfig) -> Any:
    """The object that a part of a config describes. Raises Hydra's errors; see `in_one_sentence`."""
    plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return instantiate(at_home(plain), _convert_="all")


def resolved(config: DictConfig, missing_ok: bool = False) -> dict[str, Any]:
    """The settings that identify a run. Those left out may change for a run that exists: where its numbers go, and how
    many of its samples are traced. A template or a constraint that is none is not stated; one in a file is."""
    resolved = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=not missing_ok))
    unset = [key for key in ("template", "constraint") if resolved.get(key) is None]
    stated = {key: value for key, value in resolved.items() if key not in ("sink", "traces", *unset)}
    constraint = constraint_given(stated.get("constraint"))
    return stated if constraint in (None, "task") else {**stated, "constraint": dict(constraint.given)}


def constraint_given(value: Any) -> Constraint | Literal["task"] | None:
    """What the key `constraint` of a run says. Raises ValueError for what it cannot say."""
    if value is None or value == "task":
        return value
    if not isinstance(value, Mapping):
        raise ValueError(
            f"constraint={shown(value)}; give constraint=task, or one of +constraint.{', +constraint.'.join(KEYS)}"
        )
    return constraint_of(value)


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Hydra's errors inside become ValueErrors of one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(sentence(error)) from error


@in_one_sentence()
def build_part(config: Mapping[str, Any], trust: bool = False, given: Mapping[str, Any] | None = None) -> Any:
    """The object that a part of a stored config describes. given: what the user sets in it. Raises ValueError with one
    sentence, also for what `doubt` finds in the stored part, unless whoever wrote it is trusted."""
    given = given or {}
    if not trust and (found := doubt({key: value for key, value in config.items() if key not in given})):
        raise Untrusted(f"its config says {found}; read that file, and add trust=true if you trust it")
    return make_part(OmegaConf.create({**config, **given}))


def doubt(config: Any, groups: tuple[str, ...] = PARTS) -> str:
    """The first value of a stored config that could do more than describe parts of this package, and what it could do;
    empty where there is none. groups: of conf/, whose classes and functions are ours."""
    left, known = [("", config)], known_targets(groups)
    while left:
        key, value = left.pop()
        if isinstance(value, Mapping | list | tuple):
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            left += reversed([(f"{key}.{name}".lstrip("."), inner) for name, inner in pairs])
        name = key.rpartition(".")[2]
        if name == "_target_" and not (isinstance(value, str) and value in known):
            why = "is no part of this package and could run anything"
        elif name != "_target_" and re.fullmatch("_.*_", name):
            why = "changes how a part is made"
        elif name == "unsandboxed" and value:
            why = "would run the programs of its answers with your rights"
        elif "${" in key or (isinstance(value, str) and "${" in value):
            why = "could read the environment"
        elif isinstance(value, str) and re.match(r"\s*[a-zA-Z][\w+.-]*://", value):
            why = "names another machine"
        else:
            continue
        return f"{shown(key, quoted=False)}={shown(value, quoted=False)}, which {why}"
    return ""


@cache
def known_targets(groups: tuple[str, ...]) -> frozenset[str]:
    """The classes that our packages export, and all that the files of these groups of conf/ name."""
    files = (file for group in groups for file in (CONF / group).rglob("*.yaml"))
    named = {name for file in files for name in re.findall(r"_target_: ([\w.]+)", file.read_text(encoding="utf-8"))}
    exported = {f"{package.__name__}.{name}" for package in (decoders, dllm, parallelbench) for name in package.__all__}
    return frozenset(named | {path for path in exported if re.search(r"\.[A-Z]\w*[a-z]\w*$", path)})


def searched(config_dir: Path | None) -> list[str]:
    """What Hydra is told of a --config-dir."""
    return [f"hydra.searchpath=[{config_dir.resolve().as_uri()}]"] if config_dir else []


@in_one_sentence()
def own_tasks(mine: Path) -> dict[str, tuple[str, Task]]:
    """The tasks of the user's own suites by name, each with its suite. Raises ValueError where one cannot be made."""
    found = {}
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        for suite in sorted(options("suite", mine).keys() - options("suite").keys()):
            config = hydra.compose(RUN, [*searched(mine), f"suite={suite}"])
            found |= {task.name: (suite, task) for task in make_part(config.suite).build()}
    return found


def sentence(error: Exception) -> str:
    """What went wrong, in one line. Where Hydra only passes on a message of ours, that message."""
    while isinstance(error, HydraException) and isinstance(
        error.__cause__, ValueError | TypeError | OSError | HydraException
    ):
        error = error.__cause__
    found = re.match(r"Error locating target '([^']*)'.*?(?:full_key: (\S+))?$", str(error), flags=re.DOTALL)
    if found and (cause := error.__cause__):
        why = " ".join(str(cause).split("Are you sure")[0].split())
        return (
            f"{found[2] or 'a part'} names {found[1]}, which cannot be imported ({why}); give the command in the "
            f"folder that holds {found[1].split('.')[0]}.py, or put that folder on PYTHONPATH"
        )
    if isinstance(error, OSError):
        return os_sentence(error)
    for known, said in KNOWN.items():
        if found := re.search(known, str(error)):
            return found.expand(said)
    return " ".join(str(error).split("Config search path")[0].split())
