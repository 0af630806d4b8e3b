"""The built-in tasks, and suites of tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dllm.validation import Checked, Count, shown
from parallelbench.tasks.base import Draw, Sample, Task, bench_samples, first_wording, train_draw
from parallelbench.tasks.infilling import infilled
from parallelbench.tasks.puzzles import LatinSquare, Sudoku
from parallelbench.tasks.shapes import vision_tasks
from parallelbench.tasks.structured import json_tasks
from parallelbench.tasks.text.grammar import HARPER, Grammar, check_grammar, grammar_backend
from parallelbench.tasks.text.measures import BertScore
from parallelbench.tasks.text.source import LEVELS
from parallelbench.tasks.text.tasks import Paraphrase, Summary, WordsToSentence
from parallelbench.tasks.waiting_line import OPERATIONS, WaitingLine
from parallelbench.tasks.wording import DrawnTask, Reworded, Wording, named_task, reworded, whole_name


def builtin_tasks(lengths: Sequence[int] = (3, 4, 5, 6)) -> dict[str, WaitingLine | LatinSquare | Sudoku]:
    """The waiting line and the puzzles by name; `lengths` are the list lengths of the waiting line."""
    tasks = [*(WaitingLine(operation, tuple(lengths)) for operation in OPERATIONS), LatinSquare(), Sudoku()]
    return {task.name: task for task in tasks}


def text_tasks(
    grammar: Grammar = HARPER, bertscore: BertScore | None = None
) -> dict[str, WordsToSentence | Paraphrase | Summary]:
    """The text tasks by name, scored with one grammar backend."""
    tasks = [*(WordsToSentence(level, grammar) for level in LEVELS), Paraphrase(grammar, bertscore), Summary(grammar)]
    return {task.name: task for task in tasks}


def named_tasks(lengths: Sequence[int] = (3, 4, 5, 6)) -> dict[str, DrawnTask]:
    """All tasks that a suite may name."""
    return {**builtin_tasks(lengths), **text_tasks(), **json_tasks(), **vision_tasks()}


@dataclass(frozen=True)
class Suite(Checked):
    """What a run measures: built-in tasks by name, or any Task objects.

    tasks: `waiting_line/copy@2` is a task in its wording number 2; 0 is the first.
    lengths: the waiting line's list lengths.
    templates: the wordings that every task is asked in, each a task of its own in the reports.
    grammar: what checks the text tasks: harper, languagetool, link_grammar or the URL of a LanguageTool server.
    bertscore: folder of a model, named as the model (roberta-large), that the published paraphrase score needs; None
        leaves that score out.
    infill: tokens of an item, where the form of the answers, which are lists, is given; None where it is not.

    Raises ValueError for an unknown or repeated task, wording or grammar, and for no task.
    """

    tasks: Sequence[str | Task]
    lengths: Sequence[int] = (3, 4, 5, 6)
    templates: Sequence[Wording] = (0,)
    grammar: str = HARPER.name
    bertscore: str | None = None
    infill: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_grammar(self.grammar)
        names = [task.name for task in self._named(named_tasks(self.lengths))]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"suite.tasks={shown(names)}; give at least one task and wording, each once")

    def _named(self, known: Mapping[str, Task]) -> list[Task]:
        chosen = [named_task(task, known) if isinstance(task, str) else task for task in self.tasks]
        return [reworded(task, number) if number else task for task in chosen for number in self.templates]

    def build(self) -> list[Task]:
        """The tasks in order. Raises ValueError for a text task whose grammar
        backend or BERTScore model is missing."""
        known = named_tasks(self.lengths)
        if any(isinstance(task, str) and first_wording(whole_name(task, known)) in text_tasks() for task in self.tasks):
            bertscore = None if self.bertscore is None else BertScore(self.bertscore)
            known |= text_tasks(grammar_backend(self.grammar), bertscore)
        tasks = self._named(known)
        _ = [task.version for task in tasks]  # loads what a version names
        return infilled(tasks, self.infill)
