"""Logit transforms for sampling: temperature, top-k, top-p, and no EOS.

Each changes the distribution of which candidates and confidences are taken. Dream (arXiv 2508.15487) applies
temperature, then top-p, then top-k. To sample from the result, set the decoder's own temperature to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from decoders.logits import Logits
from decoders.types import LogitTransform, Memory, Shape, View
from dllm.validation import Count, Interval, Number, Scale


@dataclass(frozen=True)
class Temperature(LogitTransform):
    """Divides the logits by t. Unlike the decoder's temperature it also flattens the confidences."""

    t: Scale = 1.0

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        return logits.each(lambda values: values / self.t)


@dataclass(frozen=True)
class TopK(LogitTransform):
    """Keeps only the k likeliest tokens, and those as likely as the k-th."""

    k: Count = 50

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        return logits.top_k(self.k)


@dataclass(frozen=True)
class TopP(LogitTransform):
    """Keeps only the fewest likeliest tokens whose probabilities reach p (nucleus sampling), and those as likely as the
    last."""

    p: Annotated[float, Interval("(0, 1]")] = 0.95

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        return logits.top_p(self.p)


@dataclass(frozen=True)
class BanEos(LogitTransform):
    """Makes EOS impossible (LLaDA's logits_eos_inf).

    ids: token ids to ban instead. None: the model's EOS ids.
    """

    ids: Sequence[Number] | None = None

    def init(self, shape: Shape) -> Memory:
        if max(self.ids or (0,)) >= shape.vocab:
            raise ValueError(f"ids={list(self.ids or ())} of BanEos; give ids below the model's {shape.vocab}")
        return {}

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        return logits.without(self.ids or view.spec.eos_ids)


@dataclass(frozen=True)
class Cooling(LogitTransform):
    """Divides the logits by a temperature that falls linearly, from `hot` before the first of `steps` forwards to
    `cold` after the last."""

    hot: Scale = 0.8
    cold: Scale = 0.4
    steps: Count = 48

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        left = (self.steps - view.step).clamp(min=0) / self.steps
        temperature = (self.cold + (self.hot - self.cold) * left)[:, None].expand(view.tokens.shape)
        return logits.each(lambda values, here: values / here[:, None].to(values), temperature)
