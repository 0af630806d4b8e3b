"""The one training loop: seeded batches by number, Muon for matrices and AdamW for the rest or AdamW for all,
checkpoints to resume from, several devices under torchrun or `accelerate launch`.

A batch depends on the seed and its number only: a resumed run sees exactly the batches of an uninterrupted one, and P
processes that accumulate A batches each see those of one process that accumulates A * P.
"""

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from accelerate import PartialState
from accelerate.utils import get_cpu_distributed_information
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel

from dllm.checkpoint import replacing, warn_of_slow_halves
from dllm.validation import Checked, Fraction, Interval, NonNegative, Number, Positive

LossFn = Callable[[int, torch.Generator], Tensor]  # number of the batch, randomness -> scalar loss
LogFn = Callable[[int, Mapping[str, float]], None]  # step, its numbers
LOG_EVERY = 20  # steps
Steps = Annotated[int, Interval("[1, 9e18]")]


@dataclass(frozen=True)
class FitConfig(Checked):
    """What the optimiser does.

    steps: optimiser steps.
    seed: of the batches' randomness.
    muon_lr: learning rate of Muon, for the matrices of the backbone's layers; None: AdamW trains them too, as is usual
        for fine-tuning.
    adamw_lr: learning rate of AdamW, for embeddings, norms and everything else.
    betas: AdamW's.
    weight_decay: of both.
    warmup: steps in which the learning rates rise linearly.
    schedule: how they fall over the last `decay` share of the steps, "linear" or "cosine", or not at all ("constant").
    floor: the share of the learning rate that is left at the end.
    clip: the largest norm of the gradient, None for no limit.
    frozen: regular expressions; a parameter whose name one of them finds is not trained.
    save_every, validate_every: steps between checkpoints, and between losses on held-out batches.
    accumulate: batches per step and process, whose mean gradient is taken.
    precision: "bf16" runs the forward in autocast; weights and optimisers stay as they are.
    checkpointing: keeps no activations of the layers, which are computed again in the backward: less memory, a third
        more time.
    """

    steps: Steps = 1000
    seed: int = 0
    muon_lr: NonNegative | None = 0.03
    adamw_lr: NonNegative = 4e-3
    betas: Sequence[Annotated[float, Interval("[0, 1)")]] = (0.9, 0.95)
    weight_decay: NonNegative = 0.01
    warmup: Number = 50
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    decay: Fraction = 0.5
    floor: Fraction = 0.0
    clip: Positive | None = 1.0
    frozen: Sequence[str] = ()
    save_every: Steps = 500
    validate_every: Steps = 500
    accumulate: Steps = 1
    precision: Literal["float32", "bf16"] = "float32"
    checkpointing: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.betas) != 2:
            raise ValueError(f"betas={list(self.betas)}; AdamW takes two numbers in [0, 1)")

    def lr_scale(self, step: int) -> float:
        """Factor on the learning rates at a step."""
        rise = min(1.0, (step + 1) / max(self.warmup, 1))
        if self.schedule == "constant":
            return rise
        left = min(1.0, (self.steps - step) / max(self.decay * self.steps, 1))
        fall = left if self.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2
        return rise * (self.floor + (1 - self.floor) * fall)


@dataclass
class FitReport:
    """What a training run did.

    steps: in all.
    seconds: wall time over all its sessions.
    final_loss: the mean loss of the last 100 steps.
    validation: the loss on held-out batches at the end, None without any, or where nothing was left to do.
    batches_per_step, processes: how many batches a step took, on how many processes.
    """

    steps: int
    seconds: float
    final_loss: float
    validation: float | None
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
    validate: Callable[[], float] | None = None,
) -> FitReport:
    """Trains, in place, what requires gradients in `model`; resumes from `checkpoint` (a folder) where it holds a state
    of the same run. Every 20 steps the mean loss, the gradient's norm and the learning rates' factor go to
    checkpoint/log.jsonl and `on_log`, and every `validate_every` steps and at the end what `validate` gives.

    settings: whatever else tells one run from another (data, objective, model; JSON values). Of several processes, all
    call this with the same weights and arguments; the main one writes. Their gradients are averaged after the backward,
    without DDP's wrapper, whose hooks need the model's `forward`. Raises ValueError when the checkpoint's config or
    settings differ.
    """
    rank, count = join()
    per_step = config.accumulate * count
    plain = json.loads(json.dumps(asdict(config)))  # as it is read back: lists for tuples
    identity = {**plain, "accumulate": per_step, "settings": dict(settings or {})}
    _freeze(model, config)
    if config.checkpointing:
        _forget_activations(model)
    optimizers, trained = _optimizers(model, config), _trained(model)
    start, seconds, losses, held_out = _resume(model, optimizers, identity, checkpoint)
    log = _Log(checkpoint / "log.jsonl", start) if rank == 0 else None
    if config.precision == "bf16":
        warn_of_slow_halves(next(model.parameters()).device, torch.bfloat16)
    model.train()
    began = time.perf_counter() - seconds
    done, planned = start * config.accumulate, config.steps * config.accumulate
    bar = tqdm(initial=done, total=planned, desc="train", unit="batch", mininterval=2.0, delay=1, disable=rank > 0)
    for step in range(start, config.steps):
        total = 0.0
        for number in range(step * per_step + rank, (step + 1) * per_step, count):
            with _autocast(model, config):
                loss = loss_fn(number, torch.Generator().manual_seed(config.seed * 1_000_003 + number))
            (loss / config.accumulate).backward()
            total += loss.item() / config.accumulate
            bar.update()
        if count > 1:
            total = _averaged(torch.tensor(total, device=next(iter(trained.values())).device), count).item()
            for parameter in trained.values():
                if parameter.grad is not None:
                    _averaged(parameter.grad, count)
        if not math.isfinite(total):
            raise ValueError(
                f"the loss of step {step + 1} is {total}; lower the learning rates, {checkpoint} holds the last state"
            )
        norm = nn.utils.clip_grad_norm_(trained.values(), math.inf if config.clip is None else config.clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * config.lr_scale(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses = [*losses[-99:], total]
        last = step + 1 == config.steps
        numbers = {}
        if (step + 1) % LOG_EVERY == 0 or last:
            recent = losses[-LOG_EVERY:]
            numbers = {"loss": sum(recent) / len(recent), "grad_norm": float(norm), "lr_scale": config.lr_scale(step)}
        if validate is not None and rank == 0 and ((step + 1) % config.validate_every == 0 or last):
            model.eval()
            with torch.no_grad(), _autocast(model, config):
                numbers["validation"] = held_out = validate()
            model.train()
        if log is not None and numbers:
            bar.set_postfix(loss=f"{sum(losses) / len(losses):.4f}")
            log.write(step + 1, numbers)
            if on_log is not None:
                on_log(step + 1, numbers)
        if rank == 0 and ((step + 1) % config.save_every == 0 or last):
            progress = {
                "step": step + 1,
                "seconds": time.perf_counter() - began,
                "losses": losses,
                "held_out": None if held_out is None or not math.isfinite(held_out) else held_out,
            }
            _save(model, optimizers, identity, checkpoint, progress)
    bar.close()
    if count > 1:
        PartialState().wait_for_everyone()
    model.eval()
    mean = sum(losses) / len(losses)
    return FitReport(config.steps, time.perf_counter() - began, mean, held_out, per_step, count)


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
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= start]
        with replacing(path) as file:
            file.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        known = {key: round(value, 6) if math.isfinite(value) else None for key, value in numbers.items()}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **known}) + "\n")


