"""How much a run loses against another on the same samples.

One look at the data: Tango's score test for paired proportions (Statistics in Medicine 17:891, 1998). Partial scores
enter as the sums of losses and gains, whose variance is never larger than that of zeros and ones with the same sums, so
the test is then cautious. Many looks at data that grow: the product of a bettor's gains (Waudby-Smith, Ramdas, JRSS-B
86:1, 2024), which holds in small samples and at any time.
"""

import math
from typing import cast

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

ALPHA = 0.05
STAKES = (0.05, 0.1, 0.2, 0.4, 0.8)  # of `evidence`, of which each has a fifth of the capital


def upper_limit(loss: np.ndarray, alpha: float, most: float = 1.0) -> float:
    """The largest mean loss that the test does not reject at level alpha; losses in [-most, most], `[questions]`."""
    z = float(norm.isf(alpha))
    low, high = float(loss.mean()) + 1e-9, 1 - 1e-9
    if low >= high or statistic(loss, high, most) > -z:
        return 1.0
    return cast(float, brentq(lambda bound: statistic(loss, bound, most) + z, low, high))


def statistic(loss: np.ndarray, bound: float, most: float = 1.0) -> float:
    """Tango's: (mean loss - bound) over its standard error where the loss is the bound. Grows as the square root of
    the number of questions."""
    loss, bound = loss / most, bound / most
    n, lost, gained = len(loss), loss.clip(0).sum(), (-loss).clip(0).sum()
    b = (2 * n - lost + gained) * bound - lost - gained
    rare = (math.sqrt(b * b + 8 * n * gained * bound * (1 - bound)) - b) / (4 * n)  # share of gains, by likelihood
    return float((lost - gained - n * bound) / math.sqrt(n * (2 * rare + bound * (1 - bound))))


def fewest(bound: float, alpha: float = ALPHA) -> int:
    """Questions that show a loss below the bound where two runs differ nowhere: 268 for a hundredth."""
    return math.ceil(float(norm.isf(alpha)) ** 2 * (1 - bound) / bound)


def evidence(numbers: np.ndarray, bound: float, most: float = 1.0) -> float:
    """Against a mean of at most `bound`: if that is true, it is ever above 1 / alpha with a chance of alpha at most. It
    is the capital of a bettor, who begins with 1 and stakes parts of it on larger numbers. numbers in [-most, most],
    of all tasks in equal parts, `[samples]`."""
    room = most + abs(bound)  # more cannot be lost on one of them
    gains = np.log1p(np.multiply.outer(np.array(STAKES) / room, numbers - bound)).sum(1)
    return float(np.exp(gains.clip(max=500)).mean())
