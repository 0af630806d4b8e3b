"""Logit transforms of sampling: temperature, top-k, top-p, and no EOS.

A filter changes the distribution that candidates are drawn from and that confidence is taken of. Dream (arXiv
2508.15487) applies temperature, then top-p, then top-k; set the decoder's own temperature to 1 to sample from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from decoders.logits import Logits
from decoders.types import LogitTransform, Memory, Shape, View
from knobs import Count, In, Number, Scale


@dataclass(frozen=True)
class Temperature(LogitTransform):
    """Logits over t. Unlike the decoder's temperature it also flattens the confidences."""

    t: Scale = 1.0

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        return Logits(logits.values / self.t)


@dataclass(frozen=True)
class TopK(LogitTransform):
    """Only the k likeliest tokens (more where the k-th has equals)."""

    k: Count = 50

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        values = logits.values
        least = values.topk(min(self.k, values.shape[-1]), dim=-1).values[..., -1:]
        return Logits(values.masked_fill(values < least, float("-inf")))


@dataclass(frozen=True)
class TopP(LogitTransform):
    """The fewest likeliest tokens whose probabilities reach p (nucleus sampling), and equals of the last one."""

    p: Annotated[float, In("(0, 1]")] = 0.95

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        least = logits.nucleus(self.p)[..., None]
        return Logits(logits.values.masked_fill(logits.values < least, float("-inf")))


@dataclass(frozen=True)
class BanEos(LogitTransform):
    """EOS is never a candidate (LLaDA's logits_eos_inf); `ids` bans these instead of the model's EOS ids."""

    ids: Sequence[Number] | None = None

    def init(self, shape: Shape) -> Memory:
        if max(self.ids or (0,)) >= shape.vocab:
            raise ValueError(f"ids={list(self.ids or ())} of BanEos; give ids below the model's {shape.vocab}")
        return {}

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        values = logits.values.clone()
        for token_id in self.ids or view.spec.eos_ids:
            values[..., token_id] = float("-inf")
        return Logits(values)
