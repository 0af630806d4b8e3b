"""The loop against a textbook loop, and its invariants over every decoder x cache x model kind."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conftest import BLOCK, EOS, MASK, PAD, SPECS, make_model
from reference import RECOMPUTED, cached_decode, textbook_decode, threshold, top_k

from decoders import (
    NO_CACHE,
    Agreement,
    AnswerGap,
    BlockEos,
    ConfidenceDrop,
    Contention,
    Credit,
    Decoder,
    DensityPrior,
    Dilated,
    Dimple,
    DreamOrigin,
    DreamSchedule,
    DynamicThreshold,
    EntropyBound,
    EntropyThreshold,
    EosLast,
    Eotp,
    Factor,
    FirstAlone,
    FixedK,
    Frechet,
    Hierarchical,
    Horizon,
    InBlocks,
    Klass,
    Learn2PD,
    LoopMdm,
    MaskGit,
    Never,
    Oracle,
    OrderNoise,
    OriginalProb,
    PositionPrior,
    Prefix,
    Prophet,
    ReMdm,
    RunningConfidence,
    RunningMean,
    Schedule,
    Slerp,
    SlowFast,
    Smoothing,
    StrictEos,
    Temperature,
    Threshold,
    ThresholdOrSchedule,
    TokenEdit,
    TopK,
    TopP,
    WarmThreshold,
    decode,
)
from decoders.loop import DecodedRow
from decoders.testing import HashModel
from decoders.types import Revise, Update
from dllm import DiffusionLM, ModelSpec
from dllm.cache import BlockCache, DelayedCache, SubBlockCache, WindowCache

GEN = 16
DECODERS = {
    "fixed1": Decoder(FixedK(1)),
    "fixed3_margin": Decoder(FixedK(3), confidence="margin"),
    "fixed2_entropy": Decoder(FixedK(2), confidence="entropy"),
    "fixed2_random": Decoder(FixedK(2), confidence="random"),
    "fixed2_left": Decoder(FixedK(2), confidence="left_to_right"),
    "all": Decoder(FixedK("all")),
    "schedule": Decoder(Schedule(3)),
    "threshold": Decoder(Threshold(0.6)),
    "prefix": Decoder(Prefix(0.6)),
    "factor": Decoder(Factor()),
    "frechet": Decoder(Frechet()),
    "eb": Decoder(EntropyBound(), confidence="entropy"),
    "entropy": Decoder(EntropyThreshold(), confidence="entropy"),
    "contention": Decoder(Contention(0.2), confidence="entropy"),
    "sampled": Decoder(Threshold(0.6), temperature=0.7),
    "credit": Decoder(Threshold(0.7), transforms=(Credit(),)),
    "dream": Decoder(DreamSchedule(6), confidence="entropy"),
    "origin": Decoder(DreamOrigin(6)),
    "dilated": Decoder(Dilated()),
    "llada2": Decoder(ThresholdOrSchedule(4, 0.6)),
    "dimple": Decoder(Dimple(0.6, 6), rescore=(OriginalProb(),)),
    "dimple_margin": Decoder(Dimple(0.6, 6), confidence="margin"),
    "pc": Decoder(FixedK(2), rescore=(PositionPrior(), OrderNoise(0.1))),
    "density": Decoder(FixedK(2), rescore=(DensityPrior(2.0), EosLast())),
    "nucleus": Decoder(FixedK(2), transforms=(Temperature(0.7), TopP(0.9), TopK(5)), temperature=1.0),
    "credit_free": Decoder(Threshold(0.7), transforms=(Credit(tuning_free=True),)),
    "hierarchical": Decoder(Hierarchical(0.8, 0.4)),
    "klass": Decoder(Klass(0.6, 0.5, history=1)),
    "dynamic": Decoder(DynamicThreshold(0.8, 0.1, 0.1)),
    "klass_blocks": Decoder(Klass(0.6, 0.5, history=1, block=4)),
    "slowfast": Decoder(FixedK("all"), revise=SlowFast(0.6, explore=2)),
    "horizon": Decoder(Horizon(0.5)),
    "factor_released": Decoder(Factor(released=True)),
    "first_alone": Decoder(FirstAlone(Threshold(0.6))),
    "dilated_remask": Decoder(Dilated(order="binary", by="confidence", keep=0.4)),
    "learn2pd_released": Decoder(Learn2PD(0.5, steps=4)),
    "prophet": Decoder(Prophet((3.0, 2.0, 1.0))),
    "saber": Decoder(RunningMean(), revise=ConfidenceDrop(2.0)),
    "edit": Decoder(Threshold(0.6), revise=TokenEdit(0.5, 3)),
    "rcr": Decoder(FixedK("all"), revise=RunningConfidence(MaskGit(4, "linear"))),
    "remdm": Decoder(ReMdm(6, eta=0.2)),
    "remdm_loop": Decoder(LoopMdm(4, 2, 1, 3)),
    "smoothing": Decoder(WarmThreshold(0.6), soft=Smoothing()),
    "smoothing_blocks": Decoder(InBlocks(WarmThreshold(0.6), 4, "window"), soft=Smoothing()),
    "prophet_released": Decoder(AnswerGap(Prophet((3.0, 2.0, 1.0), InBlocks(FixedK(1), 4)))),
    "slerp": Decoder(Threshold(0.6), soft=Slerp()),
    "oracle": Decoder(Oracle()),
    "learn2pd": Decoder(Learn2PD(0.5)),
    "agreement": Decoder(Agreement(0.5)),
    "credit_dense": Decoder(Threshold(0.7), transforms=(Credit(slots=None),)),
}
CACHES = {
    "none": NO_CACHE,
    "prefix": WindowCache(0, None),
    "dual": WindowCache(0, 0),
    "vicinity": WindowCache(2, 3),
    "interval": WindowCache(0, 0, refresh_every=2),
    "prefill": WindowCache(None, None, freeze_prompt=True),
    "delayed": DelayedCache(4),
    "delayed_llada": DelayedCache(4, entry=2),
    "greedy": DelayedCache(4, near=2, freeze_prompt=True),
    "block": BlockCache(),
    "sub_block": SubBlockCache(),
    "block_first": BlockCache(first_token=True),
    "sub_block_first": SubBlockCache(first_token=True),
}
STOPS = {
    "never": Never(),
    "block_eos": BlockEos(),
    "strict_eos": StrictEos(),
    "eotp": Eotp("committed"),
    "eotp_window": Eotp("window", 0.2),
    "eotp_query": Eotp("query"),
    "eotp_ours": Eotp("query", order="committed"),
}


def block_len(cache: str) -> int:
    """Sub-blocks are a part of the model's block."""
    return BLOCK // 2 if cache.startswith("sub_block") else BLOCK


