"""The decoder contract: every shipped decoder keeps it, and each kind of broken rule is caught."""

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from decoders import Credit, Decoder, FixedK
from decoders.testing import check_decoder
from decoders.types import CommitRule, Revise, Shape, Update
from parallelbench.wiring.catalogue import CONF
from scripts.bench.step import peak_temporaries

FILES = [  # those that decode in the one loop
    path for path in sorted((CONF / "decoder").glob("*.yaml")) if OmegaConf.load(path)._target_ == "decoders.Decoder"
]


FEWER = {"renoise": {"revise": {"steps": 8}}}  # than the published steps, all of which a model without sense takes


FEWEST = FEWER | {name: {"rule": {"steps": 6}} for name in ("dream", "maskgit", "origin", "remdm")}
FEWEST |= {"prefix_edit": {"revise": {"post": 6}}, "indel": {"revise": {"budget": 6}}}


def load(path, fewer: dict[str, dict] = FEWER) -> Decoder:
    config = OmegaConf.merge(OmegaConf.load(path), fewer.get(path.stem, {}))
    return instantiate(OmegaConf.create({"decoder": config}).decoder, _convert_="all")


@pytest.mark.parametrize("published", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_decoders_keep_the_contract(path, published: bool) -> None:
    """With the published steps on blocks of 12, or fewer on blocks of 6."""
    if published:
        check_decoder(load(path))
    else:
        check_decoder(load(path, FEWEST), gen_len=12, block_len=6)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_step_holds_few_copies_of_the_logits(path) -> None:
    assert peak_temporaries(load(path)) <= 3


def test_copies_of_the_logits_are_counted() -> None:
    class Copies(CommitRule):
        def __call__(self, view, candidates, memory):
            kept = [view.logits.values + i for i in range(4)]
            return kept[0].sum(-1) > 0

    assert 4 <= peak_temporaries(Decoder(Copies())) < 6
    assert peak_temporaries(Decoder(FixedK(1), confidence="random")) < 2


def test_sparse_credit_is_a_hundredth_of_dense() -> None:
    shape = Shape(1, 64, 126_464, torch.device("cpu"))
    dense, sparse = (sum(tensor.nbytes for tensor in Credit(slots=slots).init(shape).values()) for slots in (None, 8))
    assert sparse <= dense / 100


class SharedState(CommitRule):
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, view, candidates, memory):
        self.calls += 1
        return candidates.confidence > (self.calls % 7) / 10


class NeighbourDependent(CommitRule):
    def __call__(self, view, candidates, memory):
        return candidates.confidence >= (candidates.confidence * view.masked).sum() / view.masked.sum()


class LookingBack(CommitRule):
    """Compares with positions that are decided already."""

    def __call__(self, view, candidates, memory):
        return candidates.confidence >= candidates.confidence.mean(1, keepdim=True)


class Syncing(CommitRule):
    def __call__(self, view, candidates, memory):
        return candidates.confidence >= candidates.confidence.amax(1, keepdim=True) * (1 if view.masked.any() else 0)


class Overwriting(Revise):
    def __call__(self, view, candidates, write, memory):
        return Update(torch.full_like(candidates.tokens, view.spec.mask_id), write)


class InPlace(CommitRule):
    def __call__(self, view, candidates, memory):
        view.masked[:, 0] = False
        return view.masked


class Peeking(CommitRule):
    def __call__(self, view, candidates, memory):
        return candidates.tokens % 2 == (0 if view.reference is None else view.reference % 2)


class Doubting(Revise):
    def __call__(self, view, candidates, write, memory):
        return Update(candidates.tokens, write & (view.shadow >= 0))


class Narrow(CommitRule):
    """Knows the columns of one block by heart."""

    def __call__(self, view, candidates, memory):
        return candidates.confidence >= torch.linspace(0, 1, 12)[: view.masked.shape[1]]


class Learned(CommitRule):
    def __init__(self) -> None:
        self.weight = torch.ones(1)

    def __call__(self, view, candidates, memory):
        return candidates.confidence >= self.weight


class Holding(CommitRule):
    def __init__(self, *inner: CommitRule) -> None:
        self.inner = inner

    def __call__(self, view, candidates, memory):
        return self.inner[0](view, candidates, memory)


class Slow(CommitRule):
    """A token every 40 steps."""

    empty_steps = True

    def __call__(self, view, candidates, memory):
        return view.masked & (view.step % 40 == 39)[:, None] & (candidates.confidence > 2)


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (Decoder(Peeking()), "does not declare needs_reference"),
        (Decoder(FixedK(2), revise=Doubting()), "does not declare needs_shadow"),
        (Decoder(LookingBack()), "does not declare needs_decided"),
        (Decoder(Narrow()), "does not declare `widest`"),
        (Decoder(Learned()), "Learned holds weights and has no `identity`"),
        (Decoder(Holding(FixedK(1))), r"Holding holds a part that its parts\(\) does not name"),
        (Decoder(Slow()), "does not declare its `steps`"),
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


class Declaring(Holding):
    """Declares all that a part can, and holds another."""

    needs_shadow, needs_reference, steps, widest, identity = True, True, 48, 12, "mine"

    def parts(self):
        return self.inner

    def __call__(self, view, candidates, memory):
        assert view.shadow is not None and view.reference is not None
        return super().__call__(view, candidates, memory)


def test_what_is_declared_is_given() -> None:
    check_decoder(Decoder(Declaring(FixedK(2))))
    check_decoder(Decoder(Declaring(Declaring(FixedK(2)))))
    assert Decoder(Declaring(Declaring(FixedK(1)))).identity == "minemine"
