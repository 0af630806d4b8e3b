"""A model's own decodes of training prompts, as data to distil it on (dParallel, arXiv 2509.26488, section 3.2).

They are ordinary runs, resumable and with their provenance, of tasks that draw from the training seeds. What a run got
right becomes batches: the trajectory's tokens, padded with EOS to the run's gen_length.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from decoders.generation import encode
from dllm.model import DiffusionLM
from dllm.training.objectives import Batch, collate
from parallelbench.records.record import NEVER, Run
from parallelbench.tasks import Sample, Suite, Task
from parallelbench.tasks.base import PLACE, Drawable, is_held_out, question, train_draw
from parallelbench.tasks.rows import RowTask, is_file


@dataclass(frozen=True)
class TrainSplit:
    """A task whose samples are training instances, disjoint from every benchmark sample; `seed` is a training seed.

    A task that makes its own instances makes others than the benchmark's. Of a task with rows, the benchmark's split is
    refused, and so is every prompt that the benchmark may draw (`is_held_out`).
    """

    task: Task

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def version(self) -> str:
        return self.task.version

    def samples(self, limit: int, seed: int) -> list[Sample]:
        """Raises ValueError when the seed or the split belongs to the benchmark, or no prompt is left."""
        if not isinstance(self.task, Drawable):
            return self._rows(limit, seed)
        draws = [train_draw(self.task, seed, index) for index in range(limit)]
        return [
            Sample(f"{self.name}/{seed}/{i}", self.name, d.messages(), d.data, d.target) for i, d in enumerate(draws)
        ]

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        return self.task.score(sample, completion)

    def _rows(self, limit: int, seed: int) -> list[Sample]:
        if not isinstance(self.task, RowTask):
            raise ValueError(f"task {self.name!r} has no training instances, neither `draw` nor rows; leave it out")
        if self.task.split == "test" and not is_file(self.task.source):
            raise ValueError(
                f"task {self.name!r} reads the split 'test' of {self.task.source}, which is the benchmark's; set its "
                f"split to train (+{PLACE}.split=train), or its source to a JSONL file"
            )
        found = self.task.samples(limit * 2, seed)  # one in 16 is left out
        kept = [sample for sample in found if not is_held_out(question(sample.messages))][:limit]
        if not kept:
            raise ValueError(f"task {self.name!r}: all {len(found)} prompts of {self.task.source} are the benchmark's")
        return kept


def train_tasks(suite: Suite) -> list[TrainSplit]:
    """The suite's tasks on their training instances."""
    return [TrainSplit(task) for task in suite.build()]


@dataclass(frozen=True)
class Trajectories:
    """Batches of `batch_size` canvases from correct trajectories: a batch depends on (seed, step) only.

    committed_at: the forward that wrote each response column, or NEVER. nfe: forwards that each trajectory took. Made
    by `correct_trajectories`.
    """

    prompts: Sequence[Sequence[int]]
    responses: Sequence[Sequence[int]]
    committed_at: Sequence[Sequence[int]]
    nfe: Sequence[int]
    gen_len: int
    pad_id: int
    eos_id: int
    batch_size: int
    seed: int

    def batch(self, step: int) -> Batch:
        """Drawn half evenly and half in proportion to `nfe`: trajectories that one forward gives already have little to
        teach, but are forgotten when they are not seen. One token per step makes nearly all alike."""
        rng = random.Random(f"trajectories/{self.seed}/{step}")
        mean = sum(self.nfe) / len(self.nfe)
        rows = rng.choices(range(len(self.prompts)), [nfe + mean for nfe in self.nfe], k=self.batch_size)
        prompts, responses = [self.prompts[row] for row in rows], [self.responses[row] for row in rows]
        batch = collate(prompts, responses, [self.gen_len] * len(rows), self.pad_id, self.eos_id)
        order = torch.full_like(batch.canvas, max(self.nfe))
        for row, begin in enumerate(batch.prompt_len.tolist()):
            forwards = torch.tensor(self.committed_at[rows[row]][: self.gen_len])
            order[row, begin : begin + len(forwards)] = forwards.where(forwards != NEVER, max(self.nfe))
        return replace(batch, order=order)


def correct_trajectories(
    run: Run, model: DiffusionLM, gen_len: int, batch_size: int, seed: int, keep_all: bool = False
) -> Trajectories:
    """The run's decodes with a score of 1, or all of them, tokenized for the model that made them.

    Raises ValueError when there is none, or the model has no tokenizer.
    """
    correct = [record for record in run.records if keep_all or record.scores["score"] == 1]
    if not correct:
        raise ValueError(
            f"none of the {len(run.records)} trajectories in {run.folder} is correct, so there is nothing to "
            "learn from; use another decoder, easier tasks or a larger limit"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}; give at least 1")
    return Trajectories(
        [encode(model, [{"role": "user", "content": record.prompt}]) for record in correct],
        [record.token_ids for record in correct],
        [record.committed_at for record in correct],
        [record.nfe for record in correct],
        gen_len,
        model.spec.pad_id,
        model.spec.eos_ids[0],
        batch_size,
        seed,
    )
