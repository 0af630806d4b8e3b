"""Theory against its published table, against listed distributions, and against decodes of ideal models."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from decoders import NO_CACHE, Decoder, FixedK, Never, Threshold, decode
from dllm.exact import UNDECIDED, Enumerated, ExactModel, OneReplaced, Permutations
from parallelbench.studies.bounds import (
    accuracy,
    best_accuracies,
    best_values,
    kl_bound,
    optimal_bounds,
    threshold_accuracy,
    total_correlation,
)

POSTERIORS = {"shuffle": Permutations, "replace_random": OneReplaced}
TABLE = {  # n: C, L at k = 2 and 4 of shuffle and of replace random; accuracies in % at k = 2, 3, 4, n of both
    3: ((2.1699, 0.5850, 2.1699), (1.1699, 0.2516, 1.1699), (66.67, 22.22, 22.22, 22.22), (88.89, 44.44, 44.44, 44.44)),
    4: ((3.4150, 1.4150, 3.4150), (1.2451, 0.6226, 1.2451), (37.5, 37.5, 9.375, 9.375), (65.62, 84.38, 42.19, 42.19)),
    5: ((4.7027, 0.9069, 2.3808), (1.2877, 0.2239, 0.5658), (53.33, 24, 19.2, 3.84), (88.89, 64, 81.92, 40.96)),
    8: (
        (8.7008, 1.8707, 4.7008),
        (1.3485, 0.3734, 0.7968),
        (27.34, 15.75, 3.845, 0.2403),
        (78.03, 71.59, 58.23, 39.27),
    ),
    10: ((11.4282, 2.0227, 3.8365), (1.3680, 0.3148, 0.5141), (24.61, 16.53, 7, 0.03629), (81.21, 85.99, 70.29, 38.74)),
    15: ((18.3532, 1.6517, 5.1995), (1.3935, 0.1273, 0.4512), (31.83, 5.274, 2.721, 3e-4), (92.72, 77.58, 73.5, 38.06)),
    20: ((25.3612, 2.5047, 6.5502), (1.4060, 0.1824, 0.4149), (17.62, 6.62, 1.067, 0), (88.74, 83.83, 75.95, 37.74)),
}


@pytest.mark.parametrize("n", TABLE)
def test_closed_forms_are_the_published_ones(n: int) -> None:
    for task, bounds, shares in zip(POSTERIORS, TABLE[n][:2], TABLE[n][2:], strict=True):
        k4 = min(4, n)
        assert [total_correlation(task, n), kl_bound(task, n, 2), kl_bound(task, n, k4)] == pytest.approx(
            bounds, abs=6e-5
        )
        ours = [100 * accuracy(task, n, min(k, n), 1) for k in (2, 3, 4, n)]
        assert ours == pytest.approx(shares, rel=3e-4, abs=1e-5)
    for task in ("copy", "replace_index"):
        assert total_correlation(task, n) == 0 and accuracy(task, n, n, 1) == 1


def enumerated(posterior: Permutations | OneReplaced) -> Enumerated:
    """All answers as a list."""
    n = posterior.length
    if isinstance(posterior, OneReplaced):
        return Enumerated.uniform(torch.arange(n).repeat(n, 1).fill_diagonal_(n))
    return Enumerated.uniform(torch.tensor(list(permutations(range(n)))[0 if posterior.identity else 1 :]))


def posterior_bound(posterior: Enumerated, parts: Sequence[Sequence[int]]) -> float:
    """L_T in bits of a listed distribution whose columns are revealed part by part: sum of E C(S_i | S_<i)."""
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


def _entropy(probabilities: torch.Tensor) -> float:
    positive = probabilities[probabilities > 0]
    return float(-(positive * positive.log2()).sum())


def test_limits() -> None:
    assert total_correlation("replace_random", 10**6) == pytest.approx(math.log2(math.e), abs=1e-5)
    for n in (4, 6, 8):
        double = math.prod(range(n, 0, -2)) / math.prod(range(n - 1, 0, -2))
        assert kl_bound("shuffle", n, 2) == pytest.approx(math.log2(double))


@pytest.mark.parametrize(
    ("task", "n"), [("shuffle", n) for n in range(3, 7)] + [("replace_random", n) for n in range(3, 11)]
)
def test_bounds_of_the_listed_distribution(task: str, n: int) -> None:
    listed = enumerated(POSTERIORS[task](n))
    for k in (1, 2, 3, n):
        assert posterior_bound(listed, blocks(n, k)) == pytest.approx(kl_bound(task, n, k), abs=1e-6)
    backwards = [part[::-1] for part in blocks(n, 2)[::-1]]
    if n % 2 == 0:
        assert posterior_bound(listed, backwards) == pytest.approx(kl_bound(task, n, 2), abs=1e-6)


@pytest.mark.parametrize("n", range(3, 11))
def test_bounds_of_shuffles_too_many_to_list(n: int) -> None:
    """All revealed parts of a shuffle are alike, so one of them gives the entropies of all."""

    def bits(parts: list[list[int]]) -> float:
        total, tokens = 0.0, torch.full((1, n), UNDECIDED)
        for part in parts:
            marginals = Permutations(n).marginals(tokens)[0, part]
            total -= float(torch.special.xlogy(marginals, marginals).sum()) / math.log(2)
            tokens[0, part] = torch.tensor(part)
        return total

    for k in (1, 2, 3, 4, n):
        loss = bits(blocks(n, min(k, n))) - bits(blocks(n, 1))
        assert loss == pytest.approx(kl_bound("shuffle", n, min(k, n)), abs=1e-6)


@pytest.mark.parametrize("posterior", [Permutations(5), Permutations(5, identity=False), OneReplaced(5)], ids=repr)
def test_counted_posteriors_equal_listed_ones(posterior: Permutations | OneReplaced) -> None:
    listed, rng = enumerated(posterior), torch.Generator().manual_seed(0)
    answers = listed.answers[torch.randint(0, len(listed.answers), (50,), generator=rng)]
    seen = torch.rand(answers.shape, generator=rng) < torch.rand(50, 1, generator=rng)
    tokens = answers.where(seen, UNDECIDED)
    expected = listed.marginals(tokens)
    torch.testing.assert_close(posterior.marginals(tokens)[~seen], expected[~seen])
    assert expected.sum(-1).allclose(torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize("posterior", [Permutations(4), Permutations(4, identity=False), OneReplaced(4)], ids=repr)
def test_valid_answers_are_the_listed_ones(posterior: Permutations | OneReplaced) -> None:
    every = torch.cartesian_prod(*[torch.arange(6)] * 4)  # also with tokens that no answer has
    valid, listed = posterior.valid(every), enumerated(posterior)
    assert sorted(every[valid].tolist()) == sorted(listed.answers.tolist())
    assert torch.equal(listed.valid(every), valid)


def ordered_partitions(columns: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    if not columns:
        yield []
    for size in range(1, len(columns) + 1):
        for part in combinations(columns, size):
            for rest in ordered_partitions(tuple(c for c in columns if c not in part)):
                yield [part, *rest]


def sampled_accuracy(posterior: Enumerated, parts: Sequence[Sequence[int]]) -> float:
    """Chance of a valid answer where each part is sampled from its marginals: answer by answer, step by step."""
    total = 0.0
    for answer in posterior.answers:
        tokens, chance = torch.full((1, posterior.length), UNDECIDED), 1.0
        for part in parts:
            marginals = posterior.marginals(tokens)[0]
            chance *= math.prod(float(marginals[column, answer[column]]) for column in part)
            tokens[0, list(part)] = answer[list(part)]
        total += chance
    return total


SMALL = [Permutations(3), Permutations(4), Permutations(4, identity=False), OneReplaced(4), OneReplaced(3)]


def in_two_tokens(posterior: Enumerated) -> Enumerated:
    """Each item written as two tokens, between fixed ones."""
    n, v = posterior.length, posterior.num_tokens
    answers = torch.full((len(posterior.answers), 3 * n), 2 * v)
    answers[:, 0::3], answers[:, 2::3] = posterior.answers, posterior.answers + v
    return Enumerated(answers, posterior.weights)


LISTED = [
    *(enumerated(small) for small in SMALL),
    Enumerated(torch.tensor([[0, 0], [0, 1], [1, 0]]), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)),
]


@pytest.mark.parametrize("posterior", LISTED, ids=range(len(LISTED)))
def test_the_best_splits_are_those_of_all_splits(posterior: Enumerated) -> None:
    losses: dict[int, list[float]] = {}
    shares: dict[int, list[float]] = {}
    for parts in ordered_partitions(tuple(range(posterior.length))):
        losses.setdefault(len(parts), []).append(posterior_bound(posterior, parts))
        shares.setdefault(len(parts), []).append(sampled_accuracy(posterior, parts))
    bounds = optimal_bounds(posterior)
    assert bounds == pytest.approx([min(losses[t]) for t in sorted(losses)], abs=1e-9)
    assert bounds[0] == pytest.approx(posterior_bound(posterior, [range(posterior.length)])) and bounds[-1] == 0
    assert bounds == sorted(bounds, reverse=True)  # Theorem 2
    best, static = best_accuracies(posterior), [max(shares[t]) for t in sorted(shares)]
    assert all(
        b >= s - 1e-9 for b, s in zip(best, static, strict=True)
    )  # what was revealed may choose the next columns
    assert best[0] == pytest.approx(static[0]) and best[-1] == pytest.approx(1)
    if len(posterior.answers) == math.factorial(posterior.length):  # but tells nothing where all are alike
        assert best == pytest.approx(static)


@pytest.mark.parametrize("posterior", LISTED, ids=range(len(LISTED)))
def test_no_mean_number_of_forwards_is_worth_more_than_its_bound(posterior: Enumerated) -> None:
    prices = np.concatenate([[0], np.geomspace(1e-3, 4, 60)])
    values, best = best_values(posterior, prices), best_accuracies(posterior)
    for forwards, accuracy_ in enumerate(best, start=1):
        assert (values + prices * forwards).min() >= accuracy_ - 1e-9
    assert (values + prices).min() == pytest.approx(best[0]) and values[0] == pytest.approx(1)


@pytest.mark.parametrize("small", SMALL[:1] + SMALL[3:], ids=repr)
def test_items_of_two_tokens(small: Permutations | OneReplaced) -> None:
    """A token of each item first and the others, which it determines, in one more step: never better than whole items,
    at most one step behind."""
    items, tokens = optimal_bounds(enumerated(small)), optimal_bounds(in_two_tokens(enumerated(small)))
    assert len(tokens) == 2 * len(items)
    for t, loss in enumerate(items):
        assert tokens[t + 1] <= loss + 1e-9 <= tokens[t] + 2e-9
    better, worse = best_accuracies(enumerated(small)), best_accuracies(in_two_tokens(enumerated(small)))
    for t, share in enumerate(better):
        assert worse[t] - 1e-9 <= share <= worse[t + 1] + 1e-9


def test_too_many_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="17 undetermined columns"):
        optimal_bounds(Enumerated(torch.tensor([[0] * 17, [1] * 17]), torch.full((2,), 0.5)))


def reached(task: str, n: int, decoder: Decoder, samples: int) -> int:
    """Valid answers among decodes of the ideal model."""
    posterior = POSTERIORS[task](n)
    prompts = [[i % n, i // n % n, i // n**2] for i in range(samples)]  # prompts of their own: samples of their own
    parts = {"gen_len": n, "block_len": n, "cache": NO_CACHE, "stop": Never()}
    rows = decode(ExactModel(posterior), prompts, decoder=decoder, **parts)
    return int(posterior.valid(torch.tensor([row.token_ids for row in rows])).sum())


@pytest.mark.parametrize("task", POSTERIORS)
@pytest.mark.parametrize("n", [3, 4, 6, 10])
@pytest.mark.parametrize("k", [1, 2, 3, 4, None])
def test_sampling_decodes_of_the_ideal_model_reach_the_closed_form(task: str, n: int, k: int | None) -> None:
    k = n if k is None else min(k, n)
    valid = reached(task, n, Decoder(FixedK(k), temperature=1.0, confidence="random"), 400)
    # 40 such tests: each may miss by chance with 1e-4
    assert binomtest(valid, 400, accuracy(task, n, k, 1)).pvalue > 1e-4


@pytest.mark.parametrize("task", POSTERIORS)
@pytest.mark.parametrize("n", range(3, 11))
def test_threshold_claims(task: str, n: int) -> None:
    """Shuffle is right iff gamma > 1/2, replace random iff gamma > (n - 1) / n: ours commits at equality, too."""
    edge = 0.5 if task == "shuffle" else (n - 1) / n
    for gamma in (0.1, edge - 1e-6, edge + 1e-6, 1.0):
        assert threshold_accuracy(task, n, gamma) == (gamma > edge)
        assert reached(task, n, Decoder(Threshold(gamma)), 5) == 5 * (gamma > edge)


@pytest.mark.parametrize("task", POSTERIORS)
@pytest.mark.parametrize("n", [3, 5, 8])
def test_greedy_and_threshold_decodes_of_the_ideal_model(task: str, n: int) -> None:
    for k in (1, 2, 3):
        # so cold that only ties are open
        valid = reached(task, n, Decoder(FixedK(k), temperature=1e-3, confidence="random"), 400)
        assert binomtest(valid, 400, accuracy(task, n, k, 0)).pvalue > 1e-4
    alike = reached(task, n, Decoder(FixedK(2), confidence="random"), 20)  # an argmax takes the same item twice
    assert alike == (20 if task == "replace_random" and n % 2 else 0)
    for gamma in (0.3, 0.51, 0.6, 0.8, 0.95):
        assert reached(task, n, Decoder(Threshold(gamma)), 20) == 20 * threshold_accuracy(task, n, gamma)


@pytest.mark.parametrize("wrong", [("walk", 3, 1), ("shuffle", 1, 1), ("shuffle", 3, 4), ("copy", 3, 0)])
def test_what_has_no_closed_form_is_refused(wrong: tuple[str, int, int]) -> None:
    with pytest.raises(ValueError, match=r"no closed form|at least 2 items"):
        kl_bound(*wrong)


def test_weights_must_be_a_distribution() -> None:
    with pytest.raises(ValueError, match=r"sum to 0\.5"):
        Enumerated(torch.tensor([[0, 1]]), torch.tensor([0.5]))
