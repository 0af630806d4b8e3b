"""Rejects settings and options that do not exist, and names the closest that do, and values that a setting cannot have:
before a sweep writes any file, and before anything that decodes is imported."""

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override, OverrideType, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from dllm.shipped import check_folder, check_spelling
from dllm.validation import Checked, Count, Interval, Number, at_home, check_blocks, check_named, nearest, shown
from parallelbench.records.facts import flatten
from parallelbench.records.files import check_folder as check_out_dir
from parallelbench.tasks.base import Seed
from parallelbench.wiring.catalogue import CONF, GROUPS, LISTED, RUN, options, settings
from parallelbench.wiring.conf import constraint_given, in_one_sentence, known_targets, make_part, searched, sentence
from parallelbench.wiring.exits import explained
from parallelbench.wiring.menu import VALUED
from parallelbench.wiring.show import outline
from parallelbench.wiring.sweeper import brought, named

MOST_JOBS = 10_000  # of a sweep
SEVERAL = ("experiment", "sink")  # groups of which a run may have more than one option
ADDED = (OverrideType.ADD, OverrideType.FORCE_ADD)


@dataclass(frozen=True)
class Settings(Checked):
    """The plain keys of conf/run.yaml. null: each sample's own budget, the whole response, masks alone, a folder by its
    config."""

    limit: Count
    seed: Seed
    batch_size: Count
    gen_length: Annotated[int, Interval("[1, 131072]")] | None  # the longest context of a model
    block_length: Count | None
    traces: Number
    template: Sequence[str | Count] | str | None
    constraint: Mapping[str, Any] | str | None
    out_dir: str | None

    def __post_init__(self) -> None:
        check_named(Settings, vars(self))


def check_overrides(overrides: Sequence[str], config_dir: Path | None = None, sweeps: bool = True) -> DictConfig:
    """Raises ValueError, with the closest match, for a setting or option that does not exist, and for a value that its
    setting cannot have. Tries the first job of the sweep as Hydra would make it, and in it each other value that the
    sweep gives. Returns that first job. sweeps: whether there may be several jobs."""
    with in_one_sentence(), hydra.initialize_config_dir(str(CONF), version_base=None):
        search = searched(config_dir)
        given = [parsed(override) for override in overrides]
        _check_choices(given, config_dir, sweeps)
        _check_jobs(given, sweeps)
        _check_experiments(given, config_dir, sweeps)
        values = [_values(override, config_dir) for override in given]
        if (jobs := math.prod(map(len, values))) > MOST_JOBS:
            raise ValueError(f"a sweep of {jobs} runs; give at most {MOST_JOBS}")
        first = [those[0] for those in values]
        swept = {override.key_or_group for override, those in zip(given, values, strict=True) if len(those) > 1}
        fits = not swept >= {"gen_length", "block_length"}  # where it sweeps both, each job for itself
        config = _composed(first, search)
        check_values(config, fits)
        for i, (override, those) in enumerate(zip(given, values, strict=True)):
            for value in those[1:]:
                if os.path.isdir(CONF / override.key_or_group):
                    check_values(_composed([*first[:i], value, *first[i + 1 :]], search), fits)
                else:  # whether the key exists does not depend on its value
                    other = config.copy()
                    OmegaConf.update(other, override.key_or_group, parsed(value).value(), force_add=True)
                    check_values(other, fits)
    return config


def check_given(config: DictConfig) -> None:
    """Raises ValueError for a setting that has no default and was given no value, and for a model that is not here,
    before the libraries that load it are imported."""
    check_missing(config)
    model = config.model
    if "name_or_path" in model and model.get("_target_") in known_targets(("model",)):
        name = str(at_home(model.name_or_path))
        check_spelling(name)
        check_folder(name)


