"""Parallel decoding of a denoiser with verified drafts: the states that one forward expects next are tried in one
forward, and those stay that the model itself would have reached (FreeDave, arXiv 2510.00294).

A plan lists columns and their tokens. The states after the first, the first two, ... of them are rows of their own,
which share their prompt's K/V; a forward over all of them says what the rule does in each. As long as that leads to
another of the states, the chain continues; where it does not, what the rule commits there is written.

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
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.compose import Decoder
from decoders.spread import Forward, Rows, Spread
from decoders.state import DecodeState
from decoders.stop import StopRule
from decoders.types import Candidates, DecodedRow, Drafted, Memory, Update, View
from decoders.verified.branches import Expected, branch, check_shared
from dllm.cache import CacheStrategy
from dllm.protocols import Denoiser
from dllm.validation import Count

Match = Literal["exact", "subset"]
PlanBy = Literal["all", "reached"]


@dataclass(frozen=True)
class Ahead(Spread):
    """What one window gives, token for token, in fewer forwards. For greedy decoders of `FixedK` or `Threshold` alone.

    states: of a row in one forward, at least 1 and at most one for each column of a block; all of their columns count
        as queried.
    match: when a state counts as reached. "exact" as said; "subset" takes fewer forwards with a threshold, for another
        text.
    plan_by: whose rankings make the next plan. "all" states of a forward, which takes fewer forwards; or "reached", the
        last of them that was reached. The text is the same by the exact rule.
    """

    states: Count
    match: Match = "exact"
    plan_by: PlanBy = "all"

    def check(self, model: Denoiser, decoder: Decoder, cache: CacheStrategy, stop: StopRule) -> None:
        """Raises ValueError for other decoders, for caches whose columns depend on the steps before, and for stop rules
        that look at predictions."""
        check_shared(model, cache)
        alone = decoder == Decoder(decoder.rule, confidence=decoder.confidence) and decoder.confidence != "random"
        if not alone or not decoder.rule.memoryless:
            raise ValueError("states are verified against greedy steps of FixedK or Threshold; use one of them alone")
        if stop.looks is not None:
            raise ValueError(
                f"{stop} looks at predictions, which drafts change; use stop=strict_eos, block_eos or never"
            )

    def begin(self, decoder: Decoder, stop: StopRule, queue: DecodeState, state: DecodeState) -> Rows:
        return _Ahead(self, decoder, stop, state)


class _Ahead(Rows):
    """Rows with a plan of states that follow. log: of each forward a line for each slot, from the first forward of the
    oldest row on. since: how many of them were there when the row in each slot began."""

    def __init__(self, how: Ahead, decoder: Decoder, stop: StopRule, state: DecodeState) -> None:
        self.how, self.decoder, self.stop, self.width = how, decoder, stop, state.window
        self.states = min(how.states, state.window)  # others would never be reached
        number = torch.arange(self.states, device=state.done.device)
        self.filled = number[:-1] < number[:, None]
        self.first = torch.arange(len(state.done), device=state.done.device) * self.states  # each row's state 0
        self.plan = Expected.nothing(state, self.states - 1)
        self.log, self.since = list[Tensor](), [0] * len(state.done)

    def of(self, state: DecodeState) -> DecodeState:
        return branch(state, self.plan, self.filled)

    def view(self, state: DecodeState, rows: DecodeState, found: Forward) -> View:
        return rows.view(found.logits)

    def shown(self, state: DecodeState, view: View) -> View:
        return replace(state.view(view.logits.take(self.first)), live=view.live[self.first])

    def merge_(self, state: DecodeState, view: View, update: Update, memory: Sequence[Memory]) -> Update:
        chosen, plan, states, first = update.write, self.plan, self.states, self.first
        candidates = self.decoder.propose(view, view.logits)
        leads, rank = _leads(plan, candidates, chosen, states, self.how.match)

        written = torch.zeros_like(chosen[::states])
        at, kept = torch.zeros_like(state.nfe), torch.zeros_like(state.nfe)
        end, moving = state.end, ~state.done
        for _ in range(_longest(leads)):  # one step at a time, since any may end the row
            row, to = first + at, leads.gather(1, at[:, None])[:, 0]
            write = chosen[row] & ((rank < to[:, None]) | (to == at)[:, None])
            step = Update(candidates.tokens[row], write & moving[:, None])
            state.apply_(state.canvas.gather(1, state.columns), view.live[row], step)
            written |= step.write
            kept = torch.where(moving, to, kept)
            state.cut_(self.stop(state))
            moving = moving & (to > at) & (state.end == end)
            at = torch.where(moving, to, at)
        self.log.append(torch.cat([torch.stack([state.nfe - 1, plan.count, kept], 1), plan.tokens], 1))
        tokens = state.canvas.gather(1, state.columns)
        masked, last = view.masked[first] & ~written, first + at
        if self.how.plan_by == "all":
            plan = _plan_by_all(plan, candidates, tokens, masked, first)
        else:
            reached = Candidates(candidates.tokens[last], candidates.confidence[last])
            plan = Expected.of(reached, masked, states - 1)
        state.advance_()
        self.plan = plan.only((state.step > 0) & (state.end == end) & ~state.done)
        return Update(tokens, written)

    def enter_(self, slots: Int[Tensor, " N"], entered: DecodeState) -> None:
        self.plan = self.plan.without(slots)
        for slot in slots.tolist():
            self.since[slot] = len(self.log)
        old = min(self.since)
        self.log, self.since = self.log[old:], [since - old for since in self.since]

    def ended(self, slots: Sequence[int], rows: list[DecodedRow]) -> list[DecodedRow]:
        lines = torch.stack(self.log, 1)[list(slots)].tolist()  # by slot and forward
        since = [self.since[slot] for slot in slots]
        return [replace(row, drafts=_drafted(of[at:])) for row, of, at in zip(rows, lines, since, strict=True)]


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


def _drafted(lines: Sequence[Sequence[int]]) -> tuple[Drafted, ...]:
    return tuple(Drafted(at, list(tokens[:count]), kept) for at, count, kept, *tokens in lines if count)
