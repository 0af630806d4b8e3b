"""Jobs on the devices of one machine: a worker process per device, each taking the next job as soon as it is free.

Workers stay until the jobs are done, so what one has loaded serves its later jobs. A worker that dies takes its job
with it and is replaced; workers end at once when their parent is killed. `parallelbench.wiring.clusters` has workers on
other machines.
"""

import multiprocessing
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

Job = TypeVar("Job")
Report = Callable[[Any], None]
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Died:
    """What is left of a job whose worker died: its exit code, negative for a signal, None where nobody knows it."""

    exit_code: int | None


def devices(workers: int | None = None) -> list[dict[str, str]]:
    """The environment of each worker: a GPU of its own, or a share of the CPU's cores where there is none.

    workers: how many; by default one per visible GPU, or per core. Raises ValueError for fewer than one, or for more
    than there are GPUs.
    """
    import torch  # takes a second, which a worker on another machine needs not lose before it has a job

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
    return share_out(jobs, [partial(_Process, work, environment) for environment in environments], on_report)


class Worker(ABC):
    """A process that does one job after another.

    connection: where it says ("ready", None) once it can take a job, ("report", anything), and ("result", what `work`
        returned).
    index: of the job that it has.
    """

    connection: Connection
    index: int | None = None

    @abstractmethod
    def send(self, job: Any) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """It ends when it looks for the next job."""

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def exit_code(self) -> int:
        """Waits for its end."""


def share_out(
    jobs: Sequence[Job], places: Sequence[Callable[[], Worker]], on_report: Callable[[int, Any], None]
) -> Iterator[tuple[int, Any]]:
    """As `run_jobs`, with a worker at each place. A job is given to a worker that is ready, so none waits for one that
    waits for a machine. places: start a worker. Raises ValueError when workers end one after the other before they are
    ready."""
    waiting = list(enumerate(jobs))[::-1]
    free, workers, in_vain = list(places)[::-1], dict[Worker, Callable[[], Worker]](), 0
    ready = set[Worker]()
    try:
        while waiting or any(worker.index is not None for worker in workers):
            while free and len(waiting) > sum(worker.index is None for worker in workers):
                place = free.pop()
                workers[place()] = place
            for worker in [worker for worker in ready if waiting]:
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


class _Process(Worker):
    """A process of this machine with its end of a pipe."""

    def __init__(self, work: Callable[[Any, Report], Any], environment: Mapping[str, str]) -> None:
        self.connection, theirs = SPAWN.Pipe()
        self.process: BaseProcess = SPAWN.Process(target=_serve, args=(theirs, work), daemon=True)
        with _inherited(environment):  # before the libraries that read it are imported
            self.process.start()
        theirs.close()

    def send(self, job: Any) -> None:
        self.connection.send(job)

    def close(self) -> None:
        self.connection.close()

    def kill(self) -> None:
        self.process.kill()

    def exit_code(self) -> int:
        self.process.join()
        return self.process.exitcode or 0


def _serve(connection: Connection, work: Callable[[Any, Report], Any]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection.send(("ready", None))
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(("result", work(job, lambda report: connection.send(("report", report)))))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _inherited(environment: Mapping[str, str]) -> Iterator[None]:
    """What a process that is started now inherits: variables, and a deaf ear for Ctrl-C, which is its parent's."""
    before = {key: os.environ.get(key) for key in environment}
    os.environ.update(environment)
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, on_interrupt)
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
