"""Parallel decoding of a denoiser with verified drafts: the states that one forward expects next are tried in one
forward, and those stay that the model itself would have reached (FreeDave, arXiv 2510.00294).

A plan lists columns and their tokens. The states after the first, the first two, ... of them are rows of their own,
which share their prompt's K/V; a forward over all of them says what the rule does in each. As long as that leads to
another of the states, the chain goes on; where it does not, what the rule commits there is written.

The same forward makes the next plan. Its first column is the surest one that is masked, by the largest state whose
tokens are all written; its second one is the surest by the largest state whose tokens are all written or in the plan by
then; and so on. So a state that was not reached still says what follows once its tokens have come in another order. The
released plan is the ranking of the last state that was reached.

By the exact rule a state is reached when a step of another one ends in it. The text is then that of the rule, step by
step. By the subset rule it is reached when its tokens are among those that the step writes, and the rest of them is
asked about again. Every token is then one that the rule commits where it is written, and the text is that of no other
decoder. Of one token per step the two rules are the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.compose import Decoder
from decoders.logits import Logits
from decoders.loop import DecodedRow, Drafted, OnStep, begin, check_parts, results
from decoders.rules.basic import FixedK, Threshold
from decoders.stop import StopRule
from decoders.types import Candidates, Shape, Update, View
from decoders.verified.branches import Branches, Expected, check_shared
from dllm.cache import CacheStrategy
from dllm.protocols import Denoiser, usable
from dllm.validation import Count, check, named

Match = Literal["exact", "subset"]
PlanBy = Literal["all", "reached"]


@torch.inference_mode()
@named
def decode_ahead(
    model: Denoiser,
    prompts: Sequence[Sequence[int]],
    *,
    states: Count,
    match: Match = "exact",
    plan_by: PlanBy = "all",
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
    """What `decode` gives with the same arguments, token for token, in fewer forwards.

    states: of a row in one forward, at least 1 and at most one for each column of a block; all of their columns count
        as queried.
    match: when a state counts as reached. "exact" as said; "subset" takes fewer forwards with a threshold, for another
        text.
    plan_by: whose rankings make the next plan. "all" states of a forward, which takes fewer forwards; or "reached", the
        last of them that was reached. The text is the same by the exact rule.
    decoder: greedy, of `FixedK` or `Threshold` alone.

    Raises ValueError for other decoders, for caches whose columns depend on the steps before, for stop rules that look
    at predictions, and as `decode` does.
    """
    check(decode_ahead, states=states, match=match, plan_by=plan_by, on_step=on_step)
    check_ahead(model, decoder, cache, stop, states)
    state, _ = begin(
        model, prompts, gen_len, templates, block_len, decoder, seed, draws, max_steps, usable(device, model)
    )
    batch, device, states = len(prompts), state.canvas.device, min(states, block_len)  # others would never be reached
    first = torch.arange(batch, device=device) * states  # the row of each row's state 0
    filled = [[k < s for k in range(states - 1)] for s in range(states)]
    branches = Branches(model, cache, state, filled, on_step is not None)
    log = list[Tensor]()
    plan = Expected.nothing(state, states - 1)

    while (view := branches.forward(state, plan)) is not None:
        candidates = decoder.propose(view, view.logits)
        memory = decoder.init(Shape(len(view.step), block_len, view.logits.shape[2], device))  # the rules have none
        chosen = decoder.step(view, memory).write
        leads, rank = _leads(plan, candidates, chosen, states, match)

        written = torch.zeros_like(chosen[::states])
        at, kept = torch.zeros_like(state.nfe), torch.zeros_like(state.nfe)
        end, moving = state.end, ~state.done
        for _ in range(_longest(leads)):  # one step at a time, since any may end the row
            row, to = first + at, leads.gather(1, at[:, None])[:, 0]
            write = chosen[row] & ((rank < to[:, None]) | (to == at)[:, None])
            update = Update(candidates.tokens[row], write & moving[:, None])
            state.apply_(state.canvas.gather(1, state.columns), view.live[row], update)
            written |= update.write
            kept = torch.where(moving, to, kept)
            state.cut_(stop(state))
            moving = moving & (to > at) & (state.end == end)
            at = torch.where(moving, to, at)
        log.append(torch.cat([torch.stack([state.nfe - 1, plan.count, kept], 1), plan.tokens], 1))
        tokens = state.canvas.gather(1, state.columns)
        masked, last = view.masked[first] & ~written, first + at
        if plan_by == "all":
            plan = _plan_by_all(plan, candidates, tokens, masked, first)
        else:
            reached = Candidates(candidates.tokens[last], candidates.confidence[last])
            plan = Expected.of(reached, masked, states - 1)
        state.advance_()
        plan = plan.only((state.step > 0) & (state.end == end) & ~state.done)
        if on_step is not None:
            on_step(state, _rows(view, first), Update(tokens, written))
    verified = torch.stack(log, 1).tolist()  # by row and forward
    return [replace(row, drafts=_drafted(lines)) for row, lines in zip(results(state), verified, strict=True)]


def check_ahead(model: Denoiser, decoder: Decoder, cache: CacheStrategy, stop: StopRule, states: int) -> None:
    """Raises ValueError unless the steps of these parts can be looked ahead of."""
    check_parts(model, decoder, cache)
    check_shared(model, cache, states)
    alone = decoder == Decoder(decoder.rule, confidence=decoder.confidence) and decoder.confidence != "random"
    if not alone or not isinstance(decoder.rule, FixedK | Threshold):
        raise ValueError("states are verified against greedy steps of FixedK or Threshold; use one of them alone")
    if stop.looks is not None:
        raise ValueError(f"{stop} looks at predictions, which drafts change; use stop=strict_eos, block_eos or never")


def _leads(
    plan: Expected, candidates: Candidates, chosen: Bool[Tensor, "N W"], states: int, match: Match
) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B W"]]:
    """The state that each state's own step reaches, itself where that is none of them; and the rank in the plan of
    each position, `states` for those that are not in it."""
    of_states = (-1, states, chosen.shape[1])
    places = plan.places[:, None].expand(-1, states, -1)
    number = torch.arange(states, device=chosen.device)
    planned = number[:-1] < plan.count[:, None]
    as_planned = chosen.view(of_states).gather(2, places) & planned[:, None]
    as_planned &= candidates.tokens.view(of_states).gather(2, places) == plan.tokens[:, None]
    decided = number[:-1] < number[:, None]  # the places that a state has filled
    leads = (as_planned | decided).long().cumprod(2).sum(2)
    if match == "exact":
        whole = chosen.view(of_states).sum(2) == leads - number
        leads = torch.where(whole, leads, number)
    rank = plan.count.new_full((len(plan.count), chosen.shape[1]), states)
    rank.scatter_reduce_(1, plan.places, torch.where(planned, number[:-1], states), "amin")
    return leads, rank


def _plan_by_all(
    plan: Expected,
    candidates: Candidates,
    tokens: Int[Tensor, "B W"],
    masked: Bool[Tensor, "B W"],
    first: Int[Tensor, " B"],
) -> Expected:
    """What the states of a plan say of the masks that are left: at each place the largest one whose tokens are there.

    tokens, masked: the window after the forward's writes.
    first: the row of each row's state 0.
    """
    width, left = plan.places.shape[1], masked.sum(1)
    planned = torch.arange(width, device=left.device) < plan.count[:, None]
    places, drafts = torch.zeros_like(plan.places), torch.zeros_like(plan.tokens)
    for k in range(width):
        there = planned & (tokens.gather(1, plan.places) == plan.tokens) & ~masked.gather(1, plan.places)
        state = first + there.long().cumprod(1).sum(1)
        place = candidates.confidence[state].masked_fill(~masked, float("-inf")).argmax(1, keepdim=True)
        token = candidates.tokens[state].gather(1, place)
        places[:, k : k + 1], drafts[:, k : k + 1] = place, token
        tokens, masked = tokens.scatter(1, place, token), masked.scatter(1, place, False)
    return Expected(places, drafts, (left - 1).clamp(0, width))


def _longest(leads: Int[Tensor, "B S"]) -> int:
    """Steps of the longest chain: each state's own, for as long as it reaches another one. Waits for the device."""
    at, steps = torch.zeros_like(leads[:, :1]), torch.ones_like(leads[:, :1])
    for _ in range(leads.shape[1] - 1):
        to = leads.gather(1, at)
        at, steps = to, steps + (to > at)
    return int(steps.max())


def _rows(view: View, rows: Int[Tensor, " B"]) -> View:
    noise = replace(view.noise, seeds=view.noise.seeds[rows], step=view.noise.step[rows])
    tokens, masked, live, step = (tensor[rows] for tensor in (view.tokens, view.masked, view.live, view.step))
    return View(tokens, masked, live, Logits(view.logits.values[rows]), step, noise, view.spec)


def _drafted(lines: Sequence[Sequence[int]]) -> tuple[Drafted, ...]:
    return tuple(Drafted(at, list(tokens[:count]), kept) for at, count, kept, *tokens in lines if count)
