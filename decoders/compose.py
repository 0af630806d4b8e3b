"""A decoder is a composition: logit transforms, candidates, a commit rule, at least one commit, and optionally a
revision."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from decoders.propose import CONFIDENCES, Confidence, propose
from decoders.types import CommitRule, LogitTransform, Memory, Revise, Shape, Update, View


@dataclass(frozen=True)
class Decoder:
    """Decides what a step writes. Frozen config; all state lives in the memory that the loop keeps for one decode call.

    temperature: 0 is greedy. confidence: how positions are compared (see `decoders.propose`); its scale is the rule's
    to know.
    """

    rule: CommitRule
    transforms: Sequence[LogitTransform] = ()
    revise: Revise | None = None
    temperature: float = 0.0
    confidence: Confidence = "prob"

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature}; it is 0 (greedy) or positive")
        if self.confidence not in CONFIDENCES:
            raise ValueError(f"unknown confidence {self.confidence!r}; choose one of {', '.join(CONFIDENCES)}")

    def init(self, shape: Shape) -> list[Memory]:
        """Empty memory of every part, for one decode call."""
        return [part.init(shape) for part in self._parts()]

    def step(self, view: View, memory: list[Memory]) -> Update:
        """One decision for all rows. Changes `memory` only."""
        reset(memory, view.step == 0)
        of_transforms, of_rule, of_revise = memory[: len(self.transforms)], memory[len(self.transforms)], memory[-1]
        logits = view.logits
        for transform, part_memory in zip(self.transforms, of_transforms, strict=True):
            logits = transform(View(view.tokens, view.masked, view.live, logits, view.step, view.noise), part_memory)
        candidates = propose(view, logits, self.temperature, self.confidence)
        write = self.rule(view, candidates, of_rule) & view.masked
        write = write | surest(candidates.confidence, view.masked & ~write.any(1, keepdim=True))
        if self.revise is None:
            return Update(candidates.tokens, write)
        update = self.revise(view, candidates, write, of_revise)
        return Update(update.tokens, update.write & view.live)

    def _parts(self) -> tuple[LogitTransform | CommitRule | Revise, ...]:
        return (*self.transforms, self.rule, *(() if self.revise is None else (self.revise,)))


def reset(memory: list[Memory], rows: Bool[Tensor, " B"]) -> None:
    """Zeroes the memory of the given rows in place: evidence of one block, or request, must not leak into the next."""
    for part in memory:
        for tensor in part.values():
            tensor.masked_fill_(rows.view(-1, *[1] * (tensor.ndim - 1)), 0)


def surest(confidence: Float[Tensor, "B W"], where: Bool[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
    """The most confident position of `where` in each row (the first of equals); no position in a row where none is
    allowed."""
    best = confidence.masked_fill(~where, float("-inf")).argmax(1, keepdim=True)
    return torch.zeros_like(where).scatter_(1, best, True) & where
