"""The decoder contract: every shipped decoder keeps it, and each kind of broken rule is caught."""

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from decoders import Credit, Decoder, FixedK
from decoders.testing import check_decoder, peak_temporaries
from decoders.types import Shape, Update
from parallelbench.wiring.conf import CONF

FILES = [  # those that decode in the one loop
    path for path in sorted((CONF / "decoder").glob("*.yaml")) if OmegaConf.load(path)._target_ == "decoders.Decoder"
]


def load(path) -> Decoder:
    return instantiate(OmegaConf.create({"decoder": OmegaConf.load(path)}).decoder, _convert_="all")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_decoders_keep_the_contract(path) -> None:
    check_decoder(load(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_step_holds_few_copies_of_the_logits(path) -> None:
    assert peak_temporaries(load(path)) <= 3


def test_copies_of_the_logits_are_counted() -> None:
    class Copies(Broken):
        def __call__(self, view, candidates, memory):
            kept = [view.logits.values + i for i in range(4)]
            return kept[0].sum(-1) > 0

    assert 4 <= peak_temporaries(Decoder(Copies())) < 6
    assert peak_temporaries(Decoder(FixedK(1), confidence="random")) < 2


def test_sparse_credit_is_a_hundredth_of_dense() -> None:
    shape = Shape(1, 64, 126_464, torch.device("cpu"))
    dense, sparse = (sum(tensor.nbytes for tensor in Credit(slots=slots).init(shape).values()) for slots in (None, 8))
    assert sparse <= dense / 100


class Broken:
    def init(self, shape) -> dict:
        return {}


class SharedState(Broken):
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, view, candidates, memory):
        self.calls += 1
        return candidates.confidence > (self.calls % 7) / 10


class NeighbourDependent(Broken):
    def __call__(self, view, candidates, memory):
        return candidates.confidence >= candidates.confidence.mean()


class Syncing(Broken):
    def __call__(self, view, candidates, memory):
        return candidates.confidence >= candidates.confidence.amax(1, keepdim=True) * (1 if view.masked.any() else 0)


class Overwriting(Broken):
    def __call__(self, view, candidates, write, memory):
        return Update(torch.full_like(candidates.tokens, view.spec.mask_id), write)


class InPlace(Broken):
    def __call__(self, view, candidates, memory):
        view.masked[:, 0] = False
        return view.masked


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (Decoder(SharedState()), "the same seed|differently"),
        (Decoder(NeighbourDependent()), "differently alone and batched"),
        (Decoder(Syncing()), "waits for the device"),
        (Decoder(FixedK(2), revise=Overwriting()), "MASK tokens are left"),
        (Decoder(InPlace()), "changed in place|commits nothing|MASK"),
    ],
)
def test_a_broken_decoder_is_caught(decoder: Decoder, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_decoder(decoder)
