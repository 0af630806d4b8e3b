"""Distils a model on its own correct decodes: `parallelbench distill model=tiny out_dir=...` (dParallel), or from a
causal LM in the states of its own decodes, objective=on_policy (OPDLM).

First the model decodes training prompts, one token per step unless `decoder` says otherwise, into out_dir/trajectories,
an ordinary run; then it is trained on those that its tasks' scorers accept. objective=mdlm is the control, ordinary
fine-tuning on the same data. Killed at any point, the same command resumes. The result is out_dir/model in Hugging Face
layout, or with `lora.r=...` out_dir/adapter, with training.json next to the weights.
"""

from pathlib import Path
from typing import Any, cast

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from dllm.model import DiffusionLM
from dllm.training.fit import FitConfig, fit
from dllm.training.lora import Lora
from dllm.training.start import check_masks, start_from
from parallelbench.records.record import Run
from parallelbench.report.sinks import Logs
from parallelbench.run.generator import DiffusionGenerator
from parallelbench.run.job import prepare
from parallelbench.run.processes import Processes, join
from parallelbench.run.resume import open_job
from parallelbench.training.trajectories import correct_trajectories, train_tasks
from parallelbench.training.usage import keep

TRAJECTORY_KEYS = "model init spec decoder cache stop suite limit data_seed gen_length block_length".split()


def work(config: DictConfig) -> None:
    torch.set_num_threads(config.threads)
    distill(cast(dict[str, Any], OmegaConf.to_container(config, resolve=True)))


def distill(config: dict[str, Any]) -> None:
    """Trajectories, training and the finished weights. Raises ValueError for a config that cannot work."""
    objective = instantiate(config["objective"], _convert_="all")()
    fitting = instantiate(config["fit"], _convert_="all")
    lora = None if config["lora"] is None else Lora(**config["lora"])
    processes = join()
    model = starting_model(config)
    run = decode_trajectories(model, config, processes)
    shape = config["gen_length"], config["batch_size"], config["seed"]
    data = correct_trajectories(run, model, *shape, keep_all=config["keep_all"])
    if lora is None:
        model.requires_grad_(True)
    else:
        lora.inject(model, config["seed"])
    settings = {
        key: value for key, value in config.items() if key not in ("out_dir", "trajectories", "threads", "sink")
    }
    sinks = instantiate(config["sink"], _convert_="all") if processes.is_main else {}
    logs = Logs(sinks, Path(config["out_dir"]).name, settings)
    report = fit(
        model,
        lambda step, rng: objective(model, data.batch(step), rng),
        cast(FitConfig, fitting),
        Path(config["out_dir"]) / "checkpoint",
        {**settings, "weights": run.info["identity"]["weights"]},
        on_log=logs.log,
    )
    logs.close()
    if not processes.is_main:
        return
    started = config["model"] if config["init"] is None else {"name_or_path": config["init"], "spec": config["spec"]}
    kept = {"decoded": len(run.records), "kept": len(data.prompts), "by": run.info["identity"]}
    record = {"config": settings, "trajectories": kept}
    keep(model, lora, Path(config["out_dir"]), started, report, config["batch_size"], record)


def starting_model(config: dict[str, Any]) -> DiffusionLM:
    """The model of conf/model or another with init=. Raises ValueError for one that cannot denoise or sees no MASK."""
    if config["init"] is None:
        model = instantiate(config["model"], _convert_="all")
    else:
        device = config["model"].get("device", "auto")
        model = start_from(config["init"], spec=config["spec"], causal=False, dtype=config["dtype"], device=device)
    if not isinstance(model, DiffusionLM):
        raise ValueError(f"model {model.name!r} is no diffusion model; train it into one first (parallelbench train)")
    check_masks(model)
    return model


def decode_trajectories(model: DiffusionLM, config: dict[str, Any], processes: Processes) -> Run:
    """The model's decodes of training prompts; resumes what is already there."""
    decoder, cache, stop = (instantiate(config[part], _convert_="all") for part in ("decoder", "cache", "stop"))
    generator = DiffusionGenerator(model, decoder, cache, stop, config["block_length"])
    job = prepare(
        generator,
        train_tasks(instantiate(config["suite"], _convert_="all")),
        limit=config["limit"],
        seed=config["data_seed"],
        batch_size=config["decode_batch_size"],
        gen_len=config["gen_length"],
        config={
            **{key: config[key] for key in TRAJECTORY_KEYS},
            "batch_size": config["decode_batch_size"],
            "out_dir": config["trajectories"],
        },
        choices={},
    )
    with open_job(job, processes) as opened:
        return opened.decode()
