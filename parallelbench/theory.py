"""What parallel decoding can reach at best: ParallelBench's bounds (in bits) and accuracies (arXiv 2510.04767).

A step that commits several tokens from their marginals loses their conditional total correlation C(Y|X) = sum H(y_i|X)
- H(Y|X); over steps S_1 .. S_T the KL divergence is at least L_T = sum E C(S_i | X, S_<i) (Theorem 1). Closed forms for
the list operations of n items, k per step, the last step taking what is left; and the same from any posterior that
can be listed.
"""

import math
from collections.abc import Iterator, Sequence

import torch

from dllm.exact import UNDECIDED, Enumerated, Posterior

TASKS = ("copy", "replace_index", "replace_random", "shuffle")


def steps(n: int, k: int) -> Iterator[tuple[int, int]]:
    """(tokens masked before the step, tokens that it commits)."""
    for masked in range(n, 0, -k):
        yield masked, min(k, masked)


def kl_bound(task: str, n: int, k: int) -> float:
    """L_T in bits for k tokens per step in any order; k = n is the total correlation C(Y|X)."""
    _check(task, n, k)
    if task == "shuffle":
        return sum(size * math.log2(masked) for masked, size in steps(n, k)) - math.log2(math.factorial(n))
    if task == "replace_random":
        return sum(masked / n * _open_replacement(masked, size) for masked, size in steps(n, k))
    return 0.0  # the answer is determined by the prompt


def total_correlation(task: str, n: int) -> float:
    """C(Y|X) in bits: what a single step loses."""
    return kl_bound(task, n, n)


def accuracy(task: str, n: int, k: int, temperature: int) -> float:
    """Share of valid answers of an ideal model at k tokens per step in random order, sampling (temperature 1) or taking
    the likeliest token with ties broken at random (0).

    All orders left are equally likely in a shuffle, so both are equation 5. A greedy replacement waits for the last
    step: one position left is certain, two are a toss of two coins (Table 1), with more every position keeps its item.
    An argmax that breaks ties alike everywhere does worse: the same item twice, or no replacement at all.
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
    """The same, committing greedily all tokens above probability gamma, at least one."""
    _check(task, n, 1)
    if task == "shuffle":
        return float(gamma > 0.5)
    return float(gamma >= (n - 1) / n) if task == "replace_random" else 1.0


def posterior_bound(posterior: Enumerated, parts: Sequence[Sequence[int]]) -> float:
    """L_T in bits of a listed distribution whose columns are revealed part by part: sum of E C(S_i | S_<i)."""
    if sorted(column for part in parts for column in part) != list(range(posterior.length)):
        raise ValueError(f"parts={parts} do not divide the {posterior.length} columns")
    loss, known = 0.0, []
    for part in parts:
        before = posterior.answers[:, known]
        for row in sorted(set(map(tuple, before.tolist()))):
            seen = torch.tensor(row, dtype=torch.long)
            chosen = (before == seen).all(1)
            weight = posterior.weights[chosen].sum()
            tokens = torch.full((1, posterior.length), UNDECIDED)
            tokens[0, known] = seen
            apart = sum(_entropy(row) for row in posterior.marginals(tokens)[0, list(part)])
            outcomes, index = posterior.answers[chosen][:, list(part)].unique(dim=0, return_inverse=True)
            joint = torch.zeros(len(outcomes), dtype=weight.dtype).index_add_(0, index, posterior.weights[chosen])
            loss += float(weight * (apart - _entropy(joint / weight)))
        known = [*known, *part]
    return loss


def blocks(n: int, k: int) -> list[list[int]]:
    """Columns 0 .. n - 1 in parts of k."""
    return [list(range(first, min(first + k, n))) for first in range(0, n, k)]


def is_valid(posterior: Posterior, answer: Sequence[int]) -> bool:
    """Whether an answer has positive probability: none of its tokens is impossible given the others."""
    if not all(0 <= token < posterior.num_tokens for token in answer):
        return False
    for column, token in enumerate(answer):
        others = torch.tensor([[UNDECIDED if i == column else t for i, t in enumerate(answer)]])
        if float(posterior.marginals(others)[0, column, token]) == 0:
            return False
    return True


def _check(task: str, n: int, k: int) -> None:
    if task not in TASKS:
        raise ValueError(f"no closed form for task {task!r}; known are {', '.join(TASKS)}")
    if n < 2 or not 1 <= k <= n:
        raise ValueError(f"n={n}, k={k}; a list has at least 2 items and a step commits 1 to n")


def _open_replacement(masked: int, size: int) -> float:
    """Bits lost where the replaced item is among `masked` positions and `size` of them are committed at once."""
    inside, outside = size / masked, 1 - size / masked
    joint = inside * math.log2(masked) - (outside * math.log2(outside) if outside else 0.0)
    one = 1 / masked
    apart = 0.0 if masked == 1 else -one * math.log2(one) - (1 - one) * math.log2(1 - one)
    return size * apart - joint


def _replaced_once(n: int, k: int) -> float:
    """Chance that sampling k positions at a time from their marginals replaces exactly one: either one of this step's
    and none later, or none of this step's and one later."""
    chance = 0.0
    for masked, size in reversed(list(steps(n, k))):
        one = 1 / masked
        chance = size * one * (1 - one) ** (size - 1) + (1 - one) ** size * chance
    return chance


def _entropy(probabilities: torch.Tensor) -> float:
    positive = probabilities[probabilities > 0]
    return float(-(positive * positive.log2()).sum())
