"""From a composed Hydra config to a checked job, and one job of a sweep from its start to its outcome."""

import json
import re
import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from parallelbench.records.compat import public_paths
from parallelbench.records.facts import flatten, knobs_of
from parallelbench.records.record import Run, config_hash, writing
from parallelbench.report.report import run_table
from parallelbench.report.sinks import Sinks, publish
from parallelbench.run.generator import Generator, make_generator
from parallelbench.run.job import Job, execute, prepare, start
from parallelbench.run.processes import ALONE, Processes
from parallelbench.tasks.base import Published

CONF = Path(__file__).parents[2] / "conf"  # by path: a folder `conf` of the user's must not shadow it
WORDS = ("null", "true", "false", "nan", "inf")  # what YAML and Hydra take for something else than text
GROUPS = ("model", "decoder", "cache", "stop", "suite")


@dataclass(frozen=True)
class Outcome:
    """How one config of a sweep ended. table: what it measured. sinks: where its numbers went. refused: why it was not
    begun. died: why it was not finished."""

    folder: Path | None = None
    table: str = ""
    sinks: Sinks = field(default_factory=dict)
    refused: str = ""
    died: str = ""


def decode_config(
    config: DictConfig,
    processes: Processes = ALONE,
    say: Callable[[str], None] = print,
    on_progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Checks a composed config, decodes what is missing of its run, and says how that ended; raises nothing that
    concerns this config alone. on_progress: instead of a progress bar, called with (samples there, samples in all)."""
    with ExitStack() as until_done:
        return _decode(config, processes, say, on_progress, until_done)


def _decode(
    config: DictConfig,
    processes: Processes,
    say: Callable[[str], None],
    on_progress: Callable[[int, int], None] | None,
    until_done: ExitStack,
) -> Outcome:
    def begin() -> set[str]:
        until_done.enter_context(writing(job.folder))
        return start(job, processes.count)

    try:
        job = processes.everywhere(lambda: build_job(config))
        sinks = processes.everywhere(lambda: build_sinks(config))
        known = processes.in_main(begin)
    except ValueError as error:
        return Outcome(refused=sentence(error))
    say(f"{job.folder}: {sum(map(len, job.batches))} samples, {len(known)} already there")
    try:
        finished = execute(job, known, processes, on_progress)
    except Exception as error:
        traceback.print_exc()
        return Outcome(job.folder, died=f"{type(error).__name__}: {sentence(error)}")
    if processes.is_main:
        publish(finished, sinks)
    return Outcome(job.folder, table=run_table(finished), sinks=sinks)


def check_overrides(overrides: Sequence[str], config_dir: Path | None = None) -> None:
    """Raises ValueError for a setting or option that does not exist, with the nearest that does, before a sweep has
    begun: Hydra's first job of it, and each other option of a group in the place of the first."""
    with _in_one_sentence(), hydra.initialize_config_dir(str(CONF), version_base=None):
        search = [f"hydra.searchpath=[{config_dir.resolve().as_uri()}]"] if config_dir else []
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        values = [_values(override) for override in parsed]
        first = [those[0] for those in values if those]
        jobs = [first] + [[*first[:i], value, *first[i + 1 :]] for i, those in enumerate(values) for value in those[1:]]
        for job in jobs:
            try:
                hydra.compose("run", [*search, *job])
            except HydraException as error:
                raise ValueError(_with_nearest(str(error), job, search)) from error


def _values(override: Override) -> list[str]:
    """The values of an override that a sweep gives it; of one that chooses no option the first alone, because its key
    exists for all or none."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    values = [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
    return values if (CONF / override.key_or_group).is_dir() else values[:1]


def _with_nearest(text: str, job: Sequence[str], search: Sequence[str]) -> str:
    """Hydra's words for an override that fits nothing, or ours where it is a slip of the pen."""
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


def build_job(config: DictConfig) -> Job:
    """The job that a config describes. Raises ValueError with one sentence for what is wrong with it."""
    with _in_one_sentence():
        return _build(config)


def build_sinks(config: DictConfig) -> Sinks:
    """Where a config's numbers go beside the local files. Raises ValueError as build_job does."""
    with _in_one_sentence():
        return _made(config.sink)


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(sentence(error)) from error


def command(run: Run) -> str:
    """The command that repeats a run: its choices, and every value that they alone would not give."""
    choices = tuple(f"{group}={option}" for group, option in run.info["choices"].items())
    usual = _usual(choices)
    wanted = {key: value for key, value in flatten(run.config).items() if key != "out_dir"}
    changed = {key: value for key, value in wanted.items() if key not in usual or usual[key] != value}
    overrides = [f"{'' if key in usual else '++'}{key}={_hydra_value(value)}" for key, value in changed.items()]
    overrides += [f"~{key}" for key in usual if key not in wanted and key != "out_dir"]
    return shlex.join(["python", "-m", "parallelbench", "run", *choices, *overrides])


@lru_cache
def _usual(choices: tuple[str, ...]) -> Mapping[str, object]:
    """The settings that choices alone give; the runs of a sweep share theirs."""
    try:
        with hydra.initialize_config_dir(str(CONF), version_base=None):
            return flatten(_resolved(hydra.compose("run", list(choices)), missing_ok=True))
    except (HydraException, OmegaConfBaseException):  # an option of the user's own, from a --config-dir
        return {}


def _hydra_value(value: object) -> str:
    """A value in Hydra's grammar of overrides, quoted where its words would mean something."""
    if isinstance(value, list):
        return f"[{','.join(map(_hydra_value, value))}]"
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w/.-]*", value) and value not in WORDS
    return str(value) if plain else json.dumps(value)


