"""Looking ahead of one token at a time: the same tokens, in fewer forwards, for every kind of model."""

from functools import partial

import pytest
from conftest import make_model

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
    with pytest.raises(ValueError, match="a prompt is empty"):
        decode_ahead(model, [[]], states=2, gen_len=8, block_len=8, decoder=one, cache=NO_CACHE, stop=Never())
