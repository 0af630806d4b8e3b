"""Lookahead parallel decoding (LoPA, arXiv 2512.16229): of several states that one more token leads to, the one goes on
in which the model is surest of what is left.

A forward looks at the row as it is and at `branches` states beside it, each with one of the surest undecided tokens
written. The state with the highest mean probability over its masks is kept, and the rule decides there. That of a state
without masks is 1, so the last mask of a window takes the token that was expected there, as released. Nothing verifies
the token that was written, so the text is that of no slower decoder.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from conf.knobs import Count, check, named
from decoders.compose import Decoder
from decoders.logits import Logits
from decoders.loop import DecodedRow, OnStep, begin, check_parts, results
from decoders.stop import StopRule
from decoders.types import Shape, Update
from decoders.verified.branches import Branches, Expected, check_shared
from dllm.cache import CacheStrategy
from dllm.protocols import Denoiser, usable


@torch.inference_mode()
@named
def decode_lookahead(
    model: Denoiser,
    prompts: Sequence[Sequence[int]],
    *,
    branches: Count,
    gen_len: int | Sequence[int] | None = None,
    templates: Sequence[Sequence[int]] | None = None,
    block_len: int,
    decoder: Decoder,
    cache: CacheStrategy,
    stop: StopRule,
    seed: int = 0,
    draws: Sequence[int] | None = None,
    max_steps: int | None = None,
    on_step: OnStep | None = None,
    device: torch.device | str = "cpu",
) -> list[DecodedRow]:
    """Decodes a batch of prompts as `decode` does, looking at `branches` states beside each row.

    All their columns count as queried. decoder: a rule with its confidence and temperature, and nothing else. Raises
    ValueError for other decoders, for caches whose columns depend on the steps before, for stop rules that look at
    predictions, and as `decode` does.
    """
    check(decode_lookahead, branches=branches, on_step=on_step)
    check_lookahead(model, decoder, cache, stop, branches)
    state, _ = begin(
        model, prompts, gen_len, templates, block_len, decoder, seed, draws, max_steps, usable(device, model)
    )
    branches = min(branches, block_len)  # one for each column that is left
    states, device = branches + 1, state.canvas.device
    filled = [[k == s - 1 for k in range(branches)] for s in range(states)]
    forwards = Branches(model, cache, state, filled, on_step is not None or decoder.needs_decided)
    plan, memory = Expected.nothing(state, branches), None
    row = torch.arange(len(prompts), device=device)

    while (view := forwards.forward(state, plan)) is not None:
        if memory is None:
            memory = decoder.init(Shape(len(prompts), block_len, view.logits.shape[2], device))
        total, masks = torch.where(view.masked, view.logits.top_prob(), 0).sum(1), view.masked.sum(1)
        mean = (total / masks.clamp(min=1)).view(-1, states)  # 0 for a state without its place
        full = (masks == 0).view(-1, states) & (torch.arange(states, device=device) <= plan.count[:, None])
        best = torch.where(full, 1, mean).argmax(1)

        logits = Logits(view.logits.values[row * states + best])
        before = state.view(logits)
        ahead = torch.zeros_like(before.masked)
        ahead.scatter_(1, plan.places.gather(1, (best - 1).clamp(min=0)[:, None]), (best > 0)[:, None])
        tokens = torch.where(ahead, view.tokens[row * states + best], before.tokens)
        after = replace(before, tokens=tokens, masked=before.masked & ~ahead)
        update = decoder.step(after, memory)
        combined = Update(torch.where(update.write, update.tokens, tokens), update.write | ahead)
        state.apply_(before.tokens, before.live, combined)
        state.cut_(stop(state))
        left = state.pending.gather(1, state.columns)  # before the live end
        plan = Expected.of(decoder.propose(after, logits), left, branches, 0)
        state.advance_()
        plan = plan.only((state.step > 0) & ~state.done)
        if on_step is not None:
            on_step(state, before, combined)
    return results(state)


def check_lookahead(model: Denoiser, decoder: Decoder, cache: CacheStrategy, stop: StopRule, branches: int) -> None:
    """Raises ValueError unless states of these parts can be compared."""
    check_parts(model, decoder, cache)
    check_shared(model, cache, branches + 1)
    alone = Decoder(
        decoder.rule,
        temperature=decoder.temperature,
        confidence=decoder.confidence,
        at_least_one=decoder.at_least_one,
    )
    if decoder != alone or decoder.revise is not None or decoder.needs_shadow or decoder.needs_reference:
        raise ValueError(
            "lookahead takes a rule, its confidence and its temperature; leave the decoder's other parts out"
        )
    if stop.looks is not None:
        raise ValueError(f"{stop} looks at predictions, which states change; use stop=strict_eos, block_eos or never")
