"""Whether seconds say something of a decoder, or of what else the machine did.

A decoding thread that computes all the time takes as many seconds of a processor as pass on the wall. On a busy machine
it waits, and its seconds are the others'.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from parallelbench.records.record import Run
from parallelbench.stats.groups import grouped
from parallelbench.stats.metrics import Metrics

BUSY = 1.5  # wall seconds to CPU seconds
SPREAD = 2.0  # of seconds per forward at one model, device and batch size
TIMED = ("tokens_per_s", "latency_s")  # metrics


def waiting(run: Run) -> float | None:
    """Wall seconds per CPU second of a run on a CPU; None on other devices, and where its records do not say it."""
    cpu = [record.cpu_s for record in run.records if record.cpu_s is not None]
    if not cpu or len(cpu) < len(run.records) or not run.info["device"].startswith("cpu"):
        return None
    return sum(record.share_s for record in run.records) / max(sum(cpu), 1e-9)


def busy(run: Run) -> str:
    """What there is to say where the machine was busy, else nothing."""
    ratio = waiting(run)
    return f"on a busy machine (wall time {ratio:.1f} x CPU time)" if ratio is not None and ratio > BUSY else ""


def unreliable(runs: Sequence[Run]) -> dict[int, str]:
    """Why seconds of a run, by its place, are none to compare: its machine was busy, or it is of those at one model,
    device and batch size whose seconds per forward lie further apart than what their forwards compute."""
    found = {i: why for i, run in enumerate(runs) if (why := busy(run))}
    noisy: dict[tuple[str, str], str] = {}
    alike = grouped(range(len(runs)), lambda i: _setting(runs[i]))
    for places in alike.values():
        costs = [(i, *_per_forward(runs[i])) for i in places]
        pairs = [(s / t / max(1.0, c / d), (i, j)) for i, s, c in costs for j, t, d in costs]
        most = max(ratio for ratio, _ in pairs)
        if most > SPREAD:
            why = f"seconds per forward differ by {most:.1f}x at one model, device and batch size"
            found |= {i: why for i in places if i not in found}
            noisy[_machine(runs[places[0]])] = why
    for i, run in enumerate(runs):  # of a noisy machine's, one with nothing to compare it with is no better
        if i not in found and run.info["device"].startswith("cpu") and waiting(run) is None and _machine(run) in noisy:
            found[i] = noisy[_machine(run)]
    return found


def without_seconds(metrics: Metrics, hidden: Mapping[int, str]) -> Metrics:
    """Metrics of runs, those of time without a number where they are hidden by the run's place."""
    nan = {"value": math.nan, "ci_low": math.nan, "ci_high": math.nan}
    return {
        name: {
            task: row | {key: replace(row[key], **nan) for key in TIMED if i in hidden and key in row}
            for task, row in tasks.items()
        }
        for i, (name, tasks) in enumerate(metrics.items())
    }


def told(runs: Sequence[Run], names: Sequence[str], hidden: Mapping[int, str]) -> str:
    """A sentence that says which seconds are not shown, and why."""
    reasons = grouped(hidden, lambda i: hidden[i])
    parts = []
    for why, at in reasons.items():
        which = f"all {len(at)} runs" if len(runs) == len(at) > 1 else ", ".join(f"`{names[i]}`" for i in at)
        parts.append(f"{which if len(which) < 300 else f'{len(at)} runs'} ({why})")
    return f"Seconds are left out for {'; '.join(parts)}. Decode again on an idle machine to compare seconds."


def _machine(run: Run) -> tuple[str, str]:
    return run.info["model"], run.info["device"]


def _setting(run: Run) -> tuple[object, ...]:
    tasks = tuple(sorted({record.task for record in run.records}))
    return run.info["model"], run.info["device"], run.config["batch_size"], run.info.get("processes", 1), tasks


def _per_forward(run: Run) -> tuple[float, float]:
    """Seconds and columns of a forward. The samples of a batch shared theirs, so its slowest stands for all."""
    batches = grouped(run.records, lambda record: record.batch).values()
    nfe = sum(max(record.nfe for record in batch) for batch in batches)
    seconds = sum(max(record.latency_s for record in batch) for batch in batches)
    queried = sum(record.queried for record in run.records) / sum(record.nfe for record in run.records)
    return max(seconds, 1e-12) / nfe, max(queried, 1e-12)
