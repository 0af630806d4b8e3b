"""Compiled models and fixed shapes decode what eager ones do, and a warm one compiles nothing more."""

import shutil
from collections.abc import Sequence
from unittest.mock import Mock

import pytest
import torch
from conftest import BLOCK, PAD, make_model
from jaxtyping import config
from test_drafting import with_adapter
from torch._dynamo.utils import counters

import dllm
from decoders import NO_CACHE, Decoder, StrictEos, Threshold
from decoders.loop import decode_queue
from decoders.types import DecodedRow, in_order
from decoders.verified.drafters import Ahead, MaskDrafts
from decoders.verified.rounds import Verified, verify
from dllm import DiffusionLM, graphs
from dllm.cache import BlockCache, CacheStrategy, WindowCache
from dllm.causal import CausalStream
from dllm.diffusion import compile_, record_
from dllm.graphs import Recorded, Work
from dllm.layers import WIDTH

COMPILER = pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")

FIXED = [
    ("full", NO_CACHE),
    ("shifted", WindowCache(0, 0)),
    ("block_causal", BlockCache()),
    ("mixed", WindowCache(2, 3)),
]


def decoded(model: DiffusionLM, lengths: Sequence[int], slots: int, cache: CacheStrategy) -> list[DecodedRow]:
    """Rows of random prompts of these lengths. They end at different steps."""
    rng = torch.Generator().manual_seed(sum(lengths))
    prompts = [torch.randint(0, PAD, (length,), generator=rng).tolist() for length in lengths]
    parts = {"decoder": Decoder(Threshold(0.5)), "cache": cache, "stop": StrictEos(), "block_len": BLOCK}
    parts |= {"device": model.device}
    return list(in_order(decode_queue(model, prompts, slots=slots, gen_len=2 * BLOCK, **parts)))


@pytest.mark.parametrize(("kind", "cache"), FIXED)
def test_fixed_shapes_decode_the_same(kind: str, cache: CacheStrategy) -> None:
    model, seen = make_model(kind), set[tuple[int, int]]()
    rows = decoded(model, (5, 11, 3, 9, 40), 3, cache)
    hook = model.backbone.get_decoder().register_forward_pre_hook
    hook(lambda _, args, kwargs: seen.add(tuple(kwargs["inputs_embeds"].shape[:2])), with_kwargs=True)
    model.fixed_shapes = True
    assert decoded(model, (5, 11, 3, 9, 40), 3, cache) == rows
    assert all(batch in (1, 2, 3) and not width % WIDTH for batch, width in seen)


def again(work: Work) -> Recorded:
    """What a CPU can do in place of a recording: work once more on the same tensors, into the same result."""
    result = work()
    return lambda: result.copy_(work()), result


@pytest.mark.parametrize(("kind", "cache"), FIXED)
def test_recorded_forwards_decode_the_same(kind: str, cache: CacheStrategy) -> None:
    """One recording for each shape and canvas, whose own inputs are filled anew for each forward."""
    model, recorded, lengths = make_model(kind), list[Recorded](), (5, 11, 3, 9, 40)
    rows = decoded(model, lengths, 3, cache)

    def record(work: Work) -> Recorded:
        recorded.append(again(work))
        return recorded[-1]

    record_(model, record)
    assert decoded(model, lengths, 3, cache) == rows
    assert 0 < len(recorded) <= 9 < sum(row.nfe for row in rows)
    more = len(recorded)
    assert decoded(model, lengths, 3, cache) == rows
    assert len(recorded) == (more if cache == NO_CACHE else 2 * more)  # K/V of another call lies elsewhere


def test_shapes_beyond_the_most_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST", 2)
    model, recorded = make_model("full"), list[Recorded]()
    rows = decoded(model, (5, 11, 3, 9, 40), 3, NO_CACHE)
    record_(model, lambda work: recorded.append(again(work)) or recorded[-1])
    assert decoded(model, (5, 11, 3, 9, 40), 3, NO_CACHE) == rows and len(recorded) == 2


