"""Intervals that only resampling can give: of what curves of runs reach, their runs' means drawn together."""

import numpy as np
from jaxtyping import Float, Shaped

from parallelbench.stats.intervals import MISS, Value, places

HALF = 500  # resamples for each limit


def resampled(
    columns: Float[np.ndarray, "k r n"],
    strata: Shaped[np.ndarray, " n"],
    worst: Float[np.ndarray, "k r"],
    best: Float[np.ndarray, "k r"],
    weights: Float[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, "k m r"]:
    """Means over samples of each column of each run. Row 0 is the data itself. The next 500 are bootstrap resamples
    within strata, alike for all runs, in which the sample `worst` is drawn as often as any; the last 500 are the same
    with `best` instead. weights: of each sample, 1 on average.

    A stratum's samples are drawn one fewer than there are, so that resamples vary as much as samples do (Rao and Wu,
    JASA 83:231, 1988).
    """
    rng, n = np.random.default_rng(0), columns.shape[2]
    groups = places(strata, n)
    counts = np.ones((HALF, n))
    for group in range(groups.max() + 1):
        members = np.flatnonzero(groups == group)
        size = len(members)
        if size > 1:
            drawn = rng.multinomial(size - 1, np.full(size, 1 / size), HALF)
            counts[:, members] = drawn * size / (size - 1)
    weighted = columns if weights is None else columns * weights
    sums, unseen = np.einsum("krn,bn->kbr", weighted, counts, optimize=True), rng.poisson(1, (HALF, 1))
    halves = [(sums + unseen * extreme[:, None]) / (n + unseen) for extreme in (worst, best)]
    means = np.concatenate([weighted.mean(2)[:, None], *halves], axis=1)
    return means.round(9)  # a level such as 80 is reached by 80, whatever the order of summing


def tops(score: Float[np.ndarray, "m r"]) -> Float[np.ndarray, " m"]:
    """The best score of any run in each resample; levels are shares of it.

    The best of many noisy scores is above the best true one. By how much resamples tell: the best of each is above that
    of the data's best run. Resamples of upper limits are lowered twice by it, since they add it to what the data have.
    """
    best = score.max(1)
    upper = slice(1 + HALF, None)
    if len(best) > 1 + HALF:
        best[upper] -= 2 * (best[upper] - score[upper, score[0].argmax()]).mean()
    return best


def interval(values: Float[np.ndarray, " m"], n: int) -> Value:
    """The first of resampled values with the percentiles of the others: of those with worst samples the lower, of those
    with best ones the upper. Resamples without a value (nan) do not count."""
    value = float(values[0])
    low, high = np.nanquantile(values[1 : 1 + HALF], MISS), np.nanquantile(values[1 + HALF :], 1 - MISS)
    return Value(value, min(value, float(low)), max(value, float(high)), n)


def lead(values: Float[np.ndarray, " m"], others: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """values - others, each at its worst where the other is at its best."""
    return values - np.concatenate([others[:1], others[1 + HALF :], others[1 : 1 + HALF]])
