"""Stop rules: where a row's generation may end before its canvas does. Each returns the row's live end, which never
grows."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.state import DecodeState

Looks = Literal["window", "query"]


class StopRule(ABC):
    """Called after each update with the state that already holds it."""

    @property
    def looks(self) -> Looks | None:
        """Where the loop must note which columns expect an EOS (`DecodeState.eos_ahead`): among those of the window, or
        among all that are queried. None: nowhere."""
        return None

    @abstractmethod
    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]: ...


def check_is_stop_rule(stop: object) -> None:
    """Raises ValueError unless it is a StopRule."""
    if not isinstance(stop, StopRule):
        raise ValueError(f"stop: {stop!r} is no StopRule; give an object whose class derives from decoders.StopRule")


@dataclass(frozen=True)
class Never(StopRule):
    """Decode the whole canvas; the text is cut at its first EOS (LLaDA's default)."""

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        return state.end


@dataclass(frozen=True)
class BlockEos(StopRule):
    """Stop when a finished block holds EOS (Fast-dLLM, dInfer's early stop); the end is that EOS."""

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        tokens, inside = _window(state)
        filled = ~((tokens == state.spec.mask_id) & inside).any(1)
        return torch.where(filled, _first_eos_end(state, tokens, inside), state.end)


@dataclass(frozen=True)
class StrictEos(StopRule):
    """Stop as soon as an EOS is committed and no mask is left before it (Fast-dLLM v2, LLaDA2.x)."""

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        tokens, inside = _window(state)
        settled = ~((tokens == state.spec.mask_id) & inside).cumsum(1).bool()
        return _first_eos_end(state, tokens, inside & settled)


@dataclass(frozen=True)
class Eotp(StopRule):
    """Cut the canvas after an EOS, also when masks are left before it (Learn2PD's EoTP, arXiv 2509.25188). Columns
    behind it are never decoded, those before it still are.

    The EOS is the first committed one, or, in a row that has none, the likeliest that the model expects at a column
    still to be filled: nowhere ("committed"), in the window ("window", the published cached functions) or anywhere in
    the columns of the forward ("query", the published plain one; it puts every queried column through the model's
    head). Expected below probability tau it does not count; published: 0, one wrong expectation then cuts the answer
    for good, and whatever is decided at the last column ends it. Deviation: the published rule prefers an EOS that its
    filter accepts, here any committed one goes first.
    """

    scope: Literal["committed", "window", "query"] = "committed"
    tau: float = 0.0

    def __post_init__(self) -> None:
        if self.scope not in ("committed", "window", "query"):
            raise ValueError(f"scope={self.scope!r}; an EOS is looked for in committed, window or query")
        if not 0 <= self.tau <= 1:
            raise ValueError(f"tau={self.tau}; a probability lies in [0, 1]")

    @property
    def looks(self) -> Looks | None:
        return None if self.scope == "committed" else self.scope

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        tokens, inside = _window(state)
        end = _first_eos_end(state, tokens, inside)
        if self.scope == "committed":
            return end
        assert state.eos_ahead is not None
        columns = torch.arange(state.canvas.shape[1], device=state.canvas.device)
        waiting = state.pending & (columns >= state.tail[:, None]) & ~state.done[:, None]
        prob, column = state.eos_ahead.masked_fill(~waiting, 0).max(1)
        ended = (state.spec.is_eos(tokens) & inside & (state.columns >= state.tail[:, None])).any(1)
        cut = ~ended & (prob > 0) & (prob >= self.tau)
        return torch.where(cut, torch.minimum(column + 1, end), end)


def _window(state: DecodeState) -> tuple[Int[Tensor, "B W"], Bool[Tensor, "B W"]]:
    """Tokens of the windows, and which of them are response before the live end."""
    columns = state.columns
    inside = (columns >= state.prompt_len[:, None]) & (columns < state.end[:, None]) & ~state.done[:, None]
    return state.canvas.gather(1, columns), inside


def _first_eos_end(state: DecodeState, tokens: Int[Tensor, "B W"], where: Bool[Tensor, "B W"]) -> Int[Tensor, " B"]:
    """The column after the first EOS of `where` behind the fixed tokens, or the present end in rows without one."""
    columns = state.columns
    ends = state.spec.is_eos(tokens) & where & (columns >= state.tail[:, None])
    after = torch.where(ends, columns + 1, state.end[:, None])
    return after.amin(1)
