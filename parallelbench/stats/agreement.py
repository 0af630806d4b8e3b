"""Whether two settings rank the same methods alike: a rank correlation of means, with an interval over samples."""

import math

import numpy as np
from jaxtyping import Float

from parallelbench.stats.intervals import MISS, Value

AGAINST = 3.0  # standard deviations: few coins may all fall against the truth


def agreement(first: Float[np.ndarray, "b m"], second: Float[np.ndarray, "b m"], n: int) -> Value | None:
    """Kendall's tau-b of m methods' means in two settings: 1 is the same ranking, -1 the opposite one, 0 no relation.

    Row 0 of each is the data, the others are resamples, as `resampling.resampled` makes them; where both settings have
    the same samples they are drawn together. n: samples after a mean. None: all methods of a setting have the same
    mean.

    Noise swaps methods that lie closer together than its standard deviation. The number of such pairs is proportional
    to it, and each pulls tau towards 0; so twice the deviation pulls tau as far again. That fails where methods lie in
    close pairs, whose order chance has settled: more noise swaps no more of them. Each limit is the outer one of three:
    of 95 % of the resamples, of the basic bootstrap with resamples sqrt(3) times as far from the data, which have twice
    its noise, and of the error of as many coins as there are pairs in doubt.
    """
    taus = _taus(first, second)
    value = float(taus[0])
    if math.isnan(value):
        return None
    noisier = _taus(*(means[:1] + math.sqrt(3) * (means - means[:1]) for means in (first, second)))
    low, high = np.nanquantile(taus[1:], [MISS, 1 - MISS])
    least, most = np.nanquantile(noisier[1:], [MISS, 1 - MISS])
    doubt = AGAINST * _doubt(first, second)
    limits = min(low, 2 * value - most, value - doubt), max(high, 2 * value - least, value + doubt)
    return Value(value, max(-1.0, float(limits[0])), min(1.0, float(limits[1])), n)


def _doubt(first: Float[np.ndarray, "b m"], second: Float[np.ndarray, "b m"]) -> float:
    """The standard deviation of tau where whether the settings agree on a pair is as uncertain as in the resamples,
    apart from other pairs."""
    signs = _signs(first), _signs(second)
    agree = signs[0] * signs[1]
    ordered = float(np.abs(signs[0][0]).sum() * np.abs(signs[1][0]).sum())
    return math.sqrt(float(((agree[1:] - agree[0]) ** 2).mean(0).sum()) / ordered)


def _signs(means: Float[np.ndarray, "b m"]) -> Float[np.ndarray, "b p"]:
    """Of the difference of each pair; 0 where they tie."""
    low, high = np.triu_indices(means.shape[1], 1)
    return np.sign((means[:, high] - means[:, low]).round(9))


def _taus(first: Float[np.ndarray, "b m"], second: Float[np.ndarray, "b m"]) -> Float[np.ndarray, " b"]:
    """Of each row; nan where all methods of a setting tie."""
    signs = _signs(first), _signs(second)
    ordered = np.sqrt(np.abs(signs[0]).sum(1) * np.abs(signs[1]).sum(1))  # pairs that are no ties
    return (signs[0] * signs[1]).sum(1) / np.where(ordered > 0, ordered, np.nan)