def sentence(error: Exception) -> str:
    """What went wrong in one line: our own words where Hydra only passes them on."""
    while isinstance(error, HydraException) and isinstance(error.__cause__, ValueError | HydraException):
        error = error.__cause__
    return " ".join(str(error).split("Config search path")[0].split())


def build_part(config: Mapping[str, Any]) -> Any:
    """The object that a part of a stored config describes. Raises ValueError with one sentence."""
    with _in_one_sentence():
        return _made(OmegaConf.create(dict(config)))


def _made(config: DictConfig) -> Any:
    return instantiate(
        public_paths(OmegaConf.to_container(config, resolve=True, throw_on_missing=True)), _convert_="all"
    )


def build_generator(config: DictConfig) -> Generator:
    """The generator that a config describes. Raises ValueError, or Hydra's errors, for what is wrong with it."""
    for key in ("limit", "seed", "batch_size", "gen_length", "block_length", "traces"):
        optional = key.endswith("_length")  # null: each sample's own budget, the whole response
        if not isinstance(config[key], int) and not (optional and config[key] is None):
            raise ValueError(f"{key}={config[key]} is not a whole number")
    return make_generator(
        _model(OmegaConf.to_yaml(config.model, resolve=True)),
        _made(config.decoder),
        cache=_made(config.cache),
        stop=_made(config.stop),
        block_len=config.block_length,
        seed=config.seed,
    )


def _build(config: DictConfig) -> Job:
    generator = build_generator(config)
    settings = {**_resolved(config), "out_dir": str(_folder(config))}
    suite = _made(config.suite)
    generation = suite.generation if isinstance(suite, Published) else ""
    return prepare(
        generator,
        suite.build(),
        limit=config.limit,
        seed=config.seed,
        batch_size=config.batch_size,
        gen_len=config.gen_length,
        config=settings,
        choices=_choices(),
        facts={"generation": generation, "knobs": knobs_of(settings)},
        traces=config.traces,
    )


@lru_cache(maxsize=1)
def _model(config: str) -> Any:
    """The model of a config, kept for the next configs of a sweep: most of them share it."""
    return _made(cast(DictConfig, OmegaConf.create(config)))


def _choices() -> dict[str, str]:
    """The chosen option of each config group."""
    chosen = HydraConfig.get().runtime.choices
    return {group: chosen[group] for group in GROUPS}


def _folder(config: DictConfig) -> Path:
    """out_dir, or in a sweep and by default a folder below it, named by the choices and the hash of the config."""
    hydra_config = HydraConfig.get()
    if config.out_dir is not None and hydra_config.mode != RunMode.MULTIRUN:
        return Path(config.out_dir)
    names = [choice.replace("/", "_") for group, choice in _choices().items() if group in ("model", "decoder", "cache")]
    return Path(config.out_dir or "results/runs") / "-".join([*names, config_hash(_resolved(config))])


def _resolved(config: DictConfig, missing_ok: bool = False) -> dict[str, Any]:
    """All that tells one run from another: not where its numbers go, nor how many of its samples are traced, which may
    be asked of a run that is there already."""
    resolved = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=not missing_ok))
    return {key: value for key, value in public_paths(resolved).items() if key not in ("sink", "traces")}
