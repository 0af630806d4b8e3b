"""The sums of a window against all strings of small vocabularies."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from decoders.constraints import chain
from decoders.constraints.automaton import TokenAutomaton
from decoders.constraints.chain import Tables, Weighed, Window
from decoders.logits import Logits

SAMPLES = 2000


class Case:
    """A random automaton over V tokens, of which the last is EOS, a state of commits, logits, and all strings that are
    accepted with so many columns left."""

    def __init__(self, rng: np.random.Generator, size: int = 6, width: int = 6) -> None:
        self.strings = []
        while not self.strings:
            self.vocab, states = int(rng.integers(2, size + 1)), int(rng.integers(1, 6))
            self.width = int(rng.integers(1, width + 1))
            leads = np.where(rng.random((states, self.vocab)) < 0.6, rng.integers(0, states, (states, self.vocab)), -1)
            accepting = rng.random(states) < 0.5
            self.left = int(rng.integers(0, 3))
            automaton = TokenAutomaton.of_table(leads, accepting, 0, [self.vocab - 1])
            if automaton is None:
                continue
            self.automaton = automaton
            strings = [s for s in product(range(self.vocab), repeat=self.width) if self._goes(leads, accepting, s)]
            if not strings:
                continue
            given = strings[rng.integers(len(strings))]
            self.free = rng.random(self.width) < 0.7
            self.given = np.array(given)
            self.strings = [s for s in strings if ((np.array(s) == given) | self.free).all()]
        self.logits = torch.from_numpy(rng.normal(size=(self.width, self.vocab)) * rng.choice([0.5, 3, 30]))
        weight = [sum(float(self.logits[i, s[i]]) for i in np.flatnonzero(self.free)) for s in self.strings]
        self.weight = torch.tensor(weight, dtype=torch.float64)
        self.prob = self.weight.softmax(0)

    def _goes(self, leads: np.ndarray, accepting: np.ndarray, string: tuple[int, ...]) -> bool:
        """By the table itself: EOS ends an accepted answer, and nothing else follows it."""
        state, ended = 0, False
        for token in string:
            if token == self.vocab - 1:
                if not ended and not accepting[state]:
                    return False
                ended = True
            elif ended or (state := int(leads[state, token])) < 0:
                return False
        reached = {state}
        for _ in range(0 if ended else self.left + 1):
            if any(accepting[s] for s in reached):
                return True
            reached = {int(n) for s in reached for n in leads[s, :-1] if n >= 0}
        return ended

    def window(self, rows: int = 1) -> Weighed:
        tables = Tables.of([self.automaton], torch.device("cpu"))
        one = torch.zeros(rows, dtype=torch.long)
        window = Window(
            tables,
            one,
            one == 0,
            one + self.automaton.start,
            (tables.lines.least <= self.left).expand(rows, -1),
            torch.from_numpy(self.given).expand(rows, -1),
            torch.from_numpy(self.free).expand(rows, -1),
            torch.zeros(rows, self.width, dtype=torch.bool),
        )
        return window.weigh(Logits(self.logits.expand(rows, -1, -1)))

    def marginals(self) -> torch.Tensor:
        """By column and token."""
        found = torch.zeros(self.width, self.vocab, dtype=torch.float64)
        for string, prob in zip(self.strings, self.prob, strict=True):
            found[torch.arange(self.width), torch.tensor(string)] += prob
        return found


def check(case: Case) -> None:
    weighed, free = case.window(), torch.from_numpy(case.free)
    best = torch.where(free, weighed.best()[0], torch.from_numpy(case.given))
    assert tuple(best.tolist()) in case.strings
    assert case.weight[case.strings.index(tuple(best.tolist()))] >= case.weight.max() - 1e-9
    wanted = case.marginals()
    torch.testing.assert_close(weighed.marginals().values[0].exp()[free], wanted[free], atol=1e-9, rtol=1e-7)
    found = weighed.log_prob(best[None])[0].exp()
    torch.testing.assert_close(found[free], wanted.gather(1, best[:, None])[:, 0][free], atol=1e-9, rtol=1e-7)


@pytest.mark.core
@pytest.mark.parametrize("seed", range(4))
def test_the_likeliest_string_and_the_marginals_are_those_of_all_strings(seed):
    rng = np.random.default_rng(seed)
    for _ in range(25):
        check(Case(rng))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_a_thousand_automata(seed):
    rng = np.random.default_rng(seed)
    for _ in range(100):
        check(Case(rng))


def samples(case: Case, seed: int) -> float:
    """How probable it is that samples are as far from the exact distribution as those of a window."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(SAMPLES, case.width, 2, generator=generator, dtype=torch.float64)
    drawn = case.window(SAMPLES).sample(draw)
    drawn = torch.where(torch.from_numpy(case.free), drawn, torch.from_numpy(case.given))
    number = {string: i for i, string in enumerate(case.strings)}
    counts = np.bincount([number[tuple(row)] for row in drawn.tolist()], minlength=len(number))
    expected = case.prob.numpy() * SAMPLES
    rare = expected < 5
    if rare.any():
        counts, expected = (np.append(values[~rare], values[rare].sum()) for values in (counts, expected))
        if expected[-1] < 5 and len(expected) > 1:
            counts, expected = (np.append(v[:-2], v[-2:].sum()) for v in (counts, expected))
    return float(chisquare(counts, expected * counts.sum() / expected.sum()).pvalue) if len(counts) > 1 else 1.0


