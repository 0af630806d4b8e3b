"""Soft inputs: positions that are still masked show the model a mixture of tokens and not their token alone, which is
MASK or, in uniform-state diffusion, noise."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Soft:
    """A mixture of tokens per window position.

    weights: of `tokens`, or of the whole vocabulary where tokens is None (then K = V).
    amount: how far from MASK towards the mixture, in [0, 1].
    tokens: ids of the K tokens.
    mode: "add" is E[MASK] + amount * mixture (iteration smoothing, dInfer). "slerp" turns E[MASK] towards the mixture
        on its sphere (soft tokens, arXiv 2609.37391). "lerp" is amount of the way from E[MASK] to the mixture, with a
        norm as far between theirs (DMax, arXiv 2604.08302).
    at: which positions show it: those that are still masked, or those that are decided.
    """

    weights: Float[Tensor, "B W K"]
    amount: Float[Tensor, "B W"]
    tokens: Int[Tensor, "B W K"] | None = None
    mode: Literal["add", "slerp", "lerp"] = "add"
    at: Literal["masked", "decided"] = "masked"

    def __getitem__(self, rows: Int[Tensor, " R"]) -> "Soft":
        tokens = None if self.tokens is None else self.tokens[rows]
        return Soft(self.weights[rows], self.amount[rows], tokens, self.mode, self.at)

    def embed(self, embedding: nn.Module, mask: Float[Tensor, "... D"]) -> Float[Tensor, "B W D"]:
        """Input embeddings of the window positions. embedding: the model's input embedding, with `weight` `[V, D]`.
        mask: what the positions show without the mixture, E[MASK] or noise."""
        table = embedding.weight
        assert isinstance(table, Tensor)
        weights, amount = self.weights.to(table.dtype), self.amount.to(table.dtype)[..., None]
        if self.tokens is None:
            mixture = weights @ table[: weights.shape[-1]]
        else:
            mixture = (weights[..., None] * table[self.tokens]).sum(-2)
        if self.mode == "add":
            return mask + amount * mixture
        return _slerp(mask, mixture, amount) if self.mode == "slerp" else _lerp(mask, mixture, amount)


@dataclass(frozen=True)
class SoftInput:
    """What positions of the window show, and their place on the canvas.

    soft: the mixture. None: nothing but the token.
    columns: canvas columns of the window.
    where: positions at which it holds.
    """

    soft: Soft | None
    columns: Int[Tensor, "B W"]
    where: Bool[Tensor, "B W"]

    def __getitem__(self, rows: Int[Tensor, " R"]) -> "SoftInput":
        soft = None if self.soft is None else self.soft[rows]
        return SoftInput(soft, self.columns[rows], self.where[rows])

    def embed(self, embedding: nn.Module, alone: Int[Tensor, "B T"] | int) -> Float[Tensor, "B W D"]:
        """Input embeddings of the window positions. alone: what they show without the mixture, a canvas of noise or
        MASK. Raises ValueError for an embedding that is offloaded."""
        table = embedding.weight
        assert isinstance(table, Tensor) and self.soft is not None
        if table.is_meta:
            raise ValueError("soft inputs mix the whole input embedding, so it cannot be offloaded")
        return self.soft.embed(embedding, table[alone if isinstance(alone, int) else alone.gather(1, self.columns)])


def _lerp(mask: Float[Tensor, "... D"], mixture: Float[Tensor, "B W D"], amount: Float[Tensor, "B W 1"]) -> Tensor:
    """On the line from mask to the mixture, with a norm on the line between their norms."""
    norm = torch.lerp(mask.norm(dim=-1, keepdim=True).expand_as(amount), mixture.norm(dim=-1, keepdim=True), amount)
    return norm * nn.functional.normalize(torch.lerp(mask.expand_as(mixture), mixture, amount), dim=-1)


def _slerp(mask: Float[Tensor, "... D"], mixture: Float[Tensor, "B W D"], amount: Float[Tensor, "B W 1"]) -> Tensor:
    """A vector of mask's norm, turned by `amount` of the angle from mask to the mixture. Linear where they are nearly
    parallel."""
    norm = mask.norm(dim=-1, keepdim=True)
    start, end = (mask / norm).expand_as(mixture), nn.functional.normalize(mixture, dim=-1)
    angle = (start * end).sum(-1, keepdim=True).clamp(-1, 1).acos()
    sine = angle.sin().clamp(min=1e-6)
    turned = (((1 - amount) * angle).sin() * start + (amount * angle).sin() * end) / sine
    straight = nn.functional.normalize(torch.lerp(start, end, amount), dim=-1)
    return norm * torch.where(angle.sin() < 1e-4, straight, turned)
