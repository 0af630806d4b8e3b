"""How a model that was trained is decoded with."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from dllm.causal import CausalLM
from dllm.checkpoint import ASSETS, raw_config
from dllm.model import DiffusionLM
from dllm.recurrent import LlamaRecurrentLM

KINDS = {
    CausalLM: ("model=causal", "decoder=ar"),
    LlamaRecurrentLM: ("model=tiny_recurrent", "decoder=diffusion_forcing"),
}


def parts(model: nn.Module) -> list[str]:
    """What is chosen of each group for a model of this kind."""
    chosen = [*KINDS.get(type(model), ("model=local",))]
    if isinstance(model, DiffusionLM) and model.spec.block is not None:
        chosen += ["cache=block", f"block_length={model.spec.block}", "stop=block_eos"]
    if isinstance(model, DiffusionLM) and model.spec.noise:
        chosen += ["decoder=renoise"]
    return chosen


def adapted(
    model: nn.Module, base: str, adapters: str | Sequence[str] | None, adapter: Path, spec: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Arguments of `dllm.load` for a model with a new adapter; none where the training had to add a row for MASK, which
    base does not have. base, adapters, spec: what it was trained on."""
    path = str(ASSETS / base if (ASSETS / base).is_dir() else base)
    if isinstance(model, DiffusionLM) and model.spec.mask_id >= raw_config(path, {}).get("vocab_size", math.inf):
        return {}
    before = [adapters] if isinstance(adapters, str) else [*(adapters or ())]
    changed = {"spec": {**spec, "mask_id": model.spec.mask_id}} if spec and isinstance(model, DiffusionLM) else {}
    return {"name_or_path": base, "adapter": [*before, str(adapter)], **changed}
