"""Lets a LoRA adapter (arXiv 2106.09685) add something at some columns only, so that the others stay, bit for bit, what
they are without it (gated LoRA: Uno, multi-token prediction of Samragh et al. 2507.11851)."""

from jaxtyping import Bool
from torch import Tensor, nn


class Gate(nn.Module):
    """Stands where PEFT has the dropout of a LoRA layer's input: one for all layers of an adapter.

    It multiplies the input with 0 where the gate is closed, so that the layer adds B A 0 = 0 there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._open: Tensor | None = None

    def open_at(self, where: Bool[Tensor, "R Q"] | None) -> None:
        """The columns of the next forwards' inputs at which the adapter is active; None: all of them."""
        self._open = None if where is None else where[..., None]

    def forward(self, x: Tensor) -> Tensor:
        """x: `[R, Q, D]`."""
        return x if self._open is None else x * self._open.to(x.dtype)