def test_a_model_that_cannot_be_recorded_runs_without() -> None:
    def record(work: Work) -> Recorded:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    model = make_model("full")
    rows = decoded(model, (5, 11), 2, NO_CACHE)
    record_(model, record)
    with pytest.warns(UserWarning, match=r"^CUDA graphs are not for model 'full': operation .* capturing; it runs w"):
        assert decoded(model, (5, 11), 2, NO_CACHE) == rows


def test_cuda_graphs_are_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Mock()
    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    with pytest.warns(UserWarning, match=r"CUDA graphs are not for model 'tiny': it is on cpu; it is compiled without"):
        model = dllm.load("tiny", compile="cuda_graphs")
    compiled.assert_called_once_with(dynamic=True)
    assert not model.fixed_shapes
    with pytest.raises(ValueError, match=r"compile='graphs' of load_diffusion; give .*cuda_graphs"):
        dllm.load("tiny", compile="graphs")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=COMPILER)])
def test_a_warm_model_compiles_nothing_more(backend: str) -> None:
    """The first decodes meet every way in which the loop calls a model: with and without K/V, all rows or some, one
    row or several, the whole canvas or a part. Later ones have other prompts, lengths, numbers of rows and slots."""
    config.update("jaxtyping_disable", True)  # checks of types would be compiled too
    model, eager = make_model("full"), make_model("full")
    compile_(model, graphs=False)
    model.backbone.get_decoder().compile(dynamic=True, backend=backend)
    torch._dynamo.reset()
    counters.clear()
    caches = (NO_CACHE, WindowCache(0, 0))
    for cache in caches:
        for lengths, slots in (((5, 11, 3), 3), ((4,), 1), ((6, 9, 13, 4, 17), 4)):
            assert decoded(model, lengths, slots, cache) == decoded(eager, lengths, slots, cache)
    graphs = counters["stats"]["unique_graphs"]
    assert 0 < graphs <= 10  # far from the limit, behind which torch runs uncompiled and counts nothing
    for cache in (*caches, WindowCache(0, None), WindowCache(2, 2, refresh_every=2)):
        for lengths, slots in (((7, 8), 1), ((30, 3, 21, 2), 3), ((12, 2, 5, 8, 8, 1, 20), 5), ((2, 2), 2)):
            assert decoded(model, lengths, slots, cache) == decoded(eager, lengths, slots, cache)
    assert counters["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize(
    "kinds",
    [("last", "all"), pytest.param(("last",), marks=pytest.mark.slow), pytest.param(("all",), marks=pytest.mark.slow)],
)
def test_a_warm_drafter_compiles_nothing_more(monkeypatch: pytest.MonkeyPatch, kinds: tuple[Ahead, ...]) -> None:
    """Of an adapter for drafted columns, with other numbers of rows, columns and drafts. It has one layer, as all
    layers are traced alike."""
    monkeypatch.setattr(config, "jaxtyping_disable", True)
    model, eager = with_adapter(layers=1), with_adapter(layers=1)
    compile_(model, graphs=False)
    model.backbone.get_decoder().compile(dynamic=True, backend="eager")
    torch._dynamo.reset()
    counters.clear()

    def decoded(model: DiffusionLM, lengths: Sequence[int], ahead: Ahead) -> list[list[int]]:
        rng = torch.Generator().manual_seed(sum(lengths))
        prompts = [torch.randint(0, PAD, (length,), generator=rng).tolist() for length in lengths]
        count = [0] * len(prompts)
        rows = verify(CausalStream(model), Verified(MaskDrafts(ahead)), prompts, [12 for _ in count], count)
        return [row.token_ids for row in rows]

    for ahead in kinds:
        for lengths in ((5, 11, 3), (4,), (6, 9, 13, 4, 17), (7, 8), (30, 3, 21, 2)):
            assert decoded(model, lengths, ahead) == decoded(eager, lengths, ahead)
    graphs = counters["stats"]["unique_graphs"]
    assert 0 < graphs <= 14
    for ahead in kinds:
        for lengths in ((12, 2), (3, 3, 40), (9,), (25, 6, 1, 8)):
            assert decoded(model, lengths, ahead) == decoded(eager, lengths, ahead)
    # forwards of one column are a shape of its own, which drafts seldom leave
    assert counters["stats"]["unique_graphs"] <= graphs + 1
