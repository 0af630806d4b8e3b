"""The state machine of a running set: which blocks of a row are open, which of them must commit, and when they leave.

A block is inactive until it is opened, active while it has masks or its decoder holds it, complete when neither is so,
and cached as soon as all before it are complete too. Until then a revision may change it. Rows hold lanes: lane k of a
row is the k-th block from its first unfinished one on. To a decoder each lane is a row of its own, so that every rule,
transform and memory works on blocks as it always does.

The three published state machines are settings of one `RunningSet`: D2F (arXiv 2508.09192), d3LLM (arXiv 2601.07568)
and MultiBD (arXiv 2606.29215). A forward computes all open blocks, and with `BlockCache` the complete ones that their
K/V was not yet written of, so that no block costs a forward of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.compose import Decoder
from decoders.constraints.chain import Window
from decoders.logits import Logits
from decoders.noise import Noise
from decoders.spread import Forward, Rows, Spread
from decoders.state import DecodeState
from decoders.stop import StopRule
from decoders.types import Memory, Update, View
from dllm.cache import CacheStrategy
from dllm.protocols import Denoiser
from dllm.validation import Count, Fraction

_STRIDE = 0x9E3779B1  # between the seeds of a row's lanes


@dataclass(frozen=True)
class RunningSet(Spread):
    """When a row's next block is opened, and which open blocks must commit.

    buffer: blocks that are open at once at most, from the first unfinished one on. None: all of the response. 1 is one
        block at a time.
    open_at: share of the last open block that is filled when the next one is opened, one a forward. None is opened
        after an EOS that is in the set, until all open ones are filled.
    force_at: a block whose predecessor has at least this share filled commits its surest token when its rule commits
        none, as the first unfinished one always does. None: only that one does.
    surest_of_all: of all masks in open blocks the surest is committed too (d3LLM's released code).
    fill_eos: an EOS makes all columns after it EOS, decided ones too, which the model then sees (d3LLM's early stop).
    """

    buffer: Count | None = 4
    open_at: Fraction = 0.1
    force_at: Fraction | None = 0.9
    surest_of_all: bool = False
    fill_eos: bool = False

    def check(self, model: Denoiser, decoder: Decoder, cache: CacheStrategy, stop: StopRule) -> None:
        """Raises ValueError unless several blocks of a row can be in flight with these parts."""
        if decoder.needs_one_block:
            raise ValueError(
                "this decoder takes one block at a time (soft step, shadow, noise, sight, moved tokens), and a running "
                "set has several; use another one, such as threshold or edit"
            )
        if not cache.gives_all(model.spec):
            raise ValueError(
                f"{cache} gives no logits for some columns of an open block; with a running set use cache=none, "
                "prefix, dual or block"
            )
        if stop.looks is not None:
            raise ValueError(f"{stop} looks at predictions in one window; use stop=strict_eos, block_eos or never")

    def begin(self, decoder: Decoder, stop: StopRule, queue: DecodeState, state: DecodeState) -> "Flight":
        """Only each row's first block is open."""
        blocks = -(-int((queue.end - queue.start).max()) // queue.window)
        lanes = blocks if self.buffer is None else min(self.buffer, blocks)
        steps = state.start.new_zeros(len(state.start), lanes)
        return Flight(self, stop, lanes * queue.window, state.start + state.window, steps, steps.bool())


@dataclass
class Flight(Rows):
    """Where the running sets of B rows stand. Each has K lanes.

    width: columns of all lanes.
    end: the column after the last open block.
    steps: forwards that the block of each lane has been open for.
    held: lanes that the decoder's last step holds in their block though it is full.
    rows: a row for each lane, as the last forward found them.
    """

    how: RunningSet
    stop: StopRule
    width: int
    end: Int[Tensor, " B"]
    steps: Int[Tensor, "B K"]
    held: Bool[Tensor, "B K"]
    rows: DecodeState | None = field(default=None, repr=False)

    def of(self, state: DecodeState) -> DecodeState:
        return self.open_part(state)

    def view(self, state: DecodeState, rows: DecodeState, found: Forward) -> View:
        self.rows = self.lanes(rows)
        return self.view_of(self.rows, found.logits.reshaped(len(self.rows.done)))

    def shown(self, state: DecodeState, view: View) -> View:
        """All lanes side by side, from the first unfinished block on."""
        rows = (len(state.done), -1)
        tokens, masked, live = (tensor.view(rows) for tensor in (view.tokens, view.masked, view.live))
        start, noise = view.start.view(rows)[:, 0], Noise(state.seeds, state.nfe)
        return View(tokens, masked, live, view.logits.reshaped(rows[0]), state.step, noise, state.spec, start)

    def merge_(self, state: DecodeState, view: View, update: Update, memory: Sequence[Memory]) -> Update:
        assert self.rows is not None
        self.apply_(state, self.rows, view, update)
        self.advance_(state, self.rows, memory)
        self.open_(state)
        return self.beside(update)

    def enter_(self, slots: Int[Tensor, " N"], entered: DecodeState) -> None:
        self.end = self.end.index_copy(0, slots, entered.start + entered.window)
        self.steps, self.held = self.steps.index_fill(0, slots, 0), self.held.index_fill(0, slots, False)

    def beside(self, update: Update) -> Update:
        """An update of all lanes as one of their rows."""
        rows = (len(self.end), -1)
        return Update(update.tokens.view(rows), update.write.view(rows))

    def repeat(self, states: int) -> "Flight":
        """That of as many states of each row, row after row."""
        end, steps, held = (tensor.repeat_interleave(states, 0) for tensor in (self.end, self.steps, self.held))
        return Flight(self.how, self.stop, self.width, end, steps, held)

    @property
    def num_lanes(self) -> int:
        return self.steps.shape[1]

    def open_(self, state: DecodeState) -> None:
        """Opens the next block of each row where the last open one is filled far enough and there is a free lane, and
        at least the first unfinished one. None before a row's first forward."""
        window, columns = state.window, torch.arange(state.canvas.shape[1], device=state.canvas.device)
        last = replace(state, start=self.end - window).columns
        filled = window - state.pending.gather(1, last).sum(1)
        inside = (columns >= torch.maximum(state.start, state.tail)[:, None]) & (columns < self.end[:, None])
        ended = (state.spec.is_eos(state.canvas) & inside).any(1)
        free = (self.end - state.start) // window < self.num_lanes
        more = (filled.double() / window >= self.how.open_at) & free & ~ended & (self.end < state.end) & (state.nfe > 0)
        self.end = torch.maximum(self.end + window * more, state.start + window)

    def open_part(self, state: DecodeState) -> DecodeState:
        """The state with nothing to fill after the open blocks. A block-causal model does not see those columns; a
        bidirectional one sees their MASKs."""
        columns, block = torch.arange(state.canvas.shape[1], device=state.canvas.device), state.spec.block
        sight = None if block is None else state.spec.block_start(self.end + block - 1, state.prompt_len)
        return replace(state, free=state.free & (columns < self.end[:, None]), sight=sight)

    def lanes(self, part: DecodeState) -> DecodeState:
        """A state whose row b * K + k is lane k of row b. Lanes without an open block are done."""
        offsets = torch.arange(self.num_lanes, device=self.end.device)
        start = part.start[:, None] + offsets * part.window
        own = {
            "start": start,
            "seeds": part.seeds[:, None] + offsets * _STRIDE,
            "step": self.steps,
            "done": part.done[:, None] | (start >= torch.minimum(part.end, self.end)[:, None]),
        }
        shared = {name: value.repeat_interleave(self.num_lanes, 0) for name, value in part.by_row() if name not in own}
        return replace(part, **shared, **{name: value.flatten() for name, value in own.items()})

    def view_of(self, lanes: DecodeState, logits: Logits) -> View:
        """What the decoder may see: a row for each lane."""
        view = replace(lanes, constraints=None).view(logits)
        forced = torch.zeros_like(self.steps, dtype=torch.bool)
        forced[:, 0] = True
        if self.how.force_at is not None:
            filled = (lanes.window - view.masked.sum(1)).view(forced.shape)
            forced[:, 1:] = (filled.double() / lanes.window >= self.how.force_at)[:, :-1]
        busy = view.masked.any(1).view(forced.shape) | self.held
        waiting = (busy.cumsum(1) > busy.long()) & ~lanes.done.view(forced.shape)
        together = self.num_lanes if self.how.surest_of_all else None
        window = self._held(lanes)
        return replace(view, window=window, forced=forced.flatten(), waiting=waiting.flatten(), together=together)

    def _held(self, lanes: DecodeState) -> Window | None:
        """What constraints let each row write into its open blocks, side by side."""
        if lanes.constraints is None:
            return None
        rows = replace(lanes, **{name: value[:: self.num_lanes] for name, value in lanes.by_row()})
        offsets = torch.arange(self.width, device=self.end.device)
        return rows.held(rows.start[:, None] + offsets, self.end)

    def apply_(self, state: DecodeState, lanes: DecodeState, view: View, update: Update) -> None:
        """Writes an update of the lanes into the rows, and lowers their live ends. A stop rule looks at a block once
        all before it are complete."""
        lanes.apply_(view.tokens, view.live, update)
        canvas, fresh, at = (t.unflatten(0, self.steps.shape) for t in (lanes.canvas, lanes.fresh, lanes.committed_at))
        state.canvas = canvas.gather(1, fresh.int().argmax(1, keepdim=True))[:, 0]
        state.fresh, state.committed_at = fresh.any(1), at.amax(1)
        if self.how.fill_eos:
            self._fill_(state)
        lanes = replace(lanes, canvas=state.canvas.repeat_interleave(self.num_lanes, 0))
        if update.hold is not None:
            self.held = (update.hold & ~lanes.done).view(self.steps.shape)
        waiting = (lanes.pending.gather(1, lanes.columns).any(1).view(self.steps.shape) | self.held).long()
        reached = (waiting.cumsum(1) - waiting == 0) & ~self.held
        state.cut_(torch.where(reached, self.stop(lanes).view(self.steps.shape), state.end[:, None]).amin(1))

    def _fill_(self, state: DecodeState) -> None:
        """Writes EOS after the first EOS of each row."""
        columns = torch.arange(state.canvas.shape[1], device=state.canvas.device)
        ends = state.spec.is_eos(state.canvas) & (columns >= state.tail[:, None]) & (columns < state.end[:, None])
        behind = (ends.cumsum(1) - ends.long() > 0) & state.free & (columns < state.end[:, None]) & ~state.done[:, None]
        other = behind & ~state.spec.is_eos(state.canvas)
        state.canvas = torch.where(other, state.spec.eos_ids[0], state.canvas)
        state.fresh = state.fresh | other
        state.committed_at = torch.where(other, state.nfe[:, None] - 1, state.committed_at)

    def advance_(self, state: DecodeState, lanes: DecodeState, memory: Sequence[Memory]) -> None:
        """Moves rows whose first block is complete to the first one that is not. Steps and memory move along."""
        front, places = state.start, torch.arange(self.num_lanes, device=self.end.device)
        blocks = front[:, None] + places * state.window
        state.advance_(torch.where(self.held, blocks, state.limit).amin(1))
        moved = (state.start - front).clamp(min=0)  # an EOS of an earlier sub-block may end a row before its front
        source = places + (moved // state.window)[:, None]
        inside, source = source < self.num_lanes, source.clamp(max=self.num_lanes - 1)
        self.steps = ((self.steps + 1) * ~lanes.done.view(self.steps.shape)).gather(1, source) * inside
        self.held = self.held.gather(1, source) & inside
        rows = torch.arange(len(front), device=front.device)[:, None]
        for tensor in (tensor for part in memory for tensor in part.values()):
            tensor.copy_(tensor.unflatten(0, self.steps.shape)[rows, source].flatten(0, 1))
