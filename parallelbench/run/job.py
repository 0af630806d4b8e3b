"""One run: decode every sample of the tasks, score it, and write it down as it comes."""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tqdm import tqdm

from decoders import Generation
from parallelbench.records.record import (
    SCHEMA,
    Record,
    Run,
    append_records,
    config_hash,
    count_records,
    open_run,
    provenance,
    read_info,
    read_run,
    rewrite_records,
    write_info,
)
from parallelbench.records.trace import Trace, append_traces, is_of, make_trace, merge_traces
from parallelbench.run.generator import Generator, Request, Traceable, timed_batches, watch_memory
from parallelbench.run.processes import ALONE, Processes
from parallelbench.stats.metrics import aggregate
from parallelbench.tasks import Sample, Task
from parallelbench.tasks.base import ManyAnswers


@dataclass(frozen=True)
class Job:
    """A checked run, ready to start: nothing has been written or decoded yet. gen_len: tokens to decode, None for each
    sample's own budget. choices: names for reports, by config group. facts: generation and knobs of `Facts`, if
    they are known. traced: ids of the samples to be traced."""

    generator: Generator
    tasks: Sequence[Task]
    batches: Sequence[Sequence[Sample]]
    config: Mapping[str, Any]
    choices: Mapping[str, str]
    folder: Path
    gen_len: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    traced: Set[str] = frozenset()

    def request(self, sample: Sample) -> Request:
        return _request(sample, self.gen_len)


def prepare(
    generator: Generator,
    tasks: Sequence[Task],
    *,
    limit: int,
    seed: int,
    batch_size: int,
    gen_len: int | None,
    config: Mapping[str, Any],
    choices: Mapping[str, str],
    facts: Mapping[str, Any] = MappingProxyType({}),
    traces: int = 0,
) -> Job:
    """Draws the samples and sorts them into batches, by task and then by prompt length. traces: how many samples of a
    task to save the steps of, its first ones.

    Raises ValueError for sizes below 1, a benchmark seed out of range, an empty prompt or steps that nobody tells.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}; give at least 1")
    if traces < 0:
        raise ValueError(f"traces={traces}; give 0 or more samples per task")
    if traces and not isinstance(generator, Traceable):
        raise ValueError(f"traces={traces}, but the loop of this decoder does not tell its steps; use traces=0")
    batches, traced = [], set()
    for task in tasks:
        samples = task.samples(limit, seed)
        traced |= {sample.id for sample in samples[:traces]}
        samples = sorted(samples, key=lambda s: generator.prompt_len(_request(s, gen_len)))
        batches += [samples[first : first + batch_size] for first in range(0, len(samples), batch_size)]
    return Job(generator, tasks, batches, config, choices, Path(config["out_dir"]), gen_len, facts, traced)


def _request(sample: Sample, gen_len: int | None) -> Request:
    return Request(sample.messages, sample.gen_len if gen_len is None else gen_len)


def start(job: Job, num_processes: int = 1) -> set[str]:
    """Opens the run's directory, says in it what is about to happen, and returns the ids of the samples it already
    holds. Raises ValueError when the directory belongs to another run."""
    identity = {"weights": job.generator.fingerprint(), "tasks": {task.name: task.version for task in job.tasks}}
    known = {record.id for record in open_run(job.folder, job.config, identity)}
    before = read_info(job.folder)
    if _missing(job, known) or before.get("status") != "done":
        info = {
            "schema": SCHEMA,
            "status": "partial",
            "config_hash": config_hash(job.config),
            "choices": dict(job.choices),
            "identity": identity,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "processes": max(num_processes, before.get("processes", 1)),  # the most at once: they share the machine
            **provenance(),
            **job.generator.describe(),
            **job.facts,
        }
        write_info(job.folder, info)
    return known


def share(job: Job, known: Set[str], processes: Processes) -> Sequence[Sequence[Sample]]:
    """The batches that fall to this process among those that hold a sample not yet known."""
    missing = _missing(job, known)
    if processes.count > 1:  # dealt out largest first, else who gets the short last batch of one task gets all of them
        missing.sort(key=lambda batch: (len(batch), job.generator.prompt_len(job.request(batch[-1]))), reverse=True)
    return processes.share(missing)


def execute(
    job: Job,
    known: Set[str],
    processes: Processes = ALONE,
    on_progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Decodes this process's share of what is missing, waits for the others and returns the finished run.
    on_progress: instead of a progress bar, called with (samples there, samples in all).

    A batch is decoded as a whole even if only some of its samples are missing, so that a resumed run gets the same
    numbers.
    """
    total = sum(map(len, job.batches))
    hidden = on_progress is not None or not processes.is_main
    with tqdm(total=total, initial=len(known), desc="run", unit="sample", disable=hidden) as bar:

        def show(count: int) -> None:
            bar.update(count - bar.n)
            if on_progress is not None:
                on_progress(count, total)

        show(len(known))
        peak = watch_memory()
        processes.everywhere(lambda: _decode_share(job, known, processes, show))
        processes.in_main(lambda: _complete(job, peak() if _missing(job, known) else None))
        show(total)
    if job.traced:
        _save_traces(job, processes, hidden)
    return read_run(job.folder)


