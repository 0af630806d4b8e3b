"""Whether two settings rank the same methods alike: a rank correlation of means, with an interval over samples."""

import numpy as np
from jaxtyping import Float

from parallelbench.stats.intervals import MISS, Value


def agreement(first: Float[np.ndarray, "b m"], second: Float[np.ndarray, "b m"], n: int) -> Value | None:
    """Kendall's tau-b of m methods' means in two settings: 1 is the same ranking, -1 the opposite one, 0 no relation.

    Row 0 of each is the data, the others are resamples, as `resampling.resampled` makes them; where both settings have
    the same samples they are drawn together. n: samples behind a mean. The interval has 95 % of the resamples. These
    are noisier than the data, so ranks that chance decides pull it towards 0. None: all methods of a setting have the
    same mean.
    """
    low, high = np.triu_indices(first.shape[1], 1)
    signs = [np.sign((means[:, high] - means[:, low]).round(9)) for means in (first, second)]
    ordered = np.sqrt(np.abs(signs[0]).sum(1) * np.abs(signs[1]).sum(1))  # pairs that are no ties
    if ordered[0] == 0:
        return None
    taus = (signs[0] * signs[1]).sum(1) / np.where(ordered > 0, ordered, np.nan)
    limits = np.nanquantile(taus[1:], [MISS, 1 - MISS])
    return Value(float(taus[0]), min(float(taus[0]), float(limits[0])), max(float(taus[0]), float(limits[1])), n)
