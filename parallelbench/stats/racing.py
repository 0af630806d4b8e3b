"""Finds a fast configuration that loses little with a part of the samples that a whole grid takes.

The arms of a race are the runs of a grid. They decode the same samples, so losses are paired differences.

1. The first round decodes a few samples with every arm. The reference is the baseline, one token per forward, or
   without one the best-scoring arm, of equals the slowest. It is replaced where another arm seems to score higher.
2. Each further round doubles the samples and keeps as many arms as cost the same (successive halving; Jamieson,
   Talwalkar, AISTATS 2016), those of the largest expected gain: the logarithm of the speed-up over the reference times
   the chance that the final test passes. An arm that is certain to lose more than the bound leaves the race
   (`loss.evidence`: in at most 5 % of races one leaves that does not), and with it all faster ones of its curve, since
   a knob that is turned further never loses less. For the same reason losses along a curve are estimated together
   (isotonic regression).
3. The final test is on samples that no decision has seen. Before it begins, the race names one to three finalists in
   the order of their speed. Each is tested at the full 5 % (`stats.loss`), and the first that fails ends the test
   (fixed-sequence test). The last that passes is the choice. So the statement about it is as good as that of a single
   test, whatever the race did.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Protocol, runtime_checkable

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import ndtr, ndtri

from parallelbench.stats.loss import ALPHA, evidence, fewest, statistic, upper_limit
from parallelbench.stats.paired import Paired

SHARE = 5  # a race takes one of so many parts of the whole grid's samples
FEWEST, FINALISTS = 3, 3  # arms of a round, of the final test
LADDER = 8  # arms of which the finalists are chosen
Z = float(ndtri(1 - ALPHA))


@runtime_checkable
class Arms(Protocol):
    """What a race is between."""

    def __len__(self) -> int: ...
    def name(self, arm: int) -> str: ...

    def curves(self) -> Sequence[str]:
        """Each arm's name without its knob, as far as runs tell: when all have decoded some samples."""
        ...

    def baseline(self) -> int | None:
        """The arm that losses are against; None where none is one. When all have decoded some samples."""
        ...

    def count(self, start: int, stop: int) -> int:
        """Samples with numbers from start to below stop of each task."""
        ...

    def pace(self, arm: int, stop: int) -> float:
        """Seconds per sample of the first `stop` samples of each task."""
        ...

    def decode(self, arm: int, stop: int, why: str) -> None:
        """Decodes what is missing of the first `stop` samples of each task."""
        ...

    def paired(self, arms: Sequence[int], start: int, stop: int) -> Paired:
        """The samples from start to below stop of each task, which these arms have decoded. nfe: the cost."""
        ...


@dataclass(frozen=True)
class Race:
    """What is asked of a race.

    limit: samples per task that an arm may decode, as in the whole grid.
    max_loss: points that may be lost.
    budget: samples in all; None: a fifth of the whole grid's.
    minutes: of decoding, instead. They are counted in samples of the slowest arm.
    """

    limit: int
    max_loss: float
    budget: int | None = None
    minutes: float | None = None


@dataclass(frozen=True)
class Finish:
    """How a race ended. Arms are named by their places.

    reference: the arm that losses are against.
    choice: the fastest arm that is certain to lose at most max_loss; None where none is.
    tested: the finalists that decoded fresh samples, in their order.
    start, stop: numbers of the fresh samples of each task.
    loss, most: of the choice, or of the first finalist where none passed, on the fresh samples: its mean, and its 95 %
        upper limit; in points. Zero without any finalist.
    spent, whole: samples decoded, and those of the whole grid.
    limit: samples per task with which the first finalist would pass if nothing else changed; 0 where it passed, or lost
        more than max_loss.
    """

    reference: int
    choice: int | None
    tested: tuple[int, ...]
    start: int
    stop: int
    loss: float
    most: float
    spent: int
    whole: int
    limit: int = 0


def check_limit(race: Race, count: Callable[[int, int], int]) -> None:
    """Raises ValueError for a limit that leaves too few samples for the final test. count: as in `Arms`."""
    once, needed = count(0, 1), fewest(race.max_loss / 100)
    if count(1, race.limit) < needed:
        limit = 1 + math.ceil(needed / max(once, 1))
        raise ValueError(
            f"limit={race.limit} leaves {count(1, race.limit)} samples for the test of max_loss={race.max_loss:g}, "
            f"which takes {needed}; give limit={limit} or more, or a larger max_loss"
        )


