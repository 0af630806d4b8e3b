"""Hydra launchers: jobs in turn, on all devices of this machine (`launcher=local`), and by the plugins of others, as
hydra-submitit-launcher and hydra-ray-launcher are."""

import signal
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf, open_dict
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

from dllm.validation import Count, check
from parallelbench.wiring.config import Outcome, decode_config
from parallelbench.wiring.pool import Died, Report, devices, run_jobs
from parallelbench.wiring.sweeper import GridsSweeper

Plugins.instance()  # it runs the modules of Hydra's own plugins once more, so their classes are new ones afterwards
from hydra._internal.core_plugins.basic_launcher import BasicLauncher  # noqa: E402

PLUGIN = "hydra_plugins.parallelbench_local"


class InTurnLauncher(BasicLauncher):
    """Hydra's own, whose task function has attributes `jobs` and `own`: it is told how many there are, and in which
    settings they differ."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        self.task_function.jobs = len(job_overrides)  # type: ignore[union-attr]
        shared = set(job_overrides[0]).intersection(*job_overrides)
        own = [[word for word in overrides if word not in shared] for overrides in job_overrides]
        self.task_function.own = own  # type: ignore[union-attr]
        return super().launch(job_overrides, initial_job_idx)


class LocalLauncher(Launcher):
    """One job per worker, each of which has devices of its own and keeps its model for the next job. A worker that dies
    costs its job only; repeating the command does what is missing. The task function's method `finish(Outcome)` is
    given how each job ended.

    workers: jobs at a time; null: one per visible GPU, or one per CPU core.
    """

    def __init__(self, workers: Count | None = None) -> None:
        check(LocalLauncher.__init__, workers=workers)
        self.workers = workers

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

            places = devices(self.workers)[: len(configs)]
            outcomes = run_jobs([configs[i] for i in order], work, places, show)
            for ended, (index, outcome) in enumerate(outcomes, start=1):
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

    def _compose(self, overrides: Sequence[str], index: int) -> DictConfig:
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = str(index), index
        return config


class ClusterLauncher(Launcher):
    """A launcher of another package. When all jobs have ended, the task function's `finish` is given what they return.

    plugin: its class. settings: its arguments. Raises ValueError where the package is not installed.
    """

    def __init__(self, plugin: str, **settings: Any) -> None:
        package = plugin.split(".")[1]
        if find_spec(f"hydra_plugins.{package}") is None:
            package = package.replace("_", "-")
            raise ValueError(f"this launcher needs {package}; pip install {package}")
        self.launcher = get_class(plugin)(**settings)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.task_function = task_function
        self.launcher.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        jobs = self.launcher.launch(job_overrides, initial_job_idx)
        for job in jobs:
            self.task_function.finish(job.return_value)  # type: ignore[attr-defined]
        return jobs


def register() -> None:
    """Makes launchers and sweeper known to Hydra, which takes plugins only from a package `hydra_plugins`; a folder of
    that name at the top of this repository would be a package that holds nothing else."""
    for name in ("hydra_plugins", PLUGIN):
        if find_spec(name) is None:
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = []
            sys.modules[name].__spec__ = ModuleSpec(name, None, is_package=True)
    for plugin in (InTurnLauncher, LocalLauncher, ClusterLauncher, GridsSweeper):
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


def _code(exit_code: int) -> str:
    return f" with signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f" with exit code {exit_code}"
