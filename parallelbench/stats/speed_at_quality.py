"""Speed at equal quality: how many tokens per forward a decoder reaches while its score stays at a level.

A decoder's runs over its knob make a curve of score against tokens per forward, taken as linear between runs. Its speed
at a level is the largest TPF at which the curve is at or above it. All curves are resampled together, sample by sample
within each task, so differences between decoders are paired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parallelbench.records.record import Run
from parallelbench.stats.intervals import CONFIDENCE, Value
from parallelbench.stats.paired import side_by_side
from parallelbench.stats.resampling import interval, lead, resampled

LEVELS = (0.99, 0.97, 0.9)  # of the best run's score


@dataclass(frozen=True)
class Speed:
    """TPF of a curve at one level, and its lead over the reference curve; None where the curve never reaches it."""

    tpf: Value | None
    lead: Value | None


def speeds(curves: Mapping[str, Sequence[Run]], reference: str) -> dict[str, dict[float, Speed]]:
    """speeds[curve][level]. Raises ValueError unless all runs decoded the same samples."""
    paired = side_by_side([run for runs in curves.values() for run in runs])
    names, n = [name for name, runs in curves.items() for _ in runs], len(paired.tasks)
    columns = np.stack([paired.score, paired.tokens, paired.nfe])
    worst, best = columns.mean(2), columns.mean(2)
    worst[0], worst[2], best[0] = paired.score.min(1).clip(max=0), paired.slow(), paired.score.max(1).clip(min=100)
    score, tokens, nfe = resampled(columns, paired.tasks, worst, best)
    tpf, top = tokens / nfe, score.max(1)

    reached: dict[str, dict[float, np.ndarray]] = {}
    for name in curves:
        at = [i for i, other in enumerate(names) if other == name]
        points = list(zip(tpf[:, at], score[:, at], top, strict=True))
        reached[name] = {level: np.array([speed_at(t, s, level * best) for t, s, best in points]) for level in LEVELS}
    return {
        name: {
            level: Speed(speed_value(values, n), speed_value(lead(values, reached[reference][level]), n))
            for level, values in of.items()
        }
        for name, of in reached.items()
    }


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


def speed_value(values: np.ndarray, n: int) -> Value | None:
    """None where too many resamples do not come to the level."""
    return None if np.isnan(values[0]) or np.isnan(values).mean() > 1 - CONFIDENCE else interval(values, n)
