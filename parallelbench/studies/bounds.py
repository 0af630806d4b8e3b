"""What parallel decoding can reach at best: ParallelBench's bounds (in bits) and accuracies (arXiv 2510.04767).

A step that commits several tokens from their marginals loses their conditional total correlation

    C(Y|X) = sum H(y_i|X) - H(Y|X)

Over steps S_1 .. S_T the KL divergence is at least L_T = sum E C(S_i | X, S_<i) (Theorem 1). Here are closed forms for
the list operations of n items with k per step, where the last step takes what is left, and the same numbers from any
posterior that can be listed.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from dllm.exact import Enumerated, OneReplaced, Permutations

TASKS = ("copy", "replace_index", "replace_random", "shuffle")
MAX_COLUMNS = 16


def steps(n: int, k: int) -> Iterator[tuple[int, int]]:
    """(tokens masked before the step, tokens that it commits)."""
    for masked in range(n, 0, -k):
        yield masked, min(k, masked)


def kl_bound(task: str, n: int, k: int) -> float:
    """L_T in bits for k tokens per step in any order. For k = n it is the total correlation C(Y|X)."""
    _check(task, n, k)
    if task == "shuffle":
        apart = math.prod(masked**size for masked, size in steps(n, k))
        return math.log2(apart / math.factorial(n))
    if task == "replace_random":
        return sum(masked / n * _open_replacement(masked, size) for masked, size in steps(n, k))
    return 0.0  # the answer is determined by the prompt


def total_correlation(task: str, n: int) -> float:
    """C(Y|X) in bits: what a single step loses."""
    return kl_bound(task, n, n)


def accuracy(task: str, n: int, k: int, temperature: int) -> float:
    """Share of valid answers of an ideal model that decodes k tokens per step in random order.

    temperature: 1 samples. 0 takes the likeliest token and breaks ties at random.

    In a shuffle all orders that are left are equally likely, so both are equation 5. A greedy replacement waits for the
    last step: with one position left it is certain, with two it is a toss of two coins (Table 1), and with more every
    position keeps its item. An argmax that breaks ties alike everywhere does worse: it writes the same item twice, or
    replaces none.
    """
    _check(task, n, k)
    if temperature not in (0, 1):
        raise ValueError(f"temperature={temperature}; closed forms are known for 0 and 1")
    if task in ("copy", "replace_index") or k == 1:
        return 1.0
    if task == "shuffle":  # equation 5
        return math.prod(math.perm(masked, size) / masked**size for masked, size in steps(n, k))
    if temperature == 0:
        *_, (_, last) = steps(n, k)
        return {1: 1.0, 2: 0.5}.get(last, 0.0)
    return _replaced_once(n, k)


def threshold_accuracy(task: str, n: int, gamma: float) -> float:
    """The same for a greedy decoder that commits all tokens above probability gamma, and at least one."""
    _check(task, n, 1)
    if task == "shuffle":
        return float(gamma > 0.5)
    return float(gamma >= (n - 1) / n) if task == "replace_random" else 1.0


def posterior(task: str, n: int) -> Enumerated | Permutations | OneReplaced:
    """The ideal model's distribution over the n items of an answer. Item n is the new one."""
    _check(task, n, 1)
    if task in ("shuffle", "replace_random"):
        return Permutations(n) if task == "shuffle" else OneReplaced(n)
    items = torch.arange(n)
    items[0] = n if task == "replace_index" else 0
    return Enumerated(items[None], torch.ones(1, dtype=torch.float64))


def optimal_bounds(posterior: Enumerated) -> list[float]:
    """L*_T in bits for T = 1, 2, ... steps, up to one per undetermined column: the least L_T of all ways to divide the
    columns into T steps (Theorem 2). By dynamic programming over the sets of revealed columns. For three columns a, b,
    c:

        {} -> {a} -> {a, b, c}      2 steps: C(a) + C(b, c | a), and C of one column is 0
        {} -> {a, b} -> {a, b, c}   2 steps: C(a, b) + C(c | a, b)

    `least[known, t]` is the least loss from the set `known` on with t more steps. It is found from the full set
    backwards.

    Raises ValueError for more than 16 undetermined columns (3^16 steps from set to set).
    """
    _, shares, n = _prefixes(posterior)
    weights = posterior.weights.numpy()
    entropy = -(weights * np.log2(shares)).sum(1)  # of each set's columns together
    least = np.full((2**n, n + 1), np.inf)
    least[-1, 0] = 0
    for known in reversed(range(2**n - 1)):
        alone = {bit: entropy[known | bit] - entropy[known] for bit in _bits(n) if not known & bit}
        parts, apart = _subsets(alone)
        loss = (apart - (entropy[known | parts] - entropy[known])).clip(min=0)
        least[known, 1:] = (loss[:, None] + least[known | parts, :-1]).min(0)
    return least[0, 1:].tolist()


def best_accuracies(posterior: Enumerated) -> list[float]:
    """The largest share of valid answers that sampling from exact marginals can reach, for T = 1, 2, ... steps, up to
    one per undetermined column.

    The next step's columns may depend on what was revealed (Theorem 3), but not on the samples that the step itself
    takes. A decoder that picks tokens by their probability, as greedy ones do, is therefore not bound by it. Raises
    ValueError for more than 16 undetermined columns.
    """
    classes, shares, n = _prefixes(posterior)

    def step(later: np.ndarray, valid: np.ndarray, more: bool) -> np.ndarray:
        return np.pad(later[:, :-1], ((0, 0), (1, 0)))  # one step fewer is left, and with none nothing is reached

    return _best(posterior, classes, shares, np.ones(n + 1), step)[1:].tolist()


