"""Several blocks in flight: one is today's decode, a batch decodes as its rows alone, and caches of block-causal models
stay exact."""

from functools import partial

import pytest
from conftest import MASK, make_model

from decoders import (
    Credit,
    Decoder,
    EntropyThreshold,
    Eotp,
    Factor,
    FixedK,
    Klass,
    Never,
    Oracle,
    Smoothing,
    StopRule,
    StrictEos,
    Threshold,
    TokenEdit,
    decode,
)
from decoders.loop import NO_CACHE
from decoders.running.blocks import RunningSet
from decoders.running.loop import decode_running
from decoders.state import DecodeState
from decoders.stop import BlockEos
from decoders.types import Update, View
from dllm.cache import BlockCache, CacheStrategy, DelayedCache, SubBlockCache, WindowCache

PREFIX, DUAL = WindowCache(0, None), WindowCache(0, 0)
GEN_LENS = [32, 13, 40, 24]
SURE = Decoder(Threshold(0.3))
CASES = [
    ("full", NO_CACHE, SURE, StrictEos()),
    ("full", PREFIX, Decoder(EntropyThreshold(1.5), confidence="entropy"), BlockEos()),
    ("full", DUAL, Decoder(FixedK(2), temperature=1.0), Never()),
    ("shifted", WindowCache(2, 3, refresh_every=2), Decoder(Threshold(0.3), transforms=(Credit(),)), Eotp("committed")),
    ("mixed", NO_CACHE, Decoder(Klass(0.3, 0.5)), Never()),
    ("block_causal", BlockCache(), SURE, StrictEos()),
    ("block_causal", NO_CACHE, Decoder(Oracle()), Never()),
    ("shifted_block_causal", BlockCache(), Decoder(Factor()), BlockEos()),
    ("context_causal", NO_CACHE, Decoder(FixedK(3), confidence="left_to_right"), StrictEos()),
]


@pytest.mark.parametrize(("kind", "cache", "decoder", "stop"), CASES, ids=repr)
def test_one_block_is_decode_and_several_are_alike_batched_and_alone(
    kind: str, cache: CacheStrategy, decoder: Decoder, stop: StopRule, prompts: list[list[int]]
) -> None:
    model = make_model(kind, 1)
    parts = {"block_len": 8, "decoder": decoder, "cache": cache, "stop": stop, "seed": 3}
    flying = partial(decode_running, model, **parts)
    slow = decode(model, prompts, gen_len=GEN_LENS, **parts)
    assert flying(prompts, gen_len=GEN_LENS, running=RunningSet(1)) == slow
    rows = flying(prompts, gen_len=GEN_LENS, running=RunningSet(3))
    for row, prompt, gen_len in zip(rows, prompts, GEN_LENS, strict=True):
        assert [row] == flying([prompt], gen_len=[gen_len], running=RunningSet(3))
    assert sum(row.nfe for row in rows) < sum(row.nfe for row in slow)
