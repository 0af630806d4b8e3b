"""K/V by canvas column: a transformers Cache whose layers overwrite given columns of given rows. And a model's own
cache, whose rows come and go."""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel
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
        """Empties rows, whose columns now have these positions after prompts of these lengths."""
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


class OwnCache:
    """What a model's own cache keeps of rows that grow by one column a forward: keys and values, windows of them, or
    states. Each column is computed once, from the left, by the forward that the model's `generate` makes."""

    def __init__(self, backbone: PreTrainedModel) -> None:
        takes = signature(backbone.forward).parameters
        self._backbone = backbone
        self._held: _Held | None = None
        self._name = "cache_params" if "cache_params" in takes else "past_key_values"
        self._takes_positions, self._takes_last = "position_ids" in takes, "logits_to_keep" in takes

    def next_logits(
        self, tokens: Int[Tensor, "R C"], last: Int[Tensor, " R"], rows: Int[Tensor, " R"], enters: bool
    ) -> Float[Tensor, "R 1 V"]:
        """Logits for the token after each row's last one.

        tokens: of rows that enter, all up to place `last`; of others the next one. rows: ascending; where they do not
            enter, all that go on.
        """
        if enters:
            place = torch.arange(1 - tokens.shape[1], 1, device=tokens.device) + last[:, None]
            held, tokens = _Held(rows, place >= 0, bool((place < 0).any())), tokens.gather(1, place.clamp(min=0))
        else:
            assert self._held is not None, "rows have entered"
            held = self._held
            held.keep_(rows)
            held.seen = F.pad(held.seen, (0, 1), value=True)
        given: dict[str, Any] = {"logits_to_keep": 1} if self._takes_last else {}
        if self._takes_positions:
            given["position_ids"] = (held.seen.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        given["attention_mask"] = held.seen.long() if held.padded else None
        given |= {self._name: held.cache, "use_cache": True, "is_first_iteration": enters}
        output = self._backbone(**cast(Any, self._backbone).prepare_inputs_for_generation(tokens, **given))
        held.cache = output[self._name]
        self._held = held if self._held is None or not enters else held.beside(self._held)
        return output.logits[:, -1:]


@dataclass
class _Held:
    """Rows that end in one column, as those of two texts:

        x x x x x x      seen
        . . . x x x

    rows: ascending. padded: whether a column is not seen by a row. cache: of transformers, None before a forward.
    """

    rows: Int[Tensor, " R"]
    seen: Bool[Tensor, "R S"]
    padded: bool
    cache: Any = None

    def keep_(self, rows: Int[Tensor, " N"]) -> None:
        """Lets all but some rows go, and the columns that they alone saw."""
        if len(rows) == len(self.rows):
            return
        place = torch.searchsorted(self.rows, rows)
        self.cache.reorder_cache(place)
        seen = self.seen[place]
        self.rows, self.seen = rows, seen[:, int(seen.any(0).int().argmax()) :]
        self.padded = not bool(self.seen.all())
        self._fit_(self.seen.shape[1])

    def beside(self, before: "_Held") -> "_Held":
        """These rows and others that go on, of which none has the number of one of these."""
        staying = before.rows[~torch.isin(before.rows, self.rows)]
        if not len(staying):
            return self
        before.keep_(staying)
        widths = [held.seen.shape[1] for held in (before, self)]
        rows = torch.cat([before.rows, self.rows])
        order = rows.argsort()
        seen = [F.pad(held.seen, (max(widths) - width, 0)) for held, width in zip((before, self), widths, strict=True)]
        for held in (before, self):
            held._fit_(max(widths))
        for layer, new in zip(before.cache.layers, self.cache.layers, strict=True):
            tables = [(vars(layer), vars(new))]  # states are in dicts
            tables += [(kept, vars(new)[name]) for name, kept in vars(layer).items() if isinstance(kept, dict)]
            for kept, entered in tables:
                both = {name: (kept[name], entered[name]) for name in kept if isinstance(kept[name], Tensor)}
                kept |= {name: torch.cat(pair)[order.to(pair[0].device)] for name, pair in both.items() if pair[0].ndim}
        padded = before.padded or self.padded or widths[0] != widths[1]
        return _Held(rows[order], torch.cat(seen)[order], padded, before.cache)

    def _fit_(self, width: int) -> None:
        """Gives keys and values so many columns, cut or padded on the left; those of a window at most its own."""
        for layer in self.cache.layers:
            window = vars(layer).get("sliding_window")
            columns = width if window is None else min(width, window - 1)
            for name in ("keys", "values", "indexer_keys"):
                kept = vars(layer).get(name)
                if isinstance(kept, Tensor) and kept.numel() and kept.shape[-2] != columns:
                    setattr(layer, name, F.pad(kept, (0, 0, columns - kept.shape[-2], 0)))
            if window is not None:
                layer.cumulative_length = width  # by which masks are made
