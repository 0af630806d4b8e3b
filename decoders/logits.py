"""The logits of a step and the statistics of them. Each is computed once, however many parts ask for it.

A vocabulary has 10^5 tokens, so one pass over the logits costs as much as the rest of a decoder's step. A sparse bonus
(`boosted`) therefore corrects the statistics and makes no new pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Logits:
    """Logits `[B, W, V]` in float32 (float64 stays float64), with MASK at -inf. Never changed in place."""

    def __init__(self, values: Float[Tensor, "B W V"], boost: "_Boost | None" = None) -> None:
        """boost: the values with a sparse bonus. They are summed only when somebody asks for all of them."""
        self._dense = values if values.dtype == torch.float64 else values.float()
        self._boost = boost

    @cached_property
    def values(self) -> Float[Tensor, "B W V"]:
        return self._dense if self._boost is None else self._boost.values()

    @property
    def shape(self) -> torch.Size:
        return self._dense.shape

    @property
    def device(self) -> torch.device:
        return self._dense.device

    @cached_property
    def _best(self) -> tuple[Float[Tensor, "B W"], Int[Tensor, "B W"]]:
        prob, tokens = _by_position(lambda values: tuple(values.softmax(-1).max(-1)), self.values)
        return prob, tokens

    @cached_property
    def top(self) -> tuple[Float[Tensor, "B W"], Int[Tensor, "B W"]]:
        """The largest logit and its token."""
        if self._boost is not None:
            return self._boost.top()
        tokens = self._best[1]
        return self.at(tokens[..., None])[..., 0], tokens

    @cached_property
    def log_norm(self) -> Float[Tensor, "B W"]:
        """log sum_v exp(l_v)."""
        return self.top[0] - self._best[0].log() if self._boost is None else self._boost.log_norm()

    def at(self, tokens: Int[Tensor, "B W K"]) -> Float[Tensor, "B W K"]:
        """Logits of given tokens."""
        return self.values.gather(-1, tokens) if self._boost is None else self._boost.at(tokens)

    def prob(self, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Probabilities of given tokens."""
        return (self.at(tokens[..., None])[..., 0] - self.log_norm).exp()

    def top_prob(self) -> Float[Tensor, "B W"]:
        """Probability of the likeliest token."""
        return (self.top[0] - self.log_norm).exp()

    def margin(self) -> Float[Tensor, "B W"]:
        """Probability of the likeliest token minus that of the second."""
        (best,) = _by_position(lambda values: (values.topk(2, dim=-1).values,), self.values)
        first, second = (best - self.log_norm[..., None]).exp().unbind(-1)
        return first - second

    @cached_property
    def entropy(self) -> Float[Tensor, "B W"]:
        """Entropy in nats."""

        def entropies(values: Tensor, log_norm: Tensor) -> tuple[Tensor]:
            log_prob = (values - log_norm[..., None]).clamp_(min=-1e4)  # 0 * -inf would be nan
            return (-torch.linalg.vecdot(log_prob.exp(), log_prob),)

        return _by_position(entropies, self.values, self.log_norm)[0]

    def sample(self, draw: Float[Tensor, "B W"], temperature: float) -> Int[Tensor, "B W"]:
        """Tokens of the tempered distribution, by inverse CDF summed in float64.

        draw: uniform numbers in (0, 1), float64. The result is distributed as with Gumbel-max (LLaDA, arXiv 2502.09992,
            which needs float64 noise for each token) and takes one random number per position.
        """

        def choose(values: Tensor, best: Tensor, draw: Tensor) -> tuple[Tensor]:
            cumulated = (values - best[:, None]).div_(temperature).exp_().cumsum(-1, dtype=torch.float64)
            total = cumulated[:, -1:]
            # right=True steps over tokens of probability 0; a draw must stay below the total
            target = (draw[:, None] * total).clamp(max=total * (1 - 2**-52))
            return (torch.searchsorted(cumulated, target, right=True)[:, 0],)

        return _by_position(choose, self.values, self.top[0], draw)[0]

    def nucleus(self, p: float) -> Float[Tensor, "B W"]:
        """The least logit of the fewest likeliest tokens whose probabilities reach p."""

        def least(values: Tensor, log_norm: Tensor) -> tuple[Tensor]:
            ordered = values.sort(dim=-1, descending=True).values
            prob = (ordered - log_norm[:, None]).exp_()
            before = prob.cumsum(-1).sub_(prob)
            return (ordered.masked_fill_(before >= p, float("inf")).amin(-1),)

        return _by_position(least, self.values, self.log_norm)[0]

    def probs(self) -> Float[Tensor, "B W V"]:
        """All probabilities, in a new tensor of the logits' size."""
        return (self.values - self.log_norm[..., None]).exp_()

    def boosted(self, tokens: Int[Tensor, "B W K"], bonus: Float[Tensor, "B W K"]) -> "Logits":
        """These logits plus a bonus for a few tokens per position.

        bonus: >= 0. The tokens of a position must differ where their bonus is not 0.
        """
        return Logits(self.values, _Boost(self, tokens, bonus))


@dataclass(frozen=True)
class _Boost:
    """Base logits plus sparse bonuses. The statistics of the sum are exact."""

    base: Logits
    tokens: Int[Tensor, "B W K"]
    bonus: Float[Tensor, "B W K"]

    def values(self) -> Float[Tensor, "B W V"]:
        return self.base.values.scatter_add(-1, self.tokens, self.bonus.to(self.base.values.dtype))

    def top(self) -> tuple[Float[Tensor, "B W"], Int[Tensor, "B W"]]:
        # bonuses are >= 0, so the winner is a boosted token or the old winner
        token = self.base.top[1]
        rivals = torch.cat([token[..., None], self.tokens], dim=-1)
        value, place = self.at(rivals).max(-1)
        return value, rivals.gather(-1, place[..., None])[..., 0]

    def log_norm(self) -> Float[Tensor, "B W"]:
        old = self.base.log_norm[..., None]
        before = (self.base.at(self.tokens) - old).exp()
        return self.base.log_norm + (before * self.bonus.expm1()).sum(-1).log1p()

    def at(self, tokens: Int[Tensor, "B W K"]) -> Float[Tensor, "B W K"]:
        same = tokens[..., None] == self.tokens[..., None, :]
        return self.base.at(tokens) + (same * self.bonus[..., None, :]).sum(-1)


_PIECE = 2**22  # elements; small enough that its temporaries are reused, not mapped anew


def _by_position(function: Callable[..., tuple[Tensor, ...]], *tensors: Float[Tensor, "B W ..."]) -> list[Tensor]:
    """Applies a function of `[N, ...]` tensors to all positions: at once, or in pieces on a CPU with a large
    vocabulary.

    A softmax with its maximum takes 1.6 times one plain softmax over everything. In pieces it takes 0.65 times.
    """
    batch, width = tensors[0].shape[:2]
    flat = [tensor.flatten(0, 1) for tensor in tensors]
    rows = batch * width if flat[0].is_cuda else max(1, _PIECE // flat[0].shape[-1])
    parts = [function(*pieces) for pieces in zip(*(tensor.split(rows) for tensor in flat), strict=True)]
    return [torch.cat(list(part)).unflatten(0, (batch, width)) for part in zip(*parts, strict=True)]
