"""Verified decoding with a constraint: its text is the constrained greedy text, token for token."""

import numpy as np
import pytest
import torch
from test_verified import EOS, GEN_LENS, MASK_DRAFTS, PROMPTS, VOCAB, make_model, next_logits

from decoders.constraints.automaton import TokenAutomaton
from decoders.constraints.held import Constraints
from decoders.noise import row_seeds
from decoders.verified.accept import Sampling
from decoders.verified.drafters import LookupDrafts
from decoders.verified.rounds import Verified, verify
from dllm.causal import CausalStream


def automaton(seed: int) -> TokenAutomaton:
    rng = np.random.default_rng(seed)
    while True:
        states = int(rng.integers(3, 6))
        leads = np.where(rng.random((states, VOCAB)) < 0.4, rng.integers(0, states, (states, VOCAB)), -1)
        leads[:, EOS:] = -1
        found = TokenAutomaton.of_table(leads, rng.random(states) < 0.2, 0, [EOS])
        if found is not None and 1 <= found.least_tokens <= 6:
            return found


def textbook(seed: int, shift: int, prompt: list[int], gen_len: int, own: TokenAutomaton | None) -> list[int]:
    """The likeliest token with which an answer can still be completed, one after the other."""
    ids, state = list(prompt), 0 if own is None else own.start
    while len(ids) < len(prompt) + gen_len:
        left, logits = len(prompt) + gen_len - len(ids) - 1, next_logits(make_model(seed, shift), [ids])[0]
        if own is not None:
            leads = own.table[state, own.class_of]
            logits = torch.where((leads >= 0) & (own.least[leads] <= left), logits, float("-inf"))
        token = int(logits.argmax())
        if token == EOS:
            break
        ids.append(token)
        state = 0 if own is None else int(own.table[state, own.class_of[token]])
    return ids[len(prompt) :]


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("drafter", [None, LookupDrafts(4, 2), *MASK_DRAFTS])
def test_greedy_text_is_the_constrained_greedy_text(drafter, shift: int) -> None:
    for seed in range(3):
        own: list[TokenAutomaton | None] = [automaton(10 * seed + i) for i in range(len(PROMPTS))]
        own[1] = None
        gen_lens = [max(n, 0 if a is None else a.least_tokens) for n, a in zip(GEN_LENS, own, strict=True)]
        model = make_model(seed, shift)
        held = Constraints.from_left(own, gen_lens)
        rows = verify(
            CausalStream(model), Verified(drafter), PROMPTS, gen_lens, row_seeds(0, PROMPTS), constraints=held
        )
        for prompt, gen_len, row, a in zip(PROMPTS, gen_lens, rows, own, strict=True):
            assert row.token_ids == textbook(seed, shift, prompt, gen_len, a)
            assert a is None or a.accepts(row.token_ids)


@pytest.mark.parametrize("drafter", [None, LookupDrafts(4, 2), *MASK_DRAFTS])
def test_samples_keep_constraints(drafter) -> None:
    own = [automaton(40 + i) for i in range(4)]
    prompts, gen_lens = [[3, 3]] * 4, [12] * 4
    for seed in range(10):
        how = Verified(drafter, sampling=Sampling(1.0))
        held = Constraints.from_left(own, gen_lens)
        rows = verify(CausalStream(make_model()), how, prompts, gen_lens, row_seeds(seed, prompts), constraints=held)
        assert all(a.accepts(row.token_ids) for a, row in zip(own, rows, strict=True))


def test_an_answer_that_cannot_fit_is_refused() -> None:
    own = automaton(0)
    with pytest.raises(ValueError, match=f"takes {own.least_tokens} tokens, and gen_length="):
        Constraints.from_left([own], [own.least_tokens - 1])
