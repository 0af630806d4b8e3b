"""Sorted-confidence rules against published vectors and against each other."""

import pytest
import torch

from decoders import EntropyBound, EntropyThreshold, Factor, Frechet
from decoders.logits import Logits
from decoders.noise import Noise
from decoders.types import Candidates, View
from dllm import ModelSpec


def committed(rule, confidence: list[float], masked: list[bool] | None = None) -> list[int]:
    """Positions that a rule chooses by itself, without the decoder's at-least-one."""
    values = torch.tensor([confidence])
    mask = torch.ones_like(values, dtype=torch.bool) if masked is None else torch.tensor([masked])
    zeros = torch.zeros(1, values.shape[1], dtype=torch.long)
    logits = Logits(torch.zeros(1, values.shape[1], 4))
    view = View(
        zeros,
        mask,
        mask,
        logits,
        zeros[:, 0],
        Noise(zeros[:, 0], zeros[:, 0]),
        ModelSpec(mask_id=3, eos_ids=(2,), pad_id=1),
        zeros[:, 0],
    )
    return (rule(view, Candidates(zeros, values), {}) & mask)[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("rule", "confidence", "number"),
    [
        (Factor(1.0), [0.99, 0.97, 0.9, 0.6], 3),
        (Factor(0.75), [0.99, 0.97, 0.9, 0.6], 3),
        (Factor(1.0), [0.999, 0.999, 0.999, 0.84], 4),
        (Factor(0.75), [0.999, 0.999, 0.999, 0.84], 3),
        (Factor(1.0), [0.99, 0.98, 0.51], 2),  # the last one fails and stays masked
        (Frechet(0.25), [0.999, 0.999, 0.999, 0.84], 4),
        (EntropyBound(0.1), [-0.01, -0.05, -0.1, -0.5, -1.2], 3),
        (EntropyThreshold(0.5), [-0.01, -0.5, -0.51, -1.2], 2),
    ],
)
def test_published_vectors(rule, confidence: list[float], number: int) -> None:
    assert committed(rule, confidence) == list(range(number))
    shuffled = confidence[::-1]
    assert committed(rule, shuffled) == list(range(len(shuffled) - number, len(shuffled)))


def test_frechet_contains_factor() -> None:
    rng = torch.Generator().manual_seed(0)
    larger = 0
    for _ in range(300):
        confidence = (1 - torch.rand(8, generator=rng) ** 2 * 0.4).tolist()
        for f in (0.5, 0.75, 1.0):
            narrow, wide = committed(Factor(f), confidence), committed(Frechet(1 - f - 1e-6), confidence)
            assert set(narrow) <= set(wide)
            larger += len(wide) > len(narrow)
    assert larger > 0


def test_filled_positions_neither_count_nor_are_chosen() -> None:
    masked = [True, False, True, True]
    for rule, confidence in (
        (Factor(1.0), [0.97, 0.999, 0.99, 0.6]),
        (Frechet(0.25), [0.97, 0.999, 0.99, 0.6]),
        (EntropyBound(0.04), [-0.05, -0.001, -0.01, -3.0]),
    ):
        assert committed(rule, confidence, masked) == [0, 2]
        assert committed(rule, confidence, [False] * 4) == []


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Factor(0.0), "factor=0.0"),
        (lambda: Frechet(1.5), "delta=1.5"),
        (lambda: EntropyBound(-0.1), "gamma=-0.1"),
        (lambda: EntropyThreshold(-1.0), "theta=-1.0"),
    ],
)
def test_impossible_knobs_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
