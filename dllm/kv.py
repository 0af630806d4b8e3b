"""K/V by canvas column: a transformers Cache whose layers overwrite given columns of given rows."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer


@runtime_checkable
class CopiesRows(Protocol):
    """K/V of which one row can be given to others: several states of a text then share what is kept of its prompt."""

    def copy_rows(self, source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> None: ...


class _ColumnLayer(CacheLayerMixin):
    """Keys and values `[B, H, T, D]` of one layer. `update` writes the columns of the current plan and returns rows up
    to what they see. In memory a column's heads lie together, so that a column is written in one piece."""

    is_sliding = False

    def __init__(self, cache: "ColumnCache") -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Empty rows for keys and values like these `[_, H, _, D]`."""
        self.keys, self.values = (
            new.new_zeros((*self._cache.positions.shape, new.shape[1], new.shape[3])).transpose(1, 2)
            for new in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, store: Tensor | None, new: Tensor) -> Tensor:
        """Writes `new` `[R, H, Q, D]` into `store` in place and returns the plan's rows `[R, H, K, D]`."""
        assert store is not None
        by_column, columns = store.transpose(1, 2), new.transpose(1, 2).flatten(0, 1)
        places = self._cache.places.to(new.device)  # layers may be spread over devices
        with torch.no_grad():
            by_column.flatten(0, 1).index_copy_(0, places, columns)
        if columns.requires_grad:  # a training's gradient goes through what is new, and the store is as without one
            by_column = by_column.flatten(0, 1).index_copy(0, places, columns).view_as(by_column)
        by_column = by_column[:, : self._cache.seen]
        if self._cache.rows is not None:  # every row in order: no copies
            by_column = by_column.index_select(0, self._cache.rows.to(new.device))
        return by_column.transpose(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.positions.shape[1], 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self._cache.positions.shape[1]


class ColumnCache(Cache):
    """The K/V of one decode call.

    positions: RoPE position of each canvas column, `[B, T]`.
    prompt_len: of each row, for masks that depend on it.
    rows: of the next forward, None for every row in order; set by `at`.
    places: where among the B * T columns of all rows its keys and values belong, row after row; set by `at`.
    seen: columns of each row that the next forward reads, from the first; set by `at`.
    samples: of another cache of the same model. Room is then made by `at` and not in the forward, which is compiled.
    """

    def __init__(
        self,
        num_layers: int,
        positions: Int[Tensor, "B T"],
        prompt_len: Int[Tensor, " B"] | None = None,
        samples: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> None:
        self._own = [_ColumnLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self._own))
        self.positions = positions.contiguous()  # also after `drop`: a compiled forward looks at the strides
        self.prompt_len = torch.zeros_like(positions[:, 0]) if prompt_len is None else prompt_len
        self.rows: Int[Tensor, " R"] | None = None
        self.places: Int[Tensor, " N"] = positions.new_empty(0)
        self.seen, self._wanted = positions.shape[1], samples

    def _stores(self) -> list[Tensor]:
        """Keys and values of one layer after another, nothing before the first forward that keeps them."""
        return [store for layer in self._own for store in (layer.keys, layer.values) if store is not None]

    def samples(self) -> list[tuple[Tensor, Tensor]]:
        """An empty piece of each layer's keys and values."""
        pieces = [store[:0, :, :0].clone() for store in self._stores()]
        return list(zip(pieces[::2], pieces[1::2], strict=True))

    def copy_rows(self, source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> None:
        """Gives rows `target` the keys and values of rows `source`."""
        for store in self._stores():
            store[target.to(store.device)] = store[source.to(store.device)]

    def prefix(self, rows: Int[Tensor, " R"], length: int) -> Cache:
        """The keys and values of some rows' first columns, to be read by what keeps none of its own."""
        layers = []
        for own in self._own:
            layer = DynamicLayer()
            assert own.keys is not None and own.values is not None
            layer.keys, layer.values = (t[rows.to(t.device), :, :length] for t in (own.keys, own.values))
            layers.append(layer)
        return Cache(layers=layers)

    def take(self, other: "ColumnCache", columns: Int[Tensor, "B W"]) -> None:
        """Overwrites these columns with their keys and values in another cache of the same shape."""
        for store, new in zip(self._stores(), other._stores(), strict=True):
            where = columns[:, None, :, None].expand(-1, store.shape[1], -1, store.shape[-1])
            store.scatter_(2, where, new.gather(2, where))

    def drop(self, rows: Int[Tensor, " N"], positions: Int[Tensor, "N T"], prompt_len: Int[Tensor, " N"]) -> None:
        """Empties rows, whose columns now have these positions behind prompts of these lengths."""
        self.positions = self.positions.index_copy(0, rows, positions)
        self.prompt_len = self.prompt_len.index_copy(0, rows, prompt_len)
        for store in self._stores():
            store.index_fill_(0, rows.to(store.device), 0)

    def at(self, rows: Int[Tensor, " R"] | None, columns: Int[Tensor, "R Q"], seen: int | None = None) -> "ColumnCache":
        """Says where the next update belongs, and how many columns it reads. rows: None means every row in order.
        seen: None means all."""
        if self._wanted:
            for layer, (keys, values) in zip(self._own, self._wanted, strict=True):
                layer.lazy_initialization(keys, values)
            for store in self._stores():
                torch._dynamo.mark_static_address(store, guard=False)  # CUDA graphs may write there
            self._wanted = ()
        batch, length = self.positions.shape
        first = torch.arange(batch, device=columns.device) if rows is None else rows
        self.rows, self.places = rows, (first[:, None] * length + columns).flatten()
        self.seen = length if seen is None else seen
        return self
