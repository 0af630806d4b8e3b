"""How far decoders go from left to right: `python -m parallelbench analyze order RUN ...`."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from parallelbench.records.files import write_tables
from parallelbench.records.questions import numbered
from parallelbench.records.record import Record, Run
from parallelbench.report.markdown import table
from parallelbench.report.options import split_options, suite_runs
from parallelbench.stats.curves import run_names
from parallelbench.stats.intervals import Value, bounded
from parallelbench.stats.metrics import ALL
from parallelbench.stats.order import order_correlations
from parallelbench.stats.paired import observed

NAMES = ("kendall", "spearman", "kendall_canvas", "spearman_canvas")
LEGEND = (
    "Rank correlation of a column's place and the forward that committed it, mean over samples: 1 is from left to "
    "right. canvas: with the padding after the text. Samples whose columns were all committed at once have no order "
    "and do not count. 95 % intervals over samples."
)


def main(arguments: Sequence[str]) -> str:
    """The order of each run; by task in order.csv, if out_dir is given. Raises ValueError for runs without samples."""
    paths, options = split_options(arguments, {"out_dir": ""})
    runs = suite_runs(paths)
    named = tqdm(list(zip(run_names(runs), runs, strict=True)), desc="order", unit="run", leave=False, disable=None)
    tables = {name: order_by_task(run) for name, run in named}
    lines = [
        [run, task, name, v.value, v.ci_low, v.ci_high, v.n]
        for run, tasks in tables.items()
        for task, values in tasks.items()
        for name, v in values.items()
    ]
    rows = [
        [run, *(of[ALL][name].text(".2f") if name in of[ALL] else "" for name in NAMES)] for run, of in tables.items()
    ]
    heads = ["run", *(name.replace("_", ", ") for name in NAMES)]
    markdown = "\n".join(["# Decoding order", "", *table(heads, rows), "", LEGEND, ""])
    head = ["run", "task", "correlation", "value", "ci_low", "ci_high", "n"]
    return write_tables(options["out_dir"], "order", [head, *lines], markdown)


def order_by_task(run: Run) -> dict[str, dict[str, Value]]:
    """Mean correlations of a run's tasks, and of all samples; those that no sample has are left out."""
    run.check_filled()
    found = [(record, order_correlations(record)) for record in run.records]
    tasks = dict.fromkeys(record.task for record in run.records)
    return {task: _means([pair for pair in found if task in (ALL, pair[0].task)]) for task in (*tasks, ALL)}


def _means(found: Sequence[tuple[Record, dict[str, float]]]) -> dict[str, Value]:
    values = {}
    for name in NAMES:
        having = [(record, correlations[name]) for record, correlations in found if name in correlations]
        if having:
            records, numbers = zip(*having, strict=True)
            asked = observed(np.array([record.task for record in records]), np.array(numbered(records)))
            value = bounded(asked.mean(np.array(numbers)), -1, 1, asked.strata, asked.weights)
            values[name] = replace(value, n=len(numbers))
    return values
