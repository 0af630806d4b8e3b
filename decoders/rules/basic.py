"""The basic commit rules: a fixed number per step, a confidence threshold, one from left to right, the first alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from decoders.rules.ranking import take
from decoders.types import Candidates, CommitRule, Confidence, Memory, Part, Shape, View
from dllm.validation import Count, Interval, NonNegative

Tau = Annotated[float, Interval("(0, 1e6]", "above 1: one token per step")]
SHARES: tuple[Confidence, ...] = ("prob", "margin")  # what a threshold is compared with


@dataclass(frozen=True)
class FixedK(CommitRule):
    """Commits the k surest masked positions per step, or all of them (k="all"). Ties go to the left.

    With confidence "prob" this is LLaDA's low-confidence remasking and MaskGIT's rule, with "random" it is LLaDA's
    random order (arXiv 2502.09992, section 2.4). The last step may commit fewer: the number is per step and not a
    schedule over the block.
    """

    k: Count | Literal["all"] = 1
    fixed_number: ClassVar[bool] = True
    commits_k: ClassVar[bool] = True
    memoryless: ClassVar[bool] = True

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        if self.k == "all":
            return view.masked
        return take(view, candidates, torch.full_like(view.step, self.k))


def check_takes_all(revise: Part, rule: CommitRule) -> None:
    """Raises ValueError unless a rule leaves every choice to the revision."""
    if rule != FixedK("all"):
        raise ValueError(f"{type(revise).__name__} decides alone, and {rule} would be ignored; use FixedK('all')")


@dataclass(frozen=True)
class Threshold(CommitRule):
    """Commits every masked position whose confidence is at least tau (Fast-dLLM, arXiv 2505.22618, section 3.3).

    tau > 1 commits one token per step. Deviation: the authors' code never rejects the first of its sorted list. Here
    the decoder commits the surest position (`Decoder.at_least_one`), with the same result.

    least: a step commits at least so many, the surest ones (num_to_transfer of LLaDA2.1).
    """

    tau: Tau = 0.9
    least: Count = 1
    scale: ClassVar[tuple[Confidence, ...]] = SHARES
    memoryless: ClassVar[bool] = True

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        sure = candidates.confidence >= self.tau
        if self.least == 1:
            return sure
        number = torch.full_like(view.step, self.least)
        return sure | take(view, candidates, number if view.forced is None else number * view.forced)


@dataclass(frozen=True)
class Prefix(CommitRule):
    """Commits from the left the masked positions whose confidence is at least tau, and the first one that is not.

    Ours, for models with causal knowledge (block diffusion from an autoregressive LM). It is the chain rule: a step has
    one open choice, and all on its left is settled, but for tokens of which the model is sure. Blockwise parallel
    decoding (Stern et al., arXiv 1811.03115) likewise accepts prefixes, by verifying them. tau > 1 commits one token
    per step from left to right.
    """

    tau: Tau = 0.9
    scale: ClassVar[tuple[Confidence, ...]] = SHARES

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        unsure = view.masked & (candidates.confidence < self.tau)
        ahead = unsure.cumsum(1)  # how many stand up to here
        may = 1 if view.forced is None else view.forced.long()[:, None]
        return view.masked & (ahead - unsure.long() == 0) & (ahead <= may)


@dataclass(frozen=True)
class LeftRun(CommitRule):
    """Commits from the left the masked positions whose confidence is at least tau, up to the first that is not; where
    there are none, the leftmost (DMax, arXiv 2604.08302). tau=0 commits all."""

    tau: NonNegative = 0.5
    scale: ClassVar[tuple[Confidence, ...]] = SHARES

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        unsure = view.masked & (candidates.confidence < self.tau)
        run = view.masked & (unsure.cumsum(1) == 0)
        return run | (view.masked & (view.masked.cumsum(1) == 1))


@dataclass(frozen=True)
class FirstAlone(CommitRule):
    """Commits a window's first column alone in its first step. Later steps commit what `rule` says.

    This is Fast-dLLM's file for Dream: the pass over all columns writes a block's first token, and cached passes begin
    after the column that predicts it (cache=dual_dream).
    """

    rule: CommitRule

    def parts(self) -> Sequence[Part]:
        return (self.rule,)

    def init(self, shape: Shape) -> Memory:
        return self.rule.init(shape)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        first = torch.arange(view.masked.shape[1], device=view.masked.device) == 0
        return torch.where((view.step == 0)[:, None], first, self.rule(view, candidates, memory))