def fits(cache: str, kind: str) -> bool:
    """Whether a kind of model can use a cache."""
    try:
        CACHES[cache].check(ModelSpec(MASK, (EOS,), PAD, **SPECS[kind]))
    except ValueError:
        return False
    return True


def run(
    model: DiffusionLM, prompts: list[list[int]], decoder: str, cache: str, stop: str = "never"
) -> list[DecodedRow]:
    parts = {"decoder": DECODERS[decoder], "cache": CACHES[cache], "stop": STOPS[stop]}
    return decode(model, prompts, gen_len=GEN, block_len=block_len(cache), **parts)


@pytest.mark.core
@pytest.mark.parametrize("kind", ["full", "shifted", "block_causal", "shifted_block_causal"])
@pytest.mark.parametrize(("decoder", "rule"), [("fixed1", top_k(1)), ("threshold", threshold(0.6))])
def test_loop_equals_textbook(kind: str, decoder: str, rule, prompts) -> None:
    model = make_model(kind)
    for prompt, row in zip(prompts, run(model, prompts, decoder, "none"), strict=True):
        tokens, nfe = textbook_decode(model, prompt, GEN, BLOCK, rule)
        cut = tokens.index(EOS) if EOS in tokens else GEN
        assert (row.token_ids, row.nfe) == (tokens[:cut], nfe)


