"""Seconds and memory of a run, measured from outside its loop."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from decoders import Generation
from parallelbench.run.generator import Generator, Request

LEAST_S = 1e-9  # a clock's tick: a batch takes some time, whatever the clock says


def timed_batches(
    generator: Generator, batches: Sequence[Sequence[Request]]
) -> Iterator[tuple[Sequence[Generation], float]]:
    """Each batch's generations and wall seconds, the device synchronised on both sides; one untimed warm-up first."""
    if batches:
        generator.warm_up(batches[0])
    for batch in batches:
        _synchronize()
        began = time.perf_counter()
        generations = generator(batch)
        _synchronize()
        yield generations, max(time.perf_counter() - began, LEAST_S)


def watch_memory() -> Callable[[], dict[str, object] | None]:
    """From now on watches the peak of memory; the call returned says it in bytes, and what it is of: tensors on all
    GPUs (by PyTorch), else all that this process holds (resident, Linux). None where nothing can be said."""
    gpus = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    is_reset = True
    try:
        Path("/proc/self/clear_refs").write_bytes(b"5")  # else the peak is that of all runs of this process
    except OSError:
        is_reset = False

    def peak() -> dict[str, object] | None:
        on_gpus = sum(torch.cuda.max_memory_allocated(gpu) for gpu in gpus)
        if on_gpus or not is_reset:
            return {"bytes": on_gpus, "of": "GPU tensors"} if on_gpus else None
        lines = Path("/proc/self/status").read_bytes().splitlines()
        (line,) = [line for line in lines if line.startswith(b"VmHWM")]
        return {"bytes": 1024 * int(line.split()[1]), "of": "process"}

    return peak


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
