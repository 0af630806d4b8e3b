"""Contention on distributions made by hand, where what it commits is known."""

from itertools import pairwise

import pytest
import torch

from decoders import Contention
from decoders.compose import Decoder
from decoders.logits import Logits
from decoders.noise import Noise
from decoders.testing import check_decoder
from decoders.types import Candidates, View
from dllm import ModelSpec

VOCAB = 32
SPEC = ModelSpec(mask_id=VOCAB - 1, eos_ids=(VOCAB - 2,), pad_id=VOCAB - 3)


def committed(
    positions: list[dict[int, float]], beta: float = 0.1, sure: float = 0.99, masked: list[bool] | None = None
) -> list[int]:
    """What the rule chooses among positions given as {token: probability}."""
    prob = torch.zeros(1, len(positions), VOCAB, dtype=torch.float64)
    for place, distribution in enumerate(positions):
        for token, value in distribution.items():
            prob[0, place, token] = value
    logits = Logits(prob.log())
    mask = torch.ones(prob.shape[:2], dtype=torch.bool) if masked is None else torch.tensor([masked])
    zeros = torch.zeros(prob.shape[:2], dtype=torch.long)
    view = View(zeros, mask, mask, logits, zeros[:, 0], Noise(zeros[:, 0], zeros[:, 0]), SPEC, zeros[:, 0])
    candidates = Candidates(logits.top[1], -logits.entropy)
    return (Contention(beta, sure)(view, candidates, {}) & mask)[0].nonzero()[:, 0].tolist()


def apart(confidences: list[float]) -> list[dict[int, float]]:
    """Positions that share no token: candidate 2i, alternative 2i + 1."""
    return [{2 * i: c, 2 * i + 1: 1 - c} for i, c in enumerate(confidences)]


@pytest.mark.parametrize("beta", [0.02, 0.1, 0.2])
def test_positions_that_share_nothing_meet_a_threshold_and_the_last_is_free(beta: float) -> None:
    confidences = [0.999, 0.97, 0.93, 0.88, 0.81, 0.7, 0.55]
    number = sum(1 - before <= beta * c for before, c in pairwise(confidences))
    assert committed(apart(confidences), beta) == list(range(number + 1))
    assert committed(apart(confidences[::-1]), beta) == list(range(len(confidences) - number - 1, len(confidences)))


def test_many_positions_that_share_nothing_do_not_add_up() -> None:
    assert committed(apart([0.92] * 12), beta=0.1) == list(range(12))


def test_alternatives_of_one_token_add_up() -> None:
    # each keeps 0.04 from token 20; a third may join while 0.08 <= 0.1 * 0.96, a fourth may not
    contended = [{i: 0.96, 20: 0.04} for i in range(6)]
    assert committed(contended, beta=0.1) == [0, 1, 2]
    assert committed(apart([0.96] * 6), beta=0.1) == list(range(6))


def test_equal_unsure_positions_are_taken_one_at_a_time() -> None:
    assert committed([{1: 0.95, 2: 0.05}] * 4, beta=10.0) == [0]
    assert committed([{1: 0.95, 2: 0.05}] * 4, beta=10.0, sure=0.9) == [0, 1, 2, 3]
    assert committed([{1: 0.95, 2: 0.05}] * 4, beta=10.0, sure=0.0) == [0, 1, 2, 3]


def test_the_surest_of_equal_candidates_takes_part() -> None:
    assert committed([{1: 0.8, 2: 0.2}, {1: 0.9, 3: 0.1}, {4: 0.85, 5: 0.15}], beta=10.0) == [1, 2]


def test_tokens_that_repeat_with_certainty_are_not_concerned() -> None:
    assert committed([{1: 0.995, 2: 0.005}] * 8 + [{1: 0.5, 3: 0.5}], beta=0.1) == list(range(9))


def test_a_sure_crowd_and_one_open_choice_go_together() -> None:
    one = {10: 0.3, 11: 0.25, 12: 0.25, 13: 0.2}
    other = {14: 0.26, 15: 0.25, 16: 0.25, 17: 0.24}
    assert committed([*apart([0.999] * 5), other, one]) == [0, 1, 2, 3, 4, 6]


def test_limits_of_beta() -> None:
    positions = apart([0.9, 0.8, 0.7, 0.6])
    assert committed(positions, beta=0.0) == [0]
    assert committed(apart([1.0, 1.0, 0.8, 0.7]), beta=0.0) == [0, 1, 2]
    assert committed(positions, beta=100.0) == [0, 1, 2, 3]


def test_filled_positions_neither_contend_nor_are_chosen() -> None:
    contended = [{i: 0.96, 20: 0.04} for i in range(6)]
    assert committed(contended, masked=[False, True, False, True, True, True]) == [1, 3, 4]
    assert committed([{1: 0.95, 2: 0.05}] * 2, masked=[False, True]) == [1]
    assert committed(contended, masked=[False] * 6) == []


def test_it_keeps_the_contract() -> None:
    for beta in (0.0, 0.1, 1.0):
        check_decoder(Decoder(Contention(beta), confidence="entropy"))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"beta": -0.1}, r"beta=-0.1 .* in \[0, 1e6\]"),
        ({"beta": float("nan")}, "beta=nan"),
        ({"sure": 1.5}, r"sure=1.5 .* \[0, 1\]"),
        ({"sure": -0.5}, "sure=-0.5"),
    ],
)
def test_impossible_knobs_are_refused(knobs: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Contention(**knobs)
