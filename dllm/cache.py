"""Which columns a step recomputes. Strategies are frozen configs over a row's progress, without tensors of their own.

`none` recomputes everything, `prefix` and `dual` are Fast-dLLM's approximate caches (arXiv 2505.22618, section 3.2),
`vicinity` and the refresh interval are dInfer's (arXiv 2510.08666), `prefill` is Dimple's (arXiv 2505.16990), `delayed`
and `greedy` are dKV-Cache's (arXiv 2505.15781). For block-causal models `block` is exact and `sub_block` is Fast-dLLM
v2's (arXiv 2509.26328).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm.spec import ModelSpec
from knobs import Count, Knobs, Number


@dataclass(frozen=True)
class Plan:
    """One forward over a subset of rows.

    rows: batch rows, ascending. query: canvas columns to recompute, ascending; their K/V is overwritten. Rectangular: a
    shorter row repeats its last column. num_queried: distinct columns per row. all_rows: rows are the whole batch in
    order. want: columns whose logits are needed, padded like query, or None for the whole window; the others keep the
    logits of the forward that last computed them. keep: whether K/V is stored and read; False where every query holds
    all that its rows see. only: the wanted columns alone may be decided, because no others have logits yet.
    """

    rows: Int[Tensor, " R"]
    query: Int[Tensor, "R Q"]
    num_queried: Int[Tensor, " R"]
    all_rows: bool
    want: Int[Tensor, "R F"] | None = None
    keep: bool = True
    only: bool = False

    def to(self, device: torch.device) -> "Plan":
        move = partial(Tensor.to, device=device, non_blocking=True)
        want = None if self.want is None else move(self.want)
        return replace(
            self, rows=move(self.rows), query=move(self.query), num_queried=move(self.num_queried), want=want
        )


@dataclass(frozen=True)
class Progress:
    """Where each row stands, on the CPU, so that planning never waits for the device.

    start: the window's first column; end: the live end (exclusive); step: forwards already made in this window (0:
    just entered); first: rows in their first window, of which no K/V exists yet at step 0; previous: start of the
    window before (0 in the first); done: rows that need no forward. masked: columns still to be filled. fresh: columns
    written by the last forward, so that their K/V is that of another token. window: columns per window.
    """

    prompt_len: Int[Tensor, " B"]
    start: Int[Tensor, " B"]
    end: Int[Tensor, " B"]
    step: Int[Tensor, " B"]
    first: Bool[Tensor, " B"]
    previous: Int[Tensor, " B"]
    done: Bool[Tensor, " B"]
    masked: Bool[Tensor, "B T"]
    fresh: Bool[Tensor, "B T"]
    window: int

    @property
    def stop(self) -> Int[Tensor, " B"]:
        """The column after the window."""
        return self.start + self.window

    def between(self, low: Int[Tensor, " B"] | int, high: Int[Tensor, " B"]) -> Bool[Tensor, "B T"]:
        """Canvas columns of `[low, high)`, before the live end."""
        columns = torch.arange(self.masked.shape[1])
        low = low if isinstance(low, int) else low[:, None]
        return (columns >= low) & (columns < torch.minimum(high, self.end)[:, None])


@runtime_checkable
class CacheStrategy(Protocol):
    """Yields the plans of a step, one for rows that do alike (refresh, or not). Together they cover every row that is
    not done."""

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]: ...

    def check(self, spec: ModelSpec) -> None:
        """Raises ValueError when the model cannot use this cache."""
        ...


@dataclass(frozen=True)
class WindowCache(Knobs):
    """Recomputes the window and some columns around it; all columns on entering a window and every `refresh_every`
    steps.

    before, after: columns recomputed beside the window, None for all. Both None: no cache. `prefix`: before=0,
    after=None. `dual`: 0, 0. `vicinity`: small numbers. warmup: the first steps of a request recompute all columns too
    (dInfer's vicinity uses 4). freeze_prompt: prompts are computed in the first forward and never again (Dimple's
    prefilling). look_back: for a token-shifted model also the column before, which predicts the window's first; without
    it (as in Fast-dLLM's Dream file) that column keeps its logits of the pass over all columns. On a block-causal model
    columns after the window's block are never needed.
    """

    before: Number | None = 0
    after: Number | None = 0
    refresh_every: Count | None = None
    warmup: Number = 0
    freeze_prompt: bool = False
    look_back: bool = True

    def check(self, spec: ModelSpec) -> None:
        """Encoders keep no K/V and can only recompute everything."""
        if self != WindowCache(before=None, after=None):
            _check_kv(spec)

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]:
        start, stop, end = progress.start, progress.stop, _visible_end(progress, spec)
        floor = _frozen(progress, spec, self.freeze_prompt)
        refresh = _refreshes(progress, self.refresh_every) | (progress.first & (progress.step < self.warmup))
        shift = spec.shift * self.look_back
        low = floor if self.before is None else torch.maximum(start - self.before - shift, floor)
        high = end if self.after is None else torch.minimum(stop + self.after, end)
        if self.before is None and self.after is None:
            refresh = torch.ones_like(refresh)  # both plans are the same: make one of them
        keep = self.before is not None or self.after is not None or self.freeze_prompt
        want = None
        if shift < spec.shift and self.before == 0:
            window = progress.between(start, stop)
            want = progress.between(start + spec.shift, stop)
            want = torch.where(want.any(1, keepdim=True), want, window)
        yield from _plans(progress, refresh, progress.between(floor, end), progress.between(low, high), want, keep)


@dataclass(frozen=True)
class DelayedCache(Knobs):
    """dKV-Cache: a token's K/V is kept from one forward after its commit on; until then it is recomputed.

    A step recomputes the masked columns and those that the last step wrote; everything on entering a window and every
    `refresh_every` steps. near=None recomputes all masked columns (dKV-Cache-Decode); a number only those of the window
    and the columns up to `near` from a fresh one (dKV-Cache-Greedy). freeze_prompt: prompts are computed in the first
    forward and never again (dKV-Cache-Prefill).
    """

    refresh_every: Count | None = 8
    near: Number | None = None
    freeze_prompt: bool = False

    def check(self, spec: ModelSpec) -> None:
        _check_kv(spec)

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]:
        floor = _frozen(progress, spec, self.freeze_prompt)
        visible = progress.between(floor, _visible_end(progress, spec))
        window = progress.between(progress.start, progress.stop)
        moving = (progress.masked | progress.fresh) & visible
        want = moving & window
        # a row that waits in a filled window which nothing changed has nothing to recompute: take its window
        want = torch.where(want.any(1, keepdim=True), want, window)
        if self.near is not None:
            moving = (progress.masked & window) | _dilated(progress.fresh, self.near)
        narrow = (moving | want | _moved_left(want, spec.shift)) & visible
        yield from _plans(progress, _refreshes(progress, self.refresh_every), visible, narrow, want)


@dataclass(frozen=True)
class BlockCache(Knobs):
    """Exact K/V for block-causal models.

    On entering a block the query is the block before (its last tokens were committed after its K/V was computed) and
    the new one in a single forward, so a finished block costs no forward of its own. Inside a block all its columns are
    recomputed, also where the window is only a part of it.
    first_token: as Fast-dLLM v2's released sampler does it, the block before (at first the prompt's whole blocks) has a
    forward of its own, which decides the new block's first token and nothing else.
    """

    first_token: bool = False

    def check(self, spec: ModelSpec) -> None:
        _check_kv(spec)
        _check_block(spec, "block", self.first_token)

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]:
        if not self.first_token:
            yield from _plans(progress, progress.step == 0, *_block_columns(progress, spec))
            return
        own = _finish(progress, spec)
        yield from _finishing(progress, spec, own)
        progress = replace(progress, done=progress.done | own)
        inside = progress.between(_block_start(progress, spec), _visible_end(progress, spec))
        yield from _plans(progress, torch.zeros_like(own), inside, inside)


@dataclass(frozen=True)
class SubBlockCache(Knobs):
    """Fast-dLLM v2's two levels: exact K/V of finished blocks, and within a block only the window (a sub-block) is
    recomputed once its first token stands.

    Use it with a block_length that divides the model's block (published: 8 of 32). Approximate: the other columns of
    the block see the sub-block as it was at their last refresh. first_token: as in `BlockCache`; and as released, the
    column before the sub-block is not recomputed with it.
    """

    first_token: bool = False

    def check(self, spec: ModelSpec) -> None:
        _check_kv(spec)
        _check_block(spec, "sub_block", self.first_token)

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]:
        entry, inside = _block_columns(progress, spec)
        wide = torch.where((progress.step == 0)[:, None], entry, inside)
        fresh, before = progress.step == 0, spec.shift
        if self.first_token:
            own = _finish(progress, spec)
            yield from _finishing(progress, spec, own)
            progress = replace(progress, done=progress.done | own)
            wide = progress.between(_block_start(progress, spec), _visible_end(progress, spec))
            fresh, before = fresh | _finish(progress, spec, step=1), 0
        leading = progress.masked.gather(1, progress.start.clamp(max=progress.masked.shape[1] - 1)[:, None])[:, 0]
        narrow = progress.between(progress.start - before, progress.stop)
        yield from _plans(progress, fresh | leading, wide, narrow)


def _check_kv(spec: ModelSpec) -> None:
    if not spec.kv:
        raise ValueError("this model is an encoder and keeps no K/V between forwards; use cache=none")


def _check_block(spec: ModelSpec, name: str, first_token: bool) -> None:
    if first_token and not spec.shift:
        raise ValueError(
            f"cache={name} with first_token needs a token-shifted model, whose finished block predicts the next one's "
            "first token; use first_token=false"
        )
    if spec.block is None:
        raise ValueError(
            f"cache={name} needs a block-causal model and this one is bidirectional; use cache=prefix or cache=dual"
        )


def _refreshes(progress: Progress, every: int | None) -> Bool[Tensor, " B"]:
    """Rows that have just entered a window, or are due."""
    entered = progress.step == 0
    return entered if every is None else entered | (progress.step % every == 0)


def _visible_end(progress: Progress, spec: ModelSpec) -> Int[Tensor, " B"]:
    """The first column that the window cannot see: the live end, or the end of the window's block."""
    if spec.block is None:
        return progress.end
    return torch.minimum(progress.end, -(-progress.stop // spec.block) * spec.block)


def _frozen(progress: Progress, spec: ModelSpec, freeze_prompt: bool) -> Int[Tensor, " B"]:
    """The first column that is not frozen; a shifted model reads the response's first token off the prompt's last."""
    begins = progress.first & (progress.step == 0)
    frozen = (progress.prompt_len - spec.shift).clamp(min=0) * ~begins
    return frozen if freeze_prompt else torch.zeros_like(frozen)


def _block_columns(progress: Progress, spec: ModelSpec) -> tuple[Bool[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Columns to recompute on entering a window (from the block of the window before), and inside it (its block)."""
    assert spec.block is not None
    begin, end = _block_start(progress, spec), _visible_end(progress, spec)
    entry = progress.between(progress.previous // spec.block * spec.block, end)
    return entry, progress.between(begin - spec.shift, end)


def _block_start(progress: Progress, spec: ModelSpec) -> Int[Tensor, " B"]:
    """The first column of the window's block."""
    assert spec.block is not None
    return progress.start // spec.block * spec.block


def _finish(progress: Progress, spec: ModelSpec, step: int = 0) -> Bool[Tensor, " B"]:
    """Rows whose forward number `step` of the window is one over what stands before the window's block: that of their
    first window, and of a block's first one."""
    begin = _block_start(progress, spec)
    return (progress.step == step) & (begin > 0) & (progress.first | (begin == progress.start)) & ~progress.done


def _finishing(progress: Progress, spec: ModelSpec, chosen: Bool[Tensor, " B"]) -> Iterator[Plan]:
    """The forwards over the block before of the chosen rows (over all blocks of the prompt at first), asked for the
    window's first column where that begins a block."""
    assert spec.block is not None
    begin = _block_start(progress, spec)
    before = progress.between(progress.previous // spec.block * spec.block, begin)
    for number, some in ((1, chosen & (begin == progress.start)), (0, chosen & (begin < progress.start))):
        rows = some.nonzero()[:, 0]
        if len(rows):
            columns, want = before[rows], progress.start[rows, None][:, :number]
            yield Plan(rows, _packed(columns), columns.sum(1), len(rows) == len(some), want, only=True)


def _dilated(where: Bool[Tensor, "B T"], by: int) -> Bool[Tensor, "B T"]:
    """Columns at most `by` from one of `where`."""
    if by == 0:
        return where
    return torch.nn.functional.max_pool1d(where[:, None].float(), 2 * by + 1, stride=1, padding=by)[:, 0].bool()


def _moved_left(where: Bool[Tensor, "B T"], by: int) -> Bool[Tensor, "B T"]:
    return torch.nn.functional.pad(where[:, by:], (0, by))


def _plans(
    progress: Progress,
    refresh: Bool[Tensor, " B"],
    wide: Bool[Tensor, "B T"],
    narrow: Bool[Tensor, "B T"],
    want: Bool[Tensor, "B T"] | None = None,
    keep: bool = True,
) -> Iterator[Plan]:
    """Plans for the refreshing rows (columns `wide`, logits of the whole window) and the others (columns `narrow`,
    logits of `want`)."""
    batch = len(refresh)
    for chosen, columns, wanted in ((refresh, wide, None), (~refresh, narrow, want)):
        rows = (chosen & ~progress.done).nonzero()[:, 0]
        if len(rows):
            wanted = None if wanted is None else _packed(wanted[rows])
            columns = columns[rows]
            yield Plan(rows, _packed(columns), columns.sum(1), len(rows) == batch, wanted, keep)


def _packed(where: Bool[Tensor, "R T"]) -> Int[Tensor, "R Q"]:
    """The columns of `where`, ascending; a shorter row repeats its last one."""
    length, count = where.shape[1], where.sum(1)
    columns = torch.where(where, torch.arange(length), length).sort(1).values[:, : int(count.max())]
    return torch.minimum(columns, columns.gather(1, count[:, None] - 1))