def run_command(root: str, arguments: Sequence[str]) -> None:
    """Calls the work of a command that trains with conf/ROOT.yaml as the command line sets it. Ends with a sentence and
    an exit code as `explained` does, also for a setting or option that does not exist."""

    def task(config: DictConfig) -> None:
        with explained(), in_one_sentence():
            from transformers.utils import logging as transformers_logging  # half a second to import

            transformers_logging.disable_progress_bar()
            leave_recipe_of_other_data(config, HydraConfig.get().overrides.task)
            check_missing(config)
            check_parts(OmegaConf.to_container(config, resolve=True))
            if config.get("out_dir") == "":
                raise ValueError("out_dir= has no value; write out_dir=FOLDER")
            check_out_dir(Path(config.get("out_dir") or "."))
            import_module(f"parallelbench.training.{root}").work(config)  # and with it everything that trains

    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come to us instead of being printed by Hydra
    with explained():
        if {"-m", "--multirun"} & set(arguments):
            raise ValueError(f"{root} does one thing; leave out -m, and give the command once for each value")
        sys.argv = [f"parallelbench {root}", *arguments]
        try:
            hydra.main(version_base=None, config_path=str(CONF), config_name=root)(task)()
        except HydraException as error:
            given = [word for flag, word in pairwise(sys.argv) if flag not in VALUED and not word.startswith("-")]
            words = [_values(parsed(word))[0] for word in given]
            with in_one_sentence(), hydra.initialize_config_dir(str(CONF), version_base=None):
                raise ValueError(_with_nearest(error, words, [], root)) from error


def leave_recipe_of_other_data(config: DictConfig, given: Sequence[str]) -> None:
    """What a recipe says of its own data is not for others that the command line chooses: `recipe=smollm2_block
    data=rows data.source=FILE`."""
    keys = [parsed(override).key_or_group for override in given]
    if "data" in keys and config.get("data") is not None:
        taken = signature(hydra.utils.get_class(config.data["_target_"])).parameters
        kept = cast(dict[str, Any], OmegaConf.to_container(config.data))
        config.data = {k: v for k, v in kept.items() if k in ("_target_", *taken) or f"data.{k}" in keys}


def check_values(config: DictConfig, fits: bool) -> None:
    """Raises ValueError for a value that a plain key or a part of a composed config refuses, as far as that can be told
    without importing what decodes. fits: whether the lengths must fit each other."""
    plain = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=False))
    keys: dict[str, Any] = {key: plain.get(key) for key in Settings.__annotations__}
    given = Settings(**keys)
    targets = {below: target for below, target, _ in _parts(plain)}
    constraint_given(given.constraint)
    decoder = outline(targets.get("decoder.", "")).__name__
    if fits and decoder == "Decoder" and given.template is None and given.gen_length and given.block_length:
        check_blocks(given.gen_length, given.block_length)
    suite = plain.get("suite") or {}
    if "_target_" in suite and not any(_parts(list(suite.values()))):  # its tasks are names
        make_part(config.suite)
    check_parts(plain)


def check_missing(config: DictConfig) -> None:
    """Raises ValueError for a setting that has no default and was given no value."""
    if missing := sorted(OmegaConf.missing_keys(config)):
        key = re.sub(r"\[(\d+)\]", r".\1", missing[0])
        raise ValueError(f"{key} has no default; give it a value: {key}=...")


def check_parts(plain: Any) -> None:
    """Raises ValueError for a value that a part of a config refuses, and names its key."""
    for below, target, values in _parts(plain):
        check_named(outline(target), {key: value for key, value in values.items() if value != "???"}, below=below)


