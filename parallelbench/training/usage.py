"""What is kept of a model that was trained, and how it is decoded with."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dllm.adapter import MASK_TOKEN
from dllm.causal import CausalLM, save_causal
from dllm.diffusion import save
from dllm.model import DiffusionLM
from dllm.recurrent import LlamaRecurrentLM, save_recurrent
from dllm.training.fit import FitReport
from dllm.training.lora import Lora
from parallelbench.records.facts import hydra_value
from parallelbench.records.files import replace_file, to_json
from parallelbench.records.provenance import provenance

RECORD = "training.json"
WRITERS = {CausalLM: save_causal, LlamaRecurrentLM: save_recurrent}
KINDS = {
    CausalLM: ("model=causal", "decoder=ar"),
    LlamaRecurrentLM: ("model=tiny_recurrent", "decoder=diffusion_forcing"),
}


def keep(
    model: Any,
    lora: Lora | None,
    out_dir: Path,
    started: Mapping[str, Any],
    report: FitReport,
    batch_size: int,
    record: Mapping[str, Any],
) -> None:
    """Writes the weights into out_dir/model, or the adapter into out_dir/adapter, with training.json next to them, and
    says how to decode with them. started: the arguments of `dllm.load` for what it was trained on. batch_size: canvases
    of a batch. record: what training.json says besides the costs."""
    folder, weights = out_dir / ("model" if lora is None else "adapter"), {}
    if lora is None:
        WRITERS.get(type(model), save)(model, folder)
        weights["name_or_path"] = str(folder)
    else:
        base = str(started["name_or_path"])
        lora.save(model, folder, base)
        weights = adapted(model, base, started.get("adapter"), folder, started.get("spec"))
    costs = {
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "steps": report.steps,
        "sequences": report.steps * report.batches_per_step * batch_size,
        "seconds": round(report.seconds),
        "final_loss": round(report.final_loss, 4),
        "device": f"{report.processes} x {model.device.type}, {torch.get_num_threads()} thread(s)",
    }
    replace_file(folder / RECORD, to_json({**record, **costs, **provenance()}, indent=2) + "\n")
    name, loss = ("training", report.final_loss) if report.validation is None else ("validation", report.validation)
    print(trained(folder, f"{name} loss of {loss:.4f}", parts(model), weights))


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
