"""How a stock backbone is called, and what may be added to it: a mix of neighbouring columns, an adapter's gate, and
faster products."""

import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from dllm.plan import Plan

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

WIDTH = 32  # columns by which fixed shapes grow

# of fast products:
FEW = 8  # columns, up to which the other order is faster or as fast
LARGE = 2**25  # bytes of a model, above which its weights come from memory in every forward
WIDE = 2**16  # numbers of one weight, below which nothing is gained
TOKENS = 2**14  # rows of one weight, from which it counts as a head


def hidden_states(
    backbone: PreTrainedModel,
    embeds: Float[Tensor, "R Q D"],
    mask: Bool[Tensor, "R 1 Q K"] | None,
    positions: Int[Tensor, "... R Q"],
    kv: Cache | None,
) -> Float[Tensor, "R Q D"]:
    """Of the last layer, for columns that attend where the mask is true, or everywhere without one, on the positions'
    device. Flash kernels take no mask."""
    output = backbone.get_decoder()(
        inputs_embeds=embeds,
        attention_mask=None if mask is None else as_taken(mask, backbone, embeds.dtype),
        position_ids=positions,
        past_key_values=kv,
        use_cache=kv is not None,
        **({"is_causal": False} if mask is None else {}),
    )
    return moved(output.last_hidden_state, positions.device)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device. It asks for no operation where it is there already, as in every step of an unspread model."""
    return tensor if tensor.device == device else tensor.to(device)


def as_taken(mask: Bool[Tensor, "R 1 Q K"], backbone: PreTrainedModel, dtype: torch.dtype) -> Tensor:
    """The mask as the backbone's attention takes it: sdpa as it is, others add it to their scores."""
    if backbone.config._attn_implementation == "sdpa":
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def arange_like(index: Int[Tensor, "R Q"]) -> Int[Tensor, "R Q"]:
    return torch.arange(index.shape[1], device=index.device).expand_as(index)


def queried(plan: Plan, nowhere: int) -> Int[Tensor, "R Q"]:
    """The plan's columns; `nowhere` where a shorter row repeats its last."""
    if plan.first is not None:
        return plan.query
    return plan.query.masked_fill(arange_like(plan.query) >= plan.num_queried[:, None], nowhere)


def sources(plan: Plan, want: Int[Tensor, "R W"], shift: int, length: int) -> Int[Tensor, "R W"]:
    """Where among the R * Q queried columns of all rows those are that predict these. One that is not queried, after a
    row's end, counts as the row's first. length: columns of the canvas."""
    (rows, width), columns = plan.query.shape, (want - shift).clamp(min=0) if shift else want
    if plan.first is None:
        numbers = torch.arange(width, device=want.device)
        in_query = want.new_zeros((rows, length)).scatter_(1, plan.query, numbers.expand(rows, width))
        inside = in_query.gather(1, columns)
    elif plan.first == 0:
        inside = columns * (columns < width)
    else:
        numbers = torch.arange(width, device=want.device)
        inside = nn.functional.pad(numbers, (plan.first, length - plan.first - width))[columns]
    return inside if rows == 1 else inside + width * torch.arange(rows, device=want.device)[:, None]


def padded(plan: Plan, batch: int) -> tuple[Plan, Int[Tensor, " P"]]:
    """The plan for a power of two of rows, or the whole batch, and a multiple of `WIDTH` columns, so that few shapes
    occur; and which of its rows each of those is. The last row and each row's last column are repeated."""
    (rows, width), device = plan.query.shape, plan.query.device
    of = torch.arange(min(batch, 1 << (rows - 1).bit_length()), device=device).clamp(max=rows - 1)
    columns = torch.arange(-(-width // WIDTH) * WIDTH, device=device).clamp(max=width - 1)
    query = plan.query[of[:, None], columns]
    return replace(plan, rows=plan.rows[of], query=query, num_queried=plan.num_queried[of], first=None), of


def lora_layers(backbone: nn.Module) -> dict[str, "LoraLayer"]:
    """The layers that have an adapter, by their names. PEFT is imported where there is one."""
    if "peft_config" not in vars(backbone):  # how PEFT marks what it has changed
        return {}
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in backbone.named_modules() if isinstance(module, LoraLayer)}


class NeighbourMix(nn.Module):
    """Adds the neighbouring columns' embeddings to each column's own, per channel: e[t] + u * e[t-1] + v * e[t+1].

    With it a small transformer learns "the last name that follows this first name" in one attention step. It reads the
    canvas and no hidden states, so it is the same under every cache. In a block-causal model it looks back only.
    """

    def __init__(self, width: int, look_ahead: bool = True) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.zeros(width))
        self.after = nn.Parameter(torch.zeros(width)) if look_ahead else None

    def reset_(self, std: float, rng: torch.Generator) -> None:
        """Random weights for training from scratch. Zeros would leave the backbone as it is."""
        for weight in self.parameters():
            nn.init.normal_(weight, std=std, generator=rng)

    def forward(self, here: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Mixes embeddings `[R, Q, D]` of columns with their neighbours', which are zero where there is none."""
        mixed = here + self.before * before
        return mixed if self.after is None else mixed + self.after * after

    def among(self, here: Tensor) -> Tensor:
        """The same for all columns of rows that have no others."""
        around = nn.functional.pad(here, (0, 0, 1, 1))
        return self(here, around[:, :-2], around[:, 2:])


class Gate:
    """Lets a LoRA adapter (arXiv 2106.09685) act at some columns only. The others stay, bit for bit, what they are
    without it (gated LoRA: multi-token prediction of Samragh et al. 2507.11851).

    One gate is the forward of all layers of an adapter. PEFT's own computes every column, and its checks take as long
    as the adapter's products of a few columns.
    """

    def __init__(self) -> None:
        self._open: Tensor | int = 0

    def open_at(self, where: Bool[Tensor, "R Q"] | int) -> None:
        """Says at which columns of the next forwards' inputs the adapter acts. A number means those from it on, and
        nothing is computed for the others."""
        self._open = where if isinstance(where, int) else where[..., None]

    def forward(self, layer: "LoraLayer", x: Float[Tensor, "R Q I"]) -> Float[Tensor, "R Q O"]:
        result = cast(nn.Linear, layer.base_layer)(x)
        down, up = layer.lora_A["default"], cast(nn.Linear, layer.lora_B["default"])
        scaling = layer.scaling["default"]
        if not isinstance(self._open, int):
            result = result.add(up(down(x) * self._open), alpha=scaling)
        elif self._open < x.shape[1]:
            drafted = down(x[:, self._open :])
            result[:, self._open :].baddbmm_(drafted, up.weight.T.expand(len(x), -1, -1), alpha=scaling)
        return result


class FastLinear(nn.Linear):
    """A linear layer with weights that no processor cache holds, in the form that an AMD processor is fastest in: up to
    `FEW` columns in the other order, and more of them by oneDNN where it is a head. The results differ by rounding.

    With few columns a product is as fast as its weights are read. On AMD processors MKL reads them in `x @ W.T` at a
    part of that speed, in `W @ x.T` at nearly all of it (`scripts/bench/products.py`, docs/performance.md).
    """

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
    return torch._C._dispatch_has_kernel_for_dispatch_key("mkldnn::_linear_pointwise", "CPU")


def _on_amd() -> bool:
    info = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (info.read_text(encoding="utf-8") if info.is_file() else platform.processor())