@pytest.mark.parametrize("number", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_samples_are_distributed_as_accepted_strings(number):
    rng = np.random.default_rng(number)
    least = min(samples(Case(rng, 4, 4), seed) for seed in range(number))
    assert least > 1e-3 / number


@pytest.mark.parametrize("large", [1, 2, 3])
def test_large_classes_are_summed_as_small_ones_are(large, monkeypatch):
    """Vocabularies so small have classes of a few tokens."""
    monkeypatch.setattr(chain, "LARGE", large)
    rng = np.random.default_rng(5)
    for _ in range(25):
        check(Case(rng))


def test_rows_of_different_automata_stand_side_by_side():
    rng = np.random.default_rng(3)
    cases = [case for case in (Case(rng) for _ in range(400)) if case.vocab == 5 and case.width == 4][:6]
    assert len(cases) == 6
    tables = Tables.of([case.automaton for case in cases], torch.device("cpu"))
    window = Window(
        tables,
        torch.arange(6),
        torch.arange(6) != 2,
        torch.tensor([case.automaton.start for case in cases]),
        tables.lines.least <= torch.tensor([case.left for case in cases])[:, None],
        torch.tensor(np.stack([case.given for case in cases])),
        torch.tensor(np.stack([case.free for case in cases])),
        torch.zeros(6, 4, dtype=torch.bool),
    )
    weighed = window.weigh(Logits(torch.stack([case.logits for case in cases])))
    best, values = weighed.best(), weighed.marginals().values
    for i, case in enumerate(cases):
        alone, free = case.window(), torch.from_numpy(case.free)
        if i == 2:  # held by no constraint
            assert torch.equal(values[i], case.logits)
            continue
        assert torch.equal(best[i][free], alone.best()[0][free])
        torch.testing.assert_close(values[i][free], alone.marginals().values[0][free])


def test_unlikely_answers_keep_their_probabilities():
    """A model that finds every token of the right form improbable by e^-200, for 40 columns."""
    leads = np.full((2, 4), -1)
    leads[0, 0] = leads[0, 1] = 0
    automaton = TokenAutomaton.of_table(leads, np.array([True, False]), 0, [3])
    assert automaton is not None
    tables = Tables.of([automaton], torch.device("cpu"))
    logits = torch.tensor([-200.0, -201.0, 0.0, -500.0]).expand(1, 40, -1)
    zero = torch.zeros(1, dtype=torch.long)
    free = torch.ones(1, 40, dtype=torch.bool)
    window = Window(tables, zero, zero == 0, zero, tables.lines.least <= 0, zero[:, None].expand(1, 40), free, ~free)
    weighed = window.weigh(Logits(logits))
    assert (weighed.best() == 0).all()
    wanted = torch.tensor([-200.0, -201.0], dtype=torch.float64).softmax(0)[0]
    torch.testing.assert_close(weighed.log_prob(zero.expand(1, 40)).exp(), wanted.expand(1, 40))


def test_columns_that_are_no_answer_change_nothing():
    """A window that begins in the prompt and reaches behind the answer."""
    case = Case(np.random.default_rng(8))
    plain = case.window()
    window, width = plain.window, case.width
    outer = torch.tensor([[True] * 2 + [False] * width + [True]])
    inside = ~outer[0]

    def wide(values: torch.Tensor, fill: int) -> torch.Tensor:
        return torch.full((1, width + 3, *values.shape[2:]), fill, dtype=values.dtype).index_copy_(
            1, inside.nonzero()[:, 0], values
        )

    parts = (window.tables, window.which, window.held, window.entry, window.last)
    padded = Window(*parts, wide(window.tokens, 1), wide(window.free.long(), 1).bool(), outer)
    weighed = padded.weigh(Logits(wide(case.logits[None], 0)))
    free = window.free[0]
    assert torch.equal(weighed.best()[0, inside][free], plain.best()[0, free])
    torch.testing.assert_close(weighed.marginals().values[0, inside][free], plain.marginals().values[0, free])
