"""Products with weights that no processor cache holds, in the form that an AMD processor is fastest in.

With few columns a product is as fast as its weights are read. On AMD processors MKL reads them in `x @ W.T` at a part
of that speed, in `W @ x.T` at nearly all of it. A decode that computes one column at a time, or verifies a few drafts,
consists of such products. For the head, whose weight is the largest, oneDNN is faster than MKL with more columns too
(`scripts/bench/products.py`, docs/performance.md).
"""

import platform
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

FEW = 8  # columns, up to which the other order is faster or as fast
LARGE = 2**25  # bytes of a model, above which its weights come from memory in every forward
WIDE = 2**16  # numbers of one weight, below which nothing is gained
TOKENS = 2**14  # rows of one weight, from which it counts as a head


class FastLinear(nn.Linear):
    """A linear layer that multiplies up to `FEW` columns in the other order, and more of them by oneDNN where it is a
    head. The results differ by rounding."""

    def forward(self, input: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        columns = input.shape[:-1].numel()
        if input.dtype != torch.float32 or not input.is_cpu or torch.is_autocast_enabled("cpu"):
            return super().forward(input)  # it was moved since, or is trained in 16 bits
        if 1 <= columns <= FEW:
            return self._in_other_order(input.reshape(columns, -1)).view(*input.shape[:-1], -1)
        if self.out_features < TOKENS or torch.is_grad_enabled() or not columns or not _has_onednn():
            return super().forward(input)
        return torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")

    def _in_other_order(self, few: Float[Tensor, "N I"]) -> Float[Tensor, "N O"]:
        # one column would be a product of another kind, which takes longer than one of two
        two = few if len(few) > 1 else few.expand(2, -1).contiguous()
        product = (self.weight @ two.T).T[: len(few)].contiguous()
        return product if self.bias is None else product + self.bias


def use_fast_products_(backbone: nn.Module) -> None:
    """Makes the linear layers of a large model `FastLinear`: those in float32 on an AMD processor, with MKL. On other
    processors the forms of a product were not compared."""
    layers = [layer for layer in backbone.modules() if type(layer) is nn.Linear and layer.weight.numel() >= WIDE]
    layers = [layer for layer in layers if layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32]
    size = sum(layer.weight.nbytes for layer in layers)
    if size < LARGE or not (torch.backends.mkl.is_available() and _on_amd()):
        return
    for layer in layers:
        layer.__class__ = FastLinear  # keeps hooks, names and ties of the layer


def _has_onednn() -> bool:
    """An operator that torch has for its own compiler, so it may go."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _on_amd() -> bool:
    info = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (info.read_text() if info.is_file() else platform.processor())
