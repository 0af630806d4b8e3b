"""Races between arms of known truth: statements that are seldom wrong, and good choices with few samples."""

from collections.abc import Sequence

import numpy as np
import pytest

from parallelbench.stats.loss import ALPHA, evidence
from parallelbench.stats.paired import Paired
from parallelbench.stats.racing import Finish, Race, check_race, run_race

TASKS = 12


class Known:
    """Arms of which each is right with a known chance, on samples whose difficulty they share in part. gains: their
    tokens per forward. Curves have as many arms each, from slow to fast; arm 0 is the baseline."""

    def __init__(self, truth: Sequence[float], gains: Sequence[float], per_curve: int, limit: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.truth, self.gains, self.per_curve = np.array(truth), np.array(gains), per_curve
        shared, own = rng.random((limit, TASKS)), rng.random((len(truth), limit, TASKS))
        luck = np.where(rng.random(own.shape) < 0.7, shared, own)
        self.score = 100.0 * (luck < self.truth[:, None, None])
        self.decoded = np.zeros(len(truth), dtype=int)
        self.asked: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.truth)

    def name(self, arm: int) -> str:
        return f"arm {arm}"

    def curves(self) -> list[str]:
        return [f"curve {max(arm - 1, 0) // self.per_curve if arm else 'of the baseline'}" for arm in range(len(self))]

    def baseline(self) -> int:
        return 0

    def pace(self, arm: int, stop: int) -> float:
        return float(1 / self.gains[arm])

    def count(self, start: int, stop: int) -> int:
        return max(min(stop, self.score.shape[1]) - start, 0) * TASKS

    def decode(self, arm: int, stop: int, why: str) -> None:
        assert why
        self.asked.append((arm, stop))
        self.decoded[arm] = max(self.decoded[arm], stop)

    def paired(self, arms: Sequence[int], start: int, stop: int) -> Paired:
        arms = list(arms)
        assert (self.decoded[arms] >= stop).all()  # a race sees what it has paid for
        score = self.score[arms, start:stop].reshape(len(arms), -1)
        tokens = np.full(score.shape, 16.0)
        tasks = np.tile(np.array([f"task {i}" for i in range(TASKS)]), stop - start)
        return Paired(tasks, score, tokens / self.gains[arms, None], tokens, 2 * tokens)


def whole(arms: Known) -> int:
    return len(arms) * arms.count(0, arms.score.shape[1])


GAINS = [1.0, *np.tile([2.0, 3.0, 4.0, 5.0, 6.0], 4)]
TRUTHS = {  # of four curves of five arms behind the baseline; the bound is two points
    "all just beyond the bound": [0.97] + [0.9499] * 20,
    "slow ones just beyond it, fast ones far": [0.97] + [0.9499, 0.94, 0.9, 0.8, 0.6] * 4,
    "one curve good": [0.97] + [0.97, 0.969, 0.968, 0.967, 0.966] + [0.9499, 0.94, 0.9, 0.8, 0.6] * 3,
    "a baseline that others beat": [0.93] + [0.97, 0.96, 0.949, 0.94, 0.9] * 4,
}


def races(truth: Sequence[float], count: int, limit: int = 100) -> list[tuple[Known, Finish]]:
    found = []
    for seed in range(count):
        arms = Known(truth, GAINS, 5, limit, seed)
        found.append((arms, run_race(arms, Race(limit, 2.0))))
    return found


def share_wrong(truth: Sequence[float], ended: Sequence[tuple[Known, Finish]]) -> float:
    bad = [finish.choice is not None and truth[finish.reference] - truth[finish.choice] > 0.02 for _, finish in ended]
    return float(np.mean(bad))


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
def test_few_statements_are_wrong_and_four_fifths_of_the_samples_are_saved(truth: list[float]) -> None:
    ended = races(truth, 60)
    assert share_wrong(truth, ended) <= ALPHA
    for arms, finish in ended:
        assert finish.spent == arms.count(0, 1) * arms.decoded.sum() <= finish.whole / 5 == whole(arms) / 5
        assert finish.start < finish.stop <= 100 or not finish.tested


@pytest.mark.slow
@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
def test_in_many_races_at_most_one_statement_in_twenty_is_wrong(truth: list[float]) -> None:
    ended = races(truth, 1500)
    wrong = share_wrong(truth, ended)
    print(f"wrong statements {wrong:.4f}, choices {np.mean([f.choice is not None for _, f in ended]):.2f}")
    assert wrong <= ALPHA


