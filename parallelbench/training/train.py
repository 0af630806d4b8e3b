"""Trains an LM: `parallelbench train objective=mdlm out_dir=...`.

Starts from random weights, or with init= from any causal LM or dLLM, a folder or a hub id; trains its weights, or with
lora= an adapter. The data are the benchmark's own generators, or rows of any file or data set (conf/data). Resumes from
out_dir/checkpoint when killed. The result is out_dir/model in Hugging Face layout, or out_dir/adapter, with
training.json next to the weights; it holds the record of the model that the training started from, where that has one.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import nn

from dllm.model import DiffusionLM
from dllm.shipped import ASSETS
from dllm.training.fit import FitConfig, fit, join
from dllm.training.lora import Lora
from dllm.training.objectives import NextToken
from dllm.training.start import add_tokens, check_masks, show_noise, start_from
from dllm.training.tokenizer import build_tokenizer
from dllm.training.uniform import UniformDiffusion
from parallelbench.records.files import append, parse_json, read_bytes, to_json
from parallelbench.records.provenance import provenance
from parallelbench.report.sinks import Logs
from parallelbench.training.mixture import SCAFFOLD, TaskStream, phrases, special_ids
from parallelbench.training.sources import ByLength, Stream
from parallelbench.training.usage import RECORD, keep


def work(config: DictConfig) -> None:
    torch.set_num_threads(config.threads)
    train(cast(dict[str, Any], OmegaConf.to_container(config, resolve=True)))


def train(config: dict[str, Any]) -> None:
    """Training and the finished weights. Raises ValueError, before the first step, for a config that cannot work."""
    rank, processes = join()
    objective_of, fitting, data = (instantiate(config[key], _convert_="all") for key in ("objective", "fit", "data"))
    lora = None if config["lora"] is None else Lora(**config["lora"])
    settings = {key: value for key, value in config.items() if key not in ("out_dir", "init", "device", "sink")}
    device = config["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    model: Any
    if config["init"] is None:
        if lora is not None:
            raise ValueError(f"lora={config['lora']} adapts a model that is there; name it with init=")
        tokenizer = build_tokenizer(phrases(**(config["tokenizer"] or {})))
        model = instantiate(config["model"], _convert_="all")(tokenizer).to(device)
        if objective_of.func is NextToken and isinstance(model, DiffusionLM):
            raise ValueError(
                "objective=next_token trains an autoregressive LM, and init=null with this model makes a diffusion LM; "
                "give init=tiny-ar or another causal LM, or model._target_=dllm.training.scratch_causal"
            )
    else:
        how = {key: config[key] for key in ("spec", "dtype", "adapter")}
        model = start_from(config["init"], causal=objective_of.func is NextToken, device=device, **how)
        settings["model"] = ancestor(config["init"], config["adapter"], lora and lora.start)
        if config["tokenizer"] is not None:
            add_tokens(model, phrases(**config["tokenizer"]), config["seed"])
    if objective_of.func is UniformDiffusion:
        show_noise(model)
    elif isinstance(model, DiffusionLM):
        check_masks(model)
    tokenizer: Any = model.tokenizer
    stream = data.open(tokenizer)
    if isinstance(stream, TaskStream) and isinstance(model, DiffusionLM):
        stream = replace(stream, encode=model.encode)
    window = fitting.accumulate * processes
    if window > 1:
        stream = ByLength(stream, window, special_ids(tokenizer)[0])
    known = [token for token in SCAFFOLD if token in tokenizer.get_vocab()]
    objective = objective_of(scaffold=[*tokenizer.convert_tokens_to_ids(known), tokenizer.eos_token_id])
    if lora is None:
        model.requires_grad_(True)
    else:
        lora.inject(model, config["seed"])
    batches = config["validation_batches"]

    def validate() -> float:
        rng, held_out = torch.Generator().manual_seed(0), stream.validation(batches)  # anew: a model keeps few pictures
        return sum(float(objective(model, batch, rng)) for batch in held_out) / len(held_out)

    folder = Path(config["out_dir"])
    starts = folder / "starts.jsonl"  # a training may go on at another commit
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        append(starts, to_json(provenance()) + "\n")
    logs = Logs(instantiate(config["sink"], _convert_="all") if rank == 0 else {}, folder.name, settings)
    report = fit(
        model,
        lambda step, rng: objective(model, stream.batch(step), rng),
        cast(FitConfig, fitting),
        folder / "checkpoint",
        {**settings, "data_about": stream.about()},
        on_log=logs.log,
        validate=validate if stream.validation(min(batches, 1)) else None,
    )
    logs.close()
    if rank > 0:
        return
    record = {
        "config": settings,
        "data": stream.about(),
        "parameters": sum(p.numel() for p in model.parameters()),
        **mask_of(model),
        "tokens": tokens_seen(stream, report.steps * report.batches_per_step),
        "validation_loss": None if report.validation is None else round(report.validation, 4),
        "starts": [parse_json(line) for line in starts.read_text(encoding="utf-8").splitlines()],
    }
    started = {"name_or_path": config["init"], "adapter": config["adapter"], "spec": config["spec"]}
    keep(model, lora, folder, started, report, data.batch_size, record)


def ancestor(init: str, adapter: Any, start: str | None) -> dict[str, Any]:
    """What is known of how the model that a training starts from was made, by the name of each of its parts."""
    names = [init, *([adapter] if isinstance(adapter, str) else adapter or []), *([start] if start else [])]
    files = {
        name: next((f for f in (Path(name) / RECORD, ASSETS / name / RECORD) if f.is_file()), None) for name in names
    }
    return {Path(name).name: file and parse_json(read_bytes(file)) for name, file in files.items()}


def mask_of(model: nn.Module) -> dict[str, Any]:
    """The MASK token of a diffusion LM."""
    if not isinstance(model, DiffusionLM):
        return {}
    token = model.tokenizer and model.tokenizer.convert_ids_to_tokens(model.spec.mask_id)
    return {"mask": {"id": model.spec.mask_id, "token": token}}


def tokens_seen(stream: Stream, batches: int, sample: int = 100) -> int:
    """Tokens of all batches without padding, from the mean of the first ones; two leading digits can be trusted."""
    counted = range(min(batches, sample))
    return round(sum(int(stream.batch(step).text_end.sum()) for step in counted) / len(counted) * batches)
