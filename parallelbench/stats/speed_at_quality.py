"""Speed at equal quality: how many tokens per forward a decoder reaches while its score stays at a level.

A decoder's runs over its knob make a curve of score against tokens per forward, taken as linear between runs. Its speed
at a level is the largest TPF at which the curve is at or above it. All curves are resampled together, sample by sample
within each task, so differences between decoders are paired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from parallelbench.records.record import Run
from parallelbench.stats.curves import places
from parallelbench.stats.intervals import CONFIDENCE, Value
from parallelbench.stats.leading import crowned, leading
from parallelbench.stats.paired import side_by_side
from parallelbench.stats.resampling import interval, lead, resampled, tops

LEVELS = (0.99, 0.97, 0.9)  # of the best run's score
MIDDLE = LEVELS[1]
REFERENCE = "threshold"  # the curve that others are compared with


@dataclass(frozen=True)
class Speed:
    """TPF of a curve at one level, and its lead over the reference curve; None where the curve never reaches it."""

    tpf: Value | None
    lead: Value | None


@dataclass(frozen=True)
class EqualQuality:
    """Speeds of all curves, the fastest at the middle level first, ceilings after the methods. best: the score that
    levels are shares of, the best of a method's run. runs: places of those that are compared."""

    best: float
    reference: str
    rows: Mapping[str, Mapping[float, Speed]]
    ceilings: frozenset[str]
    runs: tuple[int, ...]

    @property
    def winner(self) -> str | None:
        """The method that is fastest at the middle level; None where none reaches it."""
        reached = (name for name, row in self.rows.items() if name not in self.ceilings and row[MIDDLE].tpf is not None)
        return next(reached, None)


def equal_quality(runs: Sequence[Run], curve_of: Sequence[str]) -> EqualQuality | None:
    """Of the runs over the largest set of equal samples, and the curve of each run; None unless a curve has several of
    them."""
    led = leading(runs)
    curves = {name: [runs[led[i]] for i in at] for name, at in places([curve_of[i] for i in led]).items()}
    if len(curves) == len(led):
        return None
    compared = [runs[i] for i in led]
    best = max(float(np.mean([r.scores["score"] for r in compared[i].records])) for i in crowned(compared))
    ceilings = frozenset(name for name, members in curves.items() if all(run.facts.is_ceiling for run in members))
    reference = reference_curve(list(curves))
    rows = speeds(curves, reference)

    def place(name: str) -> tuple[bool, float]:
        tpf = rows[name][MIDDLE].tpf
        return name in ceilings, -(tpf.value if tpf else 0.0)

    return EqualQuality(best, reference, {name: rows[name] for name in sorted(rows, key=place)}, ceilings, tuple(led))


def reference_curve(names: Sequence[str]) -> str:
    """The curve of the reference decoder, or the first."""
    same_rule = [name for name in names if name.split()[0] == REFERENCE]
    return next(name for name in (REFERENCE, f"{REFERENCE} cache=none", *same_rule, *names) if name in names)


def speeds(curves: Mapping[str, Sequence[Run]], reference: str) -> dict[str, dict[float, Speed]]:
    """speeds[curve][level]; levels are shares of the best run's score, ceilings aside. Raises ValueError unless all
    runs decoded the same samples."""
    all_runs = [run for runs in curves.values() for run in runs]
    paired = side_by_side(all_runs)
    ranked = crowned(all_runs)
    names, n = [name for name, runs in curves.items() for _ in runs], len(paired.tasks)
    asked = paired.questions
    columns = asked.mean(np.stack([paired.score, paired.tokens, paired.nfe]))
    worst, best = columns.mean(2), columns.mean(2)
    worst[0], worst[2], best[0] = paired.score.min(1).clip(max=0), paired.slow(), paired.score.max(1).clip(min=100)
    score, tokens, nfe = resampled(columns, asked.strata, worst, best, asked.weights)
    tpf, curve_of = tokens / nfe, places(names)

    def reached(top: np.ndarray) -> dict[str, dict[float, np.ndarray]]:
        return {
            name: {level: speeds_at(tpf[:, at], score[:, at], level * top) for level in LEVELS}
            for name, at in curve_of.items()
        }

    alone, beside = reached(tops(score[:, ranked])), reached(score[:, ranked].max(1))  # curves share a level's error
    return {
        name: {
            level: Speed(
                speed_value(alone[name][level], n),
                speed_value(lead(beside[name][level], beside[reference][level]), n),
            )
            for level in LEVELS
        }
        for name in alone
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


def speeds_at(
    tpf: Float[np.ndarray, "m r"], score: Float[np.ndarray, "m r"], levels: Float[np.ndarray, " m"]
) -> Float[np.ndarray, " m"]:
    """`speed_at` of r runs in each of m resamples, which have levels of their own."""
    return np.array([speed_at(*points) for points in zip(tpf, score, levels, strict=True)])


def speed_value(values: np.ndarray, n: int) -> Value | None:
    """None where too many resamples do not come to the level."""
    return None if np.isnan(values[0]) or np.isnan(values).mean() > 1 - CONFIDENCE else interval(values, n)
