"""Runs over the same samples, side by side, and their means resampled together."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int, Shaped

from parallelbench.records.questions import numbered
from parallelbench.records.record import Record, Run
from parallelbench.stats.intervals import Value, bounded, product
from parallelbench.stats.metrics import ALL
from parallelbench.stats.resampling import resampled
from parallelbench.tasks.base import first_wording


@dataclass(frozen=True)
class Questions:
    """What samples observe: the wordings of a question share its difficulty, so together they are one observation.

    of: the place of each sample's question. strata: of each question its task, and how many wordings of it there are.
    weights: that number, 1 on average.
    """

    of: Int[np.ndarray, " samples"]
    strata: Shaped[np.ndarray, " questions"]
    weights: Float[np.ndarray, " questions"]

    def mean(self, numbers: Float[np.ndarray, "*k samples"]) -> Float[np.ndarray, "*k questions"]:
        """The mean over the wordings of each question."""
        if len(self.of) == len(self.weights):
            return numbers
        sums = np.zeros((*numbers.shape[:-1], len(self.weights)))
        np.add.at(np.moveaxis(sums, -1, 0), self.of, np.moveaxis(numbers, -1, 0))
        return (sums / np.bincount(self.of)).round(9)  # what cancels out is 0


def observed(tasks: Shaped[np.ndarray, " samples"], asked: Int[np.ndarray, " samples"] | None) -> Questions:
    """The questions of samples. asked: a number that the wordings of a question share. None: none has several."""
    if asked is None or len(np.unique(asked)) == len(asked):
        return Questions(np.arange(len(tasks)), tasks, np.ones(len(tasks)))
    _, first, of, counts = np.unique(asked, return_index=True, return_inverse=True, return_counts=True)
    strata = np.array([f"{first_wording(str(tasks[i]))}/{count}" for i, count in zip(first, counts, strict=True)])
    return Questions(of, strata, counts * len(counts) / len(asked))


@dataclass(frozen=True)
class Paired:
    """Columns of numbers of runs over the same samples, `[runs, samples]`, and the task of each sample, `[samples]`.

    score: per cent. nfe: forwards. tokens: decoded before EOS. canvas: response columns. asked: as in `observed`.
    """

    tasks: np.ndarray
    score: np.ndarray
    nfe: np.ndarray
    tokens: np.ndarray
    canvas: np.ndarray
    asked: np.ndarray | None = None

    @cached_property
    def questions(self) -> Questions:
        """What statistics are made of: a question in several wordings is one observation."""
        return observed(self.tasks, self.asked)

    def part(self, of: np.ndarray) -> "Paired":
        """Some of the samples."""
        numbers = (self.score, self.nfe, self.tokens, self.canvas)
        score, nfe, tokens, canvas = (column[:, of] for column in numbers)
        return Paired(self.tasks[of], score, nfe, tokens, canvas, None if self.asked is None else self.asked[of])

    def taking(self, runs: np.ndarray) -> "Paired":
        """Rows of some of the runs. runs: their places, one per sample `[rows, samples]` or for all `[rows, 1]`."""
        numbers = (self.score, self.nfe, self.tokens, self.canvas)
        score, nfe, tokens, canvas = (column[runs, np.arange(len(self.tasks))] for column in numbers)
        return Paired(self.tasks, score, nfe, tokens, canvas, self.asked)

    def by_task(self) -> Iterator[tuple[str, np.ndarray]]:
        """Each task and which samples are its own, `[samples]`; last ALL with all of them."""
        yield from ((str(task), self.tasks == task) for task in np.unique(self.tasks))
        yield ALL, np.full(len(self.tasks), True)

    def slow(self) -> np.ndarray:
        """Forwards of each run's slowest conceivable sample, one per column, `[runs]`; those of any where all took
        equally many, since that is a schedule's doing."""
        most = self.nfe.max(1)
        return np.where(np.ptp(self.nfe, axis=1) > 0, np.maximum(self.canvas.max(1), most), most)

    def alike(self) -> np.ndarray:
        """Weights of questions by which all tasks weigh alike, 1 on average, `[questions]`."""
        _, places, counts = np.unique(self.tasks, return_inverse=True, return_counts=True)
        return self.questions.weights * self.questions.mean(len(self.tasks) / (len(counts) * counts[places]))


