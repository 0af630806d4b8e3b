"""CreditDecoding (arXiv 2510.06133): logits get a bonus for tokens that were the favourite in earlier steps.

    C_t = beta * C_{t-1} + [v = argmax p_t] * p_t^gamma      (Eq. 6)
    l'_t = l_t + alpha * log(1 + C_t)                        (Eq. 7)

Any rule then works on the fused logits. The paper uses a threshold.

Deviation: the equations are the paper's. The published dInfer code names its credit by block position and keeps it when
a request stops early. Here credit belongs to one call and one block.
"""

from dataclasses import dataclass
from typing import Annotated

import torch

from decoders.logits import Logits
from decoders.types import LogitTransform, Memory, Shape, View
from dllm.validation import Count, Interval, NonNegative


@dataclass(frozen=True)
class Credit(LogitTransform):
    """Adds trace credit to the logits of masked positions. The defaults are the paper's (section 5.1).

    alpha: weight of the bonus. dInfer's default is 0.7.
    beta: how much credit a step leaves of the one before. dInfer's default is 0.8.
    gamma: exponent of the favourite's probability.
    slots: tokens per position whose credit is kept. It is exact while no position has had more favourites, and then
        drops the token with the least credit. None keeps the whole vocabulary (`[B, W, V]` float32).
    tuning_free: alpha = beta = 1 - (share of the window still masked), and gamma = 1 (section 4.3).
    spread: every token earns credit p^gamma, not the favourite alone (Eq. 13). It needs slots=None.
    """

    alpha: NonNegative = 0.65
    beta: Annotated[float, Interval("[0, 1)")] = 0.7
    gamma: NonNegative = 0.2
    slots: Count | None = 8
    tuning_free: bool = False
    spread: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spread and self.slots is not None:
            raise ValueError(f"credit slots={self.slots} with spread; spread credit needs the whole vocabulary: null")

    def init(self, shape: Shape) -> Memory:
        if self.slots is None:
            return {"credit": shape.zeros(shape.window, shape.vocab)}
        size = (shape.window, min(self.slots, shape.vocab))
        return {"credit": shape.zeros(*size), "token": shape.zeros(*size, dtype=torch.long)}

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        alpha, beta, gamma = self.alpha, self.beta, self.gamma
        if self.tuning_free:
            decided = 1 - view.masked.sum(1) / view.live.sum(1).clamp(min=1)
            alpha = beta = decided[:, None, None]
            gamma = 1.0
        credit = memory["credit"].mul_(beta)
        if self.spread:
            credit += logits.probs().pow_(gamma).mul_(view.masked[..., None])
            return Logits(logits.values + alpha * credit.log1p())
        favourite = logits.top[1][..., None]
        gain = logits.top_prob()[..., None].pow(gamma).to(credit.dtype) * view.masked[..., None]
        if self.slots is None:
            credit.scatter_add_(-1, favourite, gain)
            return Logits(logits.values + alpha * credit.log1p())
        token = memory["token"]
        known = (token == favourite) & (credit > 0)
        # a new favourite takes the least credited slot; empty ones hold 0
        weakest = torch.zeros_like(known).scatter_(-1, credit.argmin(-1, keepdim=True), True)
        new = weakest & ~known.any(-1, keepdim=True) & view.masked[..., None]
        token.copy_(torch.where(new, favourite, token))
        credit.copy_(torch.where(new, gain, credit + gain * known))
        return logits.boosted(token, alpha * credit.log1p())
