"""A checked run before anything of it is written or decoded: which samples, in which batches."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from decoders.constraints.patterns import Constraint, constraint_of
from decoders.noise import numbered
from dllm.validation import Count, Number, check
from parallelbench.run.generator import Generator, Request, Traceable
from parallelbench.tasks import Sample, Task
from parallelbench.tasks.base import PLACE
from parallelbench.tasks.rows import check_references

Held = Constraint | Literal["task"] | None  # what answers are held to; each sample's own, nothing


@dataclass(frozen=True)
class Job:
    """A checked run, ready to start. Nothing has been written or decoded yet.

    batches: all samples, as they stand in the queue.
    config: what identifies the run.
    choices: names for reports, by config group.
    gen_len: tokens to decode. None: each sample's own budget.
    facts: generation and knobs of `Facts`, where they are known.
    traced: ids of the samples whose steps are saved.
    slots: samples decoded at once.
    constraint: what answers are held to; "task" is each sample's own.
    draws: by the id of a sample, how many before it in its task ask the same. They are different samples of the prompt.
    """

    generator: Generator
    tasks: Sequence[Task]
    batches: Sequence[Sequence[Sample]]
    config: Mapping[str, Any]
    choices: Mapping[str, str]
    folder: Path
    gen_len: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    traced: Set[str] = frozenset()
    slots: int = 1
    draws: Mapping[str, int] = field(default_factory=dict)
    constraint: Held = None

    def request(self, sample: Sample) -> Request:
        return request_of(sample, self.gen_len, self.constraint, self.draws.get(sample.id, 0))

    def missing(self, known: Set[str]) -> list[Sequence[Sample]]:
        """The batches that hold a sample not yet known."""
        return [batch for batch in self.batches if any(sample.id not in known for sample in batch)]


def prepare(
    generator: Generator,
    tasks: Sequence[Task],
    *,
    limit: Count,
    seed: int,
    batch_size: Count,
    gen_len: Count | None,
    config: Mapping[str, Any],
    choices: Mapping[str, str],
    facts: Mapping[str, Any] = MappingProxyType({}),
    traces: Number = 0,
    constraint: Held = None,
) -> Job:
    """Draws the samples and sorts them into batches, by task and then by prompt length. traces: how many samples of a
    task to save the steps of, its first ones. constraint: see `Job`.

    Raises ValueError for sizes below 1, a benchmark seed out of range, an empty prompt, rows none of whose references
    scores 1, or steps that nobody tells.
    """
    check(prepare, limit=limit, seed=seed, batch_size=batch_size, gen_len=gen_len, traces=traces)
    if traces and not isinstance(generator, Traceable):
        raise ValueError(f"traces={traces}, but the loop of this decoder does not tell its steps; use traces=0")
    batches, traced, draws = [], set(), dict[str, int]()
    for place, task in enumerate(tasks):
        try:
            samples = task.samples(limit, seed)
            check_task(task, samples)
            check_references(task, samples)
        except ValueError as error:
            if PLACE not in str(error):
                raise
            raise ValueError(str(error).replace(PLACE, f"suite.tasks.{place}")) from error
        places = numbered(repr(sample.messages) for sample in samples)
        draws |= {sample.id: place for sample, place in zip(samples, places, strict=True)}
        traced |= {sample.id for sample in samples[:traces]}
        samples = sorted(samples, key=lambda s: generator.prompt_len(request_of(s, gen_len, constraint)))
        batches += [samples[first : first + batch_size] for first in range(0, len(samples), batch_size)]
    folder = Path(config["out_dir"])
    if constraint == "task" and not any(sample.constraint for batch in batches for sample in batch):
        raise ValueError(
            "constraint=task, and no sample of these tasks says what its answer must look like; leave it out"
        )
    return Job(
        generator, tasks, batches, config, choices, folder, gen_len, facts, traced, batch_size, draws, constraint
    )


def check_task(task: Task, samples: Sequence[Sample]) -> None:
    """Raises ValueError unless these are samples, and the task can score the target of the first as records need it."""
    check(check_task, samples=samples)
    if not samples:
        raise ValueError(f"task {task.name!r} gave no samples; let samples() return at least one")
    try:
        scores = task.score(samples[0], samples[0].target)
        wrong = [f"{name} is {value!r}" for name, value in scores.items() if not 0 <= value <= 1]
        wrong += [f"{name} is missing" for name in ("score", "score_strict") if name not in scores]
    except Exception as error:  # a task of the user's may fail in any way
        raise ValueError(f"task {task.name!r} cannot score its own target: {type(error).__name__}: {error}") from error
    if wrong:
        raise ValueError(
            f"the scorer of task {task.name!r} must return score and score_strict, and all scores in [0, 1]; {wrong[0]}"
        )


def request_of(sample: Sample, gen_len: int | None, constraint: Held = None, draw: int = 0) -> Request:
    """What is asked for a sample. constraint: see `Job`."""
    if constraint == "task":
        constraint = None if sample.constraint is None else constraint_of(sample.constraint)
    length = sample.gen_len if gen_len is None else gen_len
    return Request(sample.messages, length, sample.form, draw, constraint)
