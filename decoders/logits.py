"""The logits of a step and what is computed from them: every statistic once, however many parts ask for it.

A vocabulary has 10^5 tokens, so a pass over the logits costs as much as all the rest of a decoder's step. A sparse
bonus (`boosted`) therefore corrects the statistics instead of passing over the sum again.
"""

from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Logits:
    """Logits `[B, W, V]` in float32 (float64 stays), MASK at -inf. Never changed in place."""

    def __init__(self, values: Float[Tensor, "B W V"]) -> None:
        self._dense = values if values.dtype == torch.float64 else values.float()

    @cached_property
    def values(self) -> Float[Tensor, "B W V"]:
        return self._dense

    @property
    def shape(self) -> torch.Size:
        return self._dense.shape

    @property
    def device(self) -> torch.device:
        return self._dense.device

    @cached_property
    def top(self) -> tuple[Float[Tensor, "B W"], Int[Tensor, "B W"]]:
        """The largest logit and its token."""
        best, tokens = self.values.max(-1)
        return best, tokens

    @cached_property
    def log_norm(self) -> Float[Tensor, "B W"]:
        """log sum exp."""
        best = self.top[0]
        return best + (self.values - best[..., None]).exp_().sum(-1).log_()

    def at(self, tokens: Int[Tensor, "B W K"]) -> Float[Tensor, "B W K"]:
        """Logits of given tokens."""
        return self.values.gather(-1, tokens)

    def prob(self, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Probabilities of given tokens."""
        return (self.at(tokens[..., None])[..., 0] - self.log_norm).exp()

    def top_prob(self) -> Float[Tensor, "B W"]:
        """Probability of the likeliest token."""
        return (self.top[0] - self.log_norm).exp()

    def margin(self) -> Float[Tensor, "B W"]:
        """Probability of the likeliest token minus that of the second."""
        first, second = (self.values.topk(2, dim=-1).values - self.log_norm[..., None]).exp().unbind(-1)
        return first - second

    @cached_property
    def entropy(self) -> Float[Tensor, "B W"]:
        """In nats."""
        log_prob = (self.values - self.log_norm[..., None]).clamp_(min=-1e4)  # 0 * -inf would be nan
        return -torch.linalg.vecdot(log_prob.exp(), log_prob)

    def probs(self) -> Float[Tensor, "B W V"]:
        """All probabilities: one new logits-sized tensor."""
        return (self.values - self.log_norm[..., None]).exp_()

    def boosted(self, tokens: Int[Tensor, "B W K"], bonus: Float[Tensor, "B W K"]) -> "Logits":
        """These logits plus a bonus >= 0 for a few tokens per position, all different where the bonus is not 0."""
        return _Boosted(self, tokens, bonus)


class _Boosted(Logits):
    """Base logits plus sparse bonuses; exact, and dense only when somebody asks for `values`."""

    def __init__(self, base: Logits, tokens: Int[Tensor, "B W K"], bonus: Float[Tensor, "B W K"]) -> None:
        self._base, self._tokens, self._bonus = base, tokens, bonus
        self._dense = base.values  # for shape and device

    @cached_property
    def values(self) -> Float[Tensor, "B W V"]:
        return self._base.values.scatter_add(-1, self._tokens, self._bonus.to(self._base.values.dtype))

    @cached_property
    def top(self) -> tuple[Float[Tensor, "B W"], Int[Tensor, "B W"]]:
        # bonuses are >= 0, so the winner is a boosted token or the old winner
        token = self._base.top[1]
        rivals = torch.cat([token[..., None], self._tokens], dim=-1)
        value, place = self.at(rivals).max(-1)
        return value, rivals.gather(-1, place[..., None])[..., 0]

    @cached_property
    def log_norm(self) -> Float[Tensor, "B W"]:
        old = self._base.log_norm[..., None]
        before = (self._base.at(self._tokens) - old).exp()
        return self._base.log_norm + (before * self._bonus.expm1()).sum(-1).log1p()

    def at(self, tokens: Int[Tensor, "B W K"]) -> Float[Tensor, "B W K"]:
        same = tokens[..., None] == self._tokens[..., None, :]
        return self._base.at(tokens) + (same * self._bonus[..., None, :]).sum(-1)
