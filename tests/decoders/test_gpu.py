"""On a GPU: rows in float64 are those of the CPU, for every decoder and for every cache with every stop rule; compiled
models and CUDA graphs decode what eager ones do; a step waits once."""

import copy
import warnings

import pytest
import torch
from conftest import make_model
from jaxtyping import config
from test_compile import decoded
from test_device import CACHES, DECODERS, STOPS, combination, config as options_of, fits_threshold, generator, turns

from decoders import NO_CACHE
from decoders.types import DecodedRow
from dllm.cache import BlockCache, CacheStrategy, WindowCache
from dllm.diffusion import compile_

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda", 0)


def rows(device: torch.device | str, *parts: str) -> dict[int, DecodedRow]:
    found = dict[int, DecodedRow]()
    for turn in turns(generator(device, *parts)):
        found |= turn.ended
    return found


@pytest.mark.parametrize("number", range(len(DECODERS)), ids=DECODERS)
def test_every_decoder_there(number: int) -> None:
    kind, decoder, *others = combination(number)
    if options_of("decoder", decoder).get("soft"):  # it carries roundings on, which random weights multiply
        kind, others = "tiny-uniform" if kind == "noisy" else "tiny", ["none", "strict_eos"]
    parts = (kind, decoder, *others)
    assert rows(GPU, *parts) == rows("cpu", *parts)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("number", range(len(CACHES)), ids=CACHES)
def test_every_cache_with_every_stop_rule_there(number: int, stop: str) -> None:
    parts = fits_threshold(number, stop)
    assert rows(GPU, *parts) == rows("cpu", *parts)


@pytest.mark.parametrize("graphs", [False, True], ids=["compiled", "graphs"])
@pytest.mark.parametrize(
    ("kind", "cache"), [("full", NO_CACHE), ("shifted", WindowCache(0, 0)), ("block_causal", BlockCache())]
)
def test_compiled_models_decode_the_same(kind: str, cache: CacheStrategy, graphs: bool) -> None:
    config.update("jaxtyping_disable", True)  # checks of types would be compiled too
    eager = make_model(kind).double().to(GPU)
    model = copy.deepcopy(eager)
    torch._dynamo.reset()
    compile_(model, graphs)
    for lengths, slots in (((5, 11, 3), 3), ((4,), 1), ((6, 9, 13, 4, 17), 2)):
        assert decoded(model, lengths, slots, cache) == decoded(eager, lengths, slots, cache)


@pytest.mark.parametrize(("decoder", "cache"), [("threshold", "none"), ("credit", "dual"), ("fixed", "prefix")])
def test_a_step_waits_once_there(decoder: str, cache: str) -> None:
    """As on the simulated device (`test_device.check_alike`)."""
    made = generator(GPU, "full", decoder, cache, "strict_eos")
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        plain, before = False, 0
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for turn in turns(made):
                number = sum("synchronizing CUDA operation" in str(wait.message) for wait in waits)
                if plain and not turn.ended:
                    assert number - before == 1
                plain, before = not turn.ended, number
        finally:
            torch.cuda.set_sync_debug_mode("default")
