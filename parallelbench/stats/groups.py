"""What belongs together, and which runs may stand in one table: runs of one model over the same samples, each once."""

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from parallelbench.records.files import one_line
from parallelbench.records.record import Run

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their keys, both in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def distinct(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The finished runs, each once, and a sentence for every run that is left out.

    Folders that were copied together from several machines may hold a run twice. Left out are runs that are unfinished,
    that hold trajectories for training, of ceilings, or copies with other results than the one kept.
    """
    kept: dict[tuple[object, ...], Run] = {}
    left_out = []
    for run in runs:
        if run.info["status"] != "done" or not run.records:
            left_out.append(f"{run.folder} is not finished; repeat its command to finish it")
            continue
        if not run.info["choices"]:
            left_out.append(f"{run.folder} holds trajectories for training, not a run of a suite")
            continue
        if run.facts.is_ceiling:
            left_out.append(f"{run.folder} is of decoder={run.info['choices']['decoder']}, a ceiling and not a method")
            continue
        first = kept.setdefault((run.info["config_hash"], _weights(run), _samples(run)), run)
        if _results(first) != _results(run):
            left_out.append(f"{run.folder} is the same run as {first.folder} with other results; delete one of them")
    return list(kept.values()), left_out


def comparable(runs: Sequence[Run], across_models: bool = False) -> list[list[Run]]:
    """Groups of runs over the same samples of the same task versions, the largest group first. A group is also of one
    model, told by its weights, unless `across_models`."""
    groups = grouped(
        runs, lambda run: ("" if across_models else model_name(run), run.info["choices"]["suite"], _samples(run))
    )
    return sorted(groups.values(), key=len, reverse=True)


def model_name(run: Run) -> str:
    return one_line(f"{run.info['model']} (weights {_weights(run)[:8]})")


def samples_name(run: Run) -> str:
    """What the runs of one group share besides their model."""
    versions = sorted({record.task_version for record in run.records})
    tasks = len({record.task for record in run.records})
    digest = hashlib.sha256(repr(_samples(run)).encode()).hexdigest()[:6]
    return one_line(
        f"suite={run.info['choices']['suite']}, seed={run.config['seed']}: {tasks} task{'s' * (tasks > 1)} "
        f"(version {', '.join(versions)}), {len(run.records)} samples (set {digest})"
    )


def _weights(run: Run) -> str:
    return str(run.info.get("identity", {}).get("weights", ""))


def _samples(run: Run) -> tuple[tuple[str, str, str, str], ...]:
    return tuple(sorted((r.task, r.task_version, r.id, r.prompt_sha) for r in run.records))


def _results(run: Run) -> list[tuple[object, ...]]:
    """All but the seconds, which differ from machine to machine."""
    return sorted((r.task, r.id, r.completion, tuple(sorted(r.scores.items())), r.nfe, r.queried) for r in run.records)
