"""The one training loop: seeded batches by number, Muon for matrices and AdamW for the rest or AdamW for all,
checkpoints to resume from, several devices under torchrun or `accelerate launch`.

A batch depends on the seed and its number only: a resumed run sees exactly the batches of an uninterrupted one, and P
processes that accumulate A batches each see those of one process that accumulates A * P.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import PartialState
from accelerate.utils import get_cpu_distributed_information
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

LossFn = Callable[[int, torch.Generator], Tensor]  # number of the batch, randomness -> scalar loss
LogFn = Callable[[int, Mapping[str, float]], None]  # step, its numbers
LOG_EVERY = 20  # steps


@dataclass(frozen=True)
class FitConfig:
    """steps: optimiser steps. warmup: steps of linear rise. decay: share of the steps, at the end, that fall linearly
    to 0.

    muon_lr applies to matrices of the backbone's layers, adamw_lr to embeddings, norms and everything else; with
    muon_lr None AdamW trains it all, as is usual for fine-tuning. accumulate: batches per step and process, whose mean
    gradient is taken. precision: "bf16" runs the forward in autocast; weights and optimisers stay as they are.
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
    accumulate: int = 1
    precision: Literal["float32", "bf16"] = "float32"

    def __post_init__(self) -> None:
        if min(self.steps, self.save_every, self.accumulate) < 1:
            numbers = f"steps={self.steps}, save_every={self.save_every}, accumulate={self.accumulate}"
            raise ValueError(f"{numbers}; all are at least 1")
        if self.precision not in ("float32", "bf16"):
            raise ValueError(f"precision={self.precision!r}; choose float32 or bf16")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay={self.decay}; it is a share of the steps in [0, 1]")

    def lr_scale(self, step: int) -> float:
        """Factor on the learning rates at a step."""
        rise = min(1.0, (step + 1) / max(self.warmup, 1))
        fall = min(1.0, (self.steps - step) / max(self.decay * self.steps, 1))
        return rise * fall


@dataclass
class FitReport:
    """What a training run did: steps in all, wall seconds over all its sessions, the mean loss of its last 100 steps,
    and how many batches a step took on how many processes."""

    steps: int
    seconds: float
    final_loss: float
    batches_per_step: int
    processes: int


def join() -> tuple[int, int]:
    """(rank, count) of the processes this one was started with, by torchrun or `accelerate launch`. "cuda" means a GPU
    of its own from here on, so call it before a model is loaded."""
    if get_cpu_distributed_information().world_size == 1:
        return 0, 1
    state = PartialState(cpu=not torch.cuda.is_available())
    if torch.cuda.is_available():
        torch.cuda.set_device(state.local_process_index % torch.cuda.device_count())
    return state.process_index, state.num_processes


def fit(
    model: nn.Module,
    loss_fn: LossFn,
    config: FitConfig,
    checkpoint: Path,
    settings: Mapping[str, Any] | None = None,
    on_log: LogFn | None = None,
) -> FitReport:
    """Trains, in place, what requires gradients in `model`; resumes from `checkpoint` (a folder) where it holds a state
    of the same run. Every 20 steps the mean loss, the gradient's norm and the learning rates' factor go to
    checkpoint/log.jsonl and `on_log`.

    settings: whatever else tells one run from another (data, objective, model; JSON values). Of several processes, all
    call this with the same weights and arguments; the main one writes. Their gradients are averaged after the backward,
    without DDP's wrapper, whose hooks need the model's `forward`. Raises ValueError when the checkpoint's config or
    settings differ.
    """
    rank, count = join()
    per_step = config.accumulate * count
    identity = {**asdict(config), "accumulate": per_step, "settings": dict(settings or {})}
    optimizers, trained = _optimizers(model, config), _trained(model)
    start, seconds, losses = _resume(model, optimizers, identity, checkpoint)
    log = _Log(checkpoint / "log.jsonl", start) if rank == 0 else None
    model.train()
    began = time.perf_counter() - seconds
    bar = tqdm(
        range(start, config.steps), initial=start, total=config.steps, desc="train", mininterval=2.0, disable=rank > 0
    )
    for step in bar:
        total = 0.0
        for number in range(step * per_step + rank, (step + 1) * per_step, count):
            with _autocast(model, config):
                loss = loss_fn(number, torch.Generator().manual_seed(config.seed * 1_000_003 + number))
            (loss / config.accumulate).backward()
            total += loss.item() / config.accumulate
        if count > 1:
            total = _averaged(torch.tensor(total, device=next(iter(trained.values())).device), count).item()
            for parameter in trained.values():
                if parameter.grad is not None:
                    _averaged(parameter.grad, count)
        norm = nn.utils.clip_grad_norm_(trained.values(), config.clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * config.lr_scale(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses = [*losses[-99:], total]
        if log is not None and ((step + 1) % LOG_EVERY == 0 or step + 1 == config.steps):
            recent = losses[-LOG_EVERY:]
            numbers = {"loss": sum(recent) / len(recent), "grad_norm": float(norm), "lr_scale": config.lr_scale(step)}
            bar.set_postfix(loss=f"{sum(losses) / len(losses):.4f}")
            log.write(step + 1, numbers)
            if on_log is not None:
                on_log(step + 1, numbers)
        if rank == 0 and ((step + 1) % config.save_every == 0 or step + 1 == config.steps):
            _save(model, optimizers, identity, checkpoint, step + 1, time.perf_counter() - began, losses)
    if count > 1:
        PartialState().wait_for_everyone()
    model.eval()
    return FitReport(config.steps, time.perf_counter() - began, sum(losses) / len(losses), per_step, count)


def _averaged(tensor: Tensor, count: int) -> Tensor:
    """The mean over all processes, in place."""
    torch.distributed.all_reduce(tensor)
    return tensor.div_(count)


def _autocast(model: nn.Module, config: FitConfig) -> AbstractContextManager[Any]:
    if config.precision == "float32":
        return nullcontext()
    return torch.autocast(next(model.parameters()).device.type, torch.bfloat16)


class _Log:
    """Lines of {"step": ..., ...}; what a killed run wrote after its checkpoint is dropped."""

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= start]
        path.write_text("".join(f"{line}\n" for line in kept))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps({"step": step, **{key: round(value, 6) for key, value in numbers.items()}}) + "\n")


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
