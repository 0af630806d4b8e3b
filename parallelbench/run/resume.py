"""A run from its start, or from wherever it was killed, to its end: the one place that knows how to go on.

`open_job` locks the run's directory, tidies up what a killed run left and says in run.json what is about to happen;
`OpenJob.decode` decodes the samples that are missing, each written as it comes, and marks the run as done.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tqdm import tqdm

from parallelbench.records.facts import Facts
from parallelbench.records.files import parse_json, to_json
from parallelbench.records.lock import writing
from parallelbench.records.provenance import provenance
from parallelbench.records.record import (
    SAMPLES,
    SCHEMA,
    Record,
    Run,
    Score,
    config_hash,
    open_run,
    read_info,
    read_run,
    write_config,
    write_info,
)
from parallelbench.records.trace import TRACES
from parallelbench.records.typed import typed
from parallelbench.run.generator import Refilling
from parallelbench.run.job import Job
from parallelbench.run.measure import timed_requests, watch_memory
from parallelbench.run.processes import ALONE, Processes
from parallelbench.run.recorder import asked, make_record
from parallelbench.run.tracing import save_traces
from parallelbench.stats.metrics import aggregate
from parallelbench.tasks import Sample, Task


@dataclass(frozen=True)
class OpenJob:
    """A job whose directory is locked for it. known: ids of the samples that are there already."""

    job: Job
    known: Set[str]
    processes: Processes = ALONE

    @property
    def refills(self) -> bool:
        """Whether samples are decoded as a queue, not batch by batch."""
        return isinstance(self.job.generator, Refilling)

    def share(self) -> Sequence[Sequence[Sample]]:
        """The batches that fall to this process among those that hold a sample not yet known.

        In a queue, long prompts come first, since its last samples leave slots idle. Where several processes share
        batches, large ones come first: else one process would get the small last batch of every task.
        """
        missing, job = self.job.missing(self.known), self.job
        shared = self.processes.count > 1
        if shared or self.refills:
            length = job.generator.prompt_len
            missing.sort(key=lambda batch: (shared * len(batch), length(job.request(batch[-1]))), reverse=True)
        return self.processes.share(missing)

    def decode(self, on_progress: Callable[[int, int], None] | None = None) -> Run:
        """Decodes this process's share of what is missing, waits for the others and returns the finished run.
        on_progress: instead of a progress bar, called with (samples there, samples in all).

        A generator that refills its slots decodes the samples that are missing, in the order of the batches. Any other
        decodes whole batches, so that a resumed run gets the same numbers.
        """
        job, known, processes = self.job, self.known, self.processes
        total = sum(map(len, job.batches))
        hidden = on_progress is not None or not processes.is_main
        with tqdm(total=total, initial=len(known), desc="run", unit="sample", disable=hidden) as bar:

            def show(count: int) -> None:
                bar.update(count - bar.n)
                if on_progress is not None:
                    on_progress(count, total)

            show(len(known))
            peak = watch_memory()
            processes.everywhere(lambda: self._decode_share(show))
            processes.in_main(lambda: _complete(job, peak() if job.missing(known) else None))
            show(total)
        if job.traced:
            save_traces(job, processes, hidden)
        return read_run(job.folder)

    def _decode_share(self, show: Callable[[int], None]) -> None:
        job, processes, written = self.job, self.processes, len(self.known)
        tasks, share = {task.name: task for task in job.tasks}, self.share()
        todo = [[sample for sample in batch if not (self.refills and sample.id in self.known)] for batch in share]
        batch_of = {sample.id: batch for batch in share for sample in batch}
        queue = list(chain.from_iterable(todo))
        requests = [[job.request(sample) for sample in batch] for batch in todo]
        for ended in timed_requests(job.generator, requests, job.slots):
            records = []
            for one in ended:
                if (sample := queue[one.place]).id in self.known:
                    continue
                task, times = tasks[sample.task], (one.latency_s, one.share_s, one.cpu_s)
                scores = _scores(task, sample, one.result.text)
                records.append(make_record(sample, one.result, scores, task.version, *times, batch=batch_of[sample.id]))
            if not records:
                continue
            SAMPLES.append(job.folder, records, processes.shard)
            written += len(records)
            if processes.is_main:
                show(SAMPLES.count(job.folder) if processes.count > 1 else written)
            processes.leave_if_orphan()


@contextmanager
def open_job(job: Job, processes: Processes = ALONE) -> Iterator[OpenJob]:
    """Starts or resumes a run. Until the block ends no other process writes its directory.

    Raises ValueError in all processes when the directory is being written or belongs to another run.
    """
    with ExitStack() as until_done:

        def begin() -> set[str]:
            until_done.enter_context(writing(job.folder))
            return _start(job, processes.count)

        yield OpenJob(job, processes.in_main(begin), processes)


def _start(job: Job, num_processes: int) -> set[str]:
    """Says in run.json what is about to happen, and returns the ids of the samples that are there already."""
    identity = {"weights": job.generator.fingerprint(), "tasks": {task.name: task.version for task in job.tasks}}
    known = {record.id: record for record in open_run(job.folder, job.config, identity)}
    drawn = {sample.id: sample for sample in chain.from_iterable(job.batches)}
    for id, record in known.items():
        if id not in drawn or not _is_of(record, drawn[id]):
            raise ValueError(
                f"{job.folder} has a sample {id!r} of {record.task}, which its suite does not draw so; delete its line "
                "or choose another out_dir"
            )
    write_config(job.folder, job.config)
    if job.traced:
        TRACES.read(job.folder)
    before = read_info(job.folder)
    if job.missing(known.keys()) or before.get("status") != "done":
        info = {
            "schema": SCHEMA,
            "status": "partial",
            "config_hash": config_hash(job.config),
            "choices": dict(job.choices),
            "identity": identity,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "processes": max(num_processes, before.get("processes", 1)),  # the most at once: they share the machine
            **provenance(),
            **asdict(Facts()),
            **job.generator.describe(),
            **job.facts,
        }
        write_info(job.folder, info)
    return set(known)


def _is_of(record: Record, sample: Sample) -> bool:
    """Whether it was asked what the suite asks, and is scored by the same."""
    wanted = (sample.task, asked(sample), sample.target, parse_json(to_json(sample.data)))
    return wanted == (record.task, record.prompt, record.target, record.data)


def _complete(job: Job, peak_memory: Mapping[str, object] | None) -> None:
    """Merges what all processes wrote, in the order of the batches, unless that was done before.

    A run that lacks samples even so, because someone else was at its files, stays partial.
    """
    run = read_run(job.folder)
    if run.info["status"] == "done":
        return
    place = {sample.id: i for i, sample in enumerate(chain.from_iterable(job.batches))}
    SAMPLES.rewrite(job.folder, sorted(run.records, key=lambda record: place[record.id]))
    if len(run.records) == len(place):
        _finish(job.folder, run.info | ({"peak_memory": peak_memory} if peak_memory else {}))


def _finish(folder: Path, info: Mapping[str, Any]) -> None:
    """Computes the metrics from the records on disk and marks the run as done."""
    metrics = aggregate(read_run(folder).records)
    values = {task: {name: asdict(value) for name, value in row.items()} for task, row in metrics.items()}
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    write_info(folder, {**info, "status": "done", "ended": ended, "metrics": values})


def rescore(folder: Path, tasks: Sequence[Task]) -> Run:
    """Scores the stored completions again, without a model, and rewrites the run's records and metrics."""
    run = read_run(folder)
    run.check_filled()
    known = {task.name: task for task in tasks}
    records = []
    for record in run.records:
        if record.task not in known:
            raise ValueError(
                f"{folder} has samples of task {record.task!r}, which its suite does not name; leave it out"
            )
        task = known[record.task]
        try:
            scores = _scores(task, record.sample, record.completion)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from error
        records.append(replace(record, scores=scores, task_version=task.version))
    identity = run.info.get("identity", {}) | {"tasks": {task.name: task.version for task in tasks}}
    SAMPLES.rewrite(folder, records)
    write_info(folder, {**run.info, "identity": identity})
    if run.info["status"] == "done":
        _finish(folder, read_info(folder))
    return read_run(folder)


def _scores(task: Task, sample: Sample, completion: str) -> dict[str, float]:
    """Raises ValueError for a score outside [0, 1], which could not be read again, and where the task fails."""
    try:
        scores = {name: float(value) for name, value in task.score(sample, completion).items()}
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"task {task.name!r} cannot score {sample.id!r} ({what}); mend its data or the task"
        ) from error
    return typed(scores, dict[str, Score], f"{sample.id}: scores")
