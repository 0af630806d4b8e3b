"""The official ParallelBench tasks (arXiv 2510.04767), read from the user's copy of the data: v1, the paper's, from
files, and v2, the leaderboard's, through `datasets`.

Prompts, demonstrations and scorers are as published; the data are fixed, so a run's `seed` draws nothing and `limit`
takes the first rows of each task. The text tasks' `score` is grammar alone, which is what the paper's figures and the
leaderboard plot; our content-aware score is `score_corrected`. Token budgets are the published ones.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from dllm.validation import Checked, Count, check
from parallelbench.tasks.base import Sample, Task
from parallelbench.tasks.infilling import infilled
from parallelbench.tasks.official.data import (
    CONFIG,
    LIST_METRICS,
    LONG_LINE,
    Source,
    build_samples,
    find_data,
    load_source,
    read_source,
)
from parallelbench.tasks.official.manifest import PUBLISHED
from parallelbench.tasks.official.scores import LatinSquareScore, ListScore, SudokuScore
from parallelbench.tasks.text.grammar import grammar_backend
from parallelbench.tasks.text.measures import BertScore
from parallelbench.tasks.text.tasks import Paraphrase, Summary, WordsToSentence
from parallelbench.tasks.waiting_line import OPERATIONS

TASKS = {  # what a folder's name stands for
    "waiting_line": OPERATIONS,
    "puzzle": ("latin_square_n4", "sudoku_n4_12"),
    "words_to_sentence": ("easy", "medium", "hard"),
    "paraphrase_summarize": ("chatgpt-paraphrases", "samsum"),
}
TASKS_V2 = {
    "waiting_line": OPERATIONS,
    "puzzles": ("latin_square_n4", "sudoku_n4"),
    "text_writing": (
        "words_to_sentence_easy",
        "words_to_sentence_medium",
        "words_to_sentence_hard",
        "paraphrasing",
        "summarization",
    ),
}
HUB = "furiosa-ai/ParallelBench"


@runtime_checkable
class Scorer(Protocol):
    """The scoring half of a task."""

    @property
    def version(self) -> str: ...

    def score(self, sample: Sample, completion: str) -> dict[str, float]: ...


@dataclass(frozen=True)
class TextScore:
    """One of our text tasks as a scorer, with the published headline: `grammar`, which has no strict form."""

    task: Scorer

    @property
    def version(self) -> str:
        return self.task.version

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        scores = self.task.score(sample, completion)
        headline = {"score": scores["grammar"], "score_strict": scores["grammar"], "score_corrected": scores["score"]}
        return {**scores, **headline}


@dataclass(frozen=True)
class OfficialTask:
    """A task whose samples are published rows. stop: where an answer ends if it continues past it."""

    name: str
    version: str
    rows: Sequence[Sample]
    scorer: Scorer
    stop: str | None = None

    def samples(self, limit: Count, seed: int) -> list[Sample]:
        """The first `limit` rows, or all if there are fewer; `seed` is ignored. Raises ValueError below 1."""
        check(OfficialTask.samples, limit=limit)
        return list(self.rows[:limit])

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        return self.scorer.score(sample, completion if self.stop is None else completion.split(self.stop)[0])


@dataclass(frozen=True)
class OfficialSuite(Checked):
    """The v1 tasks of a folder: 17, with 1,708 rows, unless `tasks` names others (`waiting_line_n15`
    for a folder's tasks, `words_to_sentence/easy_n3` for one). grammar, bertscore: as in Suite, for the text tasks.
    infill: as in Suite; published is 1."""

    generation: ClassVar[str] = "v1"

    data_dir: str | None
    tasks: Sequence[str] = tuple(TASKS)
    grammar: str = "harper"
    bertscore: str | None = None
    infill: Count | None = None

    def build(self) -> list[Task]:
        """Reads the files. Raises ValueError for an unknown or repeated task and for missing or malformed files."""
        asked = (task.split("/")[0] for task in self.tasks)
        folders = TASKS | {folder: OPERATIONS for folder in asked if LONG_LINE.fullmatch(folder)}
        sentences = PUBLISHED["words_to_sentence"].keys() - {CONFIG}
        names = expand(self.tasks, folders, {f"words_to_sentence/{Path(file).stem}" for file in sentences})
        folder = find_data(self.data_dir)
        tasks = [make_task(read_source(folder, name), "official_v1", self.grammar, self.bertscore) for name in names]
        return infilled(tasks, self.infill)


@dataclass(frozen=True)
class OfficialV2Suite(Checked):
    """The v2 tasks of a dataset on the hub, or of a local folder with the same configurations (`waiting_line-copy`).

    Its differences from v1 lie in the data (one demonstration per task, positions counted from 1, blank lines in the
    prompts), but for the tasks' names and the stop strings, at which an answer is cut. Checked with made-up rows in
    the published layout alone: the data were not at hand, so neither prompts nor the hub's rows are verified.
    """

    generation: ClassVar[str] = "v2"

    data_dir: str = HUB
    tasks: Sequence[str] = tuple(TASKS_V2)
    grammar: str = "harper"
    bertscore: str | None = None
    infill: Count | None = None

    def build(self) -> list[Task]:
        """Loads the data. Raises ValueError without the package `datasets`, without data, and for malformed rows."""
        tasks = []
        for name in expand(self.tasks, TASKS_V2):
            stop = "\n\n\n" if name.startswith("puzzles/") else "\n\n"
            tasks.append(make_task(load_source(self.data_dir, name), "official_v2", self.grammar, self.bertscore, stop))
        return infilled(tasks, self.infill)


def expand(tasks: Sequence[str], folders: Mapping[str, Sequence[str]], others: Collection[str] = ()) -> list[str]:
    """Task names, a folder's name replaced by its tasks; `others` are tasks that must be named one by one.

    Raises ValueError for unknown, repeated or no tasks.
    """
    single = {f"{folder}/{task}" for folder, members in folders.items() for task in members} | set(others)
    names = []
    for task in tasks:
        if task not in folders and task not in single:
            raise ValueError(f"unknown task {task!r}; choose among {', '.join(folders)} and their tasks")
        names += [f"{task}/{member}" for member in folders[task]] if task in folders else [task]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"suite.tasks={list(tasks)}; give at least one task, each once")
    return names


def make_task(
    source: Source, prefix: str, grammar: str, bertscore: str | None, stop: str | None = None
) -> OfficialTask:
    """A task with its samples and its scorer. Raises ValueError for malformed rows and an unknown metric."""
    folder, name = source.name.split("/")
    gen_len = 128 if LONG_LINE.fullmatch(folder) else 32 if folder == "waiting_line" else 64
    scorer = _scorer(source, name, grammar, bertscore)
    rows = build_samples(source, prefix, gen_len)
    return OfficialTask(source.name, f"{source.version}+{scorer.version}", rows, scorer, stop)


def _scorer(source: Source, name: str, grammar: str, bertscore: str | None) -> Scorer:
    if source.metric in LIST_METRICS:
        return ListScore("sort" if name == "sort" else LIST_METRICS[source.metric])
    if source.metric == "latin_square_score":
        return LatinSquareScore()
    if source.metric == "sudoku_score":
        return SudokuScore()
    backend = grammar_backend(grammar)  # of our own task with the same data
    if source.metric == "sentence_to_words_score":
        return TextScore(WordsToSentence("easy", backend))
    if source.metric == "summary_score":
        return TextScore(Summary(backend))
    if source.metric == "paraphrase_score":
        return TextScore(Paraphrase(backend, None if bertscore is None else BertScore(bertscore)))
    raise ValueError(f"{source.name} has the unknown metric {source.metric!r}; restore its task_config.yaml")
