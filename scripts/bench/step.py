"""What one step of each decoder costs on top of the forward pass, in softmaxes over the same logits.

    python scripts/bench/step.py [batch=8] [block=32] [vocab=126464] [repeats=5]

Random float32 logits on the CPU. "peak" is the number of logits-sized temporaries that a step holds at once, "memory"
what the decoder keeps between steps, in the size of the logits.
"""

import collections
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from decoders import Decoder
from decoders.logits import Logits
from decoders.noise import Noise
from decoders.testing import example_view
from decoders.types import Shape, View
from dllm import ModelSpec
from parallelbench.report.options import split_options
from parallelbench.wiring.exits import explained

CONF = Path(__file__).resolve().parents[2] / "conf" / "decoder"


class Peak(TorchDispatchMode):
    """Bytes of the tensors made inside that are alive, and their peak; views and tensors from outside do not count."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.alive, self.users, self.peak = least, 0, collections.Counter(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            size, place = tensor.untyped_storage().nbytes(), tensor.untyped_storage().data_ptr()
            if size < self.least or (place in given and not self.users[place]):
                continue
            self.alive += 0 if self.users[place] else size
            self.users[place] += 1
            weakref.finalize(tensor, self._free, place, size)
        self.peak = max(self.peak, self.alive)
        return result

    def _free(self, place: int, size: int) -> None:
        self.users[place] -= 1
        self.alive -= 0 if self.users[place] else size


def peak_temporaries(decoder: Decoder, vocab: int = 4096, block_len: int = 16) -> float:
    """How many logits-sized tensors (`[B, W, V]` float32) a step holds at once at most, besides logits and memory."""
    view = example_view(decoder, 1, block_len)
    logits = torch.randn(3, block_len, vocab, generator=torch.Generator().manual_seed(0))
    memory = decoder.init(Shape(3, block_len, vocab, torch.device("cpu")))
    with Peak(logits.nbytes // 4) as tracker:
        decoder.step(replace(view, logits=Logits(logits)), memory)
    return tracker.peak / logits.nbytes


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The fastest of some runs, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def read_numbers(arguments: list[str]) -> Iterator[int]:
    defaults = {"batch": "8", "block": "32", "vocab": "126464", "repeats": "5"}
    paths, options = split_options(arguments, defaults, needs_paths=False)
    if paths or not all(value.isdecimal() and int(value) for value in options.values()):
        raise ValueError(f"options are {', '.join(f'{key}={value}' for key, value in defaults.items())}; whole numbers")
    return map(int, options.values())


@torch.inference_mode()
def main(arguments: list[str]) -> None:
    batch, block, vocab, repeats = read_numbers(arguments)
    values = 2 * torch.randn(batch, block, vocab, generator=torch.Generator().manual_seed(0))
    everywhere = torch.ones(batch, block, dtype=torch.bool)
    tokens, step = torch.zeros(batch, block, dtype=torch.long), torch.ones(batch, dtype=torch.long)
    spec, noise = (
        ModelSpec(vocab - 1, (vocab - 2,), vocab - 3, delete_id=0, split_id=1),
        Noise(torch.arange(batch), torch.zeros(batch, dtype=torch.long)),
    )

    softmax = seconds(lambda: values.softmax(-1), repeats)
    print(f"batch {batch}, block {block}, vocabulary {vocab}: a softmax takes {1000 * softmax:.0f} ms")
    print(f"{'decoder':16} {'softmaxes':>9} {'peak':>6} {'memory':>8}")
    for path in sorted(CONF.glob("*.yaml")):
        config = OmegaConf.create({"decoder": OmegaConf.load(path)})
        if config.decoder._target_ != "decoders.Decoder":
            continue  # a method with a loop of its own has no step
        decoder = instantiate(config.decoder, _convert_="all")
        memory = decoder.init(Shape(batch, block, vocab, values.device))

        def work(decoder: Decoder = decoder, memory: list = memory) -> None:
            # a new view each time: statistics are cached in its logits
            shadow = torch.ones(batch, block) if decoder.needs_shadow else None
            decoder.step(
                View(tokens, everywhere, everywhere, Logits(values), step, noise, spec, step * 0, shadow, tokens),
                memory,
            )

        ratio = seconds(work, repeats) / softmax
        kept = sum(tensor.nbytes for part in memory for tensor in part.values()) / values.nbytes
        print(
            f"{path.stem:16} {ratio:9.2f} {peak_temporaries(decoder, max(vocab // 16, 64)):6.1f} {kept:8.4f}",
            flush=True,
        )


if __name__ == "__main__":
    with explained():
        main(sys.argv[1:])
