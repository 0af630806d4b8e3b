"""A learned mix of neighbouring columns' input embeddings, for small models."""

import torch
from torch import Tensor, nn


class NeighbourMix(nn.Module):
    """Adds the neighbouring columns' embeddings to each column's own, per channel: e[t] + u * e[t-1] + v * e[t+1].

    With it a small transformer learns "the last name that follows this first name" in one attention step. It reads
    the canvas only, never hidden states, so it is the same under every cache. A block-causal model only looks back.
    """

    def __init__(self, width: int, look_ahead: bool = True) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.zeros(width))
        self.after = nn.Parameter(torch.zeros(width)) if look_ahead else None

    def reset_(self, std: float, rng: torch.Generator) -> None:
        """Random weights for training from scratch (zeros leave the backbone as it is)."""
        for weight in self.parameters():
            nn.init.normal_(weight, std=std, generator=rng)

    def forward(self, here: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Embeddings `[R, Q, D]` of the columns and their neighbours (zero where there is none) to mixed ones."""
        mixed = here + self.before * before
        return mixed if self.after is None else mixed + self.after * after
