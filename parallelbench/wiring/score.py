"""The command `score`: stored completions scored again by the tasks of their suite."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from parallelbench.records.files import printable
from parallelbench.records.lock import writing
from parallelbench.records.record import Run
from parallelbench.report.options import found_runs, split_options, yes_or_no
from parallelbench.run.resume import rescore
from parallelbench.stats.table import run_table
from parallelbench.tasks import Task
from parallelbench.wiring.conf import build_part


@runtime_checkable
class Tasks(Protocol):
    """A suite."""

    def build(self) -> list[Task]: ...


def main(arguments: Sequence[str]) -> None:
    """Scores nothing unless the suites of all runs can be made."""
    paths, options = split_options(arguments, {"grammar": "", "trust": "false"})
    trust, runs = yes_or_no("trust", options["trust"]), found_runs(paths)
    suites = [_suite(run, options["grammar"], trust) for run in runs]
    for run, suite in zip(runs, suites, strict=True):
        with writing(run.folder):
            finished = rescore(run.folder, suite.build())
        print(printable(f"{run_table(finished)}\n{finished.folder}"))


def _suite(run: Run, grammar: str, trust: bool) -> Tasks:
    try:
        suite = build_part(run.config["suite"], trust, {"grammar": grammar} if grammar else {})
    except ValueError as error:
        raise ValueError(f"{run.folder}: {error}") from error
    if not isinstance(suite, Tasks):
        raise ValueError(f"{run.folder}: its config names no suite but {type(suite).__name__}; leave it out")
    return suite
