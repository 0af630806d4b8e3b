"""Training a LoRA adapter (arXiv 2106.09685) instead of the weights: put in before, written out after."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import save_file
from torch import nn

from dllm.adapter import (
    CONFIG,
    MASK_EMBEDDING,
    PREFIX,
    WEIGHTS,
    find_adapters,
    is_attached,
    layers,
    put_gate,
    read_adapter,
)
from dllm.causal import CausalLM
from dllm.model import DiffusionLM
from dllm.validation import Checked, Count, Positive


@dataclass(frozen=True)
class Lora(Checked):
    """What an adapter is.

    r: rank.
    alpha: the product is scaled by alpha / r.
    targets: last names of the linear layers it covers.
    active: at which columns it adds something: "everywhere", or at "drafts" only (`ModelSpec.context_causal`), which
        leaves the model at all other columns bit for bit as it is. It then also learns the embedding of MASK.
    start: an adapter to go on from, a folder or the name of a shipped one, with the same r, alpha, targets and active.
    """

    r: Count = 32
    alpha: Positive = 32.0
    targets: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    active: Literal["everywhere", "drafts"] = "everywhere"
    start: str | None = None

    def inject(self, model: DiffusionLM | CausalLM, seed: int) -> None:
        """Freezes the model and adds a trainable adapter in float32, in place. It changes nothing yet, or as much as
        the one that it continues from.

        Raises ValueError when the model has an adapter, lacks a layer of those names, or has no drafted columns, and
        when the adapter to go on from is another one than this.
        """
        if is_attached(model):
            raise ValueError(f"{model.name} already has an adapter; merge it before training another")
        linear = {name.split(".")[-1] for name, m in model.backbone.named_modules() if isinstance(m, nn.Linear)}
        absent = [target for target in self.targets if target not in linear]
        if absent or not self.targets:
            raise ValueError(f"lora.targets={list(self.targets)}: {model.name} has linear layers {sorted(linear)}")
        drafts = self.active == "drafts"
        if drafts and not (isinstance(model, DiffusionLM) and model.spec.context_causal):
            raise ValueError("lora.active=drafts needs a model with drafted columns; set spec.context_causal=true")
        before = self._read_start(model)
        model.requires_grad_(False)
        config = LoraConfig(r=self.r, lora_alpha=self.alpha, target_modules=list(self.targets))  # pyright: ignore[reportArgumentType]
        with torch.random.fork_rng():  # PEFT initialises from the global generator
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model.backbone)
        for layer in layers(model).values():
            layer.cast_input_dtype_enabled = False  # autocast does that, once
        if drafts:
            assert isinstance(model, DiffusionLM)
            put_gate(model)
            model.mask_embedding = learn_mask_embedding(model)
        if before is not None:
            model.load_state_dict(before, strict=False)

    def _read_start(self, model: DiffusionLM | CausalLM) -> dict[str, torch.Tensor] | None:
        """The weights of `start`, by the names they have in a model with an adapter."""
        if self.start is None:
            return None
        config, pairs, embedding, drafts_only = read_adapter(folder := find_adapters(self.start)[0], model)
        if config.use_rslora or (embedding is not None and not drafts_only):
            raise ValueError(
                f"the adapter {str(folder)!r} is of a kind that is not trained here; give one of plain LoRA"
            )
        theirs = {
            "r": config.r,
            "alpha": config.lora_alpha,
            "targets": sorted({name.split(".")[-1] for name in pairs}),
            "active": "drafts" if drafts_only else "everywhere",
        }
        ours = {"r": self.r, "alpha": self.alpha, "targets": sorted(self.targets), "active": self.active}
        for key, value in theirs.items():
            if value != ours[key]:
                raise ValueError(f"lora.{key}={ours[key]}, and the adapter {str(folder)!r} has {value}; give that")
        factors = {
            f"backbone.{name}.lora_{part}.default.weight": t for name, pair in pairs.items() for part, t in pair.items()
        }
        return factors | ({} if embedding is None else {MASK_EMBEDDING: embedding})

    def save(self, model: DiffusionLM | CausalLM, folder: Path, base: str) -> None:
        """Writes the adapter in PEFT's layout, by the backbone's names and in the dtype of its weights;
        `dllm.load(base, adapter=folder)` reads it."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            PREFIX + name.replace(".default.", "."): tensor
            for name, tensor in model.backbone.named_parameters()
            if ".lora_" in name
        }
        learned = dict(model.named_parameters()).get(MASK_EMBEDDING)
        if learned is not None:
            tensors[MASK_EMBEDDING] = learned
        dtype = model.backbone.dtype
        save_file({name: t.detach().cpu().to(dtype).contiguous() for name, t in tensors.items()}, folder / WEIGHTS)
        about = {
            "peft_type": "LORA",
            "base_model_name_or_path": base,
            "r": self.r,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": list(self.targets),
            "active": self.active,
            **({"mask_id": model.spec.mask_id} if isinstance(model, DiffusionLM) else {}),
        }
        (folder / CONFIG).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def learn_mask_embedding(model: DiffusionLM) -> nn.Parameter:
    """A trainable input embedding of MASK, from the mean of all embeddings, which the model looks up from now on."""
    embed, mask_id = model.backbone.get_input_embeddings(), model.spec.mask_id
    assert isinstance(embed.weight, torch.Tensor)
    vector = nn.Parameter(embed.weight.float().mean(0))

    def replace(_module: nn.Module, tokens: tuple[torch.Tensor, ...], found: torch.Tensor) -> torch.Tensor:
        return torch.where((tokens[0] == mask_id)[..., None], vector.to(found.dtype), found)

    embed.register_forward_hook(replace)
    return vector
