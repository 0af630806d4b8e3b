"""Speed at equal quality: how many tokens per forward a decoder reaches while its score stays at a level.

A decoder's runs over its knob make a curve of score against tokens per forward, taken as linear between runs. Its speed
at a level is the largest TPF at which the curve is at or above it. All curves are resampled together, sample by sample
within each task, so differences between decoders are paired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parallelbench.records.record import Run
from parallelbench.stats.metrics import CONFIDENCE, Value, resample_counts

LEVELS = (0.99, 0.97, 0.9)  # of the best run's score


@dataclass(frozen=True)
class Speed:
    """TPF of a curve at one level, and its lead over the reference curve; None where the curve never reaches it."""

    tpf: Value | None
    lead: Value | None


def speeds(curves: Mapping[str, Sequence[Run]], reference: str) -> dict[str, dict[float, Speed]]:
    """speeds[curve][level]. Raises ValueError unless all runs decoded the same samples."""
    first = next(iter(curves.values()))[0]
    order = sorted((record.task, record.id) for record in first.records)
    tasks = np.array([task for task, _ in order])
    names = [name for name, runs in curves.items() for _ in runs]
    table = np.stack([_columns(run, order) for runs in curves.values() for run in runs])  # [run, 3, sample]

    sums = np.einsum("rks,bs->kbr", table, resample_counts(tasks), optimize=True)  # [3, resample, run]
    score, tpf = sums[0] / len(order), sums[1] / sums[2]

    best = score[0].max()
    result: dict[str, dict[float, Speed]] = {}
    reached: dict[str, dict[float, np.ndarray]] = {}
    for name in curves:
        columns = [i for i, other in enumerate(names) if other == name]
        reached[name] = {
            level: np.array(
                [speed_at(t, s, level * best) for t, s in zip(tpf[:, columns], score[:, columns], strict=True)]
            )
            for level in LEVELS
        }
    for name in curves:
        result[name] = {
            level: Speed(_value(values, len(order)), _value(values - reached[reference][level], len(order)))
            for level, values in reached[name].items()
        }
    return result


def _columns(run: Run, order: Sequence[tuple[str, str]]) -> np.ndarray:
    records = {(record.task, record.id): record for record in run.records}
    if sorted(records) != list(order):
        raise ValueError(f"{run.folder} decoded other samples than the rest; compare runs of one suite, limit and seed")
    rows = [records[key] for key in order]
    return np.array(
        [[r.scores["score"] for r in rows], [r.num_tokens for r in rows], [r.nfe for r in rows]], dtype=float
    )


def speed_at(tpf: np.ndarray, score: np.ndarray, level: int | float) -> float:
    """The largest TPF with a score of at least `level` on the polyline through the points; nan where there is none."""
    order = np.argsort(tpf)[::-1]
    x, y = tpf[order], score[order]
    good = np.flatnonzero(y >= level)
    if not len(good):
        return float("nan")
    i = good[0]
    if i == 0:
        return float(x[0])  # the fastest run is good enough: the curve may go on
    return float(x[i] + (x[i - 1] - x[i]) * (y[i] - level) / (y[i] - y[i - 1]))


def _value(values: np.ndarray, n: int) -> Value | None:
    """The first value with the percentile interval of the others."""
    if np.isnan(values).mean() > 1 - CONFIDENCE:
        return None
    low, high = np.nanquantile(values[1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Value(float(values[0]), float(low), float(high), n)
