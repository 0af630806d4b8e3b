"""How a model that was trained is decoded with."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from dllm.adapter import MASK_TOKEN
from dllm.causal import CausalLM
from dllm.model import DiffusionLM
from dllm.recurrent import LlamaRecurrentLM
from parallelbench.records.facts import hydra_value

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
    """Arguments of `dllm.load` for a model with a new adapter. base, adapters, spec: what it was trained on."""
    before = [adapters] if isinstance(adapters, str) else [*(adapters or ())]
    words: dict[str, Any] = {"name_or_path": base, "adapter": [*before, str(adapter)]}
    if isinstance(model, DiffusionLM):
        assert model.tokenizer is not None
        if spec or model.tokenizer.mask_token == MASK_TOKEN:  # whose id base does not tell
            noise = {"noise": model.spec.noise} if model.spec.noise else {}
            words["spec"] = {**(spec or {}), "mask_id": model.spec.mask_id, **noise}
    return words


def trained(weights: Path, loss: str, parts: Sequence[str], model: Mapping[str, object]) -> str:
    """What a training has to say at its end. loss: in words. parts: what is chosen of each group to decode with the
    weights. model: further settings of the model."""
    values = [f"{'' if key == 'name_or_path' else '+'}model.{key}={hydra_value(value)}" for key, value in model.items()]
    shown = shlex.join(["python", "-m", "parallelbench", "run", *parts, *values])
    return f"{weights} has a {loss}; this decodes with it: {shown}"
