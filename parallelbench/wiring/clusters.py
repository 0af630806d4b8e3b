"""Jobs on several machines that share their files: workers behind a command such as `srun`, and Ray actors.

As a program this is the worker behind a command. Jobs come on stdin, what it says goes to stdout.
"""

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from parallelbench.wiring.pool import Died, Job, Report, Worker

GRACE_S = 10
SRUN = ("srun", "--ntasks=1", "--unbuffered")  # else a message waits for the end of a line


class CommandWorker(Worker):
    """A worker on whatever machine a command starts it. The command carries stdin and stdout, as `srun` and `ssh` do.

    It ends when this process does, because its stdin ends then.
    """

    def __init__(self, work: Callable[[Any, Report], Any], command: Sequence[str]) -> None:
        self.work = work
        # a session of its own: Ctrl-C is for this process, which then ends its workers
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
        self.process = subprocess.Popen([*command, sys.executable, "-m", __name__], bufsize=0, **pipes)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.jobs = Connection(os.dup(self.process.stdin.fileno()), readable=False)
        self.connection = Connection(os.dup(self.process.stdout.fileno()), writable=False)
        self.process.stdin.close()
        self.process.stdout.close()

    def send(self, job: Any) -> None:
        with suppress(BrokenPipeError):  # it has died, which is seen when it is read from
            self.jobs.send((self.work, job))

    def close(self) -> None:
        self.jobs.close()

    def kill(self) -> None:
        self.process.terminate()  # srun then gives its allocation back
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def exit_code(self) -> int:
        return self.process.wait()


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
        yield from _on_actors(ray, jobs, work, workers, gpus)
    finally:
        ray.shutdown()  # the actors end with it


def _on_actors(
    ray: Any, jobs: Sequence[Job], work: Callable[[Job, Report], Any], workers: int | None, gpus: int | None
) -> Iterator[tuple[int, Any]]:
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


class _Actor:
    """What a Ray actor runs, in the folder of the sweep."""

    def __init__(self, folder: str) -> None:
        os.chdir(folder)

    def ready(self) -> None: ...

    def work(self, work: Callable[[Any, Report], Any], job: Any) -> Any:
        return work(job, lambda report: None)


def _serve() -> None:
    jobs, said = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # what libraries print is no message
    came: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(jobs, came), daemon=True).start()
    said.send(("ready", None))
    while True:
        work, job = came.get()
        said.send(("result", work(job, lambda report: said.send(("report", report)))))


def _receive(jobs: Connection, came: "SimpleQueue[Any]") -> None:
    """Ends the process with its stdin, in the middle of a job too."""
    while True:
        try:
            came.put(jobs.recv())
        except EOFError:
            os._exit(0)
        except Exception:  # a job that cannot be read
            traceback.print_exc()
            os._exit(1)


if __name__ == "__main__":
    _serve()
