"""Answers of which the form is given: the people of a list are decoded, its brackets, quotes and commas stand there.

That is what ParallelBench measures with `infill` (arXiv 2510.04767, figure 2), on lists of known length. Its rows give
one MASK a person and are padded to the budget; they hold the forms of copy, shuffle and the insert and replace
operations alone, here each list has one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dllm.validation import Checked, Count
from parallelbench.tasks.base import ManyAnswers, Sample, Task
from parallelbench.tasks.waiting_line import parse_strict, write_list

MASK = "[MASK]"


@dataclass(frozen=True)
class Infilled(Checked):
    """A task whose answers are lists, `tokens` MASKs in the place of each item. Prompts, answers and scores are those
    of the task; the version says that the form was given."""

    task: Task
    tokens: Count

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def version(self) -> str:
        return f"{self.task.version}-infill{self.tokens}"

    def samples(self, limit: int, seed: int) -> list[Sample]:
        """Raises ValueError for a task whose answers are no lists."""
        return [replace(sample, form=self._form(sample)) for sample in self.task.samples(limit, seed)]

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        return self.task.score(sample, completion)

    def nearest(self, sample: Sample, completion: str) -> str:
        return self.task.nearest(sample, completion) if isinstance(self.task, ManyAnswers) else sample.target

    def _form(self, sample: Sample) -> str:
        items = parse_strict(sample.target)
        if items is None:
            raise ValueError(
                f"suite.infill={self.tokens} of task {self.name!r}, whose answers are no lists; leave one of them out"
            )
        return write_list([MASK * self.tokens] * len(items))


def infilled(tasks: Sequence[Task], tokens: Count | None) -> list[Task]:
    """The tasks with their forms given, or as they are (None)."""
    return list(tasks) if tokens is None else [Infilled(task, tokens) for task in tasks]
