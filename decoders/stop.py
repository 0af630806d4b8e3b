"""Stop rules: where a row's generation may end before its canvas does. Each returns the row's live end, which never
grows."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.state import DecodeState


@runtime_checkable
class StopRule(Protocol):
    """Called after each update with the state that already holds it."""

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]: ...


@dataclass(frozen=True)
class Never:
    """Decode the whole canvas; the text is cut at its first EOS (LLaDA's default)."""

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        return state.end


@dataclass(frozen=True)
class BlockEos:
    """Stop when a finished block holds EOS (Fast-dLLM, dInfer's early stop); the end is that EOS."""

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        tokens, inside = _window(state)
        filled = ~((tokens == state.spec.mask_id) & inside).any(1)
        return torch.where(filled, _first_eos_end(state, tokens, inside), state.end)


@dataclass(frozen=True)
class StrictEos:
    """Stop as soon as an EOS is committed and no mask is left before it (Fast-dLLM v2, LLaDA2.x)."""

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        tokens, inside = _window(state)
        settled = ~((tokens == state.spec.mask_id) & inside).cumsum(1).bool()
        return _first_eos_end(state, tokens, inside & settled)


@dataclass(frozen=True)
class Eotp:
    """Cut the canvas after the first committed EOS, also when masks are left before it (Learn2PD's EoTP, arXiv
    2509.25188, on committed tokens). Columns behind it are never decoded; those before it still are."""

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        tokens, inside = _window(state)
        return _first_eos_end(state, tokens, inside)


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
