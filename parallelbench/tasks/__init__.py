"""The built-in tasks, and suites of tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

from parallelbench.tasks.base import Draw, Sample, Task, bench_samples, train_draw
from parallelbench.tasks.puzzles import LatinSquare, Sudoku
from parallelbench.tasks.waiting_line import TEMPLATES, WaitingLine

__all__ = [
    "Draw",
    "LatinSquare",
    "Sample",
    "Sudoku",
    "Suite",
    "Task",
    "WaitingLine",
    "bench_samples",
    "builtin_tasks",
    "train_draw",
]


def builtin_tasks(lengths: Sequence[int] = (3, 4, 5, 6)) -> dict[str, WaitingLine | LatinSquare | Sudoku]:
    """All built-in tasks by name; `lengths` are the list lengths of the waiting line."""
    tasks = [*(WaitingLine(operation, tuple(lengths)) for operation in TEMPLATES), LatinSquare(), Sudoku()]
    return {task.name: task for task in tasks}


@dataclass(frozen=True)
class Suite:
    """What a run measures: built-in tasks by name, or any Task objects, and the waiting line's list lengths."""

    tasks: Sequence[str | Task]
    lengths: Sequence[int] = (3, 4, 5, 6)

    def build(self) -> list[Task]:
        """The tasks in order. Raises ValueError for an unknown name, a repeated task or an empty suite."""
        known = builtin_tasks(self.lengths)
        tasks: list[Task] = []
        for task in self.tasks:
            if isinstance(task, str) and task not in known:
                raise ValueError(f"unknown task {task!r}; choose among {', '.join(known)}")
            tasks.append(known[task] if isinstance(task, str) else task)
        names = [task.name for task in tasks]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"suite.tasks={names}; give at least one task, each once")
        return tasks
