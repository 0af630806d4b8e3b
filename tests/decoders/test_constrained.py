"""Answers keep their constraints, whatever the decoder, the cache, the model and the batch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BLOCK, EOS, MASK, VOCAB, make_model
from test_loop import CACHES, DECODERS, GEN, STOPS, block_len, combinations

from decoders import Ahead, BlockEos, Decoder, FixedK, Lookahead, Never, RunningSet, StrictEos, Threshold, decode
from decoders.constraints.automaton import TokenAutomaton
from decoders.loop import DecodedRow
from decoders.spread import NO_CACHE
from decoders.testing import HashModel, waits_for_device
from decoders.types import View

WORDS = 40  # tokens that may stand in an answer
REWRITES = {name for name, decoder in DECODERS.items() if decoder.revise is not None and decoder.revise.rewrites}
LOOKS = {name for name, stop in STOPS.items() if stop.looks is not None}


def automaton(seed: int, vocab: int = VOCAB, eos: int = EOS, most: int = GEN) -> TokenAutomaton:
    """A random one over the first tokens, whose shortest answer takes 3 tokens or more."""
    rng = np.random.default_rng(seed)
    while True:
        states = int(rng.integers(4, 9))
        leads = np.full((states, vocab), -1)
        for state in range(states):
            for target in rng.integers(0, states, 3):
                leads[state, rng.choice(30, int(rng.integers(1, 8)), replace=False)] = target
        found = TokenAutomaton.of_table(leads, rng.random(states) < 0.2, 0, [eos])
        if found is not None and 3 <= found.least_tokens <= most:
            return found


def anything(vocab: int = VOCAB, eos: int = EOS) -> TokenAutomaton:
    """Everything but special tokens, up to the first EOS."""
    leads = np.where(np.arange(vocab) < WORDS, 0, -1)[None]
    found = TokenAutomaton.of_table(leads, np.array([True]), 0, [eos])
    assert found is not None
    return found


def keep(rows: Sequence[DecodedRow], automata: Sequence[TokenAutomaton | None]) -> None:
    for row, own in zip(rows, automata, strict=True):
        assert own is None or row.stopped_by == "max_steps" or own.accepts(row.token_ids), (row.token_ids, row)


def run(model: Any, prompts: list[list[int]], decoder: Decoder, cache: str, stop: str, **how: Any) -> list[DecodedRow]:
    given = {"gen_len": GEN, "block_len": block_len(cache), **how}
    return decode(model, prompts, decoder=decoder, cache=CACHES[cache], stop=STOPS[stop], **given)


@pytest.mark.core
@pytest.mark.parametrize(("kind", "stop", "decoder", "cache"), combinations())
def test_answers_keep_constraints_alone_and_in_a_batch(kind, stop, decoder, cache, prompts) -> None:
    if decoder in REWRITES:
        decoder = "threshold"
    if stop in LOOKS:
        stop = "strict_eos"
    model, automata = make_model(kind), [automaton(i) for i in range(len(prompts))]
    automata[2] = None
    rows = run(model, prompts, DECODERS[decoder], cache, stop, constraints=automata)
    keep(rows, automata)
    assert all(row.stopped_by != "max_steps" for row in rows)
    alone = [
        run(model, [prompt], DECODERS[decoder], cache, stop, constraints=[own])[0]
        for prompt, own in zip(prompts, automata, strict=True)
    ]
    assert rows == alone
    assert rows[2] == run(model, [prompts[2]], DECODERS[decoder], cache, stop)[0]
    refilled = run(model, prompts, DECODERS[decoder], cache, stop, constraints=automata, slots=2)
    assert refilled == rows


@pytest.mark.parametrize("decoder", [name for name in DECODERS if name not in REWRITES])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_every_decoder_keeps_a_tight_constraint(decoder: str, seed: int) -> None:
    """The shortest answer takes all columns, and blocks are short: every token may close a way out."""
    model = HashModel()
    prompts, automata = [[1, 2], [3], [4, 5, 6]], [automaton(10 * seed + i, 40, 38, 12) for i in range(3)]
    for length in {own.least_tokens for own in automata} | {12}:
        fitting = [own for own in automata if own.least_tokens <= length]
        parts = {"decoder": DECODERS[decoder], "cache": NO_CACHE, "stop": StrictEos()}
        rows = decode(
            model, prompts[: len(fitting)], gen_len=length, block_len=min(4, length), constraints=fitting, **parts
        )
        keep(rows, fitting)


@pytest.mark.parametrize("running", [RunningSet(2), RunningSet(None, 0.0, None, True, True), RunningSet(3, 0.5, 0.5)])
@pytest.mark.parametrize("decoder", ["threshold", "fixed1", "sampled", "eb", "saber", "remdm", "credit"])
@pytest.mark.parametrize("kind", ["full", "block_causal", "shifted_block_causal"])
def test_blocks_in_flight_keep_constraints(kind: str, decoder: str, running: RunningSet, prompts) -> None:
    model, automata = make_model(kind), [automaton(20 + i) for i in range(len(prompts))]
    how = {"block_len": 4 if kind == "full" else BLOCK, "spread": running, "slots": 2}
    rows = run(model, prompts, DECODERS[decoder], "none", "strict_eos", constraints=automata, **how)
    keep(rows, automata)
    alone = run(model, prompts[1:2], DECODERS[decoder], "none", "strict_eos", constraints=automata[1:2], **how)
    assert alone == rows[1:2]


@pytest.mark.parametrize("decoder", [Decoder(FixedK(1)), Decoder(FixedK(2)), Decoder(Threshold(0.5))])
@pytest.mark.parametrize("plan_by", ["all", "reached"])
def test_states_tried_ahead_write_what_one_window_does(decoder: Decoder, plan_by, prompts) -> None:
    model, automata = make_model("full"), [automaton(30 + i) for i in range(len(prompts))]
    parts = {"constraints": automata, "block_len": 8}
    slow = run(model, prompts, decoder, "none", "strict_eos", **parts)
    keep(slow, automata)
    fast = run(model, prompts, decoder, "none", "strict_eos", spread=Ahead(3, plan_by=plan_by), **parts)
    assert [row.token_ids for row in fast] == [row.token_ids for row in slow]
    assert sum(row.nfe for row in fast) < sum(row.nfe for row in slow)
    loose = run(model, prompts, decoder, "none", "strict_eos", spread=Ahead(3, "subset", plan_by), **parts)
    keep(loose, automata)


@pytest.mark.parametrize("running", [None, RunningSet(2, 0.25)])
def test_lookahead_keeps_constraints(running, prompts) -> None:
    model, automata = make_model("full"), [automaton(40 + i) for i in range(len(prompts))]
    for decoder in (Decoder(FixedK(1)), Decoder(Threshold(0.5)), Decoder(Threshold(0.5), temperature=0.7)):
        parts = {"constraints": automata, "block_len": 4, "spread": Lookahead(2, running)}
        keep(run(model, prompts, decoder, "none", "strict_eos", **parts), automata)


@pytest.mark.parametrize("decoder", [name for name in DECODERS if name not in REWRITES])
def test_a_constraint_that_excludes_no_answer_changes_nothing(decoder: str, prompts) -> None:
    """A model that never writes behind EOS, nor special tokens, decodes as it does without."""
    if decoder in ("sampled", "nucleus"):
        pytest.skip("a sample of a window is drawn with other random numbers than its columns")
    model = make_model("full")
    head = model.head

    def without(hidden):
        logits = head(hidden).clone()
        logits[..., WORDS:] = -1e4
        return logits

    model.head = without  # type: ignore[method-assign]
    free = run(model, prompts, DECODERS[decoder], "none", "never")
    held = run(model, prompts, DECODERS[decoder], "none", "never", constraints=[anything()] * len(prompts))
    assert held == free


def test_templates_and_constraints_are_kept_together(prompts) -> None:
    leads = np.full((3, VOCAB), -1)
    leads[0, 1:9], leads[0, 9], leads[1, 9], leads[1, 1:9] = 0, 1, 2, 1
    own = TokenAutomaton.of_table(leads, np.array([False, False, True]), 0, [EOS])  # [1-8]* 9 [1-8]* 9
    assert own is not None
    template = [MASK, 9, MASK, MASK, 3, MASK, MASK, 4, MASK, 9]
    parts = {"block_len": 4, "decoder": Decoder(Threshold(0.3)), "cache": NO_CACHE, "stop": StrictEos()}
    for spread in ({}, {"spread": RunningSet(2, 0.0)}):
        rows = decode(make_model("full"), prompts, templates=[template] * 4, constraints=[own] * 4, **parts, **spread)
        keep(rows, [own] * 4)
        assert all(row.token_ids.count(9) == 2 and row.token_ids[4] == 3 for row in rows)
    with pytest.raises(ValueError, match="no answer keeps both the constraint and the template of prompt 1"):
        wrong = [template, [MASK, 9, MASK, 9, 3, MASK]]
        decode(make_model("full"), prompts[:2], templates=wrong, constraints=[own] * 2, **parts)


def test_an_answer_that_cannot_fit_is_refused_with_the_least_length(prompts) -> None:
    own = automaton(3)
    parts = {"decoder": Decoder(FixedK(1)), "cache": NO_CACHE, "stop": Never(), "block_len": 2}
    length, least = 2, own.least_tokens
    with pytest.raises(ValueError, match=f"prompt 1 takes {least} tokens, and gen_length=2; give gen_length={least}"):
        decode(make_model("full"), prompts[:2], gen_len=length, constraints=[None, own], **parts)
    with pytest.raises(ValueError, match="constraints has 1 automata for 2 prompts"):
        decode(make_model("full"), prompts[:2], gen_len=8, constraints=[own], **parts)
    with pytest.raises(ValueError, match="make them with its vocabulary"):
        decode(make_model("full"), prompts[:1], gen_len=8, constraints=[automaton(0, 40, 38)], **parts)


@pytest.mark.parametrize("decoder", sorted(REWRITES))
def test_decoders_that_write_over_tokens_are_refused_by_name(decoder: str, prompts) -> None:
    name = type(DECODERS[decoder].revise).__name__
    with pytest.raises(ValueError, match=f"{name} writes over tokens"):
        run(make_model("full"), prompts[:1], DECODERS[decoder], "none", "never", constraints=[automaton(0)])


@pytest.mark.parametrize("stop", sorted(LOOKS))
def test_stop_rules_that_expect_an_eos_are_refused_by_name(stop: str, prompts) -> None:
    with pytest.raises(ValueError, match="Eotp cuts an answer"):
        run(make_model("full"), prompts[:1], DECODERS["threshold"], "none", stop, constraints=[automaton(0)])


def test_a_step_never_waits_for_the_device(prompts) -> None:
    """What constraints add to a step."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoWait(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert not waits_for_device(func, args), func.overloadpacket.__name__
            return func(*args, **(kwargs or {}))

    views: list[View] = []
    own = [automaton(1), automaton(2), None, automaton(1)]
    for decoder in ("threshold", "sampled", "eb", "nucleus"):
        run(
            make_model("full"),
            prompts,
            DECODERS[decoder],
            "none",
            "never",
            constraints=own,
            on_step=lambda state, view, update: views.append(view),
        )
        for view in views[:2]:
            assert view.window is not None
            view = replace(view, window=replace(view.window))
            memory = DECODERS[decoder].init(_shape(view))
            with NoWait():
                DECODERS[decoder].step(view, memory)
        views.clear()


def _shape(view: View) -> Any:
    from decoders.types import Shape

    batch, width, vocab = view.logits.shape
    return Shape(batch, width, vocab, torch.device("cpu"))


def test_the_oracle_follows_a_reference_that_keeps_the_constraint(prompts) -> None:
    model, own = make_model("full"), [automaton(5)] * len(prompts)
    slow = run(model, prompts, DECODERS["fixed1"], "none", "strict_eos", constraints=own)
    fast = run(model, prompts, DECODERS["oracle"], "none", "strict_eos", constraints=own)
    keep(fast, own)
    assert sum(row.nfe for row in fast) <= sum(row.nfe for row in slow)


def test_a_block_that_ends_with_eos_ends_the_answer(prompts) -> None:
    model, own = make_model("full"), [automaton(6)] * len(prompts)
    parts = {"decoder": Decoder(Threshold(0.4)), "cache": NO_CACHE, "gen_len": 24, "block_len": 8, "constraints": own}
    keep(decode(model, prompts, stop=BlockEos(), **parts), own)
