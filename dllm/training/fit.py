"""The one training loop: seeded batches by step number, Muon for matrices and AdamW for the rest or AdamW for all,
checkpoints to resume from.

A batch depends on the seed and its step number only, so a resumed run sees exactly the batches of an uninterrupted one.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

LossFn = Callable[[int, torch.Generator], Tensor]  # step number, randomness -> scalar loss


@dataclass(frozen=True)
class FitConfig:
    """steps: optimiser steps. warmup: steps of linear rise. decay: share of the steps, at the end, that fall linearly
    to 0.

    muon_lr applies to matrices of the backbone's layers, adamw_lr to embeddings, norms and everything else; with
    muon_lr None AdamW trains it all, as is usual for fine-tuning.
    """

    steps: int = 1000
    seed: int = 0
    muon_lr: float | None = 0.03
    adamw_lr: float = 4e-3
    weight_decay: float = 0.01
    warmup: int = 50
    decay: float = 0.5
    clip: float = 1.0
    save_every: int = 500

    def __post_init__(self) -> None:
        if self.steps < 1 or self.save_every < 1:
            raise ValueError(f"steps={self.steps}, save_every={self.save_every}; both are at least 1")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay={self.decay}; it is a share of the steps in [0, 1]")

    def lr_scale(self, step: int) -> float:
        """Factor on the learning rates at a step."""
        rise = min(1.0, (step + 1) / max(self.warmup, 1))
        fall = min(1.0, (self.steps - step) / max(self.decay * self.steps, 1))
        return rise * fall


@dataclass
class FitReport:
    """What a training run did: steps in all, wall seconds over all its sessions, and the mean loss of its last 100
    steps."""

    steps: int
    seconds: float
    final_loss: float


def fit(
    model: nn.Module, loss_fn: LossFn, config: FitConfig, checkpoint: Path, settings: Mapping[str, Any] | None = None
) -> FitReport:
    """Trains, in place, what requires gradients in `model`; resumes from `checkpoint` (a folder) where it holds a state
    of the same run.

    settings: whatever else tells one run from another (data, objective, model; JSON values). Raises ValueError when the
    checkpoint's config or settings differ.
    """
    identity = {**asdict(config), "settings": dict(settings or {})}
    optimizers = _optimizers(model, config)
    start, seconds, losses = _resume(model, optimizers, identity, checkpoint)
    model.train()
    began = time.perf_counter() - seconds
    bar = tqdm(range(start, config.steps), initial=start, total=config.steps, desc="train", mininterval=2.0)
    for step in bar:
        loss = loss_fn(step, torch.Generator().manual_seed(config.seed * 1_000_003 + step))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * config.lr_scale(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses = [*losses[-99:], loss.item()]
        if (step + 1) % 20 == 0:
            bar.set_postfix(loss=f"{sum(losses) / len(losses):.4f}")
        if (step + 1) % config.save_every == 0 or step + 1 == config.steps:
            _save(model, optimizers, identity, checkpoint, step + 1, time.perf_counter() - began, losses)
    model.eval()
    return FitReport(config.steps, time.perf_counter() - began, sum(losses) / len(losses))


def _optimizers(model: nn.Module, config: FitConfig) -> list[torch.optim.Optimizer]:
    trained = _trained(model)
    matrices = [
        name for name, p in trained.items() if config.muon_lr is not None and p.ndim == 2 and ".layers." in name
    ]
    others = [p for name, p in trained.items() if name not in matrices]
    optimizers: list[torch.optim.Optimizer] = []
    if config.muon_lr is not None and matrices:  # a small net has no layers
        muon = [trained[name] for name in matrices]
        optimizers += [torch.optim.Muon(muon, lr=config.muon_lr, weight_decay=config.weight_decay, momentum=0.95)]
    optimizers += [torch.optim.AdamW(others, lr=config.adamw_lr, betas=(0.9, 0.95), weight_decay=config.weight_decay)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return optimizers


def _save(
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    identity: Mapping[str, Any],
    folder: Path,
    step: int,
    seconds: float,
    losses: list[float],
) -> None:
    """Writes the whole training state as safetensors, then the JSON that makes it valid, each by an atomic rename."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": tensor for name, tensor in _trained(model).items()}
    for i, optimizer in enumerate(optimizers):
        for j, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{j}.{key}": torch.as_tensor(value).clone() for key, value in state.items()}
    name = f"state-{step}.safetensors"
    save_file({key: value.detach().contiguous() for key, value in tensors.items()}, folder / f"{name}.tmp")
    os.replace(folder / f"{name}.tmp", folder / name)
    state = {"file": name, "step": step, "seconds": seconds, "losses": losses, "identity": identity}
    (folder / "state.json.tmp").write_text(json.dumps(state))
    os.replace(folder / "state.json.tmp", folder / "state.json")
    for old in folder.glob("state-*.safetensors"):
        if old.name != name:
            old.unlink()


def _resume(
    model: nn.Module, optimizers: list[torch.optim.Optimizer], identity: Mapping[str, Any], folder: Path
) -> tuple[int, float, list[float]]:
    path = folder / "state.json"
    if not path.exists():
        return 0, 0.0, []
    state = json.loads(path.read_text())
    if state["identity"] != identity:
        raise ValueError(f"{folder} holds a run with other settings; give another checkpoint folder or delete it")
    tensors = load_file(folder / state["file"])
    weights = {key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")}
    if set(weights) != set(_trained(model)):
        raise ValueError(f"{folder} holds another model's state; give another checkpoint folder or delete it")
    model.load_state_dict(weights, strict=False)
    for i, optimizer in enumerate(optimizers):
        saved: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith(f"optimizer.{i}."):
                _, _, j, name = key.split(".")
                saved.setdefault(int(j), {})[name] = value
        optimizer.load_state_dict({"state": saved, "param_groups": optimizer.state_dict()["param_groups"]})
    return state["step"], state["seconds"], state["losses"]


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """What is trained, tied weights once under their first name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
