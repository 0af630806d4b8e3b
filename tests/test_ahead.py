"""Looking ahead of one token at a time: the same tokens, in fewer forwards, for every kind of model."""

from collections import Counter
from functools import partial

import pytest
from conftest import make_model

import dllm
from decoders import (
    BanEos,
    BlockEos,
    Decoder,
    Eotp,
    FixedK,
    Never,
    StopRule,
    StrictEos,
    Threshold,
    decode,
)
from decoders.loop import NO_CACHE, DecodedRow
from decoders.verified.ahead import decode_ahead
from dllm.cache import BlockCache, CacheStrategy, DelayedCache, WindowCache
from parallelbench.tasks import builtin_tasks

PREFIX, DUAL = WindowCache(0, None), WindowCache(0, 0)
CASES = [
    ("full", NO_CACHE, "prob", StrictEos()),
    ("full", PREFIX, "margin", BlockEos()),
    ("full", DUAL, "prob", Never()),
    ("shifted", WindowCache(2, 3, freeze_prompt=True), "left_to_right", StrictEos()),
    ("mixed", NO_CACHE, "entropy", Eotp("committed")),
    ("block_causal", BlockCache(), "prob", StrictEos()),
    ("shifted_block_causal", BlockCache(), "margin", StrictEos()),
    ("context_causal", NO_CACHE, "left_to_right", StrictEos()),
]
GEN_LENS = [16, 5, 16, 9]
CASES_PER_TASK = 70


def plain(row: DecodedRow) -> tuple:
    return row.token_ids, [at >= 0 for at in row.committed_at], row.stopped_by


@pytest.mark.parametrize(("kind", "cache", "confidence", "stop"), CASES, ids=repr)
def test_tokens_are_those_of_one_per_forward_batched_and_alone(
    kind: str, cache: CacheStrategy, confidence: str, stop: StopRule, prompts: list[list[int]]
) -> None:
    model, decoder = make_model(kind, 1), Decoder(FixedK(1), confidence=confidence)
    parts = {"block_len": 8, "decoder": decoder, "cache": cache, "stop": stop}
    slow = decode(model, prompts, gen_len=GEN_LENS, **parts)
    for states in (1, 3):
        ahead = partial(decode_ahead, model, states=states, **parts)
        rows = ahead(prompts, gen_len=GEN_LENS)
        assert [plain(row) for row in rows] == [plain(row) for row in slow]
        for row, theirs in zip(rows, slow, strict=True):
            assert row.nfe == theirs.nfe - sum(draft.accepted for draft in row.drafts)
            assert row == theirs if states == 1 else row.queried >= theirs.queried * row.nfe / theirs.nfe
    assert rows[0] == ahead(prompts[:1], gen_len=GEN_LENS[:1])[0]
    if confidence == "left_to_right" or kind == "full":
        assert sum(row.nfe for row in rows) < sum(row.nfe for row in slow)


@pytest.mark.slow
@pytest.mark.parametrize("confidence", ["prob", "margin", "entropy", "left_to_right"])
@pytest.mark.parametrize("name", ["tiny", "tiny-dparallel", "tiny-block"])
def test_ten_thousand_cases_of_shipped_models(name: str, confidence: str) -> None:
    """840 samples each: the same tokens, on tiny in at most half of the forwards."""
    model, forwards = dllm.load(name), Counter()
    cache = BlockCache() if model.spec.block else NO_CACHE
    decoder = Decoder(FixedK(1), confidence=confidence)
    parts = {
        "gen_len": 32,
        "block_len": model.spec.block or 32,
        "decoder": decoder,
        "cache": cache,
        "stop": StrictEos(),
    }
    for task in builtin_tasks().values():
        prompts = [model.encode(sample.messages) for sample in task.samples(CASES_PER_TASK, 0)]
        slow, fast = decode(model, prompts, **parts), decode_ahead(model, prompts, states=4, **parts)
        assert [row.token_ids for row in fast] == [row.token_ids for row in slow]
        forwards.update(slow=sum(row.nfe for row in slow), fast=sum(row.nfe for row in fast), cases=len(prompts))
    print(f"{name}, {confidence}: {forwards['cases']} cases, {forwards['fast'] / forwards['slow']:.3f} of the forwards")
    assert forwards["fast"] <= (0.5 if name == "tiny" else 0.9) * forwards["slow"]


def test_what_cannot_be_looked_ahead_of_is_refused(prompts: list[list[int]]) -> None:
    model, one = make_model("full"), Decoder(FixedK(1))

    def refused(message: str, **parts: object) -> None:
        given = {"states": 2, "gen_len": 8, "block_len": 8, "decoder": one, "cache": NO_CACHE, "stop": Never()} | parts
        with pytest.raises(ValueError, match=message):
            decode_ahead(model, prompts, **given)

    refused("states=0", states=0)
    for decoder in (Decoder(FixedK(2)), Decoder(Threshold()), Decoder(FixedK(1), temperature=1.0)):
        refused(r"use rule FixedK\(1\) alone", decoder=decoder)
    refused(r"use rule FixedK\(1\) alone", decoder=Decoder(FixedK(1), transforms=(BanEos(),)))
    refused(r"use rule FixedK\(1\) alone", decoder=Decoder(FixedK(1), confidence="random"))
    for cache in (WindowCache(0, 0, refresh_every=4), DelayedCache()):
        refused("depends on the steps before", cache=cache)
    refused("looks at predictions", stop=Eotp())
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        decode_ahead(model, [[]], states=2, gen_len=8, block_len=8, decoder=one, cache=NO_CACHE, stop=Never())
