"""Lookahead parallel decoding (LoPA, arXiv 2512.16229): of several states that one more token leads to, the one goes on
in which the model is surest of what is left.

A forward looks at the row as it is and at `branches` states beside it, each with one of the surest undecided tokens
written. The state with the highest mean probability over its masks is kept, and the rule decides there. That of a state
without masks is 1, so the last mask of a window takes the token that was expected there, as released. Nothing verifies
the token that was written, so the text is that of no slower decoder.

With several blocks in flight (`decoders.running`) the masks are those of all open blocks, and each state opens blocks
by its own tokens. The row goes on with the blocks of the state that is kept.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from decoders.compose import Decoder
from decoders.logits import Logits
from decoders.loop import DecodedRow, OnStep, begin, check_parts, results
from decoders.running.blocks import Flight, RunningSet
from decoders.running.flight import Piece, check_running, forward_open, side_by_side
from decoders.stop import StopRule
from decoders.types import Candidates, Shape, Update
from decoders.verified.branches import Branches, Expected, check_shared
from dllm.cache import CacheStrategy
from dllm.protocols import Denoiser, usable
from dllm.validation import Count, check, named


@torch.inference_mode()
@named
def decode_lookahead(
    model: Denoiser,
    prompts: Sequence[Sequence[int]],
    *,
    branches: Count,
    running: RunningSet | None = None,
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

    All their columns count as queried. running: when blocks are opened, and which must commit, as in `decode_running`;
    None for one block at a time. decoder: a rule with its confidence and temperature, and nothing else. Raises
    ValueError for other decoders, for caches whose columns depend on the steps before, for stop rules that look at
    predictions, and as `decode` and, with a running set, `decode_running` do.
    """
    check(decode_lookahead, branches=branches, running=running, on_step=on_step)
    check_lookahead(model, decoder, cache, stop, branches, running)
    state, _ = begin(
        model, prompts, gen_len, templates, block_len, decoder, seed, draws, max_steps, usable(device, model)
    )
    flight, batch, device = Flight.begin(running or RunningSet(1), state), len(prompts), state.canvas.device
    lanes_each, width = flight.num_lanes, flight.num_lanes * block_len
    branches = min(branches, width)  # one for each column that is left
    states, whole = branches + 1, on_step is not None or decoder.needs_decided
    filled = [[k == s - 1 for k in range(branches)] for s in range(states)]
    forwards = Branches(model, cache, state, filled, whole)
    plan, memory = Expected.nothing(state, branches), None
    first = torch.arange(batch, device=device) * states  # the row of each row's state 0

    while True:
        tried, flights = forwards.branch(state, plan), flight.repeat(states)
        if memory is not None:  # the first forward is of one block
            flights.open_(tried)
        part = flights.open_part(tried)
        if (progress := replace(part.progress(), window=width)).done.all():
            return results(state)
        pieces = forward_open(model, part, forwards.kv, cache, progress, whole)
        forwards.count_(state, part, progress)
        lanes, prob = flights.lanes(part), Logits.of(batch * states, width, pieces).top_prob()
        masked = (lanes.open & lanes.blank).view(prob.shape)
        masks = masked.sum(1)
        mean = (torch.where(masked, prob, 0).sum(1) / masks.clamp(min=1)).view(batch, states)  # 0 for one that is done
        full = (masks == 0).view(batch, states) & ~part.done.view(batch, states)
        best = first + torch.where(full, 1, mean).argmax(1)

        pieces = _of_states(pieces, best, states, width)
        logits = Logits.of(batch * lanes_each, block_len, pieces)
        memory = memory or decoder.init(Shape(batch * lanes_each, block_len, logits.shape[2], device))
        flight.end = flights.end[best]
        lanes = flight.lanes(flight.open_part(state))
        before, canvas = lanes.view(logits), tried.canvas[best].repeat_interleave(lanes_each, 0)
        view = flight.view(replace(lanes, canvas=canvas), logits)
        update, ahead = decoder.step(view, memory), before.masked & ~view.masked
        combined = Update(torch.where(update.write, update.tokens, view.tokens), update.write | ahead)
        flight.apply_(state, lanes, before, combined, stop)

        left = view.masked.view(batch, width) & state.pending.gather(1, lanes.columns.view(batch, width))
        seen, front = decoder.propose(view, logits), state.start
        seen = Candidates(seen.tokens.view(batch, width), seen.confidence.view(batch, width))
        flight.advance_(state, ~lanes.done.view(batch, -1), memory)
        plan = Expected.of(seen, left, branches, 0).behind(state.start - front).only(~state.done)
        if on_step is not None:
            on_step(state, *side_by_side(state, before, combined, Logits.of(batch, width, pieces)))


def check_lookahead(
    model: Denoiser,
    decoder: Decoder,
    cache: CacheStrategy,
    stop: StopRule,
    branches: int,
    running: RunningSet | None = None,
) -> None:
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
    if running is not None:
        check_running(model, decoder, cache, stop)


def _of_states(pieces: Sequence[Piece], chosen: Int[Tensor, " B"], states: int, width: int) -> list[Piece]:
    """The logits of one of the states of each row, by place in the windows of the rows."""
    rows = torch.zeros(len(chosen) * states, dtype=torch.bool, device=chosen.device).index_fill(0, chosen, True)
    kept = [(place, logits, rows[place // width].nonzero()[:, 0]) for place, logits in pieces]
    return [(place[k] // (width * states) * width + place[k] % width, logits[k]) for place, logits, k in kept]
