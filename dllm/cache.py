"""Which columns a step recomputes. Strategies are frozen configs over a row's progress; they own no tensors and see
no logits.

`none` recomputes everything, `prefix` and `dual` are Fast-dLLM's approximate caches (arXiv 2505.22618, section 3.2),
`vicinity` and the refresh interval are dInfer's (arXiv 2510.08666), `BlockCache` is exact for block-causal models
(Fast-dLLM v2, arXiv 2509.26328).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm.spec import ModelSpec


@dataclass(frozen=True)
class Plan:
    """One forward over a subset of rows.

    rows: batch rows, ascending. query: canvas columns to recompute; their K/V is overwritten. Rectangular: a shorter
    row repeats its last column. num_queried: distinct columns per row. all_rows: rows are the whole batch in order.
    """

    rows: Int[Tensor, " R"]
    query: Int[Tensor, "R Q"]
    num_queried: Int[Tensor, " R"]
    all_rows: bool

    def to(self, device: torch.device) -> "Plan":
        return Plan(self.rows.to(device), self.query.to(device), self.num_queried.to(device), self.all_rows)


@dataclass(frozen=True)
class Progress:
    """Where each row stands, on the CPU, so that planning never waits for the device.

    start: the window's first column; end: the live end (exclusive); step: forwards already made in this window (0:
    just entered); first: rows in their first window, of which no K/V exists yet at step 0; done: rows that need no
    forward. window: columns per window.
    """

    start: Int[Tensor, " B"]
    end: Int[Tensor, " B"]
    step: Int[Tensor, " B"]
    first: Bool[Tensor, " B"]
    done: Bool[Tensor, " B"]
    window: int


@runtime_checkable
class CacheStrategy(Protocol):
    """Yields at most two plans per step: rows that refresh, and the rest. Together they cover every row that is not
    done."""

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]: ...

    def check(self, spec: ModelSpec) -> None:
        """Raises ValueError when the model cannot use this cache."""
        ...


@dataclass(frozen=True)
class WindowCache:
    """Recomputes the window and some columns around it; all columns on entering a window and every `refresh_every`
    steps.

    before, after: columns recomputed beside the window, None for all. Both None: no cache. `prefix`: before=0,
    after=None. `dual`: 0, 0. `vicinity`: small numbers. warmup: the first steps of a request recompute all columns too
    (dInfer's vicinity uses 4). On a block-causal model columns after the window's block are never needed.
    """

    before: int | None = 0
    after: int | None = 0
    refresh_every: int | None = None
    warmup: int = 0

    def __post_init__(self) -> None:
        for name in ("before", "after"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"cache {name}={value}; give a number of columns >= 0, or null for all")
        if self.refresh_every is not None and self.refresh_every < 1:
            raise ValueError(
                f"cache refresh_every={self.refresh_every}; give a number of steps >= 1, or null for never"
            )

        if self.warmup < 0:
            raise ValueError(f"cache warmup={self.warmup}; give a number of steps >= 0")

    def check(self, spec: ModelSpec) -> None:
        """Encoders keep no K/V and can only recompute everything."""
        if not spec.kv and (self.before is not None or self.after is not None):
            raise ValueError("this model is an encoder and keeps no K/V between forwards; use cache=none")

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]:
        stop = progress.start + progress.window
        end = progress.end if spec.block is None else torch.minimum(progress.end, stop)
        refresh = (progress.step == 0) | (progress.first & (progress.step < self.warmup))
        if self.refresh_every is not None:
            refresh = refresh | (progress.step % self.refresh_every == 0)
        if self.before is None and self.after is None:
            refresh = torch.ones_like(refresh)
        zero = torch.zeros_like(end)
        low = zero if self.before is None else (progress.start - self.before - spec.shift).clamp(min=0)
        high = end if self.after is None else torch.minimum(stop + self.after, end)
        yield from _plans(progress, refresh, (zero, end), (low, high))


@dataclass(frozen=True)
class BlockCache:
    """Exact K/V for block-causal models.

    On entering a block the query is the previous block (its last tokens were committed after its K/V was computed)
    and the new one in a single forward, so a finished block costs no forward of its own. Inside a block only the
    block is recomputed.
    """

    def check(self, spec: ModelSpec) -> None:
        if spec.block is None:
            raise ValueError(
                "cache=block needs a block-causal model and this one is bidirectional; use cache=prefix or cache=dual"
            )

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]:
        high = torch.minimum(progress.end, progress.start + progress.window)
        # a row's first window follows its prompt, of which nothing is cached yet
        entry = torch.where(progress.first, 0, progress.start - progress.window).clamp(min=0)
        low = (progress.start - spec.shift).clamp(min=0)
        yield from _plans(progress, progress.step == 0, (entry, high), (low, high))


def _plans(
    progress: Progress, refresh: Bool[Tensor, " B"], wide: tuple[Tensor, Tensor], narrow: tuple[Tensor, Tensor]
) -> Iterator[Plan]:
    """Plans for the refreshing rows (column range `wide`) and the others (`narrow`); ranges are (low, high) of `[B]`
    each."""
    batch = len(refresh)
    for chosen, (low, high) in ((refresh, wide), (~refresh, narrow)):
        rows = (chosen & ~progress.done).nonzero()[:, 0]
        if not len(rows):
            continue
        low, high = low[rows], high[rows]
        width = int((high - low).max())
        query = torch.minimum(low[:, None] + torch.arange(width), high[:, None] - 1)
        yield Plan(rows, query, high - low, all_rows=len(rows) == batch)
