"""The same questions in other words: every built-in task has four wordings, by number from 0."""

import random
from collections.abc import Iterable, Mapping
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
    has = f"has no wording {wording}; give 0 to {others}" if others else "has one wording; leave suite.templates out"
    raise ValueError(f"task {task.name!r} {has}")


def whole_name(name: str, known: Iterable[str]) -> str:
    """`waiting_line/copy@2` for `copy@2`, where one known task alone ends so; any other name as it is."""
    last, at, wording = name.partition("@")
    found = [other for other in known if other.rpartition("/")[2] == last]
    return found[0] + at + wording if len(found) == 1 else name


def named_task(name: str, known: Mapping[str, Task]) -> Task:
    """One of the known tasks by its name or the last part of it, or its wording `NAME@2`. Raises ValueError for an
    unknown one."""
    whole = whole_name(name, known)
    first = first_wording(whole)
    if first not in known:
        raise ValueError(f"unknown task {shown(name)}; {nearest(first, known, 'parallelbench list tasks')}")
    wording = int(whole[len(first) + 1 :] or 0)
    return reworded(known[first], wording) if wording else known[first]
