"""How a row becomes rows of a forward, and what comes back of them. The loop is one; this is what it may vary.

`ONE_WINDOW` is a row as it is. Several blocks in flight (`decoders.running`) and several states of a row
(`decoders.verified.ahead`, `decoders.verified.lopa`) are others.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from decoders.compose import Decoder
from decoders.logits import Logits
from decoders.state import DecodeState
from decoders.stop import StopRule
from decoders.types import DecodedRow, Memory, Update, View
from dllm.cache import CacheStrategy, WindowCache
from dllm.kv import CopiesRows
from dllm.plan import Plan
from dllm.protocols import Denoiser
from dllm.validation import Checked

NO_CACHE = WindowCache(before=None, after=None)


@dataclass(frozen=True)
class Forward:
    """What a forward gives of its rows.

    logits: of their windows. shadow: see `View`. partial: plans whose rows may decide only the columns that the plan
    wants.
    """

    logits: Logits
    shadow: Float[Tensor, "B W"] | None = None
    partial: Sequence[Plan] = ()


class Spread(Checked, ABC):
    """How a row becomes rows of a forward: a frozen config, as a decoder is. `begin` makes what one call changes."""

    def check(self, model: Denoiser, decoder: Decoder, cache: CacheStrategy, stop: StopRule) -> None:
        """Raises ValueError unless rows can be spread so with these parts."""

    @abstractmethod
    def begin(self, decoder: Decoder, stop: StopRule, queue: DecodeState, state: DecodeState) -> "Rows":
        """queue: all rows of the call before their first step. state: those that are decoded first."""


class Rows(ABC):
    """What the rows of one call become. A step calls `of`, `view` and `merge_`, in this order, and `shown` before the
    last where somebody looks.

    states: rows of a forward for each row, next to one another. They share what is kept of the prompt.
    width: columns of their windows.
    """

    states: int = 1
    width: int

    @abstractmethod
    def of(self, state: DecodeState) -> DecodeState:
        """The rows of the next forward. The first of a row is done if and only if the row is."""

    @abstractmethod
    def view(self, state: DecodeState, rows: DecodeState, found: Forward) -> View:
        """What the decoder sees of the forward, which is counted already."""

    @abstractmethod
    def shown(self, state: DecodeState, view: View) -> View:
        """The view with a line for each row, for `on_step`."""

    @abstractmethod
    def merge_(self, state: DecodeState, view: View, update: Update, memory: Sequence[Memory]) -> Update:
        """Writes an update into the state, lowers live ends, and moves rows and `memory` on. Gives what was written,
        with a line for each row."""

    @abstractmethod
    def enter_(self, slots: Int[Tensor, " N"], entered: DecodeState) -> None:
        """Forgets the rows that were in these slots. entered: those that begin there."""

    def ended(self, slots: Sequence[int], rows: list[DecodedRow]) -> list[DecodedRow]:
        """The rows that end in these slots, with what else is to be told of them."""
        return rows


@dataclass(frozen=True)
class OneWindow(Spread):
    """A row as it is, one window after the other."""

    def begin(self, decoder: Decoder, stop: StopRule, queue: DecodeState, state: DecodeState) -> "Rows":
        return _Windows(stop, state.window)


ONE_WINDOW = OneWindow()


class _Windows(Rows):
    def __init__(self, stop: StopRule, width: int) -> None:
        self.stop, self.width = stop, width

    def of(self, state: DecodeState) -> DecodeState:
        return state

    def view(self, state: DecodeState, rows: DecodeState, found: Forward) -> View:
        view = state.view(found.logits, found.shadow, found.partial)
        if self.stop.looks is not None:
            every = torch.arange(len(state.done), device=state.done.device)
            state.expect_eos_(every, state.columns, view.logits, view.masked)
        return view

    def shown(self, state: DecodeState, view: View) -> View:
        return view

    def merge_(self, state: DecodeState, view: View, update: Update, memory: Sequence[Memory]) -> Update:
        state.apply_(view.tokens, view.live, update)
        state.cut_(self.stop(state), update.hold)
        state.advance_(None if update.hold is None else torch.where(update.hold, state.start, state.end))
        return update

    def enter_(self, slots: Int[Tensor, " N"], entered: DecodeState) -> None:
        pass


def count_(state: DecodeState, rows: DecodeState, states: int, entering: Sequence[int], kv: object) -> None:
    """Counts in the state what a forward of its rows has cost, and lets the other states of rows that entered a window
    share its K/V. entering: the first row of each of these."""
    if rows is not state:
        state.nfe, state.queried = rows.nfe[::states], rows.queried.view(-1, states).sum(1)
    if states > 1 and len(entering) and isinstance(kv, CopiesRows):
        first = torch.tensor(entering, device=state.done.device)[:, None]
        others = first + torch.arange(1, states, device=state.done.device)
        kv.copy_rows(first.expand_as(others).flatten(), others.flatten())
