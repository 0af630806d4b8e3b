"""Stop rules: where a row's text may end before its canvas does. Each returns the row's live end, which never grows."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.state import DecodeState
from dllm.spec import ModelSpec
from dllm.validation import Checked, Fraction

Looks = Literal["window", "query"]


class StopRule(Checked, ABC):
    """Called after each update, with the state that already holds it, and to which it writes nothing."""

    @property
    def looks(self) -> Looks | None:
        """Where the loop notes which masked columns expect an EOS (`DecodeState.eos_ahead`): in the window, or in all
        queried columns. None: nowhere."""
        return None

    @abstractmethod
    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]: ...


def check_is_stop_rule(stop: object) -> None:
    """Raises ValueError unless it is a StopRule."""
    if not isinstance(stop, StopRule):
        raise ValueError(f"stop: {stop!r} is no StopRule; give an object whose class derives from decoders.StopRule")


def check_stop(stop: object, spec: ModelSpec) -> None:
    """Raises ValueError unless it is a StopRule, and for one that writes to the state it is shown, whose `columns`,
    `pending` and the like the loop continues to use. It is tried on a row with an EOS and on one without."""
    check_is_stop_rule(stop)
    assert isinstance(stop, StopRule)
    prompts, responses = [[0]] * 2, [[spec.mask_id] * 4] * 2
    state = DecodeState.begin(spec, prompts, responses, spec.block or 4, [0, 0], [1, 1], torch.device("cpu"))
    state.canvas[:, 1], state.canvas[0, 2] = 0, spec.eos_ids[0]
    state.eos_ahead = torch.zeros(state.canvas.shape)
    before = {name: value.clone() for name, value in state.by_row()}
    stop(state)
    written = [name for name, value in state.by_row() if not torch.equal(value, before[name])]
    if written:
        raise ValueError(f"stop: {type(stop).__name__} writes to state.{written[0]}; return where rows end instead")


@dataclass(frozen=True)
class Never(StopRule):
    """Decodes the whole canvas. The text is cut at its first EOS (LLaDA's default)."""

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        return state.end


@dataclass(frozen=True)
class BlockEos(StopRule):
    """Stops when a finished block holds EOS. The end is that EOS (Fast-dLLM, dInfer's early stop).

    A block is the window. Where a window is a sub-block, it is the model's block (Fast-dLLM v2's batches).
    """

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        block = state.spec.block or state.window
        start = state.start if state.spec.block is None else state.spec.block_start(state.start, state.prompt_len)
        columns = torch.arange(state.canvas.shape[1], device=state.canvas.device)
        inside = (columns >= torch.maximum(start, state.prompt_len)[:, None]) & (columns < (start + block)[:, None])
        inside = inside & (columns < state.end[:, None]) & ~state.done[:, None]
        filled = ~((state.canvas == state.spec.mask_id) & inside).any(1)
        may_end = inside & (columns >= state.tail[:, None])
        return torch.where(filled, _first_eos_end(state, state.canvas, columns + 1, may_end), state.end)


@dataclass(frozen=True)
class StrictEos(StopRule):
    """Stops as soon as an EOS is committed and no mask is left before it (Fast-dLLM v2, LLaDA2.x)."""

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        open_before = (state.blank & state.inside).cumsum(1)
        return _first_eos_end(state, state.tokens, state.behind, state.may_end > open_before)


@dataclass(frozen=True)
class Eotp(StopRule):
    """Cuts the canvas after an EOS, also when masks are left before it (Learn2PD's EoTP, arXiv 2509.25188). Columns
    after it are never decoded. Columns before it still are.

    scope: which masked columns count when the model expects an EOS there. "query" is all columns of the forward, which
        then all go through the model's head (the published plain function). "window" is the window (the published
        cached ones). "committed" is none: the first committed EOS cuts (ours).
    tau: an EOS expected with less than this probability does not count. Published: 0, so that one wrong expectation
        cuts the answer for good.
    order: which of several EOS cuts. "published": the first that a filter accepts (`Learn2PD`), else the likeliest that
        was expected. "committed": the first committed one, else the likeliest that is still expected (ours).
    """

    scope: Literal["committed", "window", "query"] = "query"
    tau: Fraction = 0.0
    order: Literal["published", "committed"] = "published"

    @property
    def looks(self) -> Looks | None:
        return None if self.scope == "committed" else self.scope

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        if self.scope == "committed":
            return _first_eos_end(state, state.tokens, state.behind, state.may_end)
        assert state.eos_ahead is not None
        columns = torch.arange(state.canvas.shape[1], device=state.canvas.device)
        waiting = (columns >= state.tail[:, None]) & ~state.done[:, None]
        if self.order == "committed":
            chosen, waiting = state.may_end, waiting & state.pending
        else:
            accepted = torch.zeros_like(state.inside) if state.accepted is None else state.accepted
            chosen = state.may_end & accepted
        prob, column = state.eos_ahead.masked_fill(~waiting, 0).max(1)
        ended = (state.spec.is_eos(state.tokens) & chosen).any(1)
        end = _first_eos_end(state, state.tokens, state.behind, chosen)
        cut = ~ended & (prob > 0) & (prob >= self.tau)
        return torch.where(cut, torch.minimum(column + 1, end), end)


def _first_eos_end(
    state: DecodeState, tokens: Int[Tensor, "B N"], behind: Int[Tensor, "..."], where: Bool[Tensor, "B N"]
) -> Int[Tensor, " B"]:
    """The column after the first EOS of `where`. The present end in rows without one. after: each token's next."""
    ends = state.spec.is_eos(tokens) & where
    after = torch.where(ends, behind, state.limit)
    return after.amin(1)
