"""A rule of our own: positions committed together must not contend for the same token."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from decoders.rules.ranking import surest_first, to_positions
from decoders.types import Candidates, CommitRule, Confidence, Memory, View
from dllm.validation import Fraction, NonNegative


@dataclass(frozen=True)
class Contention(CommitRule):
    """Commits the longest prefix whose earlier members keep little probability from any one token.

    Position i has candidate a_i with probability c_i. Sorted surest first, the rule commits the longest prefix n with

        max_v sum_{j < n} p_j(v) [v != a_j]  <=  beta * c_n

    throughout. The first position always passes. The last one of a prefix is not in the sum: it is the step's one open
    choice.

    Why: if a single alternative v is at stake, the left side over c_n bounds the probability that an earlier member is
    wrong given that the last is right (union bound and Bayes). A sum per token counts positions that compete for one
    token, which is what parallel commits break. It spares positions that are unsure each for itself. Where no two share
    an alternative, the rule is a threshold on the largest alternative.

    Positions with the same candidate contend too. Of those below probability `sure`, only the surest takes part in a
    step. Tokens that repeat with certainty (punctuation) are above `sure`.

    It assumes that dependent positions share tokens. Two positions that are coupled through different tokens (the
    halves of a name) look independent, as they do to every rule on marginals. It needs two tensors of the logits' size.

    beta: 0 commits one token per step (more only at probability 1). 0.02 to 0.05 is careful, 0.3 is fast.
    sure: 0 lets equal candidates pass together.
    """

    beta: NonNegative = 0.1
    sure: Fraction = 0.99
    scale: ClassVar[tuple[Confidence, ...]] = ("entropy",)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        tokens = candidates.tokens
        prob = view.logits.prob(tokens)
        view = replace(view, masked=view.masked & ~self._waits(view, candidates, view.masked & (prob < self.sure)))
        _, order, valid = surest_first(view, candidates)

        rest = view.logits.probs().scatter_(-1, tokens[..., None], 0).mul_(view.masked[..., None])
        kept = rest.gather(1, order[..., None].expand_as(rest)).cumsum_(1).amax(-1)
        before = kept.roll(1, dims=1)
        before[:, 0] = 0
        safe = (before <= self.beta * prob.gather(1, order)) & valid
        return to_positions(safe.cumprod(1).bool(), order)

    def _waits(self, view: View, candidates: Candidates, unsure: Bool[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
        """Unsure positions whose candidate is also that of a surer unsure position."""
        _, order, _ = surest_first(view, candidates)
        place = torch.arange(order.shape[1], device=order.device).expand_as(order)
        rank = torch.zeros_like(order).scatter_(1, order, place)
        same = candidates.tokens[:, :, None] == candidates.tokens[:, None, :]
        surer = (rank[:, None, :] < rank[:, :, None]) & unsure[:, None, :]
        return unsure & (same & surer).any(2)