def check_race(race: Race, arms: int, count: Callable[[int, int], int]) -> int:
    """The budget. Raises ValueError for a race that cannot end in a statement. count: as in `Arms`."""
    check_limit(race, count)
    whole, once, needed = arms * count(0, race.limit), count(0, 1), fewest(race.max_loss / 100)
    least = arms * once + 2 * (needed + once)
    if arms < 2:
        raise ValueError("one configuration is nothing to choose from; give several, such as experiment=threshold,eb")
    budget = max(math.ceil(whole / SHARE), least) if race.budget is None else race.budget
    if budget < least:
        raise ValueError(
            f"budget={budget} is too little for {arms} configurations and the test of max_loss={race.max_loss:g}; give "
            f"{least} samples or more"
        )
    return budget


def run_race(arms: Arms, race: Race, say: Callable[[str], None] = lambda text: None) -> Finish:
    """Runs a race. say: is told in a sentence what comes next and why. Raises ValueError as check_race does."""
    return _Running(arms, race, check_race(race, len(arms), arms.count), say).finish()


@dataclass(frozen=True)
class _Seen:
    """An arm against the reference, on the samples that it has decoded.

    measured: its mean loss, a share.
    loss, error: the same as it is judged, and its standard error: as if it had lost half a sample more for each
        doubling of the speed, and differed in one more.
    gain: its speed, in that of the reference.
    lossy, good: whether it is certain to lose more than the bound, or less.
    """

    measured: float
    loss: float
    error: float
    gain: float
    lossy: bool
    good: bool


