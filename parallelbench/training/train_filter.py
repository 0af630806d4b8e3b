"""Trains a filter on recorded decodes: `parallelbench train_filter filter=block traces=[DIR] out_dir=...`.

The label of a position is whether its candidate is what one token per forward writes there. Prompts are split into 80 %
training, 10 % validation and 10 % test; the record next to the weights holds, for both held-out parts, the loss and
what accepting at 0.9 would do. Resumes from out_dir/checkpoint when killed."""

import json
from pathlib import Path
from typing import Any, cast

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn import functional as F

from decoders.rules.learn2pd import save_filter
from decoders.traces import read_traces
from dllm.training.fit import fit
from parallelbench.records.provenance import provenance
from parallelbench.report.sinks import Logs

CUT = 0.9  # the authors watch the rate of false acceptances here


def train(config: DictConfig) -> dict[str, Any]:
    """Writes the filter and its record and returns the record. Raises ValueError for traces that do not fit."""
    torch.set_num_threads(config.threads)
    traces, abouts = read_traces([Path(folder) for folder in config.traces])
    with torch.random.fork_rng():
        torch.manual_seed(config.fit.seed)
        network = instantiate(config.filter, _convert_="all")
    inputs, counts = network.examples(traces)
    labels = traces.agree.float()
    part = traces.prompt % 10  # 0 to 7 training, 8 validation, 9 test: by prompt, whatever its decoder
    if len(part.unique()) < 10:
        raise ValueError(f"traces of {int(traces.prompt.max()) + 1} prompts; validation and test need at least 10")
    chosen = (part < 8).nonzero()[:, 0]

    def loss(step: int, rng: torch.Generator) -> Tensor:
        size = config.batch_size
        batch = chosen if size is None else chosen[torch.randint(len(chosen), (size,), generator=rng)]
        return bce(network, inputs[batch], labels[batch], counts[batch])

    settings = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    out_dir = Path(settings.pop("out_dir"))
    logs = Logs(instantiate(settings.pop("sink"), _convert_="all"), out_dir.name, settings)
    report = fit(network, loss, instantiate(config.fit, _convert_="all"), out_dir / "checkpoint", settings, logs.log)
    logs.close()
    record = {
        "config": {key: value for key, value in settings.items() if key != "traces"},
        "traces": abouts,
        "parameters": sum(p.numel() for p in network.parameters()),
        "recorded_steps": len(labels),
        "steps": report.steps,
        "seconds": round(report.seconds),
        "training_loss": round(report.final_loss, 5),
        **provenance(),
    }
    for name, number in (("validation", 8), ("test", 9)):
        held = part == number
        record[name] = quality(network, inputs[held], labels[held], counts[held])
    save_filter(network, out_dir / "filter", record)
    return record


def bce(network: nn.Module, inputs: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Mean binary cross-entropy over the positions that count."""
    return F.binary_cross_entropy_with_logits(network(inputs)[counts], labels[counts])


@torch.no_grad()
def quality(network: nn.Module, inputs: Tensor, labels: Tensor, counts: Tensor) -> dict[str, float]:
    """Loss, and what accepting at CUT would do.

    false_positive_rate: share of the accepted positions that disagree, as released.
    accepted_wrong: share of the disagreeing positions that are accepted.
    recall: share of the agreeing positions that are accepted.
    """
    accepted, agreeing = network(inputs)[counts].sigmoid() > CUT, labels[counts].bool()
    values = {
        "loss": bce(network, inputs, labels, counts),
        "false_positive_rate": (accepted & ~agreeing).sum() / accepted.sum().clamp(min=1),
        "accepted_wrong": (accepted & ~agreeing).sum() / (~agreeing).sum().clamp(min=1),
        "recall": (accepted & agreeing).sum() / agreeing.sum().clamp(min=1),
    }
    return {name: round(float(value), 5) for name, value in values.items()}


def work(config: DictConfig) -> None:
    print(json.dumps(train(config), indent=2))
