"""Hierarchical decoding: each run of masks is split, so that later steps have context on both sides."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from decoders.types import Candidates, CommitRule, Confidence, Memory, View
from dllm.validation import NonNegative


@dataclass(frozen=True)
class Hierarchical(CommitRule):
    """Commits every position above `high`, and the surest of each run of masks if it is above `low` (dInfer, arXiv
    2510.08666).

    Both comparisons are strict, as in the authors' code. high > 1 commits only the surest of each run.
    """

    high: NonNegative = 0.92
    low: NonNegative = 0.62
    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise ValueError(f"low={self.low}, high={self.high} of Hierarchical; give a low at most as large as high")

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        confidence = candidates.confidence.masked_fill(~view.masked, float("-inf"))
        run = runs(view.masked)
        best = torch.full_like(confidence, float("-inf")).scatter_reduce(1, run, confidence, "amax")
        first = confidence == best.gather(1, run)  # of equals in a run, the leftmost
        earlier = first.cumsum(1) - first.int()
        before_run = torch.full_like(earlier, earlier.shape[1]).scatter_reduce(1, run, earlier, "amin")
        surest = first & (earlier == before_run.gather(1, run))
        return view.masked & ((confidence > self.high) | (surest & (confidence > self.low)))


def runs(masked: Bool[Tensor, "B W"]) -> Tensor:
    """A number for each stretch of equal `masked`, counted from 0 in each row: `[B, W]`.

    masked   1 1 0 0 0 1 0
    runs     0 0 1 1 1 2 3
    """
    changes = torch.zeros_like(masked, dtype=torch.long)
    changes[:, 1:] = masked[:, 1:] != masked[:, :-1]
    return changes.cumsum(1)
