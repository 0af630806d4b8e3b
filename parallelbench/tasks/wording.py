"""The same questions in other words: every built-in task has four prompt templates."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

from conf.knobs import In, Knobs
from parallelbench.tasks.base import Draw, Drawable, ManyAnswers, Sample, Task, bench_samples, first_wording

Template = Annotated[int, In("[0, 99]", "the number of a task's prompt template, 0 is the first")]


@runtime_checkable
class DrawnTask(Task, Drawable, Protocol):
    """A task that makes its own instances."""


@dataclass(frozen=True)
class Reworded(Knobs):
    """A task in its wording number `template`, named `TASK@2` for its third. Instances, answers and scores are those of
    the task: sample i asks the same in each wording, and what one wording holds out of training, all do."""

    task: DrawnTask
    template: Template

    def __post_init__(self) -> None:
        super().__post_init__()
        count = 1 + len(self.task.draw(random.Random(0), 0).wordings)
        if count == 1:
            raise one_wording(self.task, self.template)
        if not 1 <= self.template < count:
            raise ValueError(
                f"template {self.template} of task {self.task.name!r}, whose other ones are 1 to {count - 1}"
            )

    @property
    def name(self) -> str:
        return f"{self.task.name}@{self.template}"

    @property
    def version(self) -> str:
        return self.task.version

    def draw(self, rng: random.Random, index: int) -> Draw:
        return self.task.draw(rng, index).worded(self.template)

    def samples(self, limit: int, seed: int) -> list[Sample]:
        return bench_samples(self, limit, seed)

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        return self.task.score(sample, completion)

    def nearest(self, sample: Sample, completion: str) -> str:
        return self.task.nearest(sample, completion) if isinstance(self.task, ManyAnswers) else sample.target


def in_wordings(task: Task, templates: Sequence[int]) -> list[Task]:
    """The task once for each template. Raises ValueError for a template that it does not have."""
    return [reworded(task, template) if template else task for template in templates]


def reworded(task: Task, template: int) -> Reworded:
    """Raises ValueError for a task of one wording, or without this one."""
    if not isinstance(task, DrawnTask) or isinstance(task, Reworded):
        raise one_wording(task, template)
    return Reworded(task, template)


def one_wording(task: Task, template: int) -> ValueError:
    return ValueError(f"template {template} of task {task.name!r}, which has one wording; leave suite.templates out")


def named_task(name: str, known: Mapping[str, Task]) -> Task:
    """One of the known tasks, or its wording `NAME@2`. Raises ValueError for one that is not there."""
    first = first_wording(name)
    if first not in known:
        raise ValueError(f"unknown task {name!r}; choose among {', '.join(known)}")
    template = int(name[len(first) + 1 :] or 0)
    return reworded(known[first], template) if template else known[first]
