"""Lookahead over states: a textbook version of it decodes the same, in any batch and with every cache that it takes."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from conftest import EOS, make_model

from decoders import (
    AnswerGap,
    BanEos,
    BlockEos,
    Decoder,
    EntropyBound,
    Eotp,
    FixedK,
    Lookahead,
    Never,
    RunningSet,
    Threshold,
    decode,
)
from decoders.spread import NO_CACHE
from decoders.types import DecodedRow
from dllm.cache import BlockCache, CacheStrategy, DelayedCache, WindowCache
from dllm.plan import Plan
from parallelbench.methods.verified import LoPA
from parallelbench.run.generator import make_generator

DUAL = WindowCache(0, 0)
GEN_LENS = [16, 5, 16, 9]
ONE, SEVERAL = RunningSet(1), RunningSet(None, 0.1, 0.95)


def decode_lookahead(
    model: Any, prompts: list[list[int]], *, branches: int, running: Any = None, **parts: Any
) -> list[DecodedRow]:
    return decode(model, prompts, spread=Lookahead(branches, running), **parts)


def textbook(
    model,
    prompt: list[int],
    gen_len: int,
    block_len: int,
    branches: int,
    tau: float,
    cut: bool = False,
    running: RunningSet = ONE,
) -> tuple[list[int], int]:
    """One row of a bidirectional model, one forward of one state after the other. cut: behind the first EOS. running:
    without bounds on the blocks, or with one."""
    mask, start, canvas, nfe = model.spec.mask_id, len(prompt), prompt + [model.spec.mask_id] * gen_len, 0
    expected, stop = list[tuple[int, int]](), start
    blocks = {first: range(first, first + block_len) for first in range(start, start + gen_len, block_len)}

    def filled(tried: list[int], first: int) -> float:
        return 1 - tried[first : first + block_len].count(mask) / block_len

    while mask in canvas:
        front = max(first for first in blocks if mask not in canvas[:first])
        best, nfe = None, nfe + 1
        for extra in [None, *expected]:
            tried, opened = list(canvas), max(stop, front + block_len)
            if extra is not None:
                tried[extra[0]] = extra[1]
            more = running.buffer is None and opened == stop and filled(tried, stop - block_len) >= running.open_at
            if more and EOS not in tried[front:stop]:
                opened += block_len
            plan = Plan.of(np.array([0]), np.ones((1, len(tried)), bool), True)
            end, columns = torch.tensor([len(tried)]), torch.arange(len(tried))[None]
            kv = model.new_kv(torch.tensor([start]), len(tried))
            with torch.inference_mode():
                logits = model.logits(torch.tensor([tried]), plan, columns, end=end, kv=kv)[0].float()
            prob, token = logits.softmax(-1).max(-1)
            left = [i for i in range(front, min(opened, len(tried))) if tried[i] == mask]
            mean = sum(prob[i].item() for i in left) / len(left) if left else 1.0
            if best is None or mean > best[0] + 1e-7:
                best = mean, tried, left, prob, token, opened
        _, canvas, left, prob, token, stop = best
        sure = set[int]()
        for first, block in blocks.items():
            here = [i for i in left if i in block]
            forced = first == front or filled(best[1], first - block_len) >= (running.force_at or 2)
            surest = [max(here, key=lambda i: prob[i].item())] if here and forced else []
            sure |= {i for i in here if prob[i] >= tau} or set(surest)
        canvas = [int(token[i]) if i in sure else canvas[i] for i in range(len(canvas))]
        if cut and EOS in canvas[start:]:
            canvas = canvas[: canvas.index(EOS, start) + 1]
        rest = sorted((i for i in left if i not in sure and i < len(canvas)), key=lambda i: -prob[i].item())
        expected = [(i, int(token[i])) for i in rest[:branches]]
    text = canvas[start:]
    return text[: text.index(EOS) if EOS in text else None], nfe


def test_it_is_the_textbook_version(prompts: list[list[int]]) -> None:
    model = make_model("full")
    how = {"block_len": 8, "cache": NO_CACHE, "stop": Never(), "decoder": Decoder(Threshold(0.6))}
    for branches in (1, 3):
        rows = decode_lookahead(model, prompts, gen_len=GEN_LENS, branches=branches, **how)
        wanted = [textbook(model, p, n, 8, branches, 0.6) for p, n in zip(prompts, GEN_LENS, strict=True)]
        assert [(row.token_ids, row.nfe) for row in rows] == wanted
    assert sum(row.nfe for row in rows) < sum(row.nfe for row in decode(model, prompts, gen_len=GEN_LENS, **how))


@pytest.mark.parametrize("open_at", [0.1, 1.0])
def test_states_open_blocks_as_in_the_textbook_version(open_at: float, prompts: list[list[int]]) -> None:
    """At 1 the next block is open before its turn only where a state's own token has filled the last one."""
    model, running = make_model("full"), RunningSet(None, open_at, 0.95)
    how = {"block_len": 4, "cache": NO_CACHE, "stop": Never(), "decoder": Decoder(Threshold(0.6)), "branches": 2}
    rows = decode_lookahead(model, prompts, gen_len=[16, 6, 20, 12], running=running, **how)
    each = zip(prompts, [16, 6, 20, 12], strict=True)
    assert [(row.token_ids, row.nfe) for row in rows] == [
        textbook(model, p, n, 4, 2, 0.6, False, running) for p, n in each
    ]
    one = decode_lookahead(model, prompts, gen_len=[16, 6, 20, 12], **how)
    assert sum(row.nfe for row in rows) < sum(row.nfe for row in one)
    assert one == decode_lookahead(model, prompts, gen_len=[16, 6, 20, 12], running=ONE, **how)


