"""The same questions in other words: every built-in task has four wordings, by number from 0."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

from dllm.validation import Interval, nearest, shown
from parallelbench.tasks.base import Draw, Drawable, Drawn, ManyAnswers, Sample, Task, first_wording

Wording = Annotated[int, Interval("[0, 99]", "the number of a task's wording, 0 is the first")]


@runtime_checkable
class DrawnTask(Task, Drawable, Protocol):
    """A task that makes its own instances."""


@dataclass(frozen=True)
class Reworded(Drawn):
    """A task in its wording number `wording`, named `TASK@2` for its third. Instances, answers and scores are those of
    the task: sample i asks the same in each wording, and what one wording holds out of training, all do."""

    task: DrawnTask
    wording: Wording

    @property
    def name(self) -> str:
        return f"{self.task.name}@{self.wording}"

    @property
    def version(self) -> str:
        return self.task.version

    def draw(self, rng: random.Random, index: int) -> Draw:
        return self.task.draw(rng, index).worded(self.wording)

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        return self.task.score(sample, completion)

    def nearest(self, sample: Sample, completion: str) -> str:
        return self.task.nearest(sample, completion) if isinstance(self.task, ManyAnswers) else sample.target


def reworded(task: Task, wording: int) -> Reworded:
    """Raises ValueError for a task of one wording, or without this one."""
    others = 0
    if isinstance(task, DrawnTask):
        others = len(task.draw(random.Random(0), 0).wordings)
        if 1 <= wording <= others:
            return Reworded(task, wording)
    has = f" is not there; give 0 to {others}" if others else ", which has one wording; leave suite.templates out"
    raise ValueError(f"wording {wording} of task {task.name!r}{has}")


def named_task(name: str, known: Mapping[str, Task]) -> Task:
    """One of the known tasks, or its wording `NAME@2`. Raises ValueError for one that is not there."""
    first = first_wording(name)
    if first not in known:
        raise ValueError(f"unknown task {shown(name)}; {nearest(first, known)}")
    wording = int(name[len(first) + 1 :] or 0)
    return reworded(known[first], wording) if wording else known[first]
