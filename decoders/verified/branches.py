"""Several states of a row in one forward. They are rows of their own that share the K/V of what is finished."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.spread import NO_CACHE
from decoders.state import DecodeState
from decoders.types import Candidates
from dllm.cache import CacheStrategy
from dllm.kv import CopiesRows
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

    def without(self, slots: Int[Tensor, " N"]) -> "Expected":
        """None for the rows in these slots."""
        return replace(self, count=self.count.index_fill(0, slots, 0))

    def behind(self, columns: Int[Tensor, " B"]) -> "Expected":
        """The same places in windows that have moved by so many columns, none of them past one that counts."""
        return replace(self, places=(self.places - columns[:, None]).clamp(min=0))


def branch(state: DecodeState, plan: Expected, filled: Bool[Tensor, "S K"]) -> DecodeState:
    """S states of each of B rows; those of row b are b * S, b * S + 1, ... Those without the places that they need are
    done.

    filled: the places of the row's plan that state s has filled. State 0 is the row itself, and state s needs the first
        s places of the plan.
    """
    states, width = filled.shape
    repeated = {name: value.repeat_interleave(states, 0) for name, value in state.by_row()}
    columns = (state.columns[:, :1] + plan.places).clamp(max=state.canvas.shape[1] - 1)
    canvas = state.canvas[:, None].repeat(1, states, 1)
    for k in range(width):
        column, token = columns[:, None, k : k + 1], plan.tokens[:, None, k : k + 1]
        column, token = column.expand(-1, states, -1), token.expand(-1, states, -1)
        token = torch.where(filled[:, k, None], token, canvas.gather(2, column))
        canvas.scatter_(2, column, token)
    needed = torch.arange(states, device=state.canvas.device)
    repeated["canvas"] = canvas.flatten(0, 1)
    repeated["done"] = (state.done[:, None] | (needed > plan.count[:, None])).flatten()
    repeated["queried"] = torch.where(needed == 0, state.queried[:, None], 0).flatten()  # they are added up
    return replace(state, **repeated)


def check_shared(model: Denoiser, cache: CacheStrategy) -> None:
    """Raises ValueError unless several states of a row can share the cache's K/V."""
    if model.spec.noise:
        raise ValueError("a uniform-state model sees new noise in each forward, so its states cannot be tried ahead")
    if not (cache.stateless(model.spec) and cache.gives_all(model.spec)):
        raise ValueError(f"{cache} depends on the steps before; look ahead with cache=none, prefix, dual or block")
    if cache != NO_CACHE and not isinstance(model.new_kv(torch.ones(1, dtype=torch.long), 1), CopiesRows):
        raise ValueError("the K/V of this kind of model cannot be shared by several states; use cache=none")
