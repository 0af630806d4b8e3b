"""How a stock backbone is called, and what may be added to it: a mix of neighbouring columns, and an adapter's gate."""

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from dllm.plan import Plan

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

WIDTH = 32  # columns by which fixed shapes grow


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
    """Where among the R * Q queried columns of all rows those are that predict these. One that is not queried, behind a
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


def padded(plan: Plan, batch: int) -> tuple[Plan, Int[Tensor, " B"]]:
    """The plan for as many rows as the batch and a multiple of `WIDTH` columns, so that few shapes occur; and which of
    its rows each of those is. The last row and each row's last column are repeated."""
    (rows, width), device = plan.query.shape, plan.query.device
    of = torch.arange(batch, device=device).clamp(max=rows - 1)
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
