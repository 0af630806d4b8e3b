"""Lookahead parallel decoding (LoPA, arXiv 2512.16229): of several states that one more token leads to, the one
continues in which the model is surest of what is left.

A forward looks at the row as it is and at `branches` states next to it, each with one of the surest undecided tokens
written. The state with the highest mean probability over its masks is kept, and the rule decides there. That of a state
without masks is 1, so the last mask of a window takes the token that was expected there, as released. Nothing verifies
the token that was written, so the text is that of no slower decoder.

With several blocks in flight (`decoders.running`) the masks are those of all open blocks, and each state opens blocks
by its own tokens. The row continues with the blocks of the state that is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from decoders.compose import Decoder
from decoders.running.blocks import RunningSet
from decoders.spread import Forward, Rows, Spread
from decoders.state import DecodeState
from decoders.stop import StopRule
from decoders.types import Candidates, Memory, Update, View
from decoders.verified.branches import Expected, branch, check_shared
from dllm.cache import CacheStrategy
from dllm.protocols import Denoiser
from dllm.validation import Count


@dataclass(frozen=True)
class Lookahead(Spread):
    """Rows that look at `branches` states next to themselves. All their columns count as queried. For a rule with its
    confidence and temperature, and nothing else.

    running: when blocks are opened, and which must commit. None: one block at a time.
    """

    branches: Count
    running: RunningSet | None = None

    def check(self, model: Denoiser, decoder: Decoder, cache: CacheStrategy, stop: StopRule) -> None:
        """Raises ValueError for other decoders, for caches whose columns depend on the steps before, for stop rules
        that look at predictions, and as the running set does."""
        check_shared(model, cache)
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
            raise ValueError(
                f"{stop} looks at predictions, which states change; use stop=strict_eos, block_eos or never"
            )
        if self.running is not None:
            self.running.check(model, decoder, cache, stop)

    def begin(self, decoder: Decoder, stop: StopRule, queue: DecodeState, state: DecodeState) -> Rows:
        return _Tried(self, decoder, stop, queue, state)


class _Tried(Rows):
    """Rows with a plan of the tokens that their states try, and with their blocks in flight."""

    def __init__(
        self, how: Lookahead, decoder: Decoder, stop: StopRule, queue: DecodeState, state: DecodeState
    ) -> None:
        self.decoder, self.flight = decoder, (how.running or RunningSet(1)).begin(decoder, stop, queue, state)
        self.width = self.flight.width
        branches = min(how.branches, self.width)  # one for each column that is left
        self.states, number = branches + 1, torch.arange(branches + 1, device=state.done.device)
        self.filled = number[:-1] == number[:, None] - 1
        self.first = torch.arange(len(state.done), device=state.done.device) * self.states  # each row's state 0
        self.plan = Expected.nothing(state, branches)
        self.tried, self.flights = state, self.flight

    def of(self, state: DecodeState) -> DecodeState:
        self.tried, self.flights = branch(state, self.plan, self.filled), self.flight.repeat(self.states)
        self.flights.open_(self.tried)
        return self.flights.of(self.tried)

    def view(self, state: DecodeState, rows: DecodeState, found: Forward) -> View:
        lanes, prob = self.flights.lanes(rows), found.logits.top_prob()
        masked = (lanes.open & lanes.blank).view(prob.shape)
        masks, shape = masked.sum(1), (len(state.done), self.states)
        mean = (torch.where(masked, prob, 0).sum(1) / masks.clamp(min=1)).view(shape)  # 0 for one that is done
        full = (masks == 0).view(shape) & ~rows.done.view(shape)
        best = self.first + torch.where(full, 1, mean).argmax(1)
        self.flight.end = self.flights.end[best]
        each, chosen = self.flight.num_lanes, Forward(found.logits.take(best))
        self.before = self.flight.view(state, self.flight.of(state), chosen)
        assert self.flight.rows is not None
        tried = replace(self.flight.rows, canvas=self.tried.canvas[best].repeat_interleave(each, 0))
        return self.flight.view_of(tried, self.before.logits)

    def shown(self, state: DecodeState, view: View) -> View:
        return self.flight.shown(state, self.before)

    def merge_(self, state: DecodeState, view: View, update: Update, memory: Sequence[Memory]) -> Update:
        flight, before, width, lanes = self.flight, self.before, self.width, self.flight.rows
        assert lanes is not None
        del self.before  # it holds the logits
        combined = Update(
            torch.where(update.write, update.tokens, view.tokens), update.write | (before.masked & ~view.masked)
        )
        flight.apply_(state, lanes, before, combined)
        shape = (len(state.done), width)
        left = view.masked.view(shape) & state.pending.gather(1, lanes.columns.view(shape))
        seen, front = self.decoder.propose(view, view.logits), state.start
        seen = Candidates(seen.tokens.view(shape), seen.confidence.view(shape))
        flight.advance_(state, lanes, memory)
        plan = Expected.of(seen, left, self.states - 1, 0)
        self.plan = plan.behind(state.start - front).only(~state.done)
        return flight.beside(combined)

    def enter_(self, slots: Int[Tensor, " N"], entered: DecodeState) -> None:
        self.plan = self.plan.without(slots)
        self.flight.enter_(slots, entered)
