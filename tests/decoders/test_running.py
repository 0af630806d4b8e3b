"""Several blocks in flight: one is today's decode, a batch decodes as its rows alone, and caches of block-causal models
stay exact."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from conftest import make_model

import dllm
from decoders import (
    ConfidenceDrop,
    Credit,
    Decoder,
    EntropyThreshold,
    Eotp,
    Factor,
    FixedK,
    InDel,
    Klass,
    LoopMdm,
    MaskGit,
    Never,
    Oracle,
    Prefix,
    ReMdm,
    RunningConfidence,
    RunningMean,
    RunningSet,
    SlowFast,
    Smoothing,
    StopRule,
    StrictEos,
    Threshold,
    TokenEdit,
    Wino,
    decode,
)
from decoders.spread import NO_CACHE
from decoders.state import DecodeState
from decoders.stop import BlockEos
from decoders.types import DecodedRow, Update, View
from dllm.cache import BlockCache, CacheStrategy, DelayedCache, WindowCache
from parallelbench.methods.running import Running
from parallelbench.run.generator import make_generator

PREFIX, DUAL = WindowCache(0, None), WindowCache(0, 0)
GEN_LENS = [24, 13, 8]
SURE = Decoder(Threshold(0.3))
CASES = [
    ("full", DUAL, Decoder(FixedK(2), temperature=1.0), Never()),
    ("shifted", WindowCache(2, 3, refresh_every=2), Decoder(Threshold(0.6), transforms=(Credit(),)), Eotp("committed")),
    ("block_causal", BlockCache(), Decoder(Threshold(0.6)), StrictEos()),
]
MORE = [
    ("full", NO_CACHE, SURE, StrictEos()),
    ("full", PREFIX, Decoder(EntropyThreshold(1.5), confidence="entropy"), BlockEos()),
    ("mixed", NO_CACHE, Decoder(Klass(0.3, 0.5)), Never()),
    ("block_causal", NO_CACHE, Decoder(Oracle()), Never()),
    ("shifted_block_causal", BlockCache(), Decoder(Factor()), BlockEos()),
    ("context_causal", NO_CACHE, Decoder(FixedK(3), confidence="left_to_right"), StrictEos()),
]
REVISED = [
    ("full", DUAL, Decoder(Threshold(0.3), revise=TokenEdit(0.2, 5)), BlockEos()),
    ("block_causal", BlockCache(), Decoder(Threshold(0.3), revise=TokenEdit(0.2, 5)), BlockEos()),
    (
        "context_causal",
        NO_CACHE,
        Decoder(Threshold(0.3), revise=TokenEdit(0.0, past_eos=False, remask=True)),
        BlockEos(),
    ),
    ("shifted_block_causal", NO_CACHE, Decoder(FixedK(2), revise=ConfidenceDrop(1.0)), StrictEos()),
    ("context_causal", BlockCache(), Decoder(LoopMdm(4, 2, 2, 3)), StrictEos()),
    ("full", PREFIX, Decoder(FixedK("all"), revise=RunningConfidence(MaskGit(4, "linear"))), StrictEos()),
    ("full", DUAL, Decoder(ReMdm(6, eta=0.2)), BlockEos()),
]


def decode_running(model: Any, prompts: list[list[int]], running: RunningSet, **parts: Any) -> list[DecodedRow]:
    return decode(model, prompts, spread=running, **parts)


@pytest.mark.parametrize(
    ("kind", "cache", "decoder", "stop"),
    [*CASES, *REVISED, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
    ids=repr,
)
def test_one_block_is_decode_and_several_are_alike_batched_and_alone(
    kind: str, cache: CacheStrategy, decoder: Decoder, stop: StopRule, prompts: list[list[int]]
) -> None:
    model = make_model(kind, 1)
    parts = {"block_len": 4, "decoder": decoder, "cache": cache, "stop": stop, "seed": 3}
    flying = partial(decode_running, model, **parts)
    slow = decode(model, prompts[:3], gen_len=GEN_LENS, **parts)
    assert flying(prompts[:3], gen_len=GEN_LENS, running=RunningSet(1)) == slow
    rows = flying(prompts[:3], gen_len=GEN_LENS, running=RunningSet(3))
    assert rows[:1] == flying(prompts[:1], gen_len=GEN_LENS[:1], running=RunningSet(3))
    assert rows[1:2] == flying(prompts[1:2], gen_len=GEN_LENS[1:2], running=RunningSet(3))
    assert sum(row.nfe for row in rows) < sum(row.nfe for row in slow)


def test_what_the_state_machine_opens_forces_and_leaves(prompts: list[list[int]]) -> None:
    """At most `buffer` blocks from the first unfinished one are written to, and each opens a forward after the last."""
    model, buffer, seen = make_model("block_causal", 1), 3, []

    def keep(state: DecodeState, view: View, update: Update) -> None:
        start = int((view.start + state.prompt_len)[0])
        seen.append((start, (update.write & view.live)[0].nonzero()[:, 0] // 8 if start < int(state.end[0]) else None))

    parts = {"block_len": 8, "gen_len": 48, "cache": BlockCache(), "stop": Never()}
    rare = Decoder(Threshold(2.0))  # forced commits alone
    never = {"open_at": 0.0, "force_at": 1.0}
    running = RunningSet(buffer, **never)
    (row,) = decode_running(model, prompts[:1], running=running, decoder=rare, on_step=keep, **parts)
    assert row.nfe == sum(at >= 0 for at in row.committed_at) == 48  # one at a time, the first block's
    assert all(written.tolist() == [0] for _, written in seen)
    seen.clear()
    every = RunningSet(buffer, open_at=0.0, force_at=0.0)
    (row,) = decode_running(model, prompts[:1], running=every, decoder=rare, on_step=keep, **parts)
    assert [written.tolist() for _, written in seen[:3]] == [[0], [0, 1], [0, 1, 2]]
    assert max(int(written.max()) for _, written in seen) == buffer - 1 and row.nfe < 30


def test_the_surest_of_all_open_blocks_is_committed(prompts: list[list[int]]) -> None:
    model, rare, steps = make_model("full", 1), Decoder(Threshold(2.0)), 0
    running = RunningSet(None, open_at=0.0, force_at=None, surest_of_all=True)
    parts = {"block_len": 8, "decoder": rare, "cache": NO_CACHE, "stop": Never(), "running": running}

    def keep(state: DecodeState, view: View, update: Update) -> None:
        nonlocal steps
        sure = torch.where(view.masked, view.logits.top_prob(), -1)
        chosen = (update.write & view.masked).gather(1, sure.argmax(1, keepdim=True))[:, 0]
        assert (chosen | ~view.masked.any(1)).all()
        steps += int((update.write & view.masked).sum(1).amax() > 1)  # besides the first block's own

    rows = decode_running(model, prompts[:3], gen_len=[24, 16, 32], on_step=keep, **parts)
    assert steps and rows[1:2] == decode_running(model, prompts[1:2], gen_len=[16], **parts)
    assert all(row.nfe < sum(at >= 0 for at in row.committed_at) for row in rows[::2])


def test_an_eos_fills_what_is_behind_it(prompts: list[list[int]]) -> None:
    """Decided columns and blocks that were not opened too."""
    model, seen = make_model("full", 1), []
    model.spec = replace(model.spec, eos_ids=tuple(range(1, 12)))
    parts = {"block_len": 8, "decoder": SURE, "cache": NO_CACHE, "stop": BlockEos()}
    flying = partial(decode_running, model, running=RunningSet(None, 0.1, None, fill_eos=True), **parts)

    def keep(state: DecodeState, view: View, update: Update) -> None:
        for canvas, start, end, gen_len in zip(state.canvas, state.prompt_len, state.end, state.gen_len, strict=True):
            ends = model.spec.is_eos(canvas[start : start + gen_len])
            first = int(ends.int().argmax()) if ends.any() else len(ends)
            assert bool(ends[first:].all()) and int(end) <= int(start) + gen_len
            seen.append(first < len(ends))

    rows = flying(prompts[:3], gen_len=[32, 24, 32], on_step=keep)
    assert any(seen) and any(len(row.token_ids) < 24 for row in rows)
    assert rows[2:3] == flying(prompts[2:3], gen_len=[32])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_a_context_causal_model_edits_becomes_its_greedy_text(seed: int, prompts: list[list[int]]) -> None:
    """One block at a time and several at once. Steps in which a block waits for another do not spend its looks. Many
    tokens end a text in the last case, so that some that end it are drafted behind a wrong one."""
    model = make_model("context_causal", seed)
    parts = {"gen_len": 32, "block_len": 8, "cache": BlockCache(), "stop": BlockEos()}
    greedy = decode(model, prompts, decoder=Decoder(FixedK(1), confidence="left_to_right"), **parts)
    for rule, past_eos, remask in (
        (FixedK("all"), True, False),
        (FixedK("all"), False, True),
        (Prefix(0.2), False, True),
    ):
        decoder = Decoder(rule, revise=TokenEdit(0.0, post=9, past_eos=past_eos, remask=remask))
        one = decode(model, prompts, decoder=decoder, **parts)
        several = decode_running(model, prompts, running=RunningSet(4, open_at=0.5), decoder=decoder, **parts)
        for rows in (one, several):
            assert [row.token_ids for row in rows] == [row.token_ids for row in greedy]
        assert sum(row.nfe for row in several) < sum(row.nfe for row in one)
    model.spec = replace(model.spec, eos_ids=tuple(range(1, 9)))
    greedy = decode(model, prompts, decoder=Decoder(FixedK(1), confidence="left_to_right"), **parts)
    drafts = Decoder(FixedK(3), confidence="left_to_right", revise=TokenEdit(0.0, post=9, past_eos=False, remask=True))
    assert any(len(row.token_ids) < 32 for row in greedy)
    for rows in (
        decode(model, prompts, decoder=drafts, **parts),
        decode_running(model, prompts, running=RunningSet(4, open_at=0.25), decoder=drafts, **parts),
    ):
        assert [row.token_ids for row in rows] == [row.token_ids for row in greedy]


@pytest.mark.parametrize("kind", ["block_causal", "shifted_block_causal"])
@pytest.mark.parametrize("grid", [{}, {"prompt_block": True}, {"prompt_grid": True}])
def test_block_causal_models_are_exact(kind: str, grid: dict[str, bool], prompts: list[list[int]]) -> None:
    """Kept K/V change nothing, and a block that opens when the last one is full is today's."""
    model = make_model(kind, 1)
    model.spec = replace(model.spec, **grid)
    parts = {"gen_len": 32, "block_len": 8, "decoder": SURE, "stop": Never()}
    kept, fresh = (
        decode_running(model, prompts, running=RunningSet(), cache=cache, **parts) for cache in (BlockCache(), NO_CACHE)
    )
    assert [replace(row, queried=0) for row in kept] == [replace(row, queried=0) for row in fresh]
    assert sum(row.queried for row in kept) < sum(row.queried for row in fresh)
    late = decode_running(model, prompts, running=RunningSet(open_at=1.0), cache=BlockCache(), **parts)
    assert late == decode(model, prompts, cache=BlockCache(), **parts)