def test_nothing_is_tried_behind_an_eos_that_cuts_the_row(prompts: list[list[int]]) -> None:
    model, stop = make_model("full"), Eotp("committed", order="committed")
    how = {"gen_len": 16, "block_len": 16, "cache": NO_CACHE, "decoder": Decoder(Threshold(0.6)), "branches": 4}
    many = [[*prompt, extra] for prompt in prompts for extra in range(12)]
    wanted = [textbook(model, prompt, 16, 16, 4, 0.6, cut=True) for prompt in many]
    rows = decode_lookahead(model, many, stop=stop, **how)
    assert [(row.token_ids, row.nfe) for row in rows] == wanted
    assert wanted != [textbook(model, prompt, 16, 16, 4, 0.6) for prompt in many]


@pytest.mark.parametrize(
    ("kind", "cache"), [("mixed", NO_CACHE), ("full", DUAL), ("shifted_block_causal", BlockCache())]
)
def test_a_row_is_the_same_alone(kind: str, cache: CacheStrategy, prompts: list[list[int]]) -> None:
    model, decoder = make_model(kind), Decoder(EntropyBound(0.5), confidence="entropy", temperature=0.7)
    how = {"branches": 2, "block_len": 8, "cache": cache, "stop": Never(), "decoder": decoder}
    for running in (None, SEVERAL):
        rows = decode_lookahead(model, prompts, gen_len=GEN_LENS, running=running, **how)
        assert rows[2:] == decode_lookahead(model, prompts[2:], gen_len=GEN_LENS[2:], running=running, **how)
        assert all(row.stopped_by == "length" and model.spec.mask_id not in row.token_ids for row in rows)


@pytest.mark.parametrize("kind", ["block_causal", "shifted_block_causal"])
@pytest.mark.parametrize("prompt_block", [False, True])
def test_kept_keys_of_blocks_in_flight_are_exact(kind: str, prompt_block: bool, prompts: list[list[int]]) -> None:
    model = make_model(kind, 1)
    model.spec = replace(model.spec, prompt_block=prompt_block)
    parts = {"gen_len": 32, "block_len": 8, "decoder": Decoder(Threshold(0.3)), "branches": 3}
    flying = partial(decode_lookahead, model, prompts[:3], running=RunningSet(3, 0.1), stop=BlockEos(), **parts)
    kept, fresh = flying(cache=BlockCache()), flying(cache=NO_CACHE)
    assert [replace(row, queried=0) for row in kept] == [replace(row, queried=0) for row in fresh]
    assert sum(row.queried for row in kept) < sum(row.queried for row in fresh)


def test_without_a_choice_it_is_decode(prompts: list[list[int]]) -> None:
    model = make_model("full")
    how = {"gen_len": 16, "block_len": 8, "cache": DUAL, "stop": Never(), "decoder": Decoder(FixedK("all"))}
    assert decode_lookahead(model, prompts, branches=3, **how) == decode(model, prompts, **how)


def test_what_states_cannot_be_compared_for_is_refused(prompts: list[list[int]]) -> None:
    def refused(message: str, **parts: object) -> None:
        given = {"branches": 2, "gen_len": 8, "block_len": 8, "decoder": Decoder(Threshold()), "cache": NO_CACHE}
        with pytest.raises(ValueError, match=message):
            decode_lookahead(make_model("full"), prompts, **given | {"stop": Never()} | parts)

    refused("branches=0", branches=0)
    refused("takes a rule, its confidence", decoder=Decoder(Threshold(), transforms=(BanEos(),)))
    refused("depends on the steps before", cache=DelayedCache())
    refused("looks at predictions", stop=Eotp())
    refused("takes one block at a time", decoder=Decoder(AnswerGap()), running=SEVERAL)
    refused("running=3 of Lookahead", running=3)
    parts = {"cache": NO_CACHE, "stop": Never(), "seed": 0}
    with pytest.raises(ValueError, match="block_length=null is one block"):
        make_generator(make_model("full"), LoPA(running=SEVERAL), block_len=None, **parts)
