"""One config or a sweep of them, in this process, in several or on all devices."""

import os
import shlex
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from transformers.utils import logging as transformers_logging

from parallelbench.records.files import printable, to_json
from parallelbench.records.record import read_run
from parallelbench.report.as_json import run_rows
from parallelbench.run.processes import Processes, join
from parallelbench.stats.table import WIDTH, sweep_table
from parallelbench.wiring.catalogue import CONF
from parallelbench.wiring.command import command
from parallelbench.wiring.conf import resolved, sentence
from parallelbench.wiring.config import Outcome, choices, decode_config, title
from parallelbench.wiring.exits import FAILED, REFUSED, say_error
from parallelbench.wiring.launcher import register

NOT_IN_TITLES = ("suite", "limit", "seed", "gen_length", "block_length", "stop", "template", "+suite")


def sweep(refused: str = "", wants_json: bool = False) -> None:
    """Runs what the command line, sys.argv, asks for. refused: why it is not begun, in all processes. wants_json: one
    object goes to stdout, at the end, and what else is said to stderr."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come to us instead of being printed by Hydra
    transformers_logging.disable_progress_bar()  # one bar, the run's
    processes = join()
    task = _Task(processes, wants_json)
    register()
    try:
        if refused:
            raise ValueError(refused)
        with TemporaryDirectory() as notes:
            sys.argv.append(f"hydra.sweep.dir='{notes}'")
            hydra.main(version_base=None, config_path=str(CONF), config_name="run")(task)()
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        task.finish(Outcome(refused=sentence(error)))
    except Exception as error:  # a cluster's own way to say that a worker died
        task.finish(Outcome(died=f"{type(error).__name__}: {sentence(error)}"))
    task.close()
    processes.leave()
    if task.failed:
        raise SystemExit(task.failed)


def time_left(seconds: float, ended: int, jobs: int) -> str:
    """What the jobs that have ended say of the others; nothing where that is soon."""
    left = seconds / ended * (jobs - ended) if ended else 0
    return "" if left < 10 else f", about {left:.0f} s left" if left < 100 else f", about {left / 60:.0f} min left"


class _Task:
    """What Hydra calls with each composed config: one that is refused or dies does not keep a sweep from its others.
    failed: the exit code, 0 for none. jobs: of a sweep, as our launchers say. own: of each job the settings that
    not all of them have."""

    def __init__(self, processes: Processes, wants_json: bool) -> None:
        self.wants_json = wants_json
        self.processes, self.failed, self.jobs, self.began = processes, 0, 0, time.monotonic()
        self.own: list[list[str]] = []
        self.finished: dict[Path, Outcome] = {}
        self.folder, self.is_away = Path.cwd(), False

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a worker of a cluster, which works in the folder of the sweep and hands back what came of its job."""
        vars(self).update(state, is_away=True)
        os.chdir(self.folder)

    def __call__(self, config: DictConfig) -> Outcome:
        def say(text: str) -> None:
            if self.processes.is_main:
                if self.jobs:
                    name, ended = title(choices(), resolved(config)), HydraConfig.get().job.num
                    own = [word for word in self.own[ended] if word.startswith(NOT_IN_TITLES)] if self.own else []
                    name = " ".join([name, *own])
                    left = time_left(time.monotonic() - self.began, ended, self.jobs)
                    self._say(f"job {ended + 1} of {self.jobs}{left}: {name}")
                self._say(text)

        try:
            outcome = decode_config(config, self.processes, say)
        except Exception as error:  # else Hydra says it, in lines of its own
            traceback.print_exc()
            outcome = Outcome(died=f"{type(error).__name__}: {sentence(error)}")
        if not self.is_away:
            self.finish(outcome)
        return outcome

    def finish(self, outcome: Outcome) -> None:
        self.failed = REFUSED if outcome.refused else max(self.failed, FAILED if outcome.died else 0)
        if not self.processes.is_main:
            return
        if outcome.refused or outcome.died:
            say_error(outcome.refused or f"{outcome.folder or 'a job'} died of {outcome.died}")
        else:
            assert outcome.folder is not None
            self.finished[outcome.folder] = outcome
            self._say(printable(f"{outcome.table}\n{outcome.folder}"))

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr if self.wants_json else sys.stdout, flush=True)

    def close(self) -> None:
        """A sweep's table, and its summary where its runs have sent their numbers."""
        folders = list(self.finished)
        if self.processes.is_main and (self.wants_json or len(folders) > 1):
            runs = [read_run(folder) for folder in folders]
            from parallelbench.report.recommend import advice  # loads statistics that one run does not need

            take = advice(runs, command) if len(runs) > 1 else []
            if self.wants_json:
                told = [{"sentence": sentence, "command": words} for sentence, words in take]
                print(to_json({"runs": run_rows(runs, command) if runs else [], "take": told}, indent=2))
            else:
                below = os.path.commonpath([folder.parent for folder in folders])
                page = f"plots and a page: python -m parallelbench report {shlex.quote(below)}"
                lines = [
                    line
                    for said, words in take
                    for line in (*wrap(said, WIDTH, break_on_hyphens=False), *([f"    {words}"] if words else []))
                ]
                print(printable("\n".join(["", sweep_table(runs), page, "", *lines])))
        sinks = {name: sink for outcome in self.finished.values() for name, sink in outcome.sinks.items()}
        if len(self.finished) > 1 and sinks:
            from parallelbench.report.publish import publish_sweep  # loads plots

            publish_sweep(list(self.finished), sinks)
