"""Training data from the benchmark's own generators, for the shipped model: a seeded stream of batches, disjoint from
every benchmark sample."""

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """Batches of `batch_size` canvases, tasks drawn with `weights`, of four groups of tasks by answer length.

    lengths, long_lengths: list lengths of the waiting line; long_share: share of batches with long lists.
    latin_share: share of batches with Latin squares. response_lens: response columns to choose from; a batch takes
    the shortest that fits, or (one in three) the next. A batch depends on (seed, step) only.
    """

    weights: Mapping[str, float]
    batch_size: int = 64
    seed: int = TRAIN_SEED_MIN
    lengths: Sequence[int] = (3, 4, 5, 6)
    long_lengths: Sequence[int] = (7, 8, 9, 10)
    long_share: float = 0.1
    latin_share: float = 0.2
    response_lens: Sequence[int] = (24, 32, 40, 48)

    def __post_init__(self) -> None:
        unknown = set(self.weights) - set(builtin_tasks())
        if unknown:
            raise ValueError(
                f"unknown task {sorted(unknown)[0]!r} in weights; choose among {', '.join(builtin_tasks())}"
            )
        if self.seed < TRAIN_SEED_MIN:
            raise ValueError(
                f"training seed {self.seed} is below {TRAIN_SEED_MIN}; smaller seeds belong to the benchmark"
            )

    def batch(self, step: int, tokenizer: PreTrainedTokenizerBase) -> Batch:
        """The clean batch of a step: prompt through the chat template, response padded with EOS."""
        rng = random.Random(f"mixture/{self.seed}/{step}")
        draws = self._draws(rng, step)
        prompts = tokenizer.apply_chat_template(
            [[{"role": "user", "content": draw.prompt}] for draw in draws],
            add_generation_prompt=True,
            return_dict=False,
        )
        answers = tokenizer([draw.target for draw in draws], add_special_tokens=False)["input_ids"]
        needed = max(map(len, answers)) + 1
        fitting = [length for length in self.response_lens if length >= needed]
        response_len = fitting[min(int(rng.random() < 1 / 3), len(fitting) - 1)]
        return _collate(prompts, answers, response_len, tokenizer)

    def _draws(self, rng: random.Random, step: int) -> list[Draw]:
        kind = rng.random()
        if kind < self.latin_share:
            chosen = {"puzzle/latin_square_n4": 1.0}
        else:
            chosen = {name: weight for name, weight in self.weights.items() if name != "puzzle/latin_square_n4"}
        is_long = kind > 1 - self.long_share
        tasks = builtin_tasks(self.long_lengths if is_long else self.lengths)
        names = rng.choices(list(chosen), list(chosen.values()), k=self.batch_size)
        return [train_draw(tasks[name], self.seed, step * self.batch_size + i) for i, name in enumerate(names)]


def _collate(
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    response_len: int,
    tokenizer: PreTrainedTokenizerBase,
) -> Batch:
    prompt_len = torch.tensor([len(prompt) for prompt in prompts])
    canvas = torch.full((len(prompts), int(prompt_len.max()) + response_len), int(tokenizer.pad_token_id))
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        padding = [tokenizer.eos_token_id] * (response_len - len(answer))
        tokens = torch.tensor([*prompt, *answer, *padding])
        canvas[row, : len(tokens)] = tokens
    return Batch(canvas, prompt_len, prompt_len + response_len)
