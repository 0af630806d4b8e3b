"""Jobs on several machines that share their files: what starts a worker on another one, and Ray actors."""

import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from parallelbench.wiring.pool import Died, Job, Report

SRUN = ("srun", "--ntasks=1", "--unbuffered")  # else a message waits for the end of a line


def ray_jobs(
    jobs: Sequence[Job], work: Callable[[Job, Report], Any], workers: int | None, gpus: int | None
) -> Iterator[tuple[int, Any]]:
    """As `pool.run_jobs`, on the Ray cluster that this machine belongs to. Nothing is reported while a job runs.

    workers: actors at a time; None: as many as the cluster's GPUs allow, or one per core where it has none. gpus: of
    each; None: 1, or 0 where the cluster has none. Raises ValueError without Ray, and OSError without a cluster.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise ValueError("launcher=ray needs Ray; pip install ray") from error
    ray.init(address="auto", log_to_driver=False, logging_level="warning")
    try:
        there = ray.cluster_resources()
        gpus = int(there.get("GPU", 0) > 0) if gpus is None else gpus
        count = workers or max(1, int(there["GPU"] // gpus if gpus else there["CPU"]))
        kind, waiting = ray.remote(num_cpus=1, num_gpus=gpus)(_Actor), list(enumerate(jobs))[::-1]
        busy: dict[Any, tuple[Any, int | None]] = {}  # by what is awaited: the actor, and its job once it has one

        def start() -> None:
            actor = kind.remote(os.getcwd())
            busy[actor.ready.remote()] = actor, None

        for _ in range(min(count, len(jobs))):
            start()
        while waiting or any(index is not None for _, index in busy.values()):
            (ended,), _ = ray.wait(list(busy))
            actor, index = busy.pop(ended)
            try:
                result = ray.get(ended)
            except ray.exceptions.RayActorError as error:
                if index is None:
                    raise ValueError(f"a Ray actor does not start: {str(error).splitlines()[0]}") from error
                yield index, Died(None)
                if waiting:
                    start()
                continue
            if index is not None:
                yield index, result
            if waiting:
                index, job = waiting.pop()
                busy[actor.work.remote(work, job)] = actor, index
    finally:
        ray.shutdown()  # the actors end with it


class _Actor:
    """What a Ray actor runs, in the folder of the sweep."""

    def __init__(self, folder: str) -> None:
        os.chdir(folder)

    def ready(self) -> None: ...

    def work(self, work: Callable[[Any, Report], Any], job: Any) -> Any:
        return work(job, lambda report: None)
