"""Products of a few columns with weights that no processor cache holds, where the usual ones waste time.

With few columns a product is as fast as its weights are read. On AMD processors MKL reads them in `x @ W.T` at a part
of that speed, and in `W @ x.T` at nearly all of it (`scripts/bench/products.py`, docs/performance.md). A decode that
computes one column at a time, or verifies a few drafts, consists of such products.
"""

import platform
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

FEW = 8  # columns, beyond which both orders take the same time
LARGE = 2**26  # bytes of a model, above which its weights come from memory in every forward
WIDE = 2**16  # numbers of one weight, below which nothing is gained


class FewColumns(nn.Linear):
    """A linear layer that multiplies up to `FEW` columns in the other order. The results differ by rounding."""

    def forward(self, input: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        columns = input.shape[:-1].numel()
        if not 1 <= columns <= FEW:
            return super().forward(input)
        few = input.reshape(columns, -1)
        # one column would be a product of another kind, which takes longer than one of two
        product = (self.weight @ (few if columns > 1 else few.expand(2, -1).contiguous()).T).T[:columns].contiguous()
        product = product if self.bias is None else product + self.bias
        return product.view(*input.shape[:-1], -1)


def multiply_few_columns_fast_(backbone: nn.Module) -> None:
    """Makes the linear layers of a large model `FewColumns`: those in float32 on an AMD processor, with MKL. On others
    the two orders were not compared."""
    layers = [layer for layer in backbone.modules() if type(layer) is nn.Linear and layer.weight.numel() >= WIDE]
    layers = [layer for layer in layers if layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32]
    size = sum(layer.weight.nbytes for layer in layers)
    if size < LARGE or not (torch.backends.mkl.is_available() and _on_amd()):
        return
    for layer in layers:
        layer.__class__ = FewColumns  # keeps hooks, names and ties of the layer


def _on_amd() -> bool:
    info = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (info.read_text() if info.is_file() else platform.processor())
