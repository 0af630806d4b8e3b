"""The runs of a sweep as the arms of a race, each decoded as far as the race asks."""

from collections.abc import Callable, Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict

from parallelbench.records.record import config_hash, read_run
from parallelbench.report.tuning import Grid
from parallelbench.stats.racing import Race, check_limit
from parallelbench.tasks.base import Task
from parallelbench.wiring.conf import make_part, resolved
from parallelbench.wiring.config import build_job, choices, decode_config, runs_there, title


class Decoding(Grid):
    """Runs are ordinary ones, in the folders of a sweep. One that is there with as many samples is not decoded again.

    configs: composed, with Hydra's own settings; of one model, suite, limit and seed. Those that cannot be run are left
    out, and all but one of equal ones. say: is told so, and what is decoded. Raises ValueError as `check_limit` does.
    """

    def __init__(self, configs: Sequence[DictConfig], race: Race, by: str, say: Callable[[str], None]) -> None:
        first = configs[0]
        tasks: Sequence[Task] = make_part(first.suite).build()
        order = {task.name: [sample.id for sample in task.samples(first.limit, first.seed)] for task in tasks}
        check_limit(race, lambda start, stop: sum(len(ids[start:stop]) for ids in order.values()))  # needs no model
        self.configs, self.say, self.most = checked(configs, say), say, first.limit
        super().__init__(order, [_name(config) for config in self.configs], by)

    def decode(self, arm: int, stop: int, why: str) -> None:
        config = alone(self.configs[arm])
        there = runs_there(config)
        config.limit = max([stop, *(limit for limit in there if limit <= self.most)])
        if config.limit in there and self._has(arm, there[config.limit], stop):
            return
        self.say(f"{self.name(arm)}, to {stop} samples per task: {why}")
        self.take(arm, read_run(decode_config(config, say=lambda text: None).done))

    def _has(self, arm: int, folder: Any, stop: int) -> bool:
        """Whether a run has what is asked of the arm. If so, the arm takes it."""
        try:
            self.take(arm, read_run(folder))
            self.of(arm, 0, stop)
        except ValueError:
            return False  # it was killed, or is damaged, which decoding it will say
        return True


def checked(configs: Sequence[DictConfig], say: Callable[[str], None]) -> list[DictConfig]:
    """Those that can be run, each once. say: is told of the others."""
    kept: dict[str, DictConfig] = {}
    for config in configs:
        single = alone(config)
        single.limit = 1
        try:
            build_job(single)
        except ValueError as error:
            say(f"left out: {_name(config)}: {error}")
            continue
        kept.setdefault(config_hash(resolved(single)), config)
    return list(kept.values())


def alone(config: DictConfig) -> DictConfig:
    """A copy without Hydra's own settings, which Hydra is told of, as in a job of a sweep."""
    HydraConfig.instance().set_config(config)
    config = config.copy()
    with open_dict(config):
        del config["hydra"]
    return config


def _name(config: DictConfig) -> str:
    settings = resolved(alone(config))
    model = f"{choices()['model']} "
    return title(choices(), settings).removeprefix(model)
