"""The waiting line's operations with many answers as ideal models: every valid answer equally likely."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from decoders import NO_CACHE, decode
from decoders.compose import check_is_decoder
from decoders.decode_job import check_parts
from decoders.stop import check_is_stop_rule
from dllm.exact import Enumerated, ExactModel
from parallelbench.records.record import Record, Run
from parallelbench.run.generator import Method
from parallelbench.stats.groups import grouped
from parallelbench.stats.intervals import Value, bounded
from parallelbench.tasks import builtin_tasks, named_task
from parallelbench.tasks.base import first_wording
from parallelbench.tasks.waiting_line import lines_anywhere, write_list

COLD = 1e-3  # a temperature at which only exact ties are open: greedy, with ties broken at random
MAX_ANSWERS = 5040  # shuffles of 7
OPEN = ("shuffle", "insert_random", "remove_random", "replace_random")  # operations with many answers


@dataclass(frozen=True)
class Shape:
    """The samples of a task that have equally many items: alike but for their names. record: one of them. share: of the
    task's samples."""

    record: Record
    n: int
    share: float
    items: Enumerated


def answers(task: str, data: Mapping[str, Any]) -> list[list[str]]:
    """All valid answers of a waiting-line sample as lists of people, for the operations with several."""
    people = list(data["people"])
    if task == "shuffle":
        return [list(order) for order in permutations(people)][1:]  # all but the given one
    return lines_anywhere(task, people, data["person"])


def ideal(
    run: Run,
    parts: tuple[Any, Any] | str,
    shapes: Sequence[Shape],
    tokenizer: PreTrainedTokenizerBase,
    samples: int,
) -> tuple[float, Value]:
    """Mean forwards and score of a run's decoder and stop rule on the ideal model of a task, `samples` decodes per
    shape, weighted as the run's samples are. parts: those two, or why there are none. Raises ValueError for a decoder
    that no ideal model can serve."""
    if isinstance(parts, str):
        raise ValueError(parts)
    decoder, stop = parts
    if isinstance(decoder, Method):
        raise ValueError("a decoder with a loop of its own does not run on an ideal model")
    check_is_decoder(decoder)
    check_is_stop_rule(stop)
    if decoder.temperature == 0:
        decoder = replace(decoder, temperature=COLD)
    nfe, scores, strata = [], [], []
    for shape in shapes:
        length = len(shape.record.committed_at)
        listed, ids = in_tokens(answers(operation(shape.record.task), shape.record.data), tokenizer, length)
        model = ExactModel(listed, eos_id=ids.index(cast(int, tokenizer.eos_token_id)))
        check_parts(model, decoder, NO_CACHE)
        rows = decode(
            model,
            [[sample, shape.n] for sample in range(samples)],
            gen_len=length,
            block_len=run.config["block_length"] or length,
            decoder=decoder,
            cache=NO_CACHE,
            stop=stop,
        )
        task, sample = named_task(shape.record.task, builtin_tasks()), shape.record.sample
        texts = [str(tokenizer.decode([ids[token] for token in row.token_ids if token < len(ids)])) for row in rows]
        scores += [task.score(sample, text)["score"] for text in texts]
        nfe += [row.nfe for row in rows]
        strata += [shape.share] * samples
    share = np.array(strata) / samples
    score = bounded(np.array(scores), 0, 1, np.repeat(np.arange(len(shapes)), samples), len(scores) * share)
    return float((share * nfe).sum()), score


def in_tokens(
    listed: Sequence[Sequence[str]], tokenizer: PreTrainedTokenizerBase, length: int
) -> tuple[Enumerated, list[int]]:
    """The answers as token sequences padded with EOS, equally likely, in dense numbers; and the ids these stand for."""
    texts = [write_list(answer) for answer in listed]
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    longest = max(map(len, rows))
    if longest > length:
        raise ValueError(f"an answer takes {longest} tokens, but the run decoded {length}")
    padded = torch.tensor([row + [tokenizer.eos_token_id] * (length - len(row)) for row in rows])
    ids, dense = padded.unique(return_inverse=True)
    return Enumerated.uniform(dense), ids.tolist()


def tasks_of(runs: Sequence[Run]) -> list[str]:
    tasks = dict.fromkeys(record.task for run in runs for record in run.records)
    return [task for task in tasks if task.startswith("waiting_line/") and operation(task) in OPEN]


def operation(task: str) -> str:
    """`shuffle` of `waiting_line/shuffle` and of its other wordings."""
    return first_wording(task).removeprefix("waiting_line/")


def shapes_of(task: str, runs: Sequence[Run]) -> list[Shape]:
    """By number of people, of the first run that has the task; none where some lists are too long to be listed."""
    records = next(found for run in runs if (found := [r for r in run.records if r.task == task]))
    by_length = grouped(records, lambda record: len(record.data["people"]))
    if max(math.factorial(n) if operation(task) == "shuffle" else 2**n for n in by_length) > MAX_ANSWERS:
        return []
    return [
        Shape(found[0], n, len(found) / len(records), _items(answers(operation(task), found[0].data)))
        for n, found in sorted(by_length.items())
    ]


def _items(listed: Sequence[Sequence[str]]) -> Enumerated:
    """Answers with one token per person."""
    people = {person: i for i, person in enumerate(dict.fromkeys(person for answer in listed for person in answer))}
    return Enumerated.uniform(torch.tensor([[people[person] for person in answer] for answer in listed]))
