"""Trains a small LM on the benchmark's own generators: `python scripts/train.py objective=mdlm out_dir=...`.

Starts from random weights or, with init=DIR, from a finished model. Resumes from out_dir/checkpoint when killed; the
finished model, in Hugging Face layout, is out_dir/model with training.json beside its weights; a model that started
from another has that one's record as its model.
"""

import json
from pathlib import Path

import hydra
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from dllm.causal import CausalLM, save_causal
from dllm.load import load, save
from dllm.recurrent import RecurrentLM, save_recurrent
from dllm.training.fit import fit, join
from dllm.training.tokenizer import build_tokenizer
from parallelbench.records.record import provenance
from parallelbench.report.sinks import Logs
from parallelbench.tasks.base import TRAIN_SEED_MIN
from parallelbench.training.mixture import SCAFFOLD, phrases
from parallelbench.wiring.conf import CONF


@hydra.main(version_base=None, config_path=str(CONF), config_name="train")
def main(config: DictConfig) -> None:
    torch.set_num_threads(config.threads)
    rank, _ = join()
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    settings = {key: value for key, value in resolved.items() if key not in ("out_dir", "init", "device", "sink")}
    out_dir = Path(config.out_dir)
    if config.init is None:
        model = instantiate(config.model, _convert_="all")(build_tokenizer(phrases()))
    else:
        model = load(config.init, spec=config.spec)
        settings["model"] = json.loads((Path(config.init) / "training.json").read_text())
    model.to(config.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    tokenizer = model.tokenizer
    data = instantiate(config.data, _convert_="all")
    assert data.seed >= TRAIN_SEED_MIN, "training seeds must not reach the benchmark's"
    scaffold = [*tokenizer.convert_tokens_to_ids(list(SCAFFOLD)), tokenizer.eos_token_id]
    objective = instantiate(config.objective, _convert_="all")(scaffold=scaffold)
    logs = Logs(instantiate(config.sink, _convert_="all") if rank == 0 else {}, out_dir.name, settings)
    report = fit(
        model,
        lambda step, rng: objective(model, data.batch(step, tokenizer), rng),
        instantiate(config.fit, _convert_="all"),
        out_dir / "checkpoint",
        settings,
        on_log=logs.log,
    )
    logs.close()
    if rank > 0:
        return
    writers = {CausalLM: save_causal, RecurrentLM: save_recurrent}
    writers.get(type(model), save)(model, out_dir / "model")
    threads = f"{config.threads} thread(s)"
    record = {
        "config": settings,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": report.steps,
        "sequences": report.steps * report.batches_per_step * config.data.batch_size,
        "seconds": round(report.seconds),
        "final_loss": round(report.final_loss, 4),
        "device": f"{report.processes} x {model.device.type}, {threads}",
        **provenance(),
    }
    (out_dir / "model" / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record["final_loss"]), out_dir / "model")


if __name__ == "__main__":
    main()