@pytest.mark.parametrize(
    ("kind", "cache"),
    [
        (kind, cache)
        for kind in ("full", "shifted", "block_causal", "shifted_block_causal")
        for cache in CACHES
        if fits(cache, kind) and "first" not in cache
    ],
)
@pytest.mark.parametrize(("decoder", "rule"), [("fixed1", top_k(1)), ("threshold", threshold(0.6))])
def test_caches_keep_what_their_definition_says(kind: str, cache: str, decoder: str, rule, prompts) -> None:
    """An approximate cache differs from none by its definition alone: attention by hand over the K/V it keeps."""
    model = make_model(kind)
    for prompt, row in zip(prompts[:2], run(model, prompts[:2], decoder, cache), strict=True):
        tokens, nfe, queried = cached_decode(model, prompt, GEN, block_len(cache), rule, RECOMPUTED[cache])
        cut = tokens.index(EOS) if EOS in tokens else GEN
        assert (row.token_ids, row.nfe, row.queried) == (tokens[:cut], nfe, queried)


def combinations() -> list[Any]:
    """The fast ones hold every model kind with every cache that it can use, each decoder and each stop rule. With the
    slow ones every decoder meets every cache; the model kind and the stop rule go round, so that each meets each often.
    """
    decoders, stops = list(DECODERS), list(STOPS)
    pairs = [(kind, cache) for cache in CACHES for kind in SPECS if fits(cache, kind)]
    fast = [(kind, stops[i % len(stops)], decoders[i % len(decoders)], cache) for i, (kind, cache) in enumerate(pairs)]
    found = [pytest.param(*values) for values in fast]
    for i, decoder in enumerate(DECODERS):
        for j, cache in enumerate(CACHES):
            kinds = [kind for kind in SPECS if fits(cache, kind)]
            values = (kinds[(i + j) % len(kinds)], stops[(i + 2 * j) % len(stops)], decoder, cache)
            if values not in fast:
                found.append(pytest.param(*values, marks=pytest.mark.slow))
    return found


def each_decoder(kinds: Iterable[str]) -> list[Any]:
    """Kinds of models and decoders. The kinds go round in the fast ones, which hold each decoder once."""
    kinds = list(kinds)
    marks = {True: (), False: (pytest.mark.slow,)}
    return [
        pytest.param(kind, decoder, marks=marks[kinds[i % len(kinds)] == kind])
        for kind in kinds
        for i, decoder in enumerate(DECODERS)
    ]


def test_deterministic_algorithms_decode_the_same(model: DiffusionLM, prompts) -> None:
    """Statistics of the undecided columns are put in their places, which otherwise is an operation that they refuse."""
    parts = {"gen_len": 8, "block_len": 4, "decoder": Decoder(Threshold(0.3)), "cache": NO_CACHE, "stop": Never()}
    freely = decode(model, prompts, **parts)
    torch.use_deterministic_algorithms(True)
    try:
        assert decode(model, prompts, **parts) == freely
    finally:
        torch.use_deterministic_algorithms(False)


def test_fast_combinations_leave_no_part_out() -> None:
    fast, every = ([p.values for p in combinations() if len(p.marks) <= marks] for marks in (0, 1))
    for parts in ((0, 3), (1,), (2,)):
        assert {tuple(v[i] for i in parts) for v in fast} == {tuple(v[i] for i in parts) for v in every}


