"""The command `score`: stored completions scored again by the tasks of their suite."""

from collections.abc import Sequence

from parallelbench.records.record import find_runs, read_run, writing
from parallelbench.report.options import split_options
from parallelbench.run.resume import rescore
from parallelbench.stats.table import run_table
from parallelbench.wiring.conf import build_part


def main(arguments: Sequence[str]) -> None:
    paths, options = split_options(arguments, {"grammar": ""})
    for folder in find_runs(paths):
        config = read_run(folder).config["suite"]
        if options["grammar"]:
            config = {**config, "grammar": options["grammar"]}
        suite = build_part(config)
        with writing(folder):
            finished = rescore(folder, suite.build())
        print(run_table(finished))
        print(finished.folder)
