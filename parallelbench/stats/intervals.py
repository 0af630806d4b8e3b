"""95 % intervals, one place for each kind of number. docs/intervals.md has how often each holds the truth.

Samples are drawn within strata: the tasks of a suite are fixed, only their samples are random. What no sample has shown
may still exist: a rare wrong answer, a rare sample that took as many forwards as it has columns. The limits on that
side allow for it. An interval without width is none: there is one observation, or fewer than five batches, or chance
has no part in the number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

CONFIDENCE = 0.95
MISS = (1 - CONFIDENCE) / 2  # on each side
Z = float(ndtri(1 - MISS))
NEAR = 0.05  # the one-sided level of a second limit besides the first: Student's by the score test, an unseen sample's
MIN_BATCHES = 5

Numbers = Float[np.ndarray, " n"]
Strata = Shaped[np.ndarray, " n"]
Groups = Int[np.ndarray, " n"]


@dataclass(frozen=True)
class Value:
    """A mean or a ratio of sums over n samples (n batches for timings) with its 95 % interval; ci_low = ci_high where
    it has none."""

    value: float
    ci_low: float
    ci_high: float
    n: int

    @property
    def has_interval(self) -> bool:
        return self.ci_low < self.ci_high

    def cells(self) -> list[float | str]:
        """Value and limits of a CSV line, which are empty where there are none."""
        return [self.value, *((self.ci_low, self.ci_high) if self.has_interval else ("", ""))]

    def text(self, show: str, scale: int = 1, unit: str = "") -> str:
        """Value and interval in a format such as ".2f"."""
        value, low, high = (f"{_shown(scale * v, show)}{unit}" for v in (self.value, self.ci_low, self.ci_high))
        return f"{value} [{low}, {high}]" if self.has_interval else value


def _shown(number: float, show: str) -> str:
    """A number in a format. With a sign, what rounds to zero but is none says so: "-<0.05", not "-0.0"."""
    text = f"{0.0 if abs(number) < 1e-9 else number:{show}}"
    if text[0] not in "+-" or float(text) or abs(number) < 1e-9:
        return text
    return f"{text[0]}<{text[1:-1]}05" if "." in text else f"{text[0]}<0.5"


def bounded(
    values: Numbers,
    low: int | float,
    high: int | float,
    strata: Strata | None = None,
    weights: Numbers | None = None,
) -> Value:
    """The mean of values in [low, high]: scores, and differences of scores. A value beyond a bound moves it.

    weights: of each sample, 1 on average, alike within a stratum.

    Each limit is the outer one of two. The score test's asks which means the data reject, where each mean is given the
    likeliest distribution that has it, on the values seen and the bound: Wilson's interval for zeros and ones, Tango's
    for differences of them (Statistics in Medicine 17:891, 1998). It errs where a few values differ from a bound
    (Brown, Cai, DasGupta, Statistical Science 16:101, 2001), which Student's 95 % limit mends. Strata enter by their
    own means.
    """
    n, low, high = len(values), min(low, float(values.min())), max(high, float(values.max()))
    weights = np.ones(n) if weights is None else weights
    mean = float((weights * values).mean())
    if n == 1:
        return Value(mean, mean, mean, n)
    spread, freedom = _within(weights * values, places(strata, n))
    scale = float(weights.max()) * math.sqrt(n / freedom)
    near = float(stdtrit(freedom, 1 - NEAR)) * math.sqrt(float((spread**2).mean()) / n)
    up, down = (_score_limit(side, scale * room, near) for side, room in ((spread, high - mean), (-spread, mean - low)))
    return Value(mean, max(float(low), mean - down), min(float(high), mean + up), n)


def product(
    columns: Float[np.ndarray, "k n"],
    powers: Sequence[int],
    strata: Strata | None = None,
    unseen: Float[np.ndarray, "u k"] | None = None,
) -> Value:
    """The product of the columns' means to powers such as (1, -1), a ratio of sums.

    unseen: samples that nobody saw but that may be there.

    Each limit is the outer one of two: Student's for the logarithm, taken as linear in the samples, and his one-sided
    95 % limit of the data with an unseen sample on that side. With z = 1.64 the second reaches to a share of about
    (1 + z) / n of such samples where none was seen, and (1 + z) / n hides in 7 of 100 runs (the rule of three). There
    is no interval where all samples have the same ratio.
    """
    n = columns.shape[1]
    groups, exponents = places(strata, n), np.array(powers, dtype=float)
    means = columns.mean(1)
    with np.errstate(divide="ignore", invalid="ignore"):  # a run may have no tokens at all
        value = float(np.prod(means**exponents))
    if n == 1 or not means.min() > 0 or np.ptp((exponents / means) @ columns) < 1e-9:
        return Value(value, value, value, n)

    def limit(sign: float, added: Float[np.ndarray, "e k"], miss: float) -> float:
        size = n + len(added)
        totals = (columns.sum(1) + added.sum(0)) / size
        spread, freedom = _within((exponents / totals) @ columns, groups)
        square = (spread**2).sum() + ((added @ (exponents / totals) - exponents.sum()) ** 2).sum()
        step = float(stdtrit(freedom + len(added), 1 - miss)) * math.sqrt(square) / size
        return float(np.prod(totals**exponents) * np.exp(sign * step))

    limits = [value, *(limit(sign, np.empty((0, len(means))), MISS) for sign in (-1.0, 1.0))]
    for added in () if unseen is None else unseen:
        if side := np.sign(round(float(np.prod(added**exponents)) / value - 1, 9)):
            limits.append(limit(side, added[None], NEAR))
    return Value(value, min(limits), max(limits), n)


def quantiles(strata: Strata) -> list[float]:
    """Student's quantiles that intervals of these samples take, for readers that have none: of `bounded`; of `product`,
    and of it with an unseen sample."""
    n = len(strata)
    if n == 1:
        return [0.0] * 3  # one sample has no interval
    freedom = n - 1 - int(places(strata, n).max())
    degrees = ((freedom, NEAR), (freedom, MISS), (freedom + 1, NEAR))
    return [float(stdtrit(number, 1 - miss)) for number, miss in degrees]


def places(strata: Strata | None, n: int) -> Groups:
    """A number from zero for each stratum. Strata of a single sample are one stratum together; if there is but one such
    stratum, all samples are one."""
    if strata is None:
        return np.zeros(n, dtype=int)
    groups, counts = np.unique(strata, return_inverse=True, return_counts=True)[1:]
    alone = counts[groups] == 1
    if alone.sum() == 1:
        return np.zeros(n, dtype=int)
    return np.unique(np.where(alone, -1, groups), return_inverse=True)[1] if alone.any() else groups


def _within(values: Numbers, groups: Groups) -> tuple[Numbers, int]:
    """Deviations from the strata's means whose mean square over n is the variance of the mean, and its degrees of
    freedom."""
    counts = np.bincount(groups)
    means = np.bincount(groups, values) / counts
    return (values - means[groups]) * np.sqrt(counts / (counts - 1))[groups], len(values) - len(counts)


def _score_limit(spread: Numbers, room: float, least: float) -> float:
    """How far above zero the mean of deviations that reach up to `room` may lie by the score test, `least` or more."""
    points, counts = np.unique(spread.round(12), return_counts=True)
    n, room, bottom = len(spread), max(room, float(points[-1])), float(points[0])
    if len(points) == 1 or (len(points) == 2 and points[1] > room * (1 - 1e-9)):  # two places: Wilson's, closed
        b = Z**2 * (bottom + room)
        return max(least, (b + math.sqrt(b * b - 4 * (n + Z**2) * Z**2 * bottom * room)) / (2 * (n + Z**2)))

    def statistic(mean: float) -> float:
        return math.sqrt(n) * mean - Z * math.sqrt(_null_variance(points - mean, counts / n, room - mean))

    if least >= room or statistic(least) >= 0:
        return least
    return cast(float, brentq(statistic, least, room * (1 - 1e-9), xtol=1e-6 * room))


def _null_variance(points: Numbers, shares: Numbers, room: float) -> float:
    """Variance of the likeliest distribution of mean zero on the points, whose mean is below it, and on `room`."""

    def mean(tilt: float) -> float:
        return float((shares * points / (1 - tilt * points)).sum())

    tilt = (1 - 1e-9) / room
    if mean(tilt) > 0:
        tilt = cast(float, brentq(mean, 0.0, tilt, xtol=1e-9 * tilt))
    likeliest = shares / (1 - tilt * points)
    return float((likeliest * points**2).sum() + max(0.0, 1 - likeliest.sum()) * room**2)