@pytest.mark.core
@pytest.mark.parametrize(("kind", "stop", "decoder", "cache"), combinations())
def test_batched_equals_alone(kind: str, stop: str, decoder: str, cache: str, prompts) -> None:
    model = make_model(kind)
    together = run(model, prompts, decoder, cache, stop)
    assert together == [run(model, [prompt], decoder, cache, stop)[0] for prompt in prompts]
    order = [3, 0, 1, 2]
    permuted = run(model, [prompts[i] for i in order], decoder, cache, stop)
    assert permuted == [together[i] for i in order]


@pytest.mark.parametrize(("kind", "decoder"), each_decoder(SPECS))
def test_refreshing_every_step_equals_no_cache(kind: str, decoder: str, prompts) -> None:
    model = make_model(kind)
    every = decode(
        model,
        prompts,
        gen_len=GEN,
        block_len=BLOCK,
        decoder=DECODERS[decoder],
        cache=WindowCache(0, 0, refresh_every=1),
        stop=Never(),
    )
    assert every == run(model, prompts, decoder, "none")


@pytest.mark.parametrize(("kind", "decoder"), each_decoder(["block_causal", "shifted_block_causal"]))
def test_block_cache_is_exact_and_cheaper(kind: str, decoder: str, prompts) -> None:
    model = make_model(kind)
    exact, plain = run(model, prompts, decoder, "block"), run(model, prompts, decoder, "none")
    assert [(r.token_ids, r.nfe, r.committed_at) for r in exact] == [
        (r.token_ids, r.nfe, r.committed_at) for r in plain
    ]
    assert sum(r.queried for r in exact) < sum(r.queried for r in plain)


