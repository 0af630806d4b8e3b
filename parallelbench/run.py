"""One run: decode every sample of the tasks, score it, and write it down as it comes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from decoders import Generation
from parallelbench.generate import Generator, timed_batches
from parallelbench.metrics import aggregate
from parallelbench.record import (
    SCHEMA,
    Record,
    Run,
    append_records,
    config_hash,
    open_run,
    provenance,
    read_run,
    read_status,
    rewrite_records,
    write_info,
)
from parallelbench.tasks import Sample, Task


@dataclass(frozen=True)
class Job:
    """A checked run, ready to start: nothing has been written or decoded yet. choices: names for reports, by config
    group."""

    generator: Generator
    tasks: Sequence[Task]
    batches: Sequence[Sequence[Sample]]
    config: Mapping[str, Any]
    choices: Mapping[str, str]
    folder: Path


def prepare(
    generator: Generator,
    tasks: Sequence[Task],
    *,
    limit: int,
    seed: int,
    batch_size: int,
    config: Mapping[str, Any],
    choices: Mapping[str, str],
) -> Job:
    """Draws the samples and sorts them into batches, by task and then by prompt length.

    Raises ValueError for sizes below 1, a benchmark seed out of range or an empty prompt.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}; give at least 1")
    batches = []
    for task in tasks:
        samples = sorted(task.samples(limit, seed), key=lambda s: generator.prompt_len(s.messages))
        batches += [samples[first : first + batch_size] for first in range(0, len(samples), batch_size)]
    return Job(generator, tasks, batches, config, choices, Path(config["out_dir"]))


def start(job: Job) -> list[Record]:
    """Opens the run's directory and returns what it already holds. Raises ValueError when it belongs to another run."""
    return open_run(job.folder, job.config, _identity(job))


def execute(job: Job, written: Sequence[Record]) -> Run:
    """Decodes what is missing and returns the finished run.

    A batch is decoded as a whole even if only some of its samples are missing, so that a resumed run gets the same
    numbers.
    """
    known = {record.id for record in written}
    todo = [batch for batch in job.batches if any(sample.id not in known for sample in batch)]
    info = {
        "schema": SCHEMA,
        "status": "partial",
        "config_hash": config_hash(job.config),
        "choices": dict(job.choices),
        "identity": _identity(job),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **provenance(),
        **job.generator.describe(),
    }
    done = not todo and read_status(job.folder) == "done"
    if not done:
        write_info(job.folder, info)
    tasks = {task.name: task for task in job.tasks}
    with tqdm(total=sum(map(len, job.batches)), initial=len(known), desc="run", unit="sample") as bar:
        for batch, (generations, seconds) in zip(
            todo, timed_batches(job.generator, [[s.messages for s in batch] for batch in todo]), strict=True
        ):
            pairs = [(s, g) for s, g in zip(batch, generations, strict=True) if s.id not in known]
            append_records(
                job.folder, [_record(tasks[s.task], s, g, seconds, batch[0].id, len(batch)) for s, g in pairs]
            )
            bar.update(len(pairs))
    if not done:
        finish(job.folder, info)
    return read_run(job.folder)


def _identity(job: Job) -> dict[str, Any]:
    """What the config does not say and the results depend on: the weights, and the tasks' versions."""
    return {"weights": job.generator.fingerprint(), "tasks": {task.name: task.version for task in job.tasks}}


def finish(folder: Path, info: Mapping[str, Any]) -> None:
    """Computes the metrics from the records on disk and marks the run as done."""
    metrics = aggregate(read_run(folder).records)
    values = {task: {name: asdict(value) for name, value in row.items()} for task, row in metrics.items()}
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    write_info(folder, {**info, "status": "done", "ended": ended, "metrics": values})


def rescore(folder: Path, tasks: Sequence[Task]) -> Run:
    """Scores the stored completions again, without a model, and rewrites the run's records and metrics."""
    run = read_run(folder)
    if not run.records:
        raise ValueError(f"{folder} has no samples yet; repeat its command to fill it")
    known = {task.name: task for task in tasks}
    records = []
    for record in run.records:
        if record.task not in known:
            raise ValueError(f"{folder} has samples of task {record.task!r}, which its suite does not name")
        task = known[record.task]
        sample = Sample(
            record.id, record.task, [{"role": "user", "content": record.prompt}], record.data, record.target
        )
        scores = task.score(sample, record.completion)
        records.append(Record(**{**asdict(record), "scores": scores, "task_version": task.version}))
    rewrite_records(folder, records)
    if run.info["status"] == "done":
        finish(folder, run.info)
    return read_run(folder)


def _record(task: Task, sample: Sample, generation: Generation, seconds: float, batch: str, batch_size: int) -> Record:
    prompt = "\n\n".join(message["content"] for message in sample.messages)
    return Record(
        id=sample.id,
        task=task.name,
        task_version=task.version,
        prompt=prompt,
        prompt_sha=hashlib.sha256(prompt.encode()).hexdigest()[:16],
        data=sample.data,
        target=sample.target,
        completion=generation.text,
        token_ids=generation.token_ids,
        num_tokens=len(generation.token_ids),
        scores=task.score(sample, generation.text),
        nfe=generation.nfe,
        queried=generation.queried,
        committed_at=generation.committed_at,
        stopped_by=generation.stopped_by,
        latency_s=seconds,
        batch_size=batch_size,
        batch=batch,
    )
