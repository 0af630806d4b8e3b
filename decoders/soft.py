"""Soft steps: in the next forward, positions that stay masked show the model what it thought of them."""

from dataclasses import dataclass

import torch

from decoders.logits import Logits
from decoders.types import Memory, Shape, SoftStep, View
from dllm.soft import Soft


@dataclass(frozen=True)
class Smoothing(SoftStep):
    """Iteration smoothing (dInfer, arXiv 2510.08666): E[MASK] + w * sum_v p_v E_v, with w = min(start + growth * step,
    limit)."""

    start: float = 0.15
    growth: float = 0.02
    limit: float = 0.3

    def __post_init__(self) -> None:
        if min(self.start, self.growth, self.limit) < 0:
            raise ValueError(f"start={self.start}, growth={self.growth}, limit={self.limit}; all are >= 0")

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Soft:
        amount = (self.start + self.growth * view.step).clamp(max=self.limit)
        return Soft(logits.probs(), amount[:, None].expand(view.tokens.shape))


@dataclass(frozen=True)
class Slerp(SoftStep):
    """Soft tokens (arXiv 2609.37391): E[MASK] turned by `amount` of the angle towards a mixture of tokens, at MASK's
    norm. The mixture is the sum of p_v E_v over the `top` likeliest tokens."""

    amount: float = 0.3
    top: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.amount <= 1 or self.top < 1:
            raise ValueError(f"amount={self.amount}, top={self.top}; amount lies in [0, 1], top is at least 1")

    def init(self, shape: Shape) -> Memory:
        if self.top > shape.vocab:
            raise ValueError(f"top={self.top} is more than the vocabulary of {shape.vocab} tokens")
        return {}

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Soft:
        values, tokens = logits.values.topk(self.top, dim=-1)
        weights = (values - logits.log_norm[..., None]).exp()
        return Soft(weights, torch.full(view.tokens.shape, self.amount, device=weights.device), tokens, mode="slerp")
