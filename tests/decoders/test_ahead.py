"""Looking ahead of one token at a time: the same tokens, in fewer forwards, for every kind of model."""

from collections import Counter
from functools import partial
from itertools import takewhile
from typing import Any

import pytest
import torch
from conftest import make_model

import dllm
from decoders import (
    Ahead,
    BanEos,
    BlockEos,
    Decoder,
    Eotp,
    FixedK,
    Never,
    Prefix,
    StopRule,
    StrictEos,
    Threshold,
    decode,
)
from decoders.loop import DecodedRow
from decoders.spread import NO_CACHE
from dllm.cache import BlockCache, CacheStrategy, DelayedCache, WindowCache
from dllm.model import DiffusionLM
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


def decode_ahead(model: Any, prompts: list[list[int]], *, states: int, **parts: Any) -> list[DecodedRow]:
    how = {name: parts.pop(name) for name in ("match", "plan_by") if name in parts}
    return decode(model, prompts, spread=Ahead(states, **how), **parts)


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


def stepwise(
    model: DiffusionLM, prompt: list[int], gen_len: int, states: int, tau: float, match: str, plan_by: str
) -> tuple[list[int], int]:
    """FreeDave with one row, one window, no cache, states as lists: the answer and its forwards."""
    mask_id, prompt_len = model.spec.mask_id, torch.tensor([len(prompt)])

    def step(state: list[int]) -> tuple[dict[int, int], list[tuple[int, int]]]:
        probs = model.full_logits(torch.tensor([state]), prompt_len)[0].float().softmax(-1)
        ranked = sorted((-float(probs[c].max()), c) for c, token in enumerate(state) if token == mask_id)
        tokens = [(c, int(probs[c].argmax())) for _, c in ranked]
        sure = dict(pair for pair, (minus, _) in zip(tokens, ranked, strict=True) if -minus >= tau)
        return sure or dict(tokens[:1]), tokens

    canvas, planned, forwards = [*prompt, *[mask_id] * gen_len], [], 0
    while mask_id in canvas:
        at, reached, before, forwards = 0, 0, canvas, forwards + 1
        while reached is not None:
            at = reached
            state = [dict(planned[:at]).get(c, token) for c, token in enumerate(canvas)]
            target, _ = step(state)
            drafts = {j: dict(planned[at:j]) for j in range(at + 1, len(planned) + 1)}
            fits = [j for j, d in drafts.items() if (d == target if match == "exact" else d.items() <= target.items())]
            reached = max(fits, default=None)
        canvas = [target.get(c, token) for c, token in enumerate(state)]
        drafts, then = [], list(canvas)
        for _ in range(min(states - 1, canvas.count(mask_id) - 1)):
            if plan_by == "all":  # the largest state whose tokens are all there
                there = [then[c] == token for c, token in planned]
                reach = dict(planned[: [*there, False].index(False)])
                state = [reach.get(c, token) for c, token in enumerate(before)]
            c, token = next(pair for pair in step(state)[1] if then[pair[0]] == mask_id)
            then[c] = token
            drafts.append((c, token))
        planned = drafts
    return list(takewhile(lambda token: token not in model.spec.eos_ids, canvas[len(prompt) :])), forwards


@torch.inference_mode()
def test_steps_of_a_threshold_are_looked_ahead_of_by_either_rule(prompts: list[list[int]]) -> None:
    parts = {"gen_len": 12, "block_len": 12, "decoder": Decoder(Threshold(0.6)), "cache": NO_CACHE, "stop": Never()}
    model, few = make_model("full", 5), prompts[:2]
    slow = decode(model, few, **parts)
    rules = [("exact", "all"), ("exact", "reached"), ("subset", "all")]
    exact, released, subset = (decode_ahead(model, few, states=4, match=m, plan_by=by, **parts) for m, by in rules)
    for rule, rows in zip(rules, (exact, released, subset), strict=True):
        assert [(row.token_ids, row.nfe) for row in rows] == [stepwise(model, p, 12, 4, 0.6, *rule) for p in few]
    assert [row.token_ids for row in released] == [row.token_ids for row in slow]
    assert [row.token_ids for row in exact] == [row.token_ids for row in slow]
    assert [row.token_ids for row in subset] != [row.token_ids for row in slow]
    assert sum(row.nfe for row in exact) < sum(row.nfe for row in slow)
    parts |= {"gen_len": GEN_LENS, "block_len": 8, "cache": BlockCache(), "stop": StrictEos()}
    model = make_model("block_causal", 2)
    rows = decode_ahead(model, prompts, states=3, **parts)
    assert [plain(row) for row in rows] == [plain(row) for row in decode(model, prompts, **parts)]
    assert rows[:1] == decode_ahead(model, prompts[:1], states=3, **parts | {"gen_len": GEN_LENS[:1]})
    for wrong in ({"match": "superset"}, {"plan_by": "one"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            decode_ahead(model, prompts, states=4, **wrong, **parts)


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
    share = forwards["fast"] / forwards["slow"]
    print(f"{name}, {confidence}: {forwards['cases']} cases, {share:.3f} of the forwards")
    assert share <= (0.5 if name == "tiny" else 0.9)


def test_what_cannot_be_looked_ahead_of_is_refused(prompts: list[list[int]]) -> None:
    model, one = make_model("full"), Decoder(FixedK(1))

    def refused(message: str, **parts: object) -> None:
        given = {"states": 2, "gen_len": 8, "block_len": 8, "decoder": one, "cache": NO_CACHE, "stop": Never()} | parts
        with pytest.raises(ValueError, match=message):
            decode_ahead(model, prompts, **given)

    refused("states=0", states=0)
    for decoder in (
        Decoder(Prefix()),
        Decoder(FixedK(1), temperature=1.0),
        Decoder(FixedK(1), transforms=(BanEos(),)),
        Decoder(FixedK(1), confidence="random"),
    ):
        refused("greedy steps of FixedK or Threshold; use one of them alone", decoder=decoder)
    for cache in (WindowCache(0, 0, refresh_every=4), DelayedCache()):
        refused("depends on the steps before", cache=cache)
    refused("looks at predictions", stop=Eotp())
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        decode_ahead(model, [[]], states=2, gen_len=8, block_len=8, decoder=one, cache=NO_CACHE, stop=Never())
