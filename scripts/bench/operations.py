"""How many tensor operations a step of the denoising loop asks for besides the transformer, and where.

    python scripts/bench/operations.py [batch_size=1] [cache=none] [decoder=threshold] [by=function]

An operation is one call that torch dispatches, be it a view. Those inside the transformer and its head are the bare
forward and do not count. `model`: what prepares the forward (embeddings, mask, head); `loop`: all the rest. The numbers
are those of the most frequent kind of step, in which no row enters a window or ends. by=line counts by line of code.
"""

import collections
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import dllm
from decoders import StrictEos
from decoders.generation import encode
from decoders.loop import decode_queue
from parallelbench.report.options import split_options
from parallelbench.tasks import builtin_tasks
from parallelbench.wiring.exits import explained

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [ROOT / name for name in ("dllm", "decoders", "parallelbench")]  # an environment may lie in ROOT too
TASK = "waiting_line/shuffle"  # its answers take several steps
Place = tuple[str, str, int]  # file, function, line


class Operations(TorchDispatchMode):
    """Counts what torch dispatches, by the innermost place in this project that asked for it. What the given modules do
    inside is left out."""

    def __init__(self, *without: nn.Module) -> None:
        super().__init__()
        self.places, self.depth = collections.Counter[Place](), 0
        for module in without:
            module.register_forward_pre_hook(lambda *_: self._step_in(1))
            module.register_forward_hook(lambda *_: self._step_in(-1))

    def _step_in(self, by: int) -> None:
        self.depth += by

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not self.depth:
            self.places[_place(sys._getframe(1))] += 1
        return func(*args, **(kwargs or {}))


def _place(frame: FrameType | None) -> Place:
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if any(file.is_relative_to(package) for package in PACKAGES):
            return str(file.relative_to(ROOT)), frame.f_code.co_name, frame.f_lineno
        frame = frame.f_back
    return "elsewhere", "", 0


def count(batch_size: int, cache: str, decoder: str) -> collections.Counter[Place]:
    """The operations of one step of `tiny` in which nothing but the step happens."""
    model = dllm.load("tiny")
    parts = {name: _configured(name, which) for name, which in (("cache", cache), ("decoder", decoder))}
    prompts = [encode(model, sample.messages) for sample in builtin_tasks()[TASK].samples(batch_size, 0)]
    turns = decode_queue(model, prompts, slots=batch_size, gen_len=32, block_len=32, stop=StrictEos(), **parts)
    head = model.backbone.get_output_embeddings()
    assert head is not None
    steps = list[collections.Counter[Place]]()
    with Operations(model.backbone.get_decoder(), head) as operations:
        for _ in turns:
            steps.append(operations.places)
            operations.places = collections.Counter()
    frequent = collections.Counter(step.total() for step in steps).most_common(1)[0][0]
    return next(step for step in steps if step.total() == frequent)


def split(found: Mapping[Place, int]) -> tuple[int, int]:
    """Those of the loop, and those by which the model prepares its forward."""
    files = ("dllm/model.py", "dllm/layers.py", "dllm/text.py")
    model = sum(number for (file, _, _), number in found.items() if file in files)
    return sum(found.values()) - model, model


def _configured(group: str, name: str) -> object:
    config = OmegaConf.create({group: OmegaConf.load(ROOT / "conf" / group / f"{name}.yaml")})
    return instantiate(config[group], _convert_="all")


def main(arguments: list[str]) -> None:
    defaults = {"batch_size": "1", "cache": "none", "decoder": "threshold", "by": "function"}
    paths, options = split_options(arguments, defaults, needs_paths=False)
    if paths or not options["batch_size"].isdecimal() or options["by"] not in ("function", "line"):
        raise ValueError(f"options are {', '.join(f'{key}={value}' for key, value in defaults.items())}; or by=line")
    torch.set_num_threads(1)
    found = count(int(options["batch_size"]), options["cache"], options["decoder"])
    print("{} operations a step in the loop, {} in the model".format(*split(found)))
    by = collections.Counter[str]()
    for (file, function, line), number in found.items():
        by[f"{file}{f':{line}' if options['by'] == 'line' else ''} {function}"] += number
    for place, number in by.most_common():
        print(f"{number:4} {place}")


if __name__ == "__main__":
    with explained():
        main(sys.argv[1:])
