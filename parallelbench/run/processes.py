"""Several processes that decode one run together, as torchrun, `accelerate launch` and mpirun start them.

Only small Python objects pass between them, so they talk over the CPU whatever device they decode on, and may share a
GPU. A process on its own initialises nothing.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object, get_cpu_distributed_information

T = TypeVar("T")
NEVER = timedelta(days=365)  # the others may wait for one long batch; the launcher notices a process that died


@dataclass(frozen=True)
class Processes:
    """This process's rank among `count`; rank 0 is the main one, which writes what there is once."""

    rank: int = 0
    count: int = 1
    launcher: int = field(default_factory=os.getppid, compare=False)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def shard(self) -> int | None:
        """The shard of samples that this process writes, None where it is alone."""
        return self.rank if self.count > 1 else None

    def leave_if_orphan(self) -> None:
        """Ends this process where the launcher was killed, so that nobody else would: it would write next to the run
        that resumes this one."""
        if self.count > 1 and os.getppid() != self.launcher:
            raise SystemExit("error: the launcher was killed; run the command again to resume")

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's items, dealt round like cards."""
        return items[self.rank :: self.count]

    def everywhere(self, work: Callable[[], T]) -> T:
        """This process's result of `work`, once all processes have theirs. A ValueError or OSError of any is raised in
        all, and any other exception as a RuntimeError, so that nobody waits for a process that has failed."""
        if self.count == 1:
            return work()
        result, failure = None, None
        try:
            result = work()
        except Exception as error:
            failure = error
        kinds = (kind for kind in (ValueError, OSError, RuntimeError) if isinstance(failure, kind))
        kind = None if failure is None else next(kinds, RuntimeError)
        failures = [(other, text) for other, text in gather_object([(kind, str(failure))]) if other is not None]
        if kind in (OSError, RuntimeError):
            raise cast(Exception, failure)
        if failures:
            other, text = failures[0]
            raise other(f"another process failed: {text}" if other is RuntimeError else text)
        return cast(T, result)

    def in_main(self, work: Callable[[], T]) -> T:
        """The main process's result of `work`, which it begins when all have come here. Its ValueError is raised in
        all."""
        self.wait()
        box = [self.everywhere(lambda: work() if self.is_main else None)]
        return cast(T, broadcast_object_list(box)[0] if self.count > 1 else box[0])

    def wait(self) -> None:
        """Until all processes have come here."""
        self.everywhere(lambda: None)

    def leave(self) -> None:
        """Waits for the others and lets go of them: launchers end what still runs once one process has failed."""
        self.wait()
        if self.count > 1:
            PartialState().destroy_process_group()


ALONE = Processes()


def join() -> Processes:
    """The processes that this one was started with, each on a GPU of its own where there are GPUs."""
    if get_cpu_distributed_information().world_size == 1:
        return ALONE
    state = PartialState(cpu=True, timeout=NEVER)
    if torch.cuda.is_available():  # "cuda" now means this one, for the model and for the clock
        torch.cuda.set_device(state.local_process_index % torch.cuda.device_count())
    return Processes(state.process_index, state.num_processes)
