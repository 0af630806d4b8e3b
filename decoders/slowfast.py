"""SlowFast sampling (arXiv 2506.10848) as its authors released it. `Horizon` is our reading of the paper's text."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.compose import surest
from decoders.rules.basic import check_takes_all
from decoders.types import EVERYTHING, Candidates, CommitRule, Confidence, Memory, Revise, Shape, Update, View
from dllm.validation import Count, Fraction, NonNegative, Positive


@dataclass(frozen=True)
class SlowFast(Revise):
    """Goes through the window in cycles: `explore` forwards look how far the model is sure, then the span up to there
    is decoded.

    A step commits all confidences >= tau if they are at least two, else the surest. An exploring step looks at
    everything from the cycle's start on, a later one at the span.

    Each exploring step estimates the span: up to the farthest masked confidence >= see, or one column. The span is the
    first estimate that agrees with those before it, else the mean of the last `agree` ones.

    From the second forward of a span on, the model sees nothing after it. A cycle makes all its exploring forwards,
    also when nothing is left to fill. They count, as in the published numbers. Its rule
    is `FixedK("all")`.

    tau: confidence from which all commit.
    see: confidence from which a position counts as seen.
    explore: exploring forwards per cycle.
    agree, spread: so many estimates in a row agree when their standard deviation is below `spread` columns.
    """

    needs_one_block: ClassVar[bool] = True
    tau: Positive = 0.9
    see: Fraction = 0.3
    explore: Count = 6
    agree: Count = 2
    spread: NonNegative = 1.0
    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)

    def check_partners(self, rule: CommitRule, revise: Revise | None, confidence: Confidence) -> None:
        check_takes_all(self, rule)

    def init(self, shape: Shape) -> Memory:
        numbers = {name: shape.zeros(dtype=torch.long) for name in ("start", "end", "made")}
        return {**numbers, "estimates": shape.zeros(self.agree)}

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        start, end, made = memory["start"], memory["end"], memory["made"]
        position = torch.arange(view.masked.shape[1], device=view.masked.device)
        exploring = made < self.explore
        self._estimate(view, candidates, memory, position, exploring)
        made += exploring
        inside = view.masked & (position >= start[:, None])
        inside = inside & (exploring[:, None] | (position < end[:, None]))
        sure = inside & (candidates.confidence >= self.tau)
        write = torch.where((sure.sum(1) >= 2)[:, None], sure, surest(candidates.confidence, inside))

        left = view.masked & ~write
        span = left & (position >= start[:, None]) & (position < end[:, None])
        over = (made >= self.explore) & ~span.any(1)
        sight = torch.where(exploring | over, EVERYTHING, end)
        start.copy_(torch.where(over, end, start))
        end.masked_fill_(over, 0)
        made.masked_fill_(over, 0)
        return Update(candidates.tokens, write, hold=~over & ~left.any(1), sight=sight)

    def _estimate(
        self,
        view: View,
        candidates: Candidates,
        memory: Memory,
        position: Int[Tensor, " W"],
        exploring: Bool[Tensor, " B"],
    ) -> None:
        """Notes one more estimate of the exploring rows, and the end of their span once estimates agree."""
        start, end, made, estimates = (memory[name] for name in ("start", "end", "made", "estimates"))
        far = view.masked & (position >= start[:, None]) & (candidates.confidence >= self.see)
        length = (torch.where(far, position + 1, 0).amax(1) - start).clamp(min=1)
        newest = torch.cat([estimates[:, 1:], length[:, None].to(estimates.dtype)], 1)
        estimates.copy_(torch.where(exploring[:, None], newest, estimates))
        steady = (made + 1 >= self.agree) & (estimates.std(1, correction=0) < self.spread)
        settles = exploring & (end == 0) & (steady | (made + 1 >= self.explore))
        recent = torch.arange(self.agree, device=made.device) >= self.agree - 1 - made[:, None]
        mean = (estimates * recent).sum(1) / recent.sum(1)
        end.copy_(torch.where(settles, start + torch.where(steady, length, mean.long()), end))
