"""In which order a decoder fills an answer: rank correlations of a column's place and the forward that committed it
(ParallelBench, arXiv 2510.04767). 1 is from left to right, -1 from right to left, 0 no such order."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import kendalltau, spearmanr

from parallelbench.records.record import NEVER, Record
from parallelbench.stats.groups import grouped

CORRELATIONS = {"kendall": kendalltau, "spearman": spearmanr}


def commits_by_task(records: Sequence[Record]) -> dict[str, list[Sequence[int]]]:
    """`committed_at` of each sample, by task."""
    by_task = grouped(records, lambda record: record.task)
    return {task: [record.committed_at for record in of] for task, of in by_task.items()}


def order_correlations(record: Record) -> dict[str, float]:
    """Kendall's tau-b and Spearman's rho over the columns of the text (`kendall`, `spearman`) and over all decoded
    ones, the padding after it too (`kendall_canvas`, `spearman_canvas`).

    Columns of one forward are tied. Left out where all columns, or all but none, are: there is no order in them.
    """
    found = {}
    for suffix, columns in (("", record.committed_at[: record.num_tokens]), ("_canvas", record.committed_at)):
        places = np.array([place for place, forward in enumerate(columns) if forward != NEVER])
        forwards = np.array([forward for forward in columns if forward != NEVER])
        if len(np.unique(forwards)) > 1:
            found |= {f"{name}{suffix}": float(by(places, forwards)[0]) for name, by in CORRELATIONS.items()}
    return found