@pytest.mark.parametrize(
    ("grid", "blocks"),
    [("prompt_block", [0, 0, 0, 1, 1, 2, 2]), ("prompt_grid", [0, 1, 1, 2, 2, 3, 3])],
)
def test_a_block_ends_with_the_prompt(grid: str, blocks: list[int]) -> None:
    """With a prompt of 3 and blocks of 2: | 0 1 2 | 3 4 | 5 6 | or | 0 | 1 2 | 3 4 | 5 6 |."""
    model = make_model("block_causal")
    model.spec = replace(model.spec, block=2, **{grid: True})
    canvas, prompt_len = torch.arange(7)[None], torch.tensor([3])
    logits = model.full_logits(canvas, prompt_len)
    for column, block in enumerate(blocks):
        other = canvas.clone()
        other[0, column] = 20
        changed = (model.full_logits(other, prompt_len) != logits).any(-1)[0]
        assert changed.tolist() == [seen >= block for seen in blocks]


def test_what_cannot_fly_is_refused(prompts: list[list[int]]) -> None:
    model = make_model("full")

    def refused(message: str, **parts: object) -> None:
        given = {"gen_len": 8, "block_len": 8, "decoder": SURE, "cache": NO_CACHE, "stop": Never()} | parts
        with pytest.raises(ValueError, match=message):
            decode_running(model, prompts, running=RunningSet(), **given)

    for message, knob in (
        ("buffer=0 of RunningSet", {"buffer": 0}),
        (r"open_at=1.5 of RunningSet; give a number in \[0, 1\]", {"open_at": 1.5}),
        ("force_at=-0.1 of RunningSet", {"force_at": -0.1}),
    ):
        with pytest.raises(ValueError, match=message):
            RunningSet(**knob)
    for decoder in (
        Decoder(Threshold(), soft=Smoothing()),
        Decoder(Wino()),
        Decoder(FixedK("all"), revise=SlowFast()),
    ):
        refused("takes one block at a time", decoder=decoder)
    model.spec = replace(model.spec, delete_id=5, split_id=6)
    refused("takes one block at a time", decoder=Decoder(FixedK("all"), revise=InDel()))
    refused("with a running set use cache=none", cache=DelayedCache())
    refused("looks at predictions in one window", stop=Eotp())
    refused("needs a block-causal model", cache=BlockCache())
    parts = {"cache": NO_CACHE, "stop": Never(), "seed": 0}
    with pytest.raises(ValueError, match="a running set needs a diffusion model"):
        make_generator(dllm.load("tiny-ar"), Running(RunningSet(), SURE), block_len=8, **parts)
    with pytest.raises(ValueError, match="block_length=null is one block"):
        make_generator(model, Running(RunningSet(), SURE), block_len=None, **parts)