class _Running:
    """seen: samples per task that each arm has decoded. out: the arms that have left the race. certain: the evidence
    that makes it so."""

    reference: int
    curves: Sequence[str]

    def __init__(self, arms: Arms, race: Race, budget: int, say: Callable[[str], None]) -> None:
        self.arms, self.race, self.say = arms, race, say
        self.bound, self.num = race.max_loss / 100, len(arms)
        self.needed = fewest(self.bound)
        self.seen, self.out, self.spent = np.zeros(self.num, dtype=int), set[int](), 0
        self._take_budget(budget)
        self.certain = 2 * self.num**2 / ALPHA  # two questions about each pair of arms

    def finish(self) -> Finish:
        level = self._first_round()
        seen = self._look()
        rounds = self._levels(level)
        for number, level in enumerate(rounds, start=2):
            chosen = self._affordable(seen, level, (self.race_ends - self.spent) // (len(rounds) + 2 - number))
            self.say(f"round {number}: {len(chosen)} of {self.num} configurations, {level} samples per task")
            for arm in (self.reference, *chosen):
                self._decode(arm, level, self._why(arm, seen))
            seen = self._look()
        return self._final(seen, rounds[-1] if rounds else level)

    def _first_round(self) -> int:
        """Decodes what a sixth of the race's budget pays; returns the samples per task."""
        paid = 1 if self.race.minutes else self.race_ends // 6 // (self.num * self.arms.count(0, 1))
        level = max(1, min(paid, self.race.limit // 8))
        self.say(f"round 1: all {self.num} configurations, {level} sample{'s' * (level > 1)} per task")
        for arm in range(self.num):
            self._decode(arm, level, "to see its speed and what it loses")
        if self.race.minutes is not None:
            self._take_minutes(self.race.minutes, level)
        both = self.arms.paired(range(self.num), 0, level)
        score = both.questions.mean(both.score) @ both.questions.weights
        speed = both.tokens.sum(1) / both.nfe.sum(1)
        baseline = self.arms.baseline()
        self.reference = int(np.lexsort((-speed, score.round(9)))[-1]) if baseline is None else baseline
        self.curves = self.arms.curves()
        return level

    def _take_minutes(self, minutes: float, level: int) -> None:
        paces = [self.arms.pace(arm, level) for arm in range(self.num)]
        used, slowest = sum(paces) * self.spent / self.num, max(paces)
        left = 2 * (self.needed + self.arms.count(0, 1))
        if (minutes * 60 - used) / slowest < left:
            least = math.ceil((used + left * slowest) / 60)
            raise ValueError(
                f"budget={minutes:g}min is too little for {self.num} configurations and the test of "
                f"max_loss={self.race.max_loss:g}; give {least}min or more"
            )
        self._take_budget(self.spent + int((minutes * 60 - used) / slowest))

    def _take_budget(self, budget: int) -> None:
        """race_ends: samples that all rounds may take, so that half is left, and what the shortest final test takes."""
        once = self.arms.count(0, 1)
        self.budget = budget
        self.race_ends = max(min(budget // 2, budget - 2 * (self.needed + once)), self.num * once)

    def _levels(self, level: int) -> list[int]:
        """Samples per task of each further round: twice those of the one before, as long as three arms can be paid and
        half of the samples stay fresh."""
        found, enough = list[int](), max(self.needed, self.arms.count(0, self.race.limit) // 2)
        cost = self.spent
        while self.arms.count(2 * level, self.race.limit) >= enough:
            cost += FEWEST * self.arms.count(level, 2 * level)
            if cost > self.race_ends:
                break
            level *= 2
            found.append(level)
        return found

    def _affordable(self, seen: Sequence[_Seen], level: int, allowed: int) -> list[int]:
        """The best arms of a round, besides the reference, for so many samples."""
        chosen, cost = list[int](), self._missing(self.reference, level)
        for arm in self._best(seen, self.num):
            cost += self._missing(arm, level)
            if cost > allowed and len(chosen) >= FEWEST - 1:
                break
            chosen.append(arm)
        return chosen

    def _missing(self, arm: int, stop: int) -> int:
        return self.arms.count(int(self.seen[arm]), stop) if self.seen[arm] < stop else 0

    def _decode(self, arm: int, stop: int, why: str) -> None:
        if missing := self._missing(arm, stop):
            self.arms.decode(arm, stop, why)
            self.spent += missing
            self.seen[arm] = stop

    def _against(self, arm: int, start: int, stop: int) -> tuple[np.ndarray, float, float]:
        """Losses of each question times its weight, the largest weight, and the speed-up."""
        both = self.arms.paired([self.reference, arm], start, stop)
        score, weights = both.questions.mean(both.score), both.questions.weights
        speed = both.tokens.sum(1) / both.nfe.sum(1)
        return weights * (score[0] - score[1]) / 100, float(weights.max()), float(speed[1] / speed[0])

    def _look(self) -> list[_Seen]:
        """What is known of each arm. The reference becomes another where an arm seems to score higher."""
        seen = [self._seen(arm) for arm in range(self.num)]
        equals = np.flatnonzero(self.seen == self.seen[self.reference])  # others are not known as well
        if better := [int(arm) for arm in equals if seen[arm].loss + Z * seen[arm].error < 0]:
            self.reference = min(better, key=lambda arm: seen[arm].loss)
            return self._look()
        self._drop(seen)
        return self._smoothed(seen)

    def _seen(self, arm: int) -> _Seen:
        loss, most, gain = self._against(arm, 0, int(self.seen[arm]))
        error = math.sqrt((loss**2).sum() + most**2) / len(loss)
        tests = ((loss, self.bound), (-loss, -self.bound))
        certain = [evidence(numbers, bound, most) > self.certain for numbers, bound in tests]
        before = most * math.log2(max(gain, 1)) / 2
        return _Seen(float(loss.mean()), float(loss.sum() + before) / len(loss), error, gain, *certain)

    def _drop(self, seen: Sequence[_Seen]) -> None:
        """Takes arms out that are certain to lose more than the bound, and with each the faster ones of its curve; and
        the slower ones of a curve with an arm that is certain to lose less."""
        for curve in set(self.curves):
            members = [arm for arm in range(self.num) if self.curves[arm] == curve]
            for arm in members:
                faster = [other for other in members if seen[other].gain > seen[arm].gain]
                slower = [other for other in members if seen[other].gain < seen[arm].gain]
                gone = {arm, *faster} if seen[arm].lossy else set(slower) if seen[arm].good else set()
                if gone := gone - self.out:
                    names = ", ".join(self.arms.name(other) for other in sorted(gone))
                    points = f"than {self.race.max_loss:g} points"
                    why = f"more {points}" if seen[arm].lossy else f"less {points}, and is faster"
                    self.say(f"out: {names}; {self.arms.name(arm)} is certain to lose {why}")
                self.out |= gone

    def _smoothed(self, seen: Sequence[_Seen]) -> list[_Seen]:
        """Losses that do not fall along a curve."""
        found = list(seen)
        for curve in set(self.curves):
            members = sorted((arm for arm in range(self.num) if self.curves[arm] == curve), key=lambda a: seen[a].gain)
            losses = isotonic_regression([seen[arm].loss for arm in members], weights=self.seen[members]).x
            for arm, loss in zip(members, losses, strict=True):
                found[arm] = replace(seen[arm], loss=float(loss))
        return found

    def _chance(self, seen: _Seen, fresh: int) -> float:
        """That the final test on so many fresh samples passes, as far as is known."""
        share = seen.error**2 * fresh  # of the variance of a mean over fresh samples, for one sample
        spread = math.sqrt(max(min(share, seen.loss + self.bound), self.bound * (1 - self.bound)) / fresh)
        return float(ndtr((self.bound - Z * spread - seen.loss) / math.hypot(seen.error, spread)))

    def _value(self, seen: _Seen, fresh: int) -> float:
        return self._chance(seen, fresh) * math.log(seen.gain)

    def _best(self, seen: Sequence[_Seen], keep: int) -> list[int]:
        fresh = self.arms.count(0, self.race.limit) // 2
        left = [arm for arm in range(self.num) if arm not in self.out and seen[arm].gain > 1]
        return sorted(left, key=lambda arm: self._value(seen[arm], fresh), reverse=True)[:keep]

    def _why(self, arm: int, seen: Sequence[_Seen]) -> str:
        if arm == self.reference:
            return "the reference"
        return f"{seen[arm].gain:.2f} times as fast, has lost {100 * seen[arm].measured:.1f} points so far"

    def _final(self, seen: Sequence[_Seen], start: int) -> Finish:
        finalists, stop = self._finalists(seen, start)
        choice, tested, loss, most, limit = None, list[int](), 0.0, 0.0, 0
        for arm in finalists:
            if not tested:
                self.say(f"final test on fresh samples, {start} to {stop - 1} of each task")
                self._decode(self.reference, stop, "the reference")
            self._decode(arm, stop, f"tested against {self.arms.name(self.reference)}")
            losses, weight, _ = self._against(arm, start, stop)
            test = statistic(losses, self.bound, weight)
            passed = test <= -Z
            if not (passed or tested) and test < 0:
                limit = start + math.ceil((stop - start) * (Z / test) ** 2)
            if passed or not tested:
                loss, most = 100 * float(losses.mean()), 100 * upper_limit(losses, ALPHA, weight)
            tested.append(arm)
            if not passed:
                break
            choice = arm
        whole = self.num * self.arms.count(0, self.race.limit)
        return Finish(self.reference, choice, tuple(tested), start, stop, loss, most, self.spent, whole, limit)

    def _finalists(self, seen: Sequence[_Seen], start: int) -> tuple[tuple[int, ...], int]:
        """The sequence with the largest expected gain that the rest of the budget pays, and where its samples end."""
        ladder = sorted(self._best(seen, LADDER), key=lambda arm: seen[arm].gain)
        best, found = 0.0, ((), start)
        for length in range(1, FINALISTS + 1):
            for arms in combinations(ladder, length):
                stop = self._last((self.reference, *arms), start)
                fresh = self.arms.count(start, stop)
                if fresh < self.needed:
                    continue
                chance, gain, value = 1.0, 1.0, 0.0
                for arm in arms:
                    chance = min(chance, self._chance(seen[arm], fresh))  # what a fast arm passes a slow one does
                    value += chance * math.log(seen[arm].gain / gain)
                    gain = seen[arm].gain
                if value > best * (1 + 1e-9):
                    best, found = value, (arms, stop)
        return found

    def _last(self, arms: Sequence[int], start: int) -> int:
        """Where the fresh samples of these arms end, for the rest of the budget."""
        left, stop = self.budget - self.spent, start
        while stop < self.race.limit and sum(self._missing(arm, stop + 1) for arm in arms) <= left:
            stop += 1
        return stop
