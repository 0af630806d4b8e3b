"""Training data from the benchmark's own generators, for the shipped model: a seeded stream of batches, disjoint from
every benchmark sample."""

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from transformers import PreTrainedTokenizerBase

from dllm.training.objectives import Batch
from parallelbench.tasks import builtin_tasks
from parallelbench.tasks.base import TRAIN_SEED_MIN, Draw, train_draw
from parallelbench.tasks.names import FIRST_NAMES, LAST_NAMES
from parallelbench.tasks.puzzles import LATIN_TEMPLATE, SUDOKU_TEMPLATE
from parallelbench.tasks.waiting_line import TEMPLATES

SCAFFOLD = ('["', '", "', '"]', ",", "\n")  # the format of an answer, not its content


def phrases() -> list[str]:
    """What the shipped tokenizer knows as single tokens: list punctuation, names, and the fixed text of every prompt
    template."""
    templates = [*TEMPLATES.values(), LATIN_TEMPLATE, SUDOKU_TEMPLATE]
    fixed = [text for template in templates for text, *_ in string.Formatter().parse(template) if len(text) > 1]
    return [*SCAFFOLD[:3], *FIRST_NAMES, *(f" {name}" for name in LAST_NAMES), *fixed]


@dataclass(frozen=True)
class TaskMixture:
    """Batches of `batch_size` canvases over all tasks, drawn with `weights`. A batch depends on (seed, step) only.

    lengths: list lengths of the waiting line; a batch takes long_lengths instead with probability long_share.
    response_lens: response columns to choose from; a row takes the shortest that fits, or (one in three) the next.
    """

    weights: Mapping[str, float]
    batch_size: int = 64
    seed: int = TRAIN_SEED_MIN
    lengths: Sequence[int] = (3, 4, 5, 6)
    long_lengths: Sequence[int] = (7, 8, 9, 10)
    long_share: float = 0.1
    response_lens: Sequence[int] = (24, 32, 40, 48)

    def __post_init__(self) -> None:
        unknown = set(self.weights) - set(builtin_tasks())
        if unknown:
            raise ValueError(
                f"unknown task {sorted(unknown)[0]!r} in weights; choose among {', '.join(builtin_tasks())}"
            )
        if self.seed < TRAIN_SEED_MIN:
            raise ValueError(f"training seed {self.seed} is below {TRAIN_SEED_MIN}; smaller seeds are the benchmark's")

    def batch(self, step: int, tokenizer: PreTrainedTokenizerBase) -> Batch:
        """The clean batch of a step: prompts through the chat template, responses padded with EOS."""
        rng = random.Random(f"mixture/{self.seed}/{step}")
        draws = self._draws(rng, step)
        rendered = tokenizer.apply_chat_template(
            [[{"role": "user", "content": draw.prompt}] for draw in draws],
            add_generation_prompt=True,
            return_dict=False,
        )
        answers = tokenizer([draw.target for draw in draws], add_special_tokens=False)["input_ids"]
        response_lens = [self._response_len(rng, len(answer)) for answer in answers]
        pad_id, eos_id = cast(int, tokenizer.pad_token_id), cast(int, tokenizer.eos_token_id)
        return collate(cast(list[list[int]], rendered), answers, response_lens, pad_id, eos_id)

    def _draws(self, rng: random.Random, step: int) -> list[Draw]:
        tasks = builtin_tasks(self.long_lengths if rng.random() < self.long_share else self.lengths)
        names = rng.choices(list(self.weights), list(self.weights.values()), k=self.batch_size)
        return [train_draw(tasks[name], self.seed, step * self.batch_size + i) for i, name in enumerate(names)]

    def _response_len(self, rng: random.Random, answer_len: int) -> int:
        fitting = [length for length in self.response_lens if length > answer_len]  # room for one EOS
        return fitting[min(int(rng.random() < 1 / 3), len(fitting) - 1)]


def collate(
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    response_lens: Sequence[int],
    pad_id: int,
    eos_id: int,
) -> Batch:
    """Clean canvases: each prompt, its answer and EOS up to its response length; PAD fills up the shorter rows."""
    prompt_len = torch.tensor([len(prompt) for prompt in prompts])
    end = prompt_len + torch.tensor(response_lens)
    canvas = torch.full((len(prompts), int(end.max())), pad_id)
    for row, (prompt, answer, length) in enumerate(zip(prompts, answers, response_lens, strict=True)):
        tokens = torch.tensor([*prompt, *answer, *[eos_id] * (length - len(answer))])
        canvas[row, : len(tokens)] = tokens
    return Batch(canvas, prompt_len, end)
