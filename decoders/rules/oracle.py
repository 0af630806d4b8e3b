"""Extremely greedy parallel decoding, the oracle of Learn2PD (arXiv 2509.25188, section 3.1): a ceiling and not a
method.

It knows what the model would write with one token per forward, and commits every candidate that agrees. Better
decisions could gain the distance from a real decoder to it. What lies beyond it, no decision about these candidates can
gain.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Int
from torch import Tensor

from decoders.types import Candidates, CommitRule, Memory, View


@dataclass(frozen=True)
class Oracle(CommitRule):
    """Commits the masked positions whose candidate is the reference's token. All EOS count alike.

    The loop makes the reference first: one token per forward, the surest, with the same model, cache and stop rule.
    Those forwards are not counted. Deviation: where no candidate agrees, the surest is committed and the row leaves its
    reference. The authors paste the reference's block there.
    """

    needs_reference: ClassVar[bool] = True

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        return agrees(view, candidates.tokens)


def agrees(view: View, tokens: Int[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
    """Where tokens are those of the view's reference, or both are an EOS."""
    assert view.reference is not None
    is_eos = view.spec.is_eos
    return (tokens == view.reference) | (is_eos(tokens) & is_eos(view.reference))
