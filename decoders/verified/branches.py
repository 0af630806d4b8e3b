"""Several states of a row in one forward. They are rows of their own that share the K/V of what is finished."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.loop import NO_CACHE, ask, forward_windows
from decoders.state import DecodeState
from decoders.types import Candidates, View
from dllm.cache import BlockCache, CacheStrategy, WindowCache
from dllm.kv import ColumnCache
from dllm.plan import Progress
from dllm.protocols import Denoiser


@dataclass(frozen=True)
class Expected:
    """The next K places of each row's window and their tokens, surest first. count: how many there are."""

    places: Int[Tensor, "B K"]
    tokens: Int[Tensor, "B K"]
    count: Int[Tensor, " B"]

    @classmethod
    def nothing(cls, state: DecodeState, width: int) -> "Expected":
        empty = state.canvas.new_zeros(len(state.done), width)
        return cls(empty, empty, empty.new_zeros(len(empty)))

    @classmethod
    def of(cls, candidates: Candidates, masked: Bool[Tensor, "B W"], width: int, least: int = 1) -> "Expected":
        """What a forward says of the masks that it leaves. least: so many of them are in no plan."""
        sure = candidates.confidence.masked_fill(~masked, float("-inf"))
        places = sure.sort(dim=1, descending=True, stable=True).indices[:, :width]
        places = torch.nn.functional.pad(places, (0, width - places.shape[1]))
        return cls(places, candidates.tokens.gather(1, places), (masked.sum(1) - least).clamp(0, width))

    def only(self, rows: Bool[Tensor, " B"]) -> "Expected":
        """The plan of some rows. The others have none."""
        return replace(self, count=self.count * rows)

    def behind(self, columns: Int[Tensor, " B"]) -> "Expected":
        """The same places in windows that have moved by so many columns, none of them past one that counts."""
        return replace(self, places=(self.places - columns[:, None]).clamp(min=0))


class Branches:
    """S states of each of B rows. State s has those places of the row's plan filled that `filled[s]` says.

    filled: `[S, K]`. State 0 is the row itself, and state s needs the first s places of the plan.
    """

    def __init__(
        self, model: Denoiser, cache: CacheStrategy, state: DecodeState, filled: Sequence[Sequence[bool]], whole: bool
    ) -> None:
        self.model, self.cache, self.whole = model, cache, whole
        self.filled = torch.tensor(filled, device=state.canvas.device)
        self.kv = model.new_kv(state.prompt_len.repeat_interleave(len(filled)), state.canvas.shape[1])
        if cache != NO_CACHE and not isinstance(self.kv, ColumnCache):
            raise ValueError("the K/V of this kind of model cannot be shared by several states; use cache=none")

    def forward(self, state: DecodeState, plan: Expected) -> View | None:
        """The view of B * S states after one forward; those of row b are b * S, b * S + 1, ... None when all rows are
        done. Counts the forward, and the columns of all states, in `state`."""
        branches = self.branch(state, plan)
        progress = branches.progress()
        if progress.done.all():
            return None
        questions = ask(self.cache.plan(progress, self.model.spec), progress, self.whole, state.canvas.device)
        logits = forward_windows(self.model, branches, self.kv, questions, None, look_ahead=False)
        self.count_(state, branches, progress)
        return branches.view(logits)

    def count_(self, state: DecodeState, branches: DecodeState, progress: Progress) -> None:
        """Counts a forward of the branches in `state`. Those of a row that entered a window then share its K/V."""
        states, device = len(self.filled), state.canvas.device
        if isinstance(self.kv, ColumnCache) and states > 1:
            entering = (progress.step == 0) & ~progress.done
            first = torch.from_numpy(np.flatnonzero(entering[::states]) * states).to(device)
            others = first[:, None] + torch.arange(1, states, device=device)
            self.kv.copy(first[:, None].expand_as(others).flatten(), others.flatten())
        state.nfe = state.nfe + ~state.done  # not in place: views hold the numbers of their own forward
        state.queried += branches.queried.view(-1, states).sum(1)

    def branch(self, state: DecodeState, plan: Expected) -> DecodeState:
        """The B * S states. Those without the places that they need are done."""
        states, width = self.filled.shape
        repeated = {name: value.repeat_interleave(states, 0) for name, value in state.by_row()}
        columns = (state.columns[:, :1] + plan.places).clamp(max=state.canvas.shape[1] - 1)
        canvas = state.canvas[:, None].repeat(1, states, 1)
        for k in range(width):
            column, token = columns[:, None, k : k + 1], plan.tokens[:, None, k : k + 1]
            column, token = column.expand(-1, states, -1), token.expand(-1, states, -1)
            token = torch.where(self.filled[:, k, None], token, canvas.gather(2, column))
            canvas.scatter_(2, column, token)
        needed = torch.arange(states, device=state.canvas.device)
        repeated["canvas"] = canvas.flatten(0, 1)
        repeated["done"] = (state.done[:, None] | (needed > plan.count[:, None])).flatten()
        repeated["queried"] = torch.zeros_like(repeated["queried"])
        return replace(state, **repeated)


def check_shared(model: Denoiser, cache: CacheStrategy, states: int) -> None:
    """Raises ValueError unless that many states of a row can share the cache's K/V."""
    if states < 1:
        raise ValueError(f"states={states}; a forward looks at 1 or more")
    if model.spec.noise:
        raise ValueError("a uniform-state model sees new noise in each forward, so its states cannot be tried ahead")
    is_window = isinstance(cache, WindowCache) and not (
        cache.refresh_every or cache.warmup or (model.spec.shift and not cache.look_back)
    )
    if not is_window and cache != BlockCache():
        raise ValueError(f"{cache} depends on the steps before; look ahead with cache=none, prefix, dual or block")
