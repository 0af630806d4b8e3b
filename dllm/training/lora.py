"""Training a LoRA adapter (arXiv 2106.09685) instead of the weights: put in before, written out after."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import save_file
from torch import nn

from dllm.adapter import CONFIG, PREFIX, WEIGHTS, is_attached
from dllm.model import DiffusionLM


@dataclass(frozen=True)
class Lora:
    """r: rank. alpha: the product is scaled by alpha / r. targets: last names of the linear layers it covers."""

    r: int = 32
    alpha: float = 32.0
    targets: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    def __post_init__(self) -> None:
        if self.r < 1:
            raise ValueError(f"lora.r={self.r}; a rank is at least 1")

    def inject(self, model: DiffusionLM, seed: int) -> None:
        """Freezes the model and adds a trainable adapter that changes nothing yet, in place.

        Raises ValueError when the model has an adapter or lacks a layer of those names.
        """
        if is_attached(model):
            raise ValueError(f"{model.name} already has an adapter; merge it before training another")
        linear = {name.split(".")[-1] for name, m in model.backbone.named_modules() if isinstance(m, nn.Linear)}
        absent = [target for target in self.targets if target not in linear]
        if absent or not self.targets:
            raise ValueError(f"lora.targets={list(self.targets)}: {model.name} has linear layers {sorted(linear)}")
        model.requires_grad_(False)
        config = LoraConfig(r=self.r, lora_alpha=self.alpha, target_modules=list(self.targets))  # pyright: ignore[reportArgumentType]
        with torch.random.fork_rng():  # PEFT initialises from the global generator
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model.backbone)

    def save(self, model: DiffusionLM, folder: Path, base: str) -> None:
        """Writes the adapter in PEFT's layout, by the backbone's names; `dllm.load(base, adapter=folder)` reads it."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            PREFIX + name.replace(".default.", "."): tensor.detach().cpu().contiguous()
            for name, tensor in model.backbone.named_parameters()
            if ".lora_" in name
        }
        save_file(tensors, folder / WEIGHTS)
        about = {
            "peft_type": "LORA",
            "base_model_name_or_path": base,
            "r": self.r,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": list(self.targets),
        }
        (folder / CONFIG).write_text(json.dumps(about, indent=2) + "\n")