@pytest.mark.parametrize("kind", ["block_causal", "shifted_block_causal"])
@pytest.mark.parametrize("decoder", ["fixed1", "threshold", "credit", "edit"])
def test_block_cache_is_exact_for_sub_blocks_too(kind: str, decoder: str, prompts) -> None:
    model = make_model(kind)
    parts = {"gen_len": GEN, "block_len": BLOCK // 2, "decoder": DECODERS[decoder], "stop": Never()}
    exact, plain, sub = (
        decode(model, prompts, cache=cache, **parts) for cache in (BlockCache(), NO_CACHE, SubBlockCache())
    )
    assert [(r.token_ids, r.committed_at) for r in exact] == [(r.token_ids, r.committed_at) for r in plain]
    cost = [sum(r.queried for r in rows) / sum(r.nfe for r in rows) for rows in (sub, exact, plain)]
    assert cost == sorted(cost) and cost[0] < cost[1] < cost[2]


def test_approximate_caches_query_less(prompts) -> None:
    model = make_model("full")
    cost = {name: run(model, prompts[:1], "fixed1", name)[0] for name in ("none", "prefix", "dual")}
    length, steps = len(prompts[0]), GEN
    assert {row.nfe for row in cost.values()} == {steps}
    assert cost["none"].queried == (length + GEN) * steps
    # per block: one refresh over the canvas, then BLOCK - 1 steps over the rest of the canvas or the block alone
    suffixes = sum(GEN - start for start in range(0, GEN, BLOCK))
    assert cost["prefix"].queried == (length + GEN) * (GEN // BLOCK) + suffixes * (BLOCK - 1)
    assert cost["dual"].queried == (length + GEN) * (GEN // BLOCK) + BLOCK * (BLOCK - 1) * (GEN // BLOCK)


@pytest.mark.parametrize(("k", "share"), [(1, 0.10), (2, 0.13), (4, 0.18)])
def test_a_dual_cache_queries_less_than_a_quarter(k: int, share: float) -> None:
    """Prompt 256, 256 tokens, blocks of 32, whatever the model computes."""
    prompt = [1 + i % 30 for i in range(256)]
    parts = {"gen_len": 256, "block_len": 32, "decoder": Decoder(FixedK(k)), "stop": Never()}
    none, dual = (
        decode(HashModel(), [prompt], cache=cache, **parts)[0].queried for cache in (NO_CACHE, WindowCache(0, 0))
    )
    assert none == 256 // k * 512 and dual == 8 * 512 + (256 // k - 8) * 32
    assert dual / none < share


@pytest.mark.parametrize(("kind", "decoder"), each_decoder(SPECS))
def test_writes_only_live_masks_and_leaves_none(kind: str, decoder: str, prompts) -> None:
    def check(state, view, update) -> None:
        wrote = update.write
        assert not (wrote & ~view.live).any()
        if DECODERS[decoder].revise is None:
            assert not (wrote & ~view.masked).any()
            assert wrote.any(1)[view.masked.any(1)].all() or not DECODERS[decoder].at_least_one
            assert not (update.tokens[wrote] == MASK).any()
        for prompt, row in zip(prompts, state.canvas.tolist(), strict=True):
            assert row[: len(prompt)] == prompt

    rows = decode(
        make_model(kind),
        prompts,
        gen_len=GEN,
        block_len=BLOCK,
        decoder=DECODERS[decoder],
        cache=NO_CACHE,
        stop=Never(),
        on_step=check,
    )
    assert all(row.stopped_by == "length" and min(row.committed_at) >= 0 for row in rows)


def test_stop_rules_cost_less_and_keep_the_text(prompts) -> None:
    model = make_model("full", seed=4)
    ended = 0
    for decoder in ("fixed1", "threshold", "credit"):
        full = run(model, prompts, decoder, "none", "never")
        for stop in ("block_eos", "strict_eos"):
            for row, whole in zip(run(model, prompts, decoder, "none", stop), full, strict=True):
                assert row.token_ids == whole.token_ids and row.nfe <= whole.nfe
                ended += row.stopped_by == "eos"
                assert (row.stopped_by == "eos") <= (len(row.token_ids) < GEN)
    assert ended > 0, "no row met EOS; choose another seed"


def test_seed_changes_random_decoders_only(prompts) -> None:
    model = make_model("full")
    for name, decoder in DECODERS.items():
        a, b, again = (
            decode(
                model,
                prompts[:2],
                gen_len=GEN,
                block_len=BLOCK,
                decoder=decoder,
                cache=NO_CACHE,
                stop=Never(),
                seed=seed,
            )
            for seed in (0, 1, 0)
        )
        assert a == again
        assert (a != b) == (name in ("fixed2_random", "sampled", "remdm", "origin", "pc", "nucleus"))


def test_max_steps_ends_a_row_unfinished(prompts) -> None:
    model = make_model("full")
    rows = decode(
        model,
        prompts,
        gen_len=GEN,
        block_len=BLOCK,
        decoder=Decoder(FixedK(1)),
        cache=NO_CACHE,
        stop=Never(),
        max_steps=5,
    )
    assert all(row.nfe == 5 and row.stopped_by == "max_steps" and len(row.token_ids) <= 5 for row in rows)


@pytest.mark.parametrize("kind", ["full", "block_causal"])
def test_a_length_for_all_prompts_is_that_of_each(kind: str, prompts) -> None:
    """Also one that cuts the last window."""
    parts = {"block_len": BLOCK, "decoder": Decoder(Threshold(0.6)), "cache": NO_CACHE, "stop": Never()}
    rows = decode(make_model(kind), prompts[:2], gen_len=13, **parts)
    assert rows == decode(make_model(kind), prompts[:2], gen_len=[13, 13], **parts)
    assert all(len(row.committed_at) == 13 for row in rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_len": 0}, "block_len=0"),
        ({"prompts": [[1], []]}, "prompt 1 is empty"),
        ({"prompts": []}, "no prompts"),
        ({"cache": BlockCache()}, "cache=block needs a block-causal model"),
        ({"cache": SubBlockCache()}, "cache=sub_block needs a block-causal model"),
        ({"cache": BlockCache(first_token=True)}, "first_token needs a token-shifted model"),
        ({"gen_len": [16, 8]}, "2 responses are described for 1 prompts"),
        ({"max_steps": 0}, "max_steps=0 of decode; give a whole number"),
        ({"gen_len": None}, "give either gen_len or templates"),
        ({"gen_len": None, "templates": [[3, 4]]}, "response 0 has no MASK"),
    ],
)
def test_impossible_requests_are_refused_before_the_first_forward(monkeypatch, change, message: str) -> None:
    model = make_model("full")
    monkeypatch.setattr(type(model), "logits", lambda *_, **__: pytest.fail("a forward was run"))
    request = {"prompts": [[1, 2]], "gen_len": GEN, "block_len": BLOCK, "cache": NO_CACHE} | change
    with pytest.raises(ValueError, match=message):
        decode(model, request.pop("prompts"), decoder=Decoder(FixedK()), stop=Never(), **request)


def test_a_mask_token_in_the_prompt_is_left_alone() -> None:
    for kind in ("full", "block_causal"):
        prompt = [1, MASK, 3]
        (row,) = run(make_model(kind), [prompt], "threshold", "none")
        assert row.stopped_by == "length" and min(row.committed_at) >= 0


@dataclass(frozen=True)
class RemaskOnce(Revise):
    """Remasks everything in the second forward of each block."""

    def __call__(self, view, candidates, write, memory) -> Update:
        again = (view.step == 1)[:, None] & view.live
        return Update(torch.where(again, MASK, candidates.tokens), write | again)


@pytest.mark.parametrize("steps", [4, 32])
@pytest.mark.parametrize("gen_len", [1, 32])
@pytest.mark.parametrize("prompt_len", [4, 5])
def test_many_steps_per_block_fit_the_default_budget(steps: int, gen_len: int, prompt_len: int) -> None:
    """Also where the model's grid cuts the first window and the last."""
    model = make_model("block_causal")
    for decoder in (
        Decoder(ReMdm(steps)),
        Decoder(DreamSchedule(steps)),
        Decoder(Threshold(0.6), revise=TokenEdit(0.0, 16)),
    ):
        parts = {"gen_len": [gen_len], "block_len": 4, "cache": BlockCache(), "stop": Never()}
        (row,) = decode(model, [list(range(1, prompt_len + 1))], decoder=decoder, **parts)
        assert row.stopped_by == "length" and min(row.committed_at) >= 0


@pytest.mark.parametrize("kind", SPECS)
def test_a_revision_may_remask(kind: str, prompts) -> None:
    decoder = Decoder(FixedK(3), revise=RemaskOnce())
    parts = {"gen_len": GEN, "block_len": BLOCK, "decoder": decoder, "cache": NO_CACHE, "stop": Never()}
    rows = decode(make_model(kind), prompts, max_steps=4 * GEN, **parts)
    plain = run(make_model(kind), prompts, "fixed3_margin", "none")
    assert all(row.stopped_by == "length" and min(row.committed_at) >= 0 for row in rows)
    assert all(row.nfe > other.nfe for row, other in zip(rows, plain, strict=True))
    if "causal" not in kind:  # there a short first window may be filled by its first forward
        short = decode(make_model(kind), prompts, max_steps=2, **parts)
        assert all(row.committed_at == [-1] * GEN and row.stopped_by == "max_steps" for row in short)


def test_block_causal_model_wants_its_own_block_length() -> None:
    with pytest.raises(ValueError, match="decodes blocks of 8"):
        decode(
            make_model("block_causal"),
            [[1, 2]],
            gen_len=16,
            block_len=16,
            decoder=Decoder(FixedK()),
            cache=NO_CACHE,
            stop=Never(),
        )


def test_logits_equal_plain_transformers(prompts) -> None:
    from reference import full_logits

    for kind in ("full", "shifted", "block_causal", "shifted_block_causal"):
        model = make_model(kind)
        canvas = [*prompts[0], *[MASK] * 8]
        ours = model.full_logits(torch.tensor([canvas]), torch.tensor([len(prompts[0])]))[0]
        torch.testing.assert_close(ours, full_logits(model, canvas), rtol=1e-5, atol=1e-5)
