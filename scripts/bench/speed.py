"""Decode overhead: time of whole decodes over the time of their bare forward passes on the same inputs.

    python scripts/bench/speed.py [batch_size=16] [repeats=5] [tasks=12]

Built-in tasks, batch_size samples of each, are one queue, as in a run. Every call of the backbone (inputs, mask,
positions, K/V) is recorded and then replayed alone with the LM head. Decodes and replays alternate; the table gives
medians and the median ratio. On a CPU it is the process' time, which other processes change less. `outside` is
milliseconds a forward that are not the bare forward's: tokenizing, planning, deciding, keeping the state.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import dllm
from decoders import NO_CACHE, Credit, Decoder, FixedK, StrictEos, Threshold
from dllm.cache import WindowCache
from dllm.kv import ColumnCache
from parallelbench.report.options import split_options
from parallelbench.run.generator import DiffusionGenerator, Request, device_name
from parallelbench.tasks import builtin_tasks
from parallelbench.wiring.exits import explained

DECODERS = {
    "fixed k=1": Decoder(FixedK(1)),
    "fixed k=4": Decoder(FixedK(4)),
    "threshold 0.9": Decoder(Threshold(0.9)),
    "credit 0.9": Decoder(Threshold(0.9), transforms=(Credit(),)),
}
CACHES = {"none": NO_CACHE, "dual": WindowCache(0, 0)}


class Recorder:
    """Keeps the arguments of each backbone and LM head call, and where each forward's K/V goes."""

    def __init__(self, backbone: Any) -> None:
        self.calls: list[tuple[nn.Module, tuple, dict, tuple]] = []
        for module in (backbone.get_decoder(), backbone.get_output_embeddings()):
            module.register_forward_pre_hook(self._keep, with_kwargs=True)
        self.on = False

    def _keep(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if self.on:
            kv = kwargs.get("past_key_values")
            target = (kv, kv.rows, kv.places, kv.seen) if isinstance(kv, ColumnCache) else ()
            self.calls.append((module, args, kwargs, target))

    def replay(self) -> None:
        for module, args, kwargs, target in self.calls:
            if target:
                kv, kv.rows, kv.places, kv.seen = target
            module(*args, **kwargs)


def seconds(work: Callable[[], object]) -> float:
    if not torch.cuda.is_available():
        began = time.process_time()
        work()
        return time.process_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


@torch.inference_mode()
def main(arguments: list[str]) -> None:
    defaults = {"batch_size": "16", "repeats": "5", "tasks": "12"}
    paths, options = split_options(arguments, defaults, needs_paths=False)
    if paths or not all(value.isdecimal() and int(value) for value in options.values()):
        raise ValueError(f"options are {', '.join(f'{key}={value}' for key, value in defaults.items())}; whole numbers")
    batch_size, repeats, number = map(int, options.values())
    model = dllm.load("tiny", device="auto")
    tasks = list(builtin_tasks().values())[:number]
    requests = [Request(s.messages, 32) for task in tasks for s in task.samples(batch_size, 0)]
    print(f"{device_name(model)}, batch size {options['batch_size']}, a queue of {len(requests)} samples")
    print(f"{'decoder':14} {'cache':6} {'decode s':>9} {'forwards s':>11} {'outside':>8} {'ratio':>6}")
    recorder = Recorder(model.backbone)
    for decoder_name, decoder in DECODERS.items():
        for cache_name, cache in CACHES.items():
            generator = DiffusionGenerator(model, decoder, cache, StrictEos(), 32)

            def decode(generator: DiffusionGenerator = generator) -> None:
                for _ in generator.stream(requests, batch_size):
                    pass

            recorder.calls, recorder.on = [], True
            decode()
            recorder.on = False
            pairs = [(seconds(decode), seconds(recorder.replay)) for _ in range(repeats)]
            whole, bare = (statistics.median(times) for times in zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            outside = 2000 * (whole - bare) / len(recorder.calls)  # a forward is a call of the body and one of the head
            print(f"{decoder_name:14} {cache_name:6} {whole:9.3f} {bare:11.3f} {outside:8.3f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    with explained():
        main(sys.argv[1:])
