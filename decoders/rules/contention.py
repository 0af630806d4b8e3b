"""A rule of our own: what a step commits together must not use up the tokens that its positions contend for."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from decoders.ranking import surest_first, to_positions
from decoders.types import Candidates, CommitRule, Memory, View
from knobs import Share, Weight


@dataclass(frozen=True)
class Contention(CommitRule):
    """The longest prefix whose earlier members keep little from any one token, given its last. Confidence: entropy.

    Position i has candidate a_i with probability c_i. Sorted surest first, commits the longest prefix n with

        max_v sum_{j < n} p_j(v) [v != a_j]  <=  beta * c_n

    throughout. Position 1 always passes, and the last one of a prefix is free: it is the step's one open choice. If
    only one alternative v is at stake, the left side over c_n bounds the probability that some earlier member is wrong
    given that the last is right (union bound and Bayes). Alternatives of different tokens are not added up: sums per
    token count positions that compete for one token, which is what parallel commits break, and spare those that are
    merely unsure each for itself. Where no two share an alternative, this is a threshold on the largest alternative.

    Positions below probability `sure` with the same candidate contend too: only the surest of them takes part in the
    step. Tokens that repeat with certainty (punctuation) are above `sure` and not concerned.

    beta: 0 commits one token per step (more only at probability 1), 0.02 to 0.05 is careful, 0.3 fast. sure: 0 lets
    equal candidates pass. Assumes that dependent positions show it by sharing tokens: two positions that are coupled
    through different tokens (the two halves of a name) look independent, as they do to every rule on marginals.
    Needs two tensors of the logits' size.
    """

    beta: Weight = 0.1
    sure: Share = 0.99

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
        """Unsure positions whose candidate a surer unsure position has too."""
        _, order, _ = surest_first(view, candidates)
        place = torch.arange(order.shape[1], device=order.device).expand_as(order)
        rank = torch.zeros_like(order).scatter_(1, order, place)
        same = candidates.tokens[:, :, None] == candidates.tokens[:, None, :]
        surer = (rank[:, None, :] < rank[:, :, None]) & unsure[:, None, :]
        return unsure & (same & surer).any(2)