def _decode_share(job: Job, known: Set[str], processes: Processes, show: Callable[[int], None]) -> None:
    todo = share(job, known, processes)
    tasks = {task.name: task for task in job.tasks}
    for batch, (generations, seconds) in zip(
        todo, timed_batches(job.generator, [[job.request(s) for s in batch] for batch in todo]), strict=True
    ):
        pairs = [(s, g) for s, g in zip(batch, generations, strict=True) if s.id not in known]
        records = [_record(tasks[s.task], s, g, seconds, batch[0].id, len(batch)) for s, g in pairs]
        append_records(job.folder, records, processes.shard)
        if processes.is_main:
            show(count_records(job.folder))
        _leave_if_orphan(processes)


def _save_traces(job: Job, processes: Processes, hidden: bool) -> None:
    """Decodes the samples to be traced once more, outside all timing, and saves what each forward did.

    On their own first, which costs least. Where numbers depend on the batch after all, with the batch of their record.
    """
    known = processes.in_main(lambda: merge_traces(job.folder))
    todo = [[s for s in batch if s.id in job.traced and s.id not in known] for batch in job.batches]
    mine = processes.share([(part, batch) for part, batch in zip(todo, job.batches, strict=True) if part])

    def save() -> None:
        records = {record.id: record for record in read_run(job.folder).records} if mine else {}
        for part, batch in tqdm(mine, desc="traces", unit="batch", disable=hidden or not mine):
            traces = {t.id: t for t in _traces(job, part) if is_of(t, records[t.id])}
            if len(traces) < len(part):
                traces |= {t.id: t for t in _traces(job, batch) if is_of(t, records[t.id])}
            append_traces(job.folder, [traces[s.id] for s in part if s.id in traces], processes.shard)
            for sample in part:
                if sample.id not in traces:
                    print(f"{sample.id}: decoded again it differs from its record, so no trace", file=sys.stderr)
            _leave_if_orphan(processes)

    processes.everywhere(save)
    processes.in_main(lambda: merge_traces(job.folder))


def _traces(job: Job, samples: Sequence[Sample]) -> list[Trace]:
    assert isinstance(job.generator, Traceable), "prepare has refused others"
    tasks, traces = {task.name: task for task in job.tasks}, []
    steps_of = job.generator.traced([job.request(sample) for sample in samples])
    for sample, (generation, steps) in zip(samples, steps_of, strict=True):
        task = tasks[sample.task]
        right = task.nearest(sample, generation.text) if isinstance(task, ManyAnswers) else sample.target
        traces.append(make_trace(sample.id, job.generator.model, generation, steps, right))
    return traces


def _leave_if_orphan(processes: Processes) -> None:
    if processes.is_orphan:  # else it would write beside the run that resumes this one
        raise SystemExit("error: the launcher was killed; repeat the command to resume")


def _missing(job: Job, known: Set[str]) -> list[Sequence[Sample]]:
    """The batches that hold a sample not yet known."""
    return [batch for batch in job.batches if any(sample.id not in known for sample in batch)]


def _complete(job: Job, peak_memory: Mapping[str, object] | None) -> None:
    """Merges what all processes wrote, in the order of the batches, unless that was done before.

    A run that lacks samples even so, because someone else was at its files, stays partial.
    """
    run = read_run(job.folder)
    if run.info["status"] == "done":
        return
    place = {sample.id: i for i, sample in enumerate(chain.from_iterable(job.batches))}
    rewrite_records(job.folder, sorted(run.records, key=lambda record: place[record.id]))
    if len(run.records) == len(place):
        finish(job.folder, run.info | ({"peak_memory": peak_memory} if peak_memory else {}))


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
    identity = run.info.get("identity", {}) | {"tasks": {task.name: task.version for task in tasks}}
    rewrite_records(folder, records)
    write_info(folder, {**run.info, "identity": identity})
    if run.info["status"] == "done":
        finish(folder, read_info(folder))
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
        num_tokens=generation.num_tokens,
        scores=task.score(sample, generation.text),
        nfe=generation.nfe,
        queried=generation.queried,
        committed_at=generation.committed_at,
        stopped_by=generation.stopped_by,
        latency_s=seconds,
        batch_size=batch_size,
        batch=batch,
    )
