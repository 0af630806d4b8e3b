"""Traces of a run's samples, decoded once more outside all timing."""

import sys
from collections.abc import Sequence

from tqdm import tqdm

from parallelbench.records.record import read_run
from parallelbench.records.trace import TRACES, Trace, is_of
from parallelbench.run.generator import Traceable
from parallelbench.run.job import Job
from parallelbench.run.processes import Processes
from parallelbench.run.recorder import make_trace
from parallelbench.tasks import Sample
from parallelbench.tasks.base import ManyAnswers


def save_traces(job: Job, processes: Processes, hidden: bool) -> None:
    """Decodes the samples to be traced once more, outside all timing, and saves what each forward did.

    On their own first, which costs least. Where numbers depend on the batch after all, with the batch of their record.
    """
    known = processes.in_main(lambda: {trace.id for trace in TRACES.merge(job.folder)})
    todo = [[s for s in batch if s.id in job.traced and s.id not in known] for batch in job.batches]
    mine = processes.share([(part, batch) for part, batch in zip(todo, job.batches, strict=True) if part])

    def save() -> None:
        records = {record.id: record for record in read_run(job.folder).records} if mine else {}
        for part, batch in tqdm(mine, desc="traces", unit="batch", disable=hidden or not mine):
            traces = {t.id: t for t in _traces(job, part) if is_of(t, records[t.id])}
            if len(traces) < len(part):
                traces |= {t.id: t for t in _traces(job, batch) if is_of(t, records[t.id])}
            TRACES.append(job.folder, [traces[s.id] for s in part if s.id in traces], processes.shard)
            for sample in part:
                if sample.id not in traces:
                    print(f"{sample.id}: decoded again it differs from its record, so no trace", file=sys.stderr)
            processes.leave_if_orphan()

    processes.everywhere(save)
    processes.in_main(lambda: TRACES.merge(job.folder))


def _traces(job: Job, samples: Sequence[Sample]) -> list[Trace]:
    assert isinstance(job.generator, Traceable), "prepare has refused others"
    tasks, traces = {task.name: task for task in job.tasks}, []
    steps_of = job.generator.traced([job.request(sample) for sample in samples])
    for sample, (generation, steps) in zip(samples, steps_of, strict=True):
        task = tasks[sample.task]
        right = task.nearest(sample, generation.text) if isinstance(task, ManyAnswers) else sample.target
        traces.append(make_trace(sample.id, job.generator.model, generation, steps, right))
    return traces
