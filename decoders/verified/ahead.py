"""Lossless parallel decoding of a denoiser: the states that one forward expects next are tried in one forward, and
those stay that the model itself would have reached, one token at a time (FreeDave, arXiv 2510.00294).

A forward ranks the masked columns. The states after the first, the first two, ... of them are rows of their own, which
share their prompt's K/V; a forward over all of them says what the model does in each. As long as that is the next of
the ranking, the chain goes on; where it is not, the model's own choice is written.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.compose import Decoder, surest
from decoders.logits import Logits
from decoders.loop import DecodedRow, Drafted, OnStep, begin, check_parts, results
from decoders.propose import propose
from decoders.rules.basic import FixedK
from decoders.stop import StopRule
from decoders.types import Candidates, Update, View
from decoders.verified.branches import Branches, Expected, check_shared
from dllm.cache import CacheStrategy
from dllm.protocols import Denoiser


@torch.inference_mode()
def decode_ahead(
    model: Denoiser,
    prompts: Sequence[Sequence[int]],
    *,
    states: int,
    gen_len: int | Sequence[int] | None = None,
    templates: Sequence[Sequence[int]] | None = None,
    block_len: int,
    decoder: Decoder,
    cache: CacheStrategy,
    stop: StopRule,
    seed: int = 0,
    max_steps: int | None = None,
    on_step: OnStep | None = None,
    device: torch.device | str = "cpu",
) -> list[DecodedRow]:
    """What `decode` gives with the same arguments, token for token, in fewer forwards.

    states: of a row in one forward, at least 1; all of their columns count as queried. decoder: greedy, of FixedK(1)
    alone. Raises ValueError for other decoders, for caches whose columns depend on the steps before, for stop rules
    that look at predictions, and as `decode` does.
    """
    check_ahead(model, decoder, cache, stop, states)
    state, _ = begin(model, prompts, gen_len, templates, block_len, decoder, seed, max_steps, device)
    device = state.canvas.device
    filled = [[k < s for k in range(states - 1)] for s in range(states)]
    branches = Branches(model, cache, state, filled, on_step is not None)
    log = list[Tensor]()
    plan = Expected.nothing(state, states - 1)

    while (view := branches.forward(state, plan)) is not None:
        candidates = propose(view, view.logits, 0.0, decoder.confidence)
        chosen = surest(candidates.confidence, view.masked)
        chain = _chain(plan, candidates, chosen, states)

        written = torch.zeros_like(chosen[::states])
        end, moving = state.end, ~state.done
        for length in range(int(chain.max()) + 1):  # one token at a time, since any may end the row
            row = torch.arange(len(prompts), device=device) * states + torch.minimum(chain, chain.new_tensor(length))
            now = moving & (length <= chain)
            update = Update(candidates.tokens[row], chosen[row] & now[:, None])
            state.apply_(state.canvas.gather(1, state.columns), view.live[row], update)
            written |= update.write
            state.cut_(stop(state))
            moving = now & (state.end == end)
        settled = written.sum(1)
        kept = torch.minimum(chain, settled)
        log.append(torch.cat([torch.stack([state.nfe - 1, plan.count, kept], 1), plan.tokens], 1))
        combined = Update(state.canvas.gather(1, state.columns), written)
        last = torch.arange(len(prompts), device=device) * states + (settled - 1).clamp(min=0)
        expected = Candidates(candidates.tokens[last], candidates.confidence[last])
        plan = Expected.of(expected, (view.masked & ~chosen)[last], states - 1)
        state.advance_()
        plan = plan.only((state.step > 0) & (state.end == end) & ~state.done)
        if on_step is not None:
            on_step(state, _rows(view, torch.arange(len(prompts), device=device) * states), combined)
    verified = torch.stack(log, 1).tolist()  # by row and forward
    return [replace(row, drafts=_drafted(lines)) for row, lines in zip(results(state), verified, strict=True)]


def check_ahead(model: Denoiser, decoder: Decoder, cache: CacheStrategy, stop: StopRule, states: int) -> None:
    """Raises ValueError unless one token at a time of these parts can be looked ahead of."""
    check_parts(model, decoder, cache)
    check_shared(model, cache, states)
    if decoder != Decoder(FixedK(1), confidence=decoder.confidence) or decoder.confidence == "random":
        raise ValueError("states are verified against greedy decoding of one token per step; use rule FixedK(1) alone")
    if stop.looks is not None:
        raise ValueError(f"{stop} looks at predictions, which drafts change; use stop=strict_eos, block_eos or never")


def _chain(plan: Expected, candidates: Candidates, chosen: Bool[Tensor, "N W"], states: int) -> Int[Tensor, " B"]:
    """How many places of a plan the model fills itself, one after the other, as planned."""
    place = chosen.int().argmax(1).view(-1, states)[:, :-1]
    token = candidates.tokens.gather(1, chosen.int().argmax(1, keepdim=True)).view(-1, states)[:, :-1]
    as_planned = (place == plan.places) & (token == plan.tokens)
    as_planned &= torch.arange(states - 1, device=place.device) < plan.count[:, None]
    return as_planned.long().cumprod(1).sum(1)


def _rows(view: View, rows: Int[Tensor, " B"]) -> View:
    noise = replace(view.noise, seeds=view.noise.seeds[rows], step=view.noise.step[rows])
    tokens, masked, live, step = (tensor[rows] for tensor in (view.tokens, view.masked, view.live, view.step))
    return View(tokens, masked, live, Logits(view.logits.values[rows]), step, noise, view.spec)


def _drafted(lines: Sequence[Sequence[int]]) -> tuple[Drafted, ...]:
    return tuple(Drafted(at, list(tokens[:count]), kept) for at, count, kept, *tokens in lines if count)
