"""Rules that look at a row's sorted confidences: how many of the surest positions are safe to commit together.

Each sorts the masked positions by confidence, surest first, and commits the first n of them. Ties go to the left.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from decoders.rules.ranking import surest_first, to_positions
from decoders.types import Candidates, CommitRule, Confidence, Memory, View
from dllm.validation import Interval, NonNegative, Positive


@dataclass(frozen=True)
class Factor(CommitRule):
    """Commits the longest prefix with (n + 1)(1 - c_n) < f throughout (Fast-dLLM, arXiv 2505.22618, section 3.3).

    Under it, for f = 1, greedy parallel decoding equals greedy joint decoding.

    released: as in the authors' code, equality passes, and the last sorted position goes too when it is the first to
        fail. The paper's rule allows neither.
    """

    factor: Positive = 1.0
    released: bool = False
    scale: ClassVar[tuple[Confidence, ...]] = ("prob", "margin")

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        confidence, order, valid = surest_first(view, candidates)
        n = torch.arange(1, confidence.shape[1] + 1, device=confidence.device)
        excess = (n + 1) * (1 - confidence) - self.factor
        safe = (((excess <= 0) if self.released else (excess < 0)) & valid).cumprod(1)
        if self.released:
            number, masks = safe.sum(1, keepdim=True).clamp(min=1), valid.sum(1, keepdim=True)
            return to_positions(valid & (n <= torch.where(number == masks - 1, masks, number)), order)
        return to_positions(safe.bool(), order)


@dataclass(frozen=True)
class Frechet(CommitRule):
    """Commits the largest n whose worst case leaves the greedy tuple ahead by delta (Fast-dLLM++, arXiv 2606.02955).

    The n surest tokens have a joint probability of at least L_n = sum c_j - (n - 1). A competitor has at most U_n = 1 -
    c_n. The rule commits max {n : L_n - U_n > delta}. A larger n may pass where a smaller one fails. delta = 1 - f
    contains `Factor(f)`.
    """

    delta: Annotated[float, Interval("[-1, 1]")] = 0.25
    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        confidence, order, valid = surest_first(view, candidates)
        n = torch.arange(1, confidence.shape[1] + 1, device=confidence.device)
        total = confidence.masked_fill(~valid, 0).cumsum(1)
        margin = (total - (n - 1)).clamp(min=0) - (1 - confidence)
        best = torch.where((margin > self.delta) & valid, n, 0).amax(1, keepdim=True)
        return to_positions(n <= best, order)


@dataclass(frozen=True)
class EntropyBound(CommitRule):
    """EB-Sampler (arXiv 2505.24857): the largest n with (sum of entropies) - (largest entropy) <= gamma.

    The left side, in nats, bounds the mutual information that is ignored when the n tokens are committed together.
    """

    gamma: NonNegative = 0.1
    scale: ClassVar[tuple[Confidence, ...]] = ("entropy",)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        confidence, order, valid = surest_first(view, candidates)
        entropy = -confidence.masked_fill(~valid, 0)  # sorted, so the last of a prefix is its largest
        return to_positions((entropy.cumsum(1) - entropy <= self.gamma) & valid, order)


@dataclass(frozen=True)
class EntropyThreshold(CommitRule):
    """Commits every position whose entropy is at most theta nats (dParallel, arXiv 2509.26488, section 3.4)."""

    theta: NonNegative = 0.5
    scale: ClassVar[tuple[Confidence, ...]] = ("entropy",)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        return candidates.confidence >= -self.theta