@dataclass(frozen=True)
class Means:
    """Means of every run in which all tasks weigh alike, `[1 + resamples, runs]`, as `resampling.resampled` makes them.

    score: per cent. nfe: forwards per sample. tps: ParallelBench's tokens per step, the mean over samples of response
    columns per forward. tpf: all tokens before EOS over all forwards.
    """

    score: np.ndarray
    nfe: np.ndarray
    tps: np.ndarray
    tpf: np.ndarray


def pair(runs: Sequence[Run]) -> Paired:
    """Raises ValueError for a run that is unfinished, has no samples, or decoded other samples or task versions."""
    for run in runs:
        if run.info["status"] != "done" or not run.records:
            raise ValueError(f"{run.folder} is not finished; repeat its command to finish it, or leave it out")
    return side_by_side(runs)


def side_by_side(runs: Sequence[Run]) -> Paired:
    """Runs as they are. Raises ValueError for one that decoded other samples or task versions."""
    check_versions(runs)
    by_id = [{(record.task, record.id): record for record in run.records} for run in runs]
    order = sorted(by_id[0])
    for run, records in zip(runs, by_id, strict=True):
        if sorted(records) != order or any(records[key].prompt_sha != by_id[0][key].prompt_sha for key in order):
            raise ValueError(
                f"{run.folder} decoded other samples than {runs[0].folder}; compare runs of one suite, limit and seed"
            )

    def column(number: Callable[[Record], float]) -> np.ndarray:
        return np.array([[number(records[key]) for key in order] for records in by_id], dtype=float)

    return Paired(
        np.array([task for task, _ in order]),
        column(lambda r: 100 * r.scores["score"]),
        column(lambda r: r.nfe),
        column(lambda r: r.num_tokens),
        column(lambda r: len(r.committed_at)),
        np.array(numbered([by_id[0][key] for key in order])),
    )


def means(paired: Paired) -> Means:
    """Means over samples within each task, then over tasks; questions are drawn within their task, alike for all
    runs."""
    asked = paired.questions
    columns = asked.mean(np.stack([paired.score, paired.nfe, paired.canvas / paired.nfe, paired.tokens]))
    worst, best = columns.mean(2), columns.mean(2)
    worst[:3] = paired.score.min(1).clip(max=0), paired.slow(), paired.canvas.mean(1) / paired.slow()
    best[0] = paired.score.max(1).clip(min=100)
    score, nfe, tps, tokens = resampled(columns, asked.strata, worst, best, paired.alike())
    return Means(score, nfe, tps, tokens / nfe)


@dataclass(frozen=True)
class Marks:
    """Means of one run as in `Means`, with intervals."""

    score: Value
    nfe: Value
    tps: Value
    tpf: Value


def marks(paired: Paired) -> list[Marks]:
    """Of each run."""
    found, weights, asked = [], paired.alike(), paired.questions

    def mean(numbers: np.ndarray, powers: Sequence[int], unseen: Sequence[float]) -> Value:
        return product(np.atleast_2d(weights * asked.mean(numbers)), powers, asked.strata, np.array([unseen]))

    columns = (paired.score, paired.nfe, paired.tokens, paired.canvas, paired.slow())
    for score, nfe, tokens, canvas, slow in zip(*columns, strict=True):
        found.append(
            Marks(
                bounded(asked.mean(score), 0, 100, asked.strata, weights),
                mean(nfe, (1,), [slow]),
                mean(canvas / nfe, (1,), [canvas.mean() / slow]),
                mean(np.stack([tokens, nfe]), (1, -1), [tokens.mean(), slow]),
            )
        )
    return found


def check_versions(runs: Sequence[Run]) -> None:
    """Raises ValueError for a run of another version of a task than a run before it."""
    first: dict[str, tuple[Run, str]] = {}
    for run in runs:
        for record in run.records:
            other, version = first.setdefault(record.task, (run, record.task_version))
            if version != record.task_version:
                raise ValueError(
                    f"{run.folder} has version {record.task_version} of {record.task}, {other.folder} has version "
                    f"{version}; keep them apart, or run one of them again"
                )
