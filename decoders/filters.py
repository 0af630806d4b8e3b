"""Logit transforms for sampling: temperature, top-k, top-p, and no EOS.

Each changes the distribution of which candidates and confidences are taken. Dream (arXiv 2508.15487) applies
temperature, then top-p, then top-k. To sample from the result, set the decoder's own temperature to 1.
"""

from dataclasses import dataclass

from torch import Tensor

from decoders.logits import Logits
from decoders.types import LogitTransform, Memory, View


@dataclass(frozen=True)
class Temperature(LogitTransform):
    """Divides the logits by t. Unlike the decoder's temperature it also flattens the confidences."""

    t: float = 1.0

    def __post_init__(self) -> None:
        if not self.t > 0:
            raise ValueError(f"t={self.t}; a temperature here is positive (greedy: the decoder's temperature=0)")

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        return logits.each(lambda values: values / self.t)


@dataclass(frozen=True)
class TopK(LogitTransform):
    """Keeps only the k likeliest tokens, and those as likely as the k-th."""

    k: int = 50

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k={self.k}; keep at least 1 token")

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        def kept(values: Tensor) -> Tensor:
            least = values.topk(min(self.k, values.shape[-1]), dim=-1).values[..., -1:]
            return values.masked_fill(values < least, float("-inf"))

        return logits.each(kept)


@dataclass(frozen=True)
class TopP(LogitTransform):
    """Keeps only the fewest likeliest tokens whose probabilities reach p (nucleus sampling), and those as likely as the
    last."""

    p: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise ValueError(f"p={self.p}; a probability mass lies in (0, 1]")

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        def kept(values: Tensor, least: Tensor) -> Tensor:
            return values.masked_fill(values < least[:, None], float("-inf"))

        return logits.each(kept, logits.nucleus(self.p))


@dataclass(frozen=True)
class BanEos(LogitTransform):
    """Makes EOS impossible (LLaDA's logits_eos_inf).

    ids: token ids to ban instead. None: the model's EOS ids.
    """

    ids: tuple[int, ...] | None = None

    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        def kept(values: Tensor) -> Tensor:
            values = values.clone()
            for token_id in self.ids or view.spec.eos_ids:
                values[:, token_id] = float("-inf")
            return values

        return logits.each(kept)
