"""Blocks inside a window: for decoders that look beyond the block which they fill."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from decoders.compose import or_surest, reset
from decoders.types import Candidates, CommitRule, Memory, Part, Shape, View
from dllm.validation import Count


@dataclass(frozen=True)
class InBlocks(CommitRule):
    """Fills the window block by block, from left to right: `rule` sees the masks of the first block that has any, and
    at least its surest is committed.

    With a window of the whole answer (block_length=null), soft steps, gaps and stop rules then look beyond the block.

    block: columns of a block.
    clock: what `rule` counts as steps: those in its "block", or in the "window" (dInfer's iterations run on).
    """

    rule: CommitRule
    block: Count = 32
    clock: Literal["block", "window"] = "block"

    def parts(self) -> Sequence[Part]:
        return (self.rule,)

    def init(self, shape: Shape) -> Memory:
        inner = {f"rule.{name}": tensor for name, tensor in self.rule.init(shape).items()}
        return inner | {name: shape.zeros(dtype=torch.long) for name in ("turn", "since")}

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        block = torch.arange(view.masked.shape[1], device=view.masked.device) // self.block
        turn = torch.where(view.masked, block, block[-1]).amin(1)
        stays = (turn == memory["turn"]) & (view.step > 0)
        memory["since"].copy_(torch.where(stays, memory["since"] + 1, 0))
        memory["turn"].copy_(turn)
        inner = {name.removeprefix("rule."): memory[name] for name in memory if name.startswith("rule.")}
        step = view.step
        if self.clock == "block":
            reset([inner], ~stays)
            step = memory["since"].clone()
        inside = view.masked & (block == turn[:, None])
        write = self.rule(replace(view, masked=inside, step=step), candidates, inner) & inside
        return or_surest(write, candidates.confidence, inside)
