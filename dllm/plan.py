"""One forward over some rows of a batch, and where the rows stand when it is planned."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

PADDING = 128  # columns that a CPU may compute for nothing before one more forward is cheaper


@dataclass(frozen=True)
class Plan:
    """One forward over some of the rows. A shorter row repeats its last column in `query` and `want`.

    rows: batch rows, ascending.
    query: canvas columns to compute, ascending. Their K/V is overwritten.
    num_queried: different columns per row.
    all_rows: whether rows are the whole batch in order.
    want: columns whose logits are needed; others keep those of the forward before. None: the whole window.
    keep: whether K/V is stored and read. False where every query holds all that its rows see.
    only: nothing but the wanted columns may be decided, because no others have logits yet.
    first: the first column of every row, where all rows compute the same ones with no gap. None: they may not.
    seen: no row sees this column or one after it, so their K/V is not read: at least each row's live end. None: the
        canvas' end.
    """

    rows: Int[Tensor, " R"]
    query: Int[Tensor, "R Q"]
    num_queried: Int[Tensor, " R"]
    all_rows: bool
    want: Int[Tensor, "R F"] | None = None
    keep: bool = True
    only: bool = False
    first: int | None = None
    seen: int | None = None

    @classmethod
    def of(
        cls,
        rows: Int[np.ndarray, " R"],
        query: Bool[np.ndarray, "R T"],
        all_rows: bool,
        want: Int[np.ndarray, "R F"] | None = None,
        *,
        keep: bool = True,
        only: bool = False,
        seen: int | None = None,
    ) -> "Plan":
        """The plan to recompute the columns of `query`."""
        columns, number, to_tensor = pack(query), query.sum(1), torch.from_numpy
        wanted = None if want is None else to_tensor(want)
        same = len(rows) == 1 or bool((query == query[0]).all())
        first = int(columns[0, 0]) if same and columns[0, -1] - columns[0, 0] < number[0] else None
        tensors = to_tensor(rows), to_tensor(columns), to_tensor(number)
        return cls(*tensors, all_rows, wanted, keep, only, first, seen)

    def to(self, device: torch.device) -> "Plan":
        if device == self.rows.device:
            return self
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()})


@dataclass(frozen=True)
class Progress:
    """Where each row is, on the host, so that planning never waits for the device.

    start, previous: first column of the window, and of the window before (0 in the first).
    end: the live end (exclusive).
    step: forwards made in this window; 0 when it was just entered.
    first: rows in their first window, of which no K/V exists at step 0.
    done: rows that need no forward.
    masked: columns still to be filled.
    fresh: columns that the last forward wrote. Their K/V is that of another token.
    window: columns per window.
    padding: columns that may be computed for nothing before rows of other widths go apart. None: any number.
    """

    prompt_len: Int[np.ndarray, " B"]
    start: Int[np.ndarray, " B"]
    end: Int[np.ndarray, " B"]
    step: Int[np.ndarray, " B"]
    first: Bool[np.ndarray, " B"]
    previous: Int[np.ndarray, " B"]
    done: Bool[np.ndarray, " B"]
    masked: Bool[np.ndarray, "B T"]
    fresh: Bool[np.ndarray, "B T"]
    window: int
    padding: int | None = None

    @property
    def stop(self) -> Int[np.ndarray, " B"]:
        """The column after the window."""
        return self.start + self.window

    def between(self, low: Int[np.ndarray, " B"] | int, high: Int[np.ndarray, " B"]) -> Bool[np.ndarray, "B T"]:
        """Canvas columns of `[low, high)`, before the live end."""
        columns = np.arange(self.masked.shape[1])
        return (columns >= np.reshape(low, (-1, 1))) & (columns < np.minimum(high, self.end)[:, None])


def plans(
    progress: Progress,
    refresh: Bool[np.ndarray, " B"],
    wide: Bool[np.ndarray, "B T"],
    narrow: Bool[np.ndarray, "B T"],
    want: Bool[np.ndarray, "B T"] | None = None,
    keep: bool = True,
) -> Iterator[Plan]:
    """Plans for the refreshing rows (columns `wide`, all logits) and the others (`narrow`, logits of `want`). Rows of
    much different widths get plans of their own, within `progress.padding`."""
    for chosen, columns, wanted in ((refresh, wide, None), (~refresh, narrow, want)):
        every = (chosen & ~progress.done).nonzero()[0]
        for some in alike(columns[every].sum(1), progress.padding):
            rows = every[some]
            wanted_here = None if wanted is None else pack(wanted[rows])
            seen = int(progress.end[rows].max())
            yield Plan.of(rows, columns[rows], len(rows) == len(chosen), wanted_here, keep=keep, seen=seen)


def padding_on(device: torch.device) -> int | None:
    """On a CPU columns cost more than forwards. Elsewhere what one more forward costs was not measured, and where
    shapes are fixed it costs as much as that of the whole batch."""
    return PADDING if device.type == "cpu" else None


def alike(widths: Int[np.ndarray, " R"], padding: int | None) -> list[Int[np.ndarray, " G"]]:
    """Numbers of rows that are padded to one width, in groups: each with at most `padding` columns more than it would
    have in two. With 128, widths 9 40 9 300 9 give [0, 1, 2, 4] and [3]. No rows give no groups."""
    if not len(widths):
        return []
    order = widths.argsort(kind="stable")
    saved = np.arange(1, len(order)) * (widths[order[-1]] - widths[order[:-1]])  # by cutting after each
    if padding is None or not len(saved) or saved.max() <= padding:
        return [np.arange(len(widths))]
    cut = int(saved.argmax()) + 1
    halves = (np.sort(order[:cut]), np.sort(order[cut:]))
    return [half[group] for half in halves for group in alike(widths[half], padding)]


def pack(where: Bool[np.ndarray, "R T"]) -> Int[np.ndarray, "R Q"]:
    """The columns of `where`, ascending. A shorter row repeats its last: 0110, 1011 give [1, 2, 2], [0, 2, 3]."""
    if len(where) == 1:
        return where.nonzero()[1][None]
    count = where.sum(1)
    assert count.all(), "a row without columns would get those of another"
    begin = count.cumsum() - count
    return np.nonzero(where)[1][begin[:, None] + np.minimum(np.arange(count.max()), count[:, None] - 1)]
