"""Soft steps: in the next forward, positions show the model what it thought of them, and not a token or MASK alone."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from decoders.logits import Logits
from decoders.types import CommitRule, Confidence, Memory, Revise, Shape, SoftStep, View
from dllm.soft import Soft
from dllm.validation import Count, Fraction, NonNegative


@dataclass(frozen=True)
class Smoothing(SoftStep):
    """Iteration smoothing (dInfer, arXiv 2510.08666): E[MASK] + w * sum_v p_v E_v, with w = min(start + growth * step,
    limit)."""

    start: NonNegative = 0.15
    growth: NonNegative = 0.02
    limit: NonNegative = 0.3

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Soft:
        amount = (self.start + self.growth * view.step).clamp(max=self.limit)
        return Soft(logits.probs(), amount[:, None].expand(view.tokens.shape))


@dataclass(frozen=True)
class Slerp(SoftStep):
    """Soft tokens (arXiv 2609.37391): E[MASK] turned by `amount` of the angle towards a mixture of tokens, at MASK's
    norm. The mixture is the sum of p_v E_v over the `top` likeliest tokens."""

    amount: Fraction = 0.3
    top: Count = 2

    def init(self, shape: Shape) -> Memory:
        if self.top > shape.vocab:
            raise ValueError(f"top={self.top} is more than the vocabulary of {shape.vocab} tokens")
        return {}

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Soft:
        tokens = logits.values.topk(self.top, dim=-1).indices
        weights = logits.probs_at(tokens)
        return Soft(weights, torch.full(view.tokens.shape, self.amount, device=weights.device), tokens, mode="slerp")


@dataclass(frozen=True)
class SelfDoubt(SoftStep):
    """DMax's soft input (arXiv 2604.08302): a decided position lies between MASK and its likeliest token, as near to
    that as it is likely. `TokenEdit(0.0)` is what writes these tokens."""

    needs_decided: ClassVar[bool] = True

    def check_partners(self, rule: CommitRule, revise: Revise | None, confidence: Confidence) -> None:
        if revise is None or not revise.edits:
            raise ValueError("SelfDoubt shows what TokenEdit writes; give the decoder revise=TokenEdit(0.0)")

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Soft:
        prob, tokens = logits.top_prob(), logits.top[1][..., None]
        return Soft(torch.ones_like(prob)[..., None], prob, tokens, mode="lerp", at="decided")


@dataclass(frozen=True)
class SelfCondition(SoftStep):
    """The whole predicted distribution, next to the token that the position shows."""

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Soft:
        return Soft(logits.probs(), torch.ones(view.tokens.shape, device=logits.device))
