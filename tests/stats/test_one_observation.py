"""A question in several wordings is one observation in every comparison, not as many as it has wordings."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from parallelbench.report.compare import compare
from parallelbench.report.recommend import choose
from parallelbench.stats.intervals import Value
from parallelbench.stats.metrics import ALL
from parallelbench.stats.paired import Paired, marks, means

WORDINGS, QUESTIONS = 4, 50


def worded(columns: np.ndarray, asked: np.ndarray, names: list[str]) -> Paired:
    """Two runs with scores and forwards `[2, 2, samples]`."""
    flat = np.full(columns[0].shape, 20.0)
    return Paired(np.array(names), columns[0], columns[1], flat, flat + 12, asked)


def drawn(rng: np.random.Generator, alike: float) -> Paired:
    """Two runs, four wordings of each question. alike: the share of a score that a question's wordings have in common;
    0.33 is a design effect of two, 1 of four."""
    shared = np.repeat(rng.normal(size=(2, QUESTIONS)), WORDINGS, 1)
    score = 100.0 * (np.sqrt(alike) * shared + np.sqrt(1 - alike) * rng.normal(size=shared.shape) < [[0.8], [0.8]])
    nfe = np.clip(np.round(10 + 3 * shared + rng.normal(size=shared.shape)), 1, 32)
    return worded(np.stack([score, nfe]), np.repeat(np.arange(QUESTIONS), WORDINGS), ["copy"] * shared.shape[1])


def test_intervals_of_comparisons_hold_the_truth_with_four_wordings() -> None:
    rng = np.random.default_rng(0)
    found = [compare(drawn(rng, 1.0))[ALL] for _ in range(16)]

    def held(of: Callable[[int], Value], truth: float) -> float:
        return float(np.mean([of(i).ci_low <= truth <= of(i).ci_high for i in range(len(found))]))

    assert held(lambda i: found[i].difference, 0.0) >= 0.85
    assert held(lambda i: found[i].nfe_ratio, 1.0) >= 0.85
    assert np.mean([row.p < 0.05 for row in found]) <= 0.15


def test_wordings_that_say_the_same_say_it_once() -> None:
    rng = np.random.default_rng(1)
    columns = np.stack([100.0 * (rng.random((2, 30)) < 0.8), rng.integers(4, 20, (2, 30))])
    alone = worded(columns, np.arange(30), ["copy"] * 30)
    names = ["copy" + f"@{i}" * (i > 0) for _ in range(30) for i in range(WORDINGS)]
    four = worded(columns.repeat(WORDINGS, 2), np.repeat(np.arange(30), WORDINGS), names)
    one, other = compare(alone)[ALL], compare(four)[ALL]
    assert other.n == 4 * one.n and other.better == 4 * one.better
    assert replace(other, n=one.n, better=one.better, worse=one.worse) == one
    assert [mark.score for mark in marks(four)] == [mark.score for mark in marks(alone)]
    assert np.allclose(means(four).tpf, means(alone).tpf) and np.allclose(means(four).score, means(alone).score)
    apart = compare(replace(four, asked=None))[ALL].difference  # as if they were other questions
    assert apart.ci_high - apart.ci_low < 0.7 * (one.difference.ci_high - one.difference.ci_low)


def test_questions_with_more_wordings_weigh_more_in_the_mean_and_in_the_bound() -> None:
    rng = np.random.default_rng(2)
    asked = np.concatenate([np.repeat(np.arange(20), 4), np.arange(20, 40)])  # 20 of four wordings, 20 of one
    names = ["copy" + f"@{i}" * (i > 0) for _ in range(20) for i in range(4)] + ["sort"] * 20
    score = 100.0 * (rng.random((2, 100)) < 0.8)
    paired = worded(np.stack([score, rng.integers(4, 20, (2, 100)).astype(float)]), asked, names)
    row, questions = compare(paired)[ALL], paired.questions
    assert row.difference.value == pytest.approx(float((score[1] - score[0]).mean()))
    assert row.nfe_ratio.value == pytest.approx(float(paired.nfe[1].sum() / paired.nfe[0].sum()))
    choice = choose(questions.mean(score), np.array([1.0, 2.0]), ["a", "b"], 5.0, 0, questions.weights)
    assert choice.loss.mean(1)[1] == pytest.approx(-row.difference.value / 100)


@pytest.mark.parametrize("alike", [0.33, 1.0])
def test_recommending_from_four_wordings_errs_in_one_of_twenty_at_most(alike: float) -> None:
    """The fast run loses a little more than the bound of three points."""
    rng, wrong, sweeps = np.random.default_rng(3), 0, 200
    for _ in range(sweeps):
        shared = np.repeat(rng.random(600) < alike, 4)
        lost = np.where(shared, np.repeat(rng.random(600), 4), rng.random(2400)) < 0.031
        score = 100.0 * np.stack([np.ones(2400), ~lost])
        paired = worded(np.stack([score, np.full((2, 2400), 8.0)]), np.repeat(np.arange(600), 4), ["copy"] * 2400)
        asked = paired.questions
        choice = choose(asked.mean(score), np.array([1.0, 2.0]), ["a", "b"], 3.0, 0, asked.weights)
        wrong += choice.best is not None
    assert wrong <= 0.08 * sweeps  # 5 % and the error of 200 sweeps