def test_a_race_finds_what_is_good() -> None:
    ended = races(TRUTHS["one curve good"], 30, limit=200)
    chosen = [finish.choice for _, finish in ended]
    assert np.mean([choice is not None and 1 <= choice <= 5 for choice in chosen]) > 0.8
    assert np.mean([choice in (4, 5) for choice in chosen]) > 0.5  # 5 and 6 tokens per forward, of at most 6


def test_another_reference_is_known_as_well_as_the_one_before() -> None:
    truth = TRUTHS["a baseline that others beat"]
    arms = Known(truth, GAINS, 5, 100, 729)  # one beats the baseline on few samples, another on many
    finish = run_race(arms, Race(100, 2.0))
    assert finish.reference != 0 and arms.decoded[finish.reference] == arms.decoded.max()


def test_the_final_samples_are_fresh() -> None:
    """Whatever the samples before the final test say, the statement about these is its own: with the scores of all arms
    drawn anew from there on, the finalists are the same."""
    for seed in range(10):
        arms, other = (Known(TRUTHS["one curve good"], GAINS, 5, 100, seed) for _ in range(2))
        finish = run_race(arms, Race(100, 2.0))
        other.score[:, finish.start :] = 0
        again = run_race(other, Race(100, 2.0))
        assert (finish.start, finish.stop) == (again.start, again.stop) and finish.tested[:1] == again.tested[:1]


def test_a_race_says_what_it_does_and_why() -> None:
    arms, told = Known(TRUTHS["one curve good"], GAINS, 5, 400, 0), list[str]()
    run_race(arms, Race(400, 2.0), told.append)
    assert told[0] == "round 1: all 21 configurations, 6 samples per task"
    assert any(text.startswith("out: ") and "is certain to lose more than 2 points" in text for text in told)
    assert told[-1].startswith("final test on fresh samples, ")


def test_it_goes_on_where_it_was() -> None:
    first = Known(TRUTHS["one curve good"], GAINS, 5, 100, 3)
    finish = run_race(first, Race(100, 2.0))
    again = Known(TRUTHS["one curve good"], GAINS, 5, 100, 3)
    again.decoded[:] = first.decoded  # all is there
    assert run_race(again, Race(100, 2.0)) == finish and again.asked == first.asked


def test_minutes_are_counted_in_samples_of_the_slowest() -> None:
    arms = Known(TRUTHS["one curve good"], GAINS, 5, 100, 0)
    finish = run_race(arms, Race(100, 2.0, minutes=60.0))
    seconds = (arms.decoded * arms.count(0, 1) / arms.gains).sum()
    assert finish.tested and seconds <= 60 * 60
    with pytest.raises(ValueError, match=r"budget=1min is too little for 21 configurations .* give 7min or more"):
        run_race(Known(TRUTHS["one curve good"], GAINS, 5, 100, 0), Race(100, 2.0, minutes=1.0))


@pytest.mark.parametrize(
    ("race", "arms", "refused"),
    [
        (Race(100, 1.0), 1, "one configuration is nothing to choose from"),
        (Race(20, 1.0), 9, "limit=20 leaves 228 samples for the test of max_loss=1, which takes 268; give limit=24"),
        (Race(50, 1.0, budget=600), 9, "budget=600 is too little for 9 configurations .* give 668 samples or more"),
    ],
)
def test_a_race_that_cannot_end_is_refused(race: Race, arms: int, refused: str) -> None:
    with pytest.raises(ValueError, match=refused):
        check_race(race, arms, lambda start, stop: max(stop - start, 0) * TASKS)


def test_evidence_is_seldom_wrong_at_any_time_and_soon_there() -> None:
    rng, crossed = np.random.default_rng(0), 0
    for _ in range(400):
        loss = rng.choice([1.0, -1.0, 0.0], 1200, p=[0.03, 0.01, 0.96])  # its mean is the bound
        crossed += any(evidence(loss[:n], 0.02) > 20 for n in (12, 24, 48, 96, 192, 384, 768, 1200))
    assert crossed / 400 <= 0.05
    worse = rng.choice([1.0, 0.0], 200, p=[0.3, 0.7])
    assert evidence(worse, 0.02) > 1e4 and evidence(-worse, -0.02) < 0.05
    assert evidence(np.zeros(1200), 0.0) == 1