def _freeze(model: nn.Module, config: FitConfig) -> None:
    """Raises ValueError for an expression that finds no parameter, or when nothing is left to train."""
    for pattern in config.frozen:
        found = [p for name, p in model.named_parameters() if re.search(pattern, name)]
        if not found:
            raise ValueError(f"frozen={pattern!r} finds no parameter, such as {next(model.named_parameters())[0]!r}")
        for parameter in found:
            parameter.requires_grad_(False)
    if not _trained(model):
        raise ValueError(f"frozen={list(config.frozen)} leaves nothing to train")


def _forget_activations(model: nn.Module) -> None:
    """Raises ValueError for a model that cannot compute its activations again."""
    stacks = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    if not any(stack.supports_gradient_checkpointing for stack in stacks):
        raise ValueError("checkpointing=true: this model cannot compute its activations again")
    stacks[0].activation_checkpointing_enable()
    if any(not parameter.requires_grad for parameter in stacks[0].parameters()):
        stacks[0].enable_input_require_grads()  # frozen embeddings would cut the backward short


def _optimizers(model: nn.Module, config: FitConfig) -> list[torch.optim.Optimizer]:
    matrices, others = list[nn.Parameter](), list[nn.Parameter]()
    for name, parameter in _trained(model).items():
        is_inner = parameter.ndim == 2 and re.search(r"\.(layers|blocks)\.", name)
        (matrices if is_inner and config.muon_lr is not None else others).append(parameter)
    optimizers: list[torch.optim.Optimizer] = []
    if matrices and config.muon_lr is not None:  # a small net has no layers
        muon = torch.optim.Muon(matrices, lr=config.muon_lr, weight_decay=config.weight_decay, momentum=0.95)
        optimizers.append(muon)
    if others:
        betas = (config.betas[0], config.betas[1])
        adamw = torch.optim.AdamW(others, lr=config.adamw_lr, betas=betas, weight_decay=config.weight_decay)
        optimizers.append(adamw)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return optimizers


def _save(
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    identity: Mapping[str, Any],
    folder: Path,
    progress: Mapping[str, Any],
) -> None:
    """Writes the whole training state as safetensors, then the JSON that makes it valid, each by an atomic rename."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": tensor for name, tensor in _trained(model).items()}
    for i, optimizer in enumerate(optimizers):
        for j, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{j}.{key}": torch.as_tensor(value).clone() for key, value in state.items()}
    name = f"state-{progress['step']}.safetensors"
    with replacing(folder / name) as file:
        save_file({key: value.detach().contiguous() for key, value in tensors.items()}, file)
    state = {"file": name, **progress, "identity": identity}
    with replacing(folder / "state.json") as file:
        file.write_text(json.dumps(state, allow_nan=False), encoding="utf-8")
    for old in folder.glob("state-*.safetensors"):
        if old.name != name:
            old.unlink()


def _resume(
    model: nn.Module, optimizers: list[torch.optim.Optimizer], identity: Mapping[str, Any], folder: Path
) -> tuple[int, float, list[float], float | None]:
    path = folder / "state.json"
    if not path.exists():
        return 0, 0.0, [], None
    state = json.loads(path.read_text(encoding="utf-8"))
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
    return state["step"], state["seconds"], state["losses"], state["held_out"]


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """What is trained, tied weights once under their first name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
