"""Jobs on several devices: a worker process for each, which takes the next job as soon as it is free.

Workers stay until the jobs are done, so what one has loaded serves its later jobs. A worker that dies takes its job
with it and is replaced; workers end at once when their parent is killed. As a program this is the worker. Jobs come on
stdin, what it says goes to stdout.
"""

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import torch

Job = TypeVar("Job")
Report = Callable[[Any], None]


@dataclass(frozen=True)
class Died:
    """What is left of a job whose worker died: its exit code, negative for a signal."""

    exit_code: int


def devices(workers: int | None = None) -> list[dict[str, str]]:
    """The environment of each worker: a GPU of its own, or a share of the CPU's cores where there is none.

    workers: how many; by default one per visible GPU, or per core. Raises ValueError for fewer than one, or for more
    than there are GPUs.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = (len(gpus) or cores) if workers is None else workers
    if count < 1 or (gpus and count > len(gpus)):
        raise ValueError(f"{count} workers on {len(gpus)} GPUs; give at least 1, and no more than there are GPUs")
    if gpus:
        return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[:count]]
    return [{"OMP_NUM_THREADS": str(max(cores // count, 1))}] * count


def run_jobs(
    jobs: Sequence[Job],
    work: Callable[[Job, Report], Any],
    environments: Sequence[Mapping[str, str]],
    on_report: Callable[[int, Any], None] = lambda index, report: None,
) -> Iterator[tuple[int, Any]]:
    """(index of the job, what `work` returned or Died), as the jobs end; at most one job per environment at a time.

    work: a function of a module, called in a worker with the job and a function that reports back while it runs.
    """
    found = {"PYTHONPATH": os.pathsep.join(sys.path)}  # a worker imports what its parent can
    return share_out(jobs, [partial(Worker, work, {**each, **found}) for each in environments], on_report)


class Worker:
    """A process that does one job after another. It ends when this process does, because its stdin ends then.

    connection: where it says ("ready", None) once it can take a job, ("report", anything), and ("result", what `work`
        returned).
    index: of the job that it has.
    """

    def __init__(self, work: Callable[[Any, Report], Any], environment: Mapping[str, str]) -> None:
        self.work, self.index = work, cast(int | None, None)
        # a session of its own: Ctrl-C is for this process, which then ends its workers
        options: dict[str, Any] = {"bufsize": 0, "start_new_session": True, "env": {**os.environ, **environment}}
        words = [sys.executable, "-m", __name__]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.jobs = Connection(os.dup(self.process.stdin.fileno()), readable=False)
        self.connection = Connection(os.dup(self.process.stdout.fileno()), writable=False)
        self.process.stdin.close()
        self.process.stdout.close()

    def send(self, job: Any) -> None:
        with suppress(BrokenPipeError):  # it has died, which is seen when it is read from
            self.jobs.send((self.work, job))

    def close(self) -> None:
        """It ends when it looks for the next job."""
        self.jobs.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def exit_code(self) -> int:
        """Waits for its end."""
        return self.process.wait()


def share_out(
    jobs: Sequence[Job], places: Sequence[Callable[[], Worker]], on_report: Callable[[int, Any], None]
) -> Iterator[tuple[int, Any]]:
    """As `run_jobs`, with a worker at each place. A job is given to a worker that is ready. places: start a worker.
    Raises ValueError when workers end one after the other before they are ready."""
    waiting = list(enumerate(jobs))[::-1]
    free, workers, in_vain = list(places)[::-1], dict[Worker, Callable[[], Worker]](), 0
    ready = set[Worker]()
    try:
        while waiting or any(worker.index is not None for worker in workers):
            while free and len(waiting) > sum(worker.index is None for worker in workers):
                place = free.pop()
                workers[place()] = place
            for worker in list(ready)[: len(waiting)]:
                worker.index, job = waiting.pop()
                worker.send(job)
                ready.discard(worker)
            heard = wait([worker.connection for worker in workers])
            for worker in [worker for worker in workers if worker.connection in heard]:
                index = worker.index
                try:
                    kind, content = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    free.append(workers.pop(worker))
                    ready.discard(worker)
                    code, in_vain = worker.exit_code(), in_vain + (index is None)
                    if index is not None:
                        yield index, Died(code)
                    elif in_vain > len(places):
                        raise ValueError(f"workers end before they begin, the last with exit code {code}") from None
                    continue
                if kind == "report":
                    assert index is not None
                    on_report(index, content)
                    continue
                worker.index, in_vain = None, 0
                ready.add(worker)
                if index is not None:
                    yield index, content
    finally:
        for worker in ready:
            worker.close()
            worker.exit_code()
        for worker in workers.keys() - ready:
            worker.kill()


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