def _parts(node: Any, below: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The classes that a config names, each with the key that its values are below, and the values."""
    if isinstance(node, dict) and "_target_" in node:
        target = node["_target_"]
        if not isinstance(target, str) or not target:
            raise ValueError(f"{below}_target_={shown(target, quoted=False)} is not a name of a class; give one")
        yield below, target, {str(key): value for key, value in node.items()}
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from _parts(value, f"{below}{key}.")


def _composed(job: Sequence[str], search: Sequence[str]) -> DictConfig:
    try:
        return hydra.compose(RUN, [*search, *job])
    except HydraException as error:
        raise ValueError(_with_nearest(error, job, search, RUN)) from error
    except OSError as error:
        raise ValueError(
            f"{shown(max(job, key=len), quoted=False)} is a name that no file has; give another"
        ) from error


def parsed(override: str) -> Override:
    """One word as Hydra reads it. Raises ValueError for what it cannot read."""
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException as error:
        key, equals, value = override.partition("=")
        if not equals:
            raise ValueError(f"{override!r} is not a setting; write settings as KEY=VALUE, such as seed=1") from error
        parent, dot, name = key.rpartition(".")
        if dot and "/" in name:
            raise ValueError(f'a name with a slash is no key; write "{parent}={{{name}: {value}}}"') from error
        value = shown(value, quoted=False)
        raise ValueError(f"{key}={value} is not in Hydra's grammar; quote the value: \"{key}='{value}'\"") from error


def _check_choices(overrides: Sequence[Override], config_dir: Path | None, sweeps: bool) -> None:
    """Raises ValueError for what Hydra would take and not honour, or refuse in its own terms: a group that is given
    twice, added, removed or no name; a plain key that nobody reads; a folder of Hydra's; a launcher without a sweep."""
    chosen = dict[str, str]()
    for override in overrides:
        word, key = shown(override.input_line, quoted=False), override.key_or_group
        if override.package is not None and override.type in ADDED:
            raise ValueError(f"{word} puts an option elsewhere than where a run reads it; write {key}=NAME")
        if not any(os.path.isdir(folder / key) for folder in (CONF, config_dir) if folder):
            top = key.partition(".")[0]
            if override.type in ADDED and top not in (*settings(), *GROUPS, "sink", "hydra"):
                raise ValueError(f"{word} sets nothing that a run reads; {nearest(top, [*settings(), *GROUPS])}")
            if key in ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir"):
                raise ValueError(f"{word} moves nothing of a run; write out_dir=FOLDER")
            continue
        if override.is_delete():
            raise ValueError(f"{word} leaves a run without a {key}; choose one, or leave the word out for the usual")
        if override.type in ADDED and key in LISTED:
            raise ValueError(f"{word} adds to what a run has already; write {key}=NAME")
        names = [override.value()] if not override.is_sweep_override() else []
        if key not in SEVERAL and not all(isinstance(name, str) for name in names):
            raise ValueError(f"{word} is not the name of an option; `parallelbench list {key}` lists them all")
        if any(isinstance(name, str) and re.search(r"^\.|\.yaml$", name) for name in names):
            raise ValueError(f"{word} is the name of a file; give that of an option, without a folder and .yaml")
        place = override.get_key_element().lstrip("+~")
        if place in chosen:
            raise ValueError(f"{chosen[place]} and {word} are two of one kind; give one, or a sweep: -m {key}=A,B")
        chosen[place] = word
        if key == "launcher" and not sweeps and names != ["basic"]:
            raise ValueError(f"{word} spreads the jobs of a sweep; add -m, or leave it out")


def _check_jobs(overrides: Sequence[Override], sweeps: bool) -> None:
    """Raises ValueError for a sweep where there is none, and one that Hydra would count for ever."""
    for override in overrides:
        word, value = shown(override.input_line, quoted=False), override.value()
        if override.is_sweep_override() and not sweeps:
            raise ValueError(f"{word} is several values; add -m to run each, or quote them if they are one text")
        if isinstance(value, IntervalSweep):
            raise ValueError(f"{word} has no end of values; give those to run, as in choice(0.5,0.7)")
        if isinstance(value, RangeSweep):
            assert value.start is not None and value.stop is not None
            jobs = (value.stop - value.start) / value.step if value.step else math.inf
            if not jobs <= MOST_JOBS:  # also for nan
                raise ValueError(f"{word} is a sweep of {jobs:.0f} runs; give at most {MOST_JOBS}")


def _check_experiments(overrides: Sequence[Override], config_dir: Path | None, sweeps: bool) -> None:
    """Raises ValueError for the grid of one decoder that is asked of another, and for a grid that is not swept."""
    names, chosen = (
        [word.partition("=")[2] for word in _values(override, config_dir)] if override else []
        for override in (named(overrides, "experiment"), named(overrides, "decoder"))
    )
    given = {override.key_or_group for override in overrides}
    for name in names:
        try:
            composed = hydra.compose(RUN, [*searched(config_dir), f"experiment={name}"], return_hydra_config=True)
        except HydraException:
            continue  # an unknown one, which is named with the nearest elsewhere
        config = composed.hydra
        own, grids = config.runtime.choices.decoder, brought(config.sweeper)
        known = flatten(OmegaConf.to_container(composed, resolve=False))
        if name.startswith("[") and any(key not in known for grid in grids for key in grid):
            raise ValueError(
                f"experiment={name} lays one over the other, and the grid of the first is not for the last; give "
                f"experiment={name.strip('[]')} to sweep each"
            )
        swept = [key for grid in grids for key in grid if key not in given and "decoder" not in grid]
        others = [other for other in chosen if other != own]
        if swept and others:
            mine = others[0] in options("experiment", config_dir)
            raise ValueError(
                f"experiment={name} brings values for decoder={own}, not for decoder={others[0]}; give "
                + (f"experiment={others[0]}" if mine else f"values of its own knob without experiment={name}")
            )
        if swept and not sweeps:
            raise ValueError(
                f"experiment={name} is a sweep over {swept[0]}; add -m to run all of it, or set {swept[0]} for one run"
            )


def _values(override: Override, config_dir: Path | None = None) -> list[str]:
    """The overrides to which a sweep expands one. Raises ValueError where there is none."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key, value = override.get_key_element(), override.value()
    names = (
        value.filter(list(options(key, config_dir))) if isinstance(value, Glob) else override.sweep_string_iterator()
    )
    if not (found := [f"{key}={name}" for name in names]):
        raise ValueError(f"{override.input_line} is a sweep of nothing; give at least one value")
    return found


def _with_nearest(error: HydraException, job: Sequence[str], search: Sequence[str], root: str) -> str:
    """Hydra's message for an override that fits nothing. A likely typo gets one of ours."""
    text = str(error)
    where = f"`parallelbench {root} --help` lists them all"
    key = re.match(r"Could not override '([^']+)'|Could not delete from config. '([^']+)'", text)
    option = re.match(r"In '\w+': Could not find '([^']+)/([^'/]*)'\s+Available options in '[^']+':([^:]*)\n", text)
    if key:
        given = key[1] or key[2]
        inside = re.search(rf"full_key: ({re.escape(given)}\.\S+)", str(error.__cause__))  # of a mapping
        wrong = inside[1] if inside else given
        if given.startswith("constraint."):
            return f"{given} is in no file; put a + before it: +{given}=..."
        rest = [override for override in job if override.lstrip("~+").split("=")[0] != given]
        try:
            known = list(flatten(OmegaConf.to_container(hydra.compose(root, [*search, *rest]))))
        except HydraException as another:  # the nearest to the first of several is found when the others are mended
            return _with_nearest(another, rest, search, root)
        parents = {name.rsplit(".", i)[0] for name in known for i in range(1, name.count(".") + 1)}
        groups = ["launcher", "sink", "experiment"] if root == RUN else ["sink", "recipe"]
        near = get_close_matches(wrong, [*known, *sorted(parents), *groups], 1)
        what = f"unknown setting {wrong!r}"
    elif option:
        near = get_close_matches(option[2], option[3].split(), 1)
        what = f"unknown {option[1]} {option[2]!r}"
        listed = f"`parallelbench list {option[1]}` lists them all"
        where = listed if root == RUN else f"choose among {', '.join(option[3].split())}"
    else:
        return sentence(error)
    return f"{what}; {f'did you mean {near[0]!r}? {where[0].upper()}{where[1:]}' if near else where}"