SETS = {"multi_bd": RunningSet(), "d2f": RunningSet(None, 0.1, 0.95), "d3llm": RunningSet(None, 0.1, None)}


@pytest.mark.parametrize("running", SETS)
@pytest.mark.parametrize(
    "decoder",
    [
        Decoder(Threshold(0.3)),
        Decoder(Threshold(0.3), revise=TokenEdit(0.2, 4)),
        Decoder(RunningMean(), revise=ConfidenceDrop()),
        Decoder(ReMdm(6)),
        Decoder(Prefix(0.4), revise=TokenEdit(0.0, 4, past_eos=False, remask=True)),
        Decoder(FixedK("all"), revise=RunningConfidence(MaskGit(4, "linear"))),
    ],
    ids=["threshold", "edit", "saber", "remdm", "prefix_edit", "rcr"],
)
def test_sub_blocks_in_flight_end_with_their_block(decoder: Decoder, running: str) -> None:
    """A block's EOS ends a row once all its sub-blocks are full, and then also before the row's front."""
    model, prompts = make_model("block_causal"), [[7, 3, 9, 1, 4], [8, 2, 2, 6, 1, 5, 9, 3, 4, 4, 1], [5, 6, 7]]
    parts = {"gen_len": 16, "block_len": 4, "decoder": decoder, "cache": BlockCache(), "stop": BlockEos(), "seed": 3}
    model.spec = replace(model.spec, eos_ids=tuple(range(8)))
    rows = decode_running(model, prompts, running=SETS[running], **parts)
    assert rows[:1] == decode_running(model, prompts[:1], running=SETS[running], **parts)
    assert all(row.stopped_by in ("eos", "length") for row in rows)
    assert decode_running(model, prompts, running=RunningSet(1), **parts) == decode(model, prompts, **parts)
