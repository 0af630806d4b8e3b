"""From a composed config to a checked job, and one job of a sweep from its start to its outcome."""

import glob
import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from parallelbench.records.facts import knobs_of, short_names
from parallelbench.records.record import config_hash, same_runs
from parallelbench.report.sinks import Sinks
from parallelbench.run.generator import Generator, make_generator
from parallelbench.run.job import Held, Job, prepare
from parallelbench.run.processes import ALONE, Processes
from parallelbench.run.resume import open_job
from parallelbench.stats.table import run_table
from parallelbench.tasks.base import Published
from parallelbench.wiring.catalogue import GROUPS
from parallelbench.wiring.conf import constraint_given, in_one_sentence, make_part, resolved, sentence
from parallelbench.wiring.menu import check_extra
from parallelbench.wiring.overrides import Settings

MAX_KNOBS = 40  # characters of a folder's name


@dataclass(frozen=True)
class Outcome:
    """How one config of a sweep ended. table: what it measured, in a sweep over all tasks. sinks: where its numbers
    went. refused: why it was not begun. died: why it was not finished."""

    folder: Path | None = None
    table: str = ""
    sinks: Sinks = field(default_factory=dict)
    refused: str = ""
    died: str = ""

    @property
    def done(self) -> Path:
        """The folder of a run that is whole. Raises ValueError where it was refused or died."""
        if self.folder is None or self.died:
            raise ValueError(self.refused or f"{self.folder} died of {self.died}")
        return self.folder


def decode_config(
    config: DictConfig,
    processes: Processes = ALONE,
    say: Callable[[str], None] = print,
    on_progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Checks a composed config, decodes what is missing of its run, and says how that ended; raises nothing that
    concerns this config alone. on_progress: instead of a progress bar, called with (samples there, samples in all)."""
    with ExitStack() as until_done:
        try:
            job = processes.everywhere(lambda: build_job(config))
            sinks = processes.everywhere(lambda: build_sinks(config))
            run = until_done.enter_context(open_job(job, processes))
        except (ValueError, OSError) as error:
            return Outcome(refused=sentence(error))
        there = f", {len(run.known)} already there" if run.known else ""
        say(f"{job.folder}: {sum(map(len, job.batches))} samples{there}")
        try:
            finished = run.decode(on_progress)
            if sinks and processes.is_main:
                from parallelbench.report.publish import publish  # loads plots, which runs without sinks do not need

                publish(finished, sinks)
        except OSError as error:
            return Outcome(job.folder, died=sentence(error))
        except Exception as error:
            traceback.print_exc()
            return Outcome(job.folder, died=f"{type(error).__name__}: {sentence(error)}")
        in_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
        return Outcome(job.folder, table=run_table(finished, brief=in_sweep), sinks=sinks)


@in_one_sentence()
def build_job(config: DictConfig) -> Job:
    """The job that a config describes. Raises ValueError with one sentence for what is wrong with it."""
    generator = build_generator(config)
    settings = {**resolved(config), "out_dir": str(_folder(config))}
    suite: Any = make_part(config.suite)
    return prepare(
        generator,
        suite.build(),
        limit=config.limit,
        seed=config.seed,
        batch_size=config.batch_size,
        gen_len=config.gen_length,
        config=settings,
        choices=choices(),
        facts={"generation": suite.generation if isinstance(suite, Published) else "", "knobs": knobs_of(settings)},
        traces=config.traces,
        constraint=constraint_in(config),
    )


def constraint_in(config: DictConfig) -> Held:
    """What a config holds answers to."""
    return constraint_given(OmegaConf.to_container(config, resolve=True)["constraint"])  # type: ignore[index]


@in_one_sentence()
def build_sinks(config: DictConfig) -> Sinks:
    """Where a config's numbers go besides the local files. Raises ValueError as build_job does."""
    sinks = make_part(config.sink)
    if sinks:
        check_extra("a sink", "report")  # it gets plots
    return sinks


def build_generator(config: DictConfig) -> Generator:
    """The generator that a config describes. Raises ValueError, or Hydra's errors, for what is wrong with it."""
    plain = OmegaConf.to_container(OmegaConf.masked_copy(config, list(Settings.__annotations__)), resolve=True)
    settings = Settings(**cast(dict[str, Any], plain))
    return make_generator(
        _model(OmegaConf.to_yaml(config.model, resolve=True)),
        make_part(config.decoder),
        cache=make_part(config.cache),
        stop=make_part(config.stop),
        block_len=config.block_length,
        seed=config.seed,
        template=settings.template,
    )


@lru_cache(maxsize=1)
def _model(config: str) -> Any:
    """The model of a config, kept for the next configs of a sweep: most of them share it."""
    return make_part(cast(DictConfig, OmegaConf.create(config)))


def choices() -> dict[str, str]:
    """The chosen option of each config group."""
    chosen = HydraConfig.get().runtime.choices
    return {group: chosen[group] for group in GROUPS}


def title(chosen: Mapping[str, str], settings: Mapping[str, Any]) -> str:
    """Model, decoder, cache and the decoder's knobs, as a job of a sweep is called."""
    cache = [] if chosen["cache"] == "none" else [f"cache={chosen['cache']}"]
    knobs = _knobs(settings)
    shown = [f"{name}={knobs[key]}" for key, name in short_names(knobs).items()]
    return " ".join([chosen["model"], chosen["decoder"], *shown, *cache])


def _knobs(settings: Mapping[str, Any]) -> dict[str, object]:
    """The knobs that are numbers or words."""
    return {key: value for key, value in knobs_of(settings).items() if isinstance(value, str | int | float)}


def _folder(config: DictConfig) -> Path:
    """out_dir, or in a sweep and by default a folder below it, named by the choices, the knobs and the hash of the
    config. The same run with as many samples a task, or fewer, continues in its folder, whatever that is called."""
    hydra_config = HydraConfig.get()
    if not isinstance(config.out_dir, str | None):
        raise ValueError(f"out_dir={config.out_dir} is not the name of a folder; write out_dir=./NAME")
    if config.out_dir is not None and hydra_config.mode != RunMode.MULTIRUN:
        return Path(config.out_dir)
    stem, there = _stem(config), runs_there(config)
    if fewer := [limit for limit in there if limit <= config.limit]:
        return there[max(fewer)]
    folder = stem.with_name(f"{stem.name}-{config_hash(resolved(config))}")
    return folder.with_name(f"{folder.name}-limit{config.limit}") if folder in there.values() else folder


def runs_there(config: DictConfig) -> dict[int, Path]:
    """The folders of a sweep that hold this run, by their limits."""
    stem = _stem(config)
    return same_runs(sorted(stem.parent.glob(f"{glob.escape(stem.name)}-*")), resolved(config))


def _stem(config: DictConfig) -> Path:
    """The folder of a run in a sweep, without its hash."""
    names = [choice.replace("/", "_") for group, choice in choices().items() if group in ("model", "decoder", "cache")]
    joined = "-".join(f"{key.split('.')[-1]}{value}" for key, value in _knobs(resolved(config)).items())
    knobs = re.sub(r"[^\w.-]", "_", joined)[:MAX_KNOBS]
    return Path(config.out_dir or "results/runs") / "-".join([*names, *([knobs] if knobs else [])])
