"""Hydra launchers for several devices: `launcher=local` on this machine, `launcher=slurm` and `launcher=ray` on others.

One job per worker, each of which has devices of its own and keeps its model for the next job. A worker that dies costs
its job only; repeating the command does what is missing.
"""

import shutil
import signal
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

from dllm.validation import Count, Number, check
from parallelbench.wiring.clusters import SRUN, ray_jobs
from parallelbench.wiring.config import Outcome, decode_config
from parallelbench.wiring.pool import Died, Report, Worker, devices, run_jobs, share_out
from parallelbench.wiring.sweeper import GridsSweeper

Plugins.instance()  # it runs the modules of Hydra's own plugins once more, so their classes are new ones afterwards
from hydra._internal.core_plugins.basic_launcher import BasicLauncher  # noqa: E402

PLUGIN = "hydra_plugins.parallelbench_local"
Show = Callable[[int, Any], None]


class InTurnLauncher(BasicLauncher):
    """Hydra's own, whose task function has an attribute `jobs` and is told how many there are."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        self.task_function.jobs = len(job_overrides)  # type: ignore[union-attr]
        return super().launch(job_overrides, initial_job_idx)


class _Workers(Launcher):
    """Its task function has a method `finish(Outcome)`, which is given how each job ended."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        configs = [
            self._compose(overrides, index) for index, overrides in enumerate(job_overrides, start=initial_job_idx)
        ]
        order = sorted(range(len(configs)), key=lambda i: OmegaConf.to_yaml(configs[i].model))  # workers keep one model
        progress: dict[int, tuple[int, int]] = {}
        with tqdm(desc=f"sweep of {len(configs)}", unit="sample") as bar:

            def show(index: int, report: tuple[int, int]) -> None:
                progress[index] = report
                bar.total = sum(total for _, total in progress.values())
                bar.update(sum(done for done, _ in progress.values()) - bar.n)

            for ended, (index, outcome) in enumerate(self._run([configs[i] for i in order], show), start=1):
                overrides = " ".join(filter_overrides(job_overrides[order[index]]))
                if isinstance(outcome, Died):
                    outcome = Outcome(died=f"{overrides}: its worker ended{_code(outcome.exit_code)}")
                bar.set_postfix(jobs=f"{ended}/{len(configs)}")
                with bar.external_write_mode():
                    self.task_function.finish(outcome)  # type: ignore[attr-defined]
        return [
            JobReturn(overrides=overrides, status=JobStatus.COMPLETED, cfg=config)
            for overrides, config in zip(job_overrides, configs, strict=True)
        ]

    @abstractmethod
    def _run(self, configs: Sequence[DictConfig], show: Show) -> Iterator[tuple[int, Outcome | Died]]:
        """What came of each config, as it ends. show: is told how far one is."""

    def _compose(self, overrides: Sequence[str], index: int) -> DictConfig:
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = str(index), index
        return config


class LocalLauncher(_Workers):
    """workers: jobs at a time; null: one per visible GPU, or one per CPU core."""

    def __init__(self, workers: Count | None = None) -> None:
        check(LocalLauncher.__init__, workers=workers)
        self.workers = workers

    def _run(self, configs: Sequence[DictConfig], show: Show) -> Iterator[tuple[int, Outcome | Died]]:
        return run_jobs(configs, work, devices(self.workers)[: len(configs)], show)


class SlurmLauncher(_Workers):
    """Workers that `srun` starts, each an allocation of one task. They wait in Slurm's queue, and take jobs until none
    is left.

    workers: allocations at a time. options: of srun, for each of them.
    """

    def __init__(self, workers: Count = 1, options: Sequence[str] = ()) -> None:
        check(SlurmLauncher.__init__, workers=workers, options=options)
        self.workers, self.options = workers, options

    def _run(self, configs: Sequence[DictConfig], show: Show) -> Iterator[tuple[int, Outcome | Died]]:
        if shutil.which("srun") is None:
            raise ValueError("launcher=slurm needs srun; give the command on a machine of the Slurm cluster")
        command = [*SRUN, *self.options]
        return share_out(configs, [partial(Worker, work, command)] * min(self.workers, len(configs)), show)


class RayLauncher(_Workers):
    """Actors of the Ray cluster that this machine belongs to. workers, gpus: see `ray_jobs`."""

    def __init__(self, workers: Count | None = None, gpus: Number | None = None) -> None:
        check(RayLauncher.__init__, workers=workers, gpus=gpus)
        self.workers, self.gpus = workers, gpus

    def _run(self, configs: Sequence[DictConfig], show: Show) -> Iterator[tuple[int, Outcome | Died]]:
        return ray_jobs(configs, work, self.workers, self.gpus)


def register() -> None:
    """Makes launcher and sweeper known to Hydra, which takes plugins only from a package `hydra_plugins`; a folder of
    that name at the top of this repository would be a package that holds nothing else."""
    for name in ("hydra_plugins", PLUGIN):
        if find_spec(name) is None:
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = []
            sys.modules[name].__spec__ = ModuleSpec(name, None, is_package=True)
    for plugin in (InTurnLauncher, LocalLauncher, SlurmLauncher, RayLauncher, GridsSweeper):
        plugin.__module__ = PLUGIN
        setattr(sys.modules[PLUGIN], plugin.__name__, plugin)
        Plugins.instance().register(plugin)


def work(config: DictConfig, report: Report) -> Outcome:
    """One job in a worker."""
    transformers_logging.disable_progress_bar()
    HydraConfig.instance().set_config(config)
    config = config.copy()
    with open_dict(config):
        del config["hydra"]
    return decode_config(config, say=lambda text: None, on_progress=lambda done, total: report((done, total)))


def _code(exit_code: int | None) -> str:
    if exit_code is None:
        return ""
    return f" with signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f" with exit code {exit_code}"
