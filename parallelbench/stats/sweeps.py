"""Scores of a sweep: what one decoder's curve of quality against speed is worth, in one number.

A curve is a run (one knob setting) per point: `speed` in tokens per forward and `score` in percent, both `[points]`,
in any order. PBx is ParallelBench's (arXiv 2510.04767, the leaderboard's rules), AUP is d3LLM's (arXiv 2601.07568); the
oracle is ParallelBench's Figure 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom, permutation_test
from tqdm import tqdm

from parallelbench.records.questions import question
from parallelbench.records.record import Run
from parallelbench.stats.curves import places
from parallelbench.stats.intervals import Value, Z
from parallelbench.stats.paired import Means
from parallelbench.stats.resampling import HALF, interval, tops
from parallelbench.stats.speed_at_quality import speed_at

LEVELS = (80, 75, 70)  # per cent, the leaderboard's
AUP_ALPHA, AUP_DROP = 3.0, 5.0
NUM_FLIPS = 9999
LEGEND = (
    "PBx: the most tokens per step at which the mean over tasks stays at x %, 0 where none does. TPS: response columns "
    "per forward, as published, which counts the padding after the answer. TPF: tokens before EOS per forward. AUP: "
    "accuracy under parallelism (d3LLM) on TPF, relative to the best run here. 95 % intervals: bootstrap over samples "
    "within their tasks, the same draws for all, with a sample at its worst among those of the lower limit and one at "
    "its best among those of the upper."
)


def merged(speed: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Places of the points in order of speed; of equal speeds (to nine decimals) only the best score's."""
    order = np.lexsort((score, speed.round(9)))
    return order[np.append(np.diff(speed[order].round(9)) > 0, True)]


def pbx(speed: np.ndarray, score: np.ndarray, level: int | float, discrete: bool = False) -> float:
    """The largest speed with a score of at least `level`, 0.0 where there is none.

    The score is linear between points, or known at the points only (`discrete`), as the leaderboard takes a fixed
    number of tokens per step.
    """
    if discrete:
        return float(speed[score >= level].max(initial=0.0))
    at = merged(speed, score)
    return float(np.nan_to_num(speed_at(speed[at], score[at], level)))


def aup(speed: np.ndarray, score: np.ndarray, best: float, kept: np.ndarray | None = None) -> float:
    """Accuracy under parallelism: the area under the score (per cent) over speed, from 0 at the slowest point's score,
    where points worse than `best`, the best score of any method, count less and points more than five points below the
    slowest are left out. kept: the points that stay, if that is known, `[points]`."""
    at = merged(speed, score)
    stays = (score[at[0]] - score).round(9) <= AUP_DROP if kept is None else kept
    at = at[stays[at] | (at == at[0])]
    x, y = speed[at], score[at]
    weighted = y * np.exp(np.minimum(AUP_ALPHA * (y / best - 1), 0)) if best > 0 else y
    return float(x[0] * y[0] + np.trapezoid(weighted, x))


def aups(speed: np.ndarray, score: np.ndarray, best: np.ndarray, n: int) -> np.ndarray:
    """AUP of a curve in each resample of `resampling.resampled`, `[1 + resamples]`; speed, score: `[1 + resamples,
    points]`; n questions.

    AUP jumps where a point is about five points below the slowest, and data near that edge do not show how far. So the
    points that stay are the same in all resamples of a limit: for the lower one those that are within five points even
    at the far end of their own 95 % interval, with room for a sample that nobody saw, for the upper one those that are
    at its near end.
    """
    slowest = merged(speed[0], score[0])[0]
    drop = score[:, [slowest]] - score
    slack = Z * np.hypot(drop[1:].std(0), 100 / n) if len(drop) > 1 else np.zeros(score.shape[1])
    slack[slowest] = 0  # it stays
    sides = np.repeat([0, -1, 1], [1, HALF, HALF])[: len(score)]
    rows = zip(speed, score, best, sides, strict=True)
    return np.array([aup(x, y, float(top), (drop[0] - side * slack).round(9) <= AUP_DROP) for x, y, top, side in rows])


def pareto(speed: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Places of the points that no other point beats in one of speed and score and equals in the other, by speed."""
    order = np.lexsort((-score, -speed))  # from the fastest, the best of equals first
    beaten_by = np.concatenate([[-np.inf], np.maximum.accumulate(score[order])[:-1]])
    same = np.concatenate([[False], (np.diff(speed[order]) == 0) & (np.diff(score[order]) == 0)])
    on = score[order] > beaten_by
    for i in np.flatnonzero(same):  # equal points are on the front together
        on[i] = on[i - 1]
    return order[on][::-1]


def oracle(score: np.ndarray, nfe: np.ndarray) -> np.ndarray:
    """The place of the run that an oracle takes for each sample, `[samples]`: of those that reach the sample's best
    score the one with the fewest forwards, the first such run. score, nfe: `[runs, samples]`."""
    return np.where(score == score.max(0), nfe, np.inf).argmin(0)


def sign_flip_p(differences: np.ndarray) -> float:
    """Two-sided p-value of a paired permutation test that differences are as likely up as down, 1.0 where all are
    zero. Exact where all differences are of one size (McNemar's exact test) or at most 13 samples differ, else from
    9,999 random flips."""
    moved = differences[differences != 0]
    if len(moved) < 2:
        return 1.0  # one sample that differs is as likely up as down
    if (np.abs(moved) == np.abs(moved[0])).all():
        ups = int((moved > 0).sum())
        return float(min(1.0, 2 * binom.cdf(min(ups, len(moved) - ups), len(moved), 0.5)))
    test = permutation_test(
        (moved,),
        np.mean,
        permutation_type="samples",
        n_resamples=NUM_FLIPS,
        vectorized=True,
        batch=256,
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


@dataclass(frozen=True)
class Sweep:
    """Scores of one decoder's runs: PBx by level on both speeds, AUP."""

    points: int
    tps: dict[int, Value]
    tpf: dict[int, Value]
    aup: Value


def score_sweeps(runs: Sequence[Run], strategies: Sequence[str], resampled: Means, generation: str) -> dict[str, Sweep]:
    """Scores of every curve, `strategies` naming each run's, with 95 % intervals."""
    n, questions = len(runs[0].records), len({question(record) for record in runs[0].records})
    best = tops(resampled.score)  # of any run, in each resample
    sweeps = {}
    curves = places(strategies).items()
    for name, at in tqdm(curves, desc="scores", unit="curve", leave=False, disable=None, delay=1):
        discrete = generation == "v2" and runs[at[0]].facts.fixed_number
        score, tps, tpf = resampled.score[:, at], resampled.tps[:, at], resampled.tpf[:, at]

        def levels(speed: np.ndarray, score: np.ndarray = score, discrete: bool = discrete) -> dict[int, Value]:
            rows = list(zip(speed, score, strict=True))
            return {x: interval(np.array([pbx(*row, x, discrete) for row in rows]), n) for x in LEVELS}

        sweeps[name] = Sweep(
            len(at),
            levels(tps),
            levels(tpf),
            interval(aups(tpf, score, best, questions), n),
        )
    return sweeps
