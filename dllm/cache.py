"""Which columns a step computes again. A strategy is a frozen config; it reads where each row is.

`prefix` and `dual` are Fast-dLLM's approximate caches (arXiv 2505.22618, section 3.2), `vicinity` and the refresh
interval dInfer's (arXiv 2510.08666), `prefill` is Dimple's (arXiv 2505.16990), `delayed` and `greedy` are dKV-Cache's
(arXiv 2505.15781). For block-causal models `block` is exact and `sub_block` is Fast-dLLM v2's (arXiv 2509.26328).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int

from dllm.plan import Plan, Progress, alike, plans
from dllm.spec import ModelSpec
from dllm.validation import Checked, Count, Number


class CacheStrategy(Checked, ABC):
    """Yields the plans of a step, one for rows that do alike. Together they hold every row that is not done."""

    @abstractmethod
    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]: ...

    def check(self, spec: ModelSpec) -> None:
        """Raises ValueError when the model cannot use this cache."""

    def gives_all(self, spec: ModelSpec) -> bool:
        """Whether each forward of a row gives logits for all columns of its window that are masked, so that several
        blocks can be its window. Its plans then have no `want` and no `only`."""
        return False

    def stateless(self, spec: ModelSpec) -> bool:
        """Whether the columns of a forward depend on nothing but where the row is, and not on its steps since it
        entered the window, so that several states of a row can share what is kept."""
        return False


@dataclass(frozen=True)
class WindowCache(CacheStrategy):
    """Computes the window and columns around it. Entering a window, and every `refresh_every` steps, it computes all.

    before, after: columns next to the window, None for all. Both None: no cache. `prefix` is 0 and None, `dual` 0 and
    0.
    warmup: the first steps of a request compute all columns too (dInfer's vicinity: 4).
    freeze_prompt: prompts are computed in the first forward and never again (Dimple's prefilling).
    look_back: for a token-shifted model also computes the column before, which predicts the window's first. Without it,
        as in Fast-dLLM's Dream file, the first keeps its logits of the pass over all columns.

    In a block-causal model, none after the window's block. With prompt p, window w, before=0, after=2:

        column     0  1  2  3  4  5  6  7  8  9 10 11
                   p  p  p  p  .  .  w  w  .  .  .  .
        step 0     x  x  x  x  x  x  x  x  x  x  x  x
        step 1                       x  x  x  x
    """

    before: Number | None = 0
    after: Number | None = 0
    refresh_every: Count | None = None
    warmup: Number = 0
    freeze_prompt: bool = False
    look_back: bool = True

    def check(self, spec: ModelSpec) -> None:
        """Raises ValueError for an encoder, which keeps no K/V, unless every column is computed."""
        if self != WindowCache(before=None, after=None):
            _check_kv(spec)

    def gives_all(self, spec: ModelSpec) -> bool:
        return self.look_back or not spec.shift

    def stateless(self, spec: ModelSpec) -> bool:
        return not self.refresh_every and not self.warmup

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]:
        start, stop, end = progress.start, progress.stop, _visible_end(progress, spec)
        floor = _frozen(progress, spec, self.freeze_prompt)
        if self.before is None and self.after is None:  # all columns in each step
            every = progress.between(floor, end)
            yield from plans(progress, ~progress.done, every, every, keep=self.freeze_prompt)
            return
        refresh = _refreshes(progress, self.refresh_every) | (progress.first & (progress.step < self.warmup))
        shift = spec.shift * self.look_back
        low = floor if self.before is None else np.maximum(start - self.before - shift, floor)
        high = end if self.after is None else np.minimum(stop + self.after, end)
        want = None
        if shift < spec.shift and self.before == 0:
            window = progress.between(start, stop)
            want = progress.between(start + spec.shift, stop)
            want = np.where(want.any(1, keepdims=True), want, window)
        yield from plans(progress, refresh, progress.between(floor, end), progress.between(low, high), want)


@dataclass(frozen=True)
class DelayedCache(CacheStrategy):
    """dKV-Cache: keeps a token's K/V from one forward after its commit on. Until then the column is computed again.

    near: None computes all masked columns (dKV-Cache-Decode). A number computes those of the window and the columns up
        to `near` from a fresh one (dKV-Cache-Greedy).
    refresh_every, freeze_prompt: as in `WindowCache` (dKV-Cache-Prefill freezes).
    entry: forwards on entering a window that compute all columns. Released: 2 in LLaDA's dKV-Cache-Decode, so that the
        K/V which are kept have seen the window's first tokens; 1 in its greedy file and in Dream's.
    """

    refresh_every: Count | None = 8
    near: Number | None = None
    freeze_prompt: bool = False
    entry: Count = 1

    def check(self, spec: ModelSpec) -> None:
        _check_kv(spec)

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]:
        floor = _frozen(progress, spec, self.freeze_prompt)
        visible = progress.between(floor, _visible_end(progress, spec))
        window = progress.between(progress.start, progress.stop)
        moving = (progress.masked | progress.fresh) & visible
        want = moving & window
        # a row that waits in a filled window which nothing changed has nothing to recompute: take its window
        want = np.where(want.any(1, keepdims=True), want, window)
        if self.near is not None:
            moving = (progress.masked & window) | _dilated(progress.fresh, self.near)
        before = np.pad(want[:, spec.shift :], ((0, 0), (0, spec.shift)))  # what a shifted model predicts from
        narrow = (moving | want | before) & visible
        refresh = _refreshes(progress, self.refresh_every) | (progress.step < self.entry)
        yield from plans(progress, refresh, visible, narrow, want)


@dataclass(frozen=True)
class BlockCache(CacheStrategy):
    """Exact K/V for block-causal models. In a block it computes all columns, also where the window is a part of it.

    On entering a block it computes the block before too: its last tokens were committed after its K/V was computed. So
    a finished block costs no forward of its own.

    first_token: the block before (at first the prompt's whole blocks) gets a forward of its own, which decides the new
        block's first token, blind to tokens given after it, and nothing else. So does Fast-dLLM v2's released sampler.
    """

    first_token: bool = False

    def check(self, spec: ModelSpec) -> None:
        _check_kv(spec)
        _check_block(spec, "block", self.first_token)

    def gives_all(self, spec: ModelSpec) -> bool:
        return not self.first_token

    def stateless(self, spec: ModelSpec) -> bool:
        return not self.first_token

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]:
        if not self.first_token:
            yield from plans(progress, progress.step == 0, *_block_columns(progress, spec))
            return
        own = _finish(progress, spec)
        yield from _finishing(progress, spec, own)
        progress = replace(progress, done=progress.done | own)
        inside = progress.between(_block_start(progress, spec), _visible_end(progress, spec))
        yield from plans(progress, np.zeros_like(own), inside, inside)


@dataclass(frozen=True)
class SubBlockCache(CacheStrategy):
    """Fast-dLLM v2's two levels: exact K/V of finished blocks; in a block whose first token is decided, only the
    window.

    It is approximate: other columns see the window as it was at their last refresh. Use a block_length that divides the
    model's block (published: 8 of 32). first_token: as in `BlockCache`, and the column before is not computed.
    """

    first_token: bool = False

    def check(self, spec: ModelSpec) -> None:
        _check_kv(spec)
        _check_block(spec, "sub_block", self.first_token)

    def gives_all(self, spec: ModelSpec) -> bool:
        return not self.first_token

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]:
        entry, inside = _block_columns(progress, spec)
        wide = np.where((progress.step == 0)[:, None], entry, inside)
        fresh, before = progress.step == 0, spec.shift
        if self.first_token:
            own = _finish(progress, spec)
            yield from _finishing(progress, spec, own)
            progress = replace(progress, done=progress.done | own)
            wide = progress.between(_block_start(progress, spec), _visible_end(progress, spec))
            fresh, before = fresh | _finish(progress, spec, step=1), 0
        leading = progress.masked[np.arange(len(fresh)), progress.start.clip(max=progress.masked.shape[1] - 1)]
        narrow = progress.between(progress.start - before, progress.stop)
        yield from plans(progress, fresh | leading, wide, narrow)


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


def _refreshes(progress: Progress, every: int | None) -> Bool[np.ndarray, " B"]:
    """Rows that have just entered a window, or are due."""
    entered = progress.step == 0
    return entered if every is None else entered | (progress.step % every == 0)


def _visible_end(progress: Progress, spec: ModelSpec) -> Int[np.ndarray, " B"]:
    """The first column that the window cannot see: the live end, or the end of the window's block."""
    if spec.block is None:
        return progress.end
    return np.minimum(progress.end, spec.block_start(progress.stop + spec.block - 1, progress.prompt_len))


def _frozen(progress: Progress, spec: ModelSpec, freeze_prompt: bool) -> Int[np.ndarray, " B"]:
    """The first column that is not frozen. A shifted model reads the response's first token off the prompt's last."""
    if not freeze_prompt:
        return np.zeros_like(progress.prompt_len)
    begins = progress.first & (progress.step == 0)
    return (progress.prompt_len - spec.shift).clip(min=0) * ~begins


def _block_columns(progress: Progress, spec: ModelSpec) -> tuple[Bool[np.ndarray, "B T"], Bool[np.ndarray, "B T"]]:
    """Columns to compute on entering a window (from the block of the window before on), and inside it (its block). The
    one before a block may be drafted there (`ModelSpec.context_causal`): on entering the next it is computed again."""
    first, end = spec.block_start(progress.previous, progress.prompt_len), _visible_end(progress, spec)
    entry = progress.between(first - spec.shift * spec.context_causal, end)
    return entry, progress.between(_block_start(progress, spec) - spec.shift, end)


def _block_start(progress: Progress, spec: ModelSpec) -> Int[np.ndarray, " B"]:
    return spec.block_start(progress.start, progress.prompt_len)


def _finish(progress: Progress, spec: ModelSpec, step: int = 0) -> Bool[np.ndarray, " B"]:
    """Rows whose forward `step` of the window is the one over what is before its block: of a row's first window,
    and of a block's first one."""
    begin = _block_start(progress, spec)
    return (progress.step == step) & (begin > 0) & (progress.first | (begin == progress.start)) & ~progress.done


def _finishing(progress: Progress, spec: ModelSpec, chosen: Bool[np.ndarray, " B"]) -> Iterator[Plan]:
    """Forwards of the chosen rows over the block before (at first over all blocks of the prompt). They ask for the
    window's first column where that begins a block."""
    begin = _block_start(progress, spec)
    before = progress.between(spec.block_start(progress.previous, progress.prompt_len), begin)
    for number, some in ((1, chosen & (begin == progress.start)), (0, chosen & (begin < progress.start))):
        every = np.flatnonzero(some)
        for group in alike(before[every].sum(1), progress.padding):
            rows = every[group]
            want = progress.start[rows, None][:, :number]
            yield Plan.of(
                rows, before[rows], len(rows) == len(some), want, only=True, seen=int(progress.end[rows].max())
            )


def _dilated(where: Bool[np.ndarray, "B T"], by: int) -> Bool[np.ndarray, "B T"]:
    """Columns at most `by` from one of `where`."""
    padded = np.pad(where, ((0, 0), (by, by)))
    near = np.lib.stride_tricks.sliding_window_view(padded, 2 * by + 1, axis=1)
    return np.logical_or.reduce(near, axis=-1)
