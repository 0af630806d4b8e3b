"""Runs over the same samples, side by side, and their means resampled together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from parallelbench.records.record import Record, Run
from parallelbench.stats.metrics import CONFIDENCE, Value, resample_counts


@dataclass(frozen=True)
class Paired:
    """Columns of numbers of runs over the same samples, `[runs, samples]`, and the task of each sample, `[samples]`.

    score: per cent. nfe: forwards. tokens: decoded before EOS. canvas: response columns.
    """

    tasks: np.ndarray
    score: np.ndarray
    nfe: np.ndarray
    tokens: np.ndarray
    canvas: np.ndarray


@dataclass(frozen=True)
class Means:
    """Means of every run in which all tasks weigh alike, `[1 + resamples, runs]`; row 0 is the data itself.

    score: per cent. nfe: forwards per sample. tps: ParallelBench's tokens per step, the mean over samples of response
    columns per forward. tpf: all tokens before EOS over all forwards.
    """

    score: np.ndarray
    nfe: np.ndarray
    tps: np.ndarray
    tpf: np.ndarray


def pair(runs: Sequence[Run]) -> Paired:
    """Raises ValueError for a run that is unfinished, has no samples, or decoded other samples or task versions."""
    for run in runs:
        if run.info["status"] != "done" or not run.records:
            raise ValueError(f"{run.folder} is not finished; repeat its command to finish it, or leave it out")
    by_id = [{(record.task, record.id): record for record in run.records} for run in runs]
    order = sorted(by_id[0])
    for run, records in zip(runs, by_id, strict=True):
        _check_versions(runs[0], run)
        if sorted(records) != order or any(records[key].prompt_sha != by_id[0][key].prompt_sha for key in order):
            raise ValueError(
                f"{run.folder} decoded other samples than {runs[0].folder}; compare runs of one suite, limit and seed"
            )

    def column(number: Callable[[Record], float]) -> np.ndarray:
        return np.array([[number(records[key]) for key in order] for records in by_id], dtype=float)

    return Paired(
        np.array([task for task, _ in order]),
        column(lambda r: 100 * r.scores["score"]),
        column(lambda r: r.nfe),
        column(lambda r: r.num_tokens),
        column(lambda r: len(r.committed_at)),
    )


def means(paired: Paired) -> Means:
    """Means over samples within each task, then over tasks; samples are drawn within their task, alike for all runs."""
    counts = resample_counts(paired.tasks)
    names = np.unique(paired.tasks)
    sums = np.zeros((4, len(counts), len(paired.score)))
    for task in names:
        of = paired.tasks == task
        columns = (paired.score, paired.nfe, paired.canvas / paired.nfe, paired.tokens)
        sums += np.stack([counts[:, of] @ column[:, of].T for column in columns]) / of.sum()
    score, nfe, tps, tokens = sums / len(names)
    return Means(score, nfe, tps, tokens / nfe)


def interval(values: np.ndarray, n: int) -> Value:
    """The first of `[1 + resamples]` values with the percentile interval of the others."""
    low, high = np.quantile(values[1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Value(float(values[0]), float(low), float(high), n)


def _check_versions(first: Run, run: Run) -> None:
    known = {record.task: record.task_version for record in first.records}
    for record in run.records:
        if known.get(record.task, record.task_version) != record.task_version:
            raise ValueError(
                f"{run.folder} has version {record.task_version} of {record.task}, {first.folder} has version "
                f"{known[record.task]}; run one of them again"
            )
