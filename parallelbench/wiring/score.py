"""The command `score`: stored completions scored again by the tasks of their suite."""

from collections.abc import Sequence

from parallelbench.records.files import printable
from parallelbench.records.lock import writing
from parallelbench.report.options import found_runs, split_options
from parallelbench.run.resume import rescore
from parallelbench.stats.table import run_table
from parallelbench.wiring.conf import build_part


def main(arguments: Sequence[str]) -> None:
    paths, options = split_options(arguments, {"grammar": ""})
    for run in found_runs(paths):
        folder, config = run.folder, run.config["suite"]
        if options["grammar"]:
            config = {**config, "grammar": options["grammar"]}
        suite = build_part(config)
        with writing(folder):
            finished = rescore(folder, suite.build())
        print(printable(f"{run_table(finished)}\n{finished.folder}"))
