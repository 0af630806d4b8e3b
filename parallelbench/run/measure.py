"""Seconds and memory of a run, measured from outside its loop."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Generic, TypeVar

import torch

from decoders import Generation
from decoders.types import Turn
from parallelbench.run.generator import Generator, Refilling, Request

LEAST_S = 1e-9  # a clock's tick: a turn takes some time, whatever the clock says
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Timed(Generic[T]):
    """What came of a request.

    place: of the request in the queue.
    latency_s: wall seconds of the turns that it was live in.
    share_s: its share of all seconds. Those of a turn are divided evenly among the requests that were live in it, those
        before the first turn among all. cpu_s: the same of the seconds that this thread had a processor.
    """

    place: int
    result: T
    latency_s: float
    share_s: float
    cpu_s: float = LEAST_S


def timed(begin: Callable[[], Iterator[Turn[T]]], number: int) -> Iterator[list[Timed[T]]]:
    """What ends in each turn of a queue of `number` requests, which `begin` begins. The device is synchronised at both
    ends of a turn; what the caller does between two turns takes no time."""
    took, cpu, turns = _seconds(begin)
    waiting = [(0.0, took / max(number, 1), cpu / max(number, 1))] * number
    while True:
        took, cpu, turn = _seconds(lambda: next(turns, None))
        if turn is None:
            return
        for place in turn.live:
            latency, share, own = waiting[place]
            waiting[place] = latency + took, share + took / len(turn.live), own + cpu / len(turn.live)
        yield [Timed(place, result, *waiting[place]) for place, result in turn.ended.items()]


def timed_requests(
    generator: Generator, batches: Sequence[Sequence[Request]], slots: int
) -> Iterator[list[Timed[Generation]]]:
    """The generations of all requests as they end; one untimed warm-up first. A generator without slots to refill is
    given a batch at a time, which is one turn."""
    requests = list(chain.from_iterable(batches))
    if not requests:
        return
    generator.warm_up(batches[0])

    def batch_by_batch() -> Iterator[Turn[Generation]]:
        places = iter(range(len(requests)))
        for batch in batches:
            live = list(islice(places, len(batch)))
            yield Turn(live, dict(zip(live, generator(batch), strict=True)))

    if isinstance(generator, Refilling):
        refilling = generator
        yield from timed(lambda: refilling.stream(requests, slots), len(requests))
    else:
        yield from timed(batch_by_batch, len(requests))


def _seconds(work: Callable[[], R]) -> tuple[float, float, R]:
    """Wall seconds and CPU seconds of this thread, and what comes of the work."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    began, had = time.perf_counter(), time.thread_time()
    result = work()
    synchronize()
    return max(time.perf_counter() - began, LEAST_S), max(time.thread_time() - had, LEAST_S), result


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