def best_values(posterior: Enumerated, prices: Float[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
    """For each price of a forward, the largest mean of accuracy - price * forwards, by the same sampling with any
    number of steps.

    At a mean of x forwards, accuracy is at most min over prices of (value + price * x). That also holds where x is a
    mean over answers of several lengths whose values are averaged. Raises ValueError for more than 16 undetermined
    columns.
    """
    classes, shares, n = _prefixes(posterior)

    def step(later: np.ndarray, valid: np.ndarray, more: bool) -> np.ndarray:
        return later - prices * (1 + more * (1 - valid))  # an answer already spoilt takes another forward, too

    return _best(posterior, classes, shares, np.ones(len(prices)), step) if n else 1 - prices


def _best(
    posterior: Enumerated,
    classes: np.ndarray,
    shares: np.ndarray,
    end: np.ndarray,
    step: Callable[[np.ndarray, np.ndarray, bool], np.ndarray],
) -> np.ndarray:
    """Dynamic programming over what is revealed, from the full set of columns backwards.

    end: the value of a listed answer.
    step: the value of a step, from the value after it, its chance of staying valid, and whether columns are left.
    """
    weights = posterior.weights.numpy()
    n = len(classes).bit_length() - 1
    values = np.tile(end, (len(classes), len(weights), 1))
    for known in reversed(range(2**n - 1)):
        chances = {bit: np.log(shares[known | bit] / shares[known]) for bit in _bits(n) if not known & bit}
        order = np.argsort(classes[known], kind="stable")
        starts = np.flatnonzero(np.diff(classes[known][order], prepend=-1))
        best = np.full((len(starts), len(end)), -np.inf)
        for part, log in zip(*_subsets(chances), strict=True):
            now = known | part
            chance = (np.exp(log) * weights / shares[now])[order]  # an outcome's answers share its chance by weight
            valid = np.add.reduceat(chance, starts)[:, None]
            later = np.add.reduceat(chance[:, None] * values[now][order], starts)
            best = np.maximum(best, step(later, valid, bool(now != 2**n - 1)))
        values[known][order] = np.repeat(best, np.diff(starts, append=len(order)), axis=0)
    return values[0, 0]


def _check(task: str, n: int, k: int) -> None:
    if task not in TASKS:
        raise ValueError(f"no closed form for task {task!r}; known are {', '.join(TASKS)}")
    if n < 2 or not 1 <= k <= n:
        raise ValueError(f"n={n}, k={k}; a list has at least 2 items and a step commits 1 to n")


def _open_replacement(masked: int, size: int) -> float:
    """Bits lost when `size` positions are committed at once, while the replaced item is among `masked` positions."""
    inside, outside = size / masked, 1 - size / masked
    joint = inside * math.log2(masked) - (outside * math.log2(outside) if outside else 0.0)
    one = 1 / masked
    apart = 0.0 if masked == 1 else -one * math.log2(one) - (1 - one) * math.log2(1 - one)
    return size * apart - joint


def _replaced_once(n: int, k: int) -> float:
    """Chance that sampling k positions at a time from their marginals replaces exactly one item: one in this step and
    none later, or none in this step and one later."""
    chance = 0.0
    for masked, size in reversed(list(steps(n, k))):
        one = 1 / masked
        chance = size * one * (1 - one) ** (size - 1) + (1 - one) ** size * chance
    return chance


def _prefixes(posterior: Enumerated) -> tuple[np.ndarray, np.ndarray, int]:
    """For each set of the n undetermined columns, what the answers look like on it. Determined columns ride along with
    any step.

    Bit i of a set stands for column i. Both arrays are `[2^n, A]`: `classes` numbers the values that an answer has on
    the set, and `shares` is the probability of these values. For the equally likely answers ab, ac, bc:

        set         classes   shares
        {}          0 0 0     1   1   1
        {0}         0 0 1     2/3 2/3 1/3
        {1}         0 1 1     1/3 2/3 2/3
        {0, 1}      0 1 2     1/3 1/3 1/3
    """
    columns = [column for column in posterior.answers.T.numpy() if np.ptp(column)]
    n, weights = len(columns), posterior.weights.numpy()
    if n > MAX_COLUMNS:
        raise ValueError(f"{n} undetermined columns; partitions of at most {MAX_COLUMNS} can be searched")
    classes = np.zeros((2**n, len(weights)), dtype=int)
    shares = np.ones((2**n, len(weights)))
    for known in range(1, 2**n):
        last = known.bit_length() - 1
        pairs = classes[known ^ 1 << last] * posterior.num_tokens + columns[last]
        classes[known] = np.unique(pairs, return_inverse=True)[1]
        shares[known] = np.bincount(classes[known], weights)[classes[known]]
    return classes, shares, n


def _bits(n: int) -> list[int]:
    return [1 << column for column in range(n)]


def _subsets(values: Mapping[int, Any]) -> tuple[np.ndarray, np.ndarray]:
    """All non-empty sets of the given bits, and the sum of their values."""
    sets, sums = np.zeros(1, dtype=int), np.zeros((1, *np.shape(next(iter(values.values())))))
    for bit, value in values.items():
        sets, sums = np.concatenate([sets, sets | bit]), np.concatenate([sums, sums + value])
    return sets[1:], sums[1:]
