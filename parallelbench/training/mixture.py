"""Training data from the benchmark's own generators: a seeded stream of batches, disjoint from every benchmark
sample."""

import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from dllm.protocols import Text
from dllm.text import encode_text
from dllm.training.objectives import Batch, collate
from dllm.validation import Checked, Count, Fraction, NonNegative
from parallelbench.tasks import named_tasks, text_tasks
from parallelbench.tasks.base import TRAIN_SEED_MIN, Draw, train_draw
from parallelbench.tasks.names import FIRST_NAMES, LAST_NAMES
from parallelbench.tasks.puzzles import LATIN_WORDINGS, SUDOKU_WORDINGS
from parallelbench.tasks.shapes import COLOURS, COLUMNS, KINDS, QUESTIONS, ROWS
from parallelbench.tasks.text.tasks import PARAPHRASE_WORDINGS, SUMMARY_WORDINGS, WORDS_WORDINGS
from parallelbench.tasks.waiting_line import WORDINGS
from parallelbench.tasks.wording import reworded

SCAFFOLD = ('["', '", "', '"]', ",", "\n")  # the format of an answer, not its content


def phrases(templates: Sequence[int] = (0,), text_draws: int = 0, pictures: bool = False) -> list[str]:
    """What a shipped tokenizer knows as single tokens: list punctuation, names, the fixed text of these wordings of
    the tasks, and the words of so many draws of each text task. pictures: what the questions about pictures are made
    of; without templates nothing else."""
    tasks = named_tasks((3,))
    for wording in filter(None, templates):
        reworded(tasks["waiting_line/copy"], wording)  # refuses one that does not exist
    kinds = [*WORDINGS.values(), LATIN_WORDINGS, SUDOKU_WORDINGS]
    if text_draws:
        kinds += [WORDS_WORDINGS, PARAPHRASE_WORDINGS, SUMMARY_WORDINGS]
    worded = [kind[number] for kind in kinds for number in templates]
    worded += QUESTIONS.values() if pictures else ()
    fixed = [text for wording in worded for text, *_ in string.Formatter().parse(wording) if len(text) > 1]
    draws = [train_draw(tasks[name], TRAIN_SEED_MIN, i) for name in text_tasks() for i in range(text_draws)]
    texts = "\n".join(f"{draw.prompt}\n{draw.target}" for draw in draws)
    words = sorted({word for word in re.findall(r" [A-Za-z]+|[A-Za-z]{2,}", texts) if word.strip() not in FIRST_NAMES})
    names = [*FIRST_NAMES, *(f" {name}" for name in LAST_NAMES)] if templates else []
    shown = [*KINDS, *COLOURS, *ROWS, *COLUMNS] if pictures else []
    return [*SCAFFOLD[:3], *names, *fixed, *words, *shown]


@dataclass(frozen=True)
class TaskMixture(Checked):
    """Instances of the benchmark's tasks.

    weights: how often each task is drawn.
    batch_size: canvases of a batch.
    seed: a training seed.
    lengths: list lengths of the waiting line; a batch takes `long_lengths` instead with probability `long_share`.
    response_lens: response columns to choose from; a row takes the shortest that fits, or (one in three) the next.
        None: the answer and one EOS.
    least_lens: each batch draws one, the least response columns of its rows.
    templates: the wordings, of which each row draws one.
    """

    weights: Mapping[str, NonNegative]
    batch_size: Count = 64
    seed: int = TRAIN_SEED_MIN
    lengths: Sequence[int] = (3, 4, 5, 6)
    long_lengths: Sequence[int] = (7, 8, 9, 10)
    long_share: Fraction = 0.1
    response_lens: Sequence[int] | None = (24, 32, 40, 48)
    least_lens: Sequence[int] = (0,)
    templates: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        known = named_tasks(self.lengths)
        unknown = set(self.weights) - set(known)
        if unknown:
            raise ValueError(f"unknown task {sorted(unknown)[0]!r} in weights; choose among {', '.join(known)}")
        for wording in filter(None, self.templates):
            for name in self.weights:
                reworded(known[name], wording)  # refuses one that does not exist
        if self.response_lens is not None and max(self.least_lens) > max(self.response_lens):
            raise ValueError(f"least_lens={list(self.least_lens)} exceed response_lens={list(self.response_lens)}")
        if self.seed < TRAIN_SEED_MIN:
            raise ValueError(f"training seed {self.seed} is below {TRAIN_SEED_MIN}; smaller seeds are the benchmark's")

    def open(self, tokenizer: PreTrainedTokenizerBase) -> "TaskStream":
        """The batches, as token ids of this tokenizer."""
        return TaskStream(self, tokenizer)


@dataclass(frozen=True)
class TaskStream:
    """The batches of a mixture: prompts through the chat template, responses padded with EOS.

    encode: what a model makes of a chat that shows a picture. None: such tasks are refused.
    """

    mixture: TaskMixture
    tokenizer: PreTrainedTokenizerBase
    encode: Callable[[Text], list[int]] | None = None

    def batch(self, step: int) -> Batch:
        return self._batch(step, held_out=False)

    def validation(self, batches: int) -> list[Batch]:
        """Draws whose prompts belong to the benchmark, at training seeds."""
        return [self._batch(step, held_out=True) for step in range(batches)]

    def about(self) -> dict[str, object]:
        return {"tasks": dict(self.mixture.weights), "seed": self.mixture.seed}

    def _batch(self, step: int, held_out: bool) -> Batch:
        rng = random.Random(f"mixture/{self.mixture.seed}/{step}")
        draws = self._draws(rng, step, held_out)
        prompts = self._prompts(draws)
        answers = self.tokenizer([draw.target for draw in draws], add_special_tokens=False)["input_ids"]
        least = rng.choice(self.mixture.least_lens) if any(self.mixture.least_lens) else 0
        lens = [self._response_len(rng, draw, len(answer), least) for draw, answer in zip(draws, answers, strict=True)]
        pad_id, eos_id = special_ids(self.tokenizer)
        return collate(prompts, answers, lens, pad_id, eos_id)

    def _prompts(self, draws: Sequence[Draw]) -> list[list[int]]:
        if any(draw.picture is not None for draw in draws):
            if self.encode is None:
                raise ValueError(
                    f"{list(self.mixture.weights)} show pictures, which these data cannot hold; leave them out"
                )
            return [self.encode(draw.messages(images=True)) for draw in draws]
        name = Path(self.tokenizer.name_or_path).name
        return [encode_text(self.tokenizer, name, draw.messages()) for draw in draws]

    def _draws(self, rng: random.Random, step: int, held_out: bool) -> list[Draw]:
        mixture = self.mixture
        tasks = named_tasks(mixture.long_lengths if rng.random() < mixture.long_share else mixture.lengths)
        names = rng.choices(list(mixture.weights), list(mixture.weights.values()), k=mixture.batch_size)
        first = step * mixture.batch_size
        draws = [train_draw(tasks[name], mixture.seed, first + i, held_out) for i, name in enumerate(names)]
        if not any(mixture.templates):
            return draws
        return [draw.worded(rng.choice(mixture.templates)) for draw in draws]

    def _response_len(self, rng: random.Random, draw: Draw, answer_len: int, least: int) -> int:
        if self.mixture.response_lens is None:
            return max(answer_len + 1, least)
        fitting = [length for length in self.mixture.response_lens if length > max(answer_len, least - 1)]  # an EOS
        if not fitting:
            raise ValueError(
                f"data.response_lens={list(self.mixture.response_lens)} has no room for the {answer_len} tokens and "
                f"EOS of {draw.target!r} in at least {least} columns; give longer ones, or null"
            )
        return fitting[min(int(rng.random() < 1 / 3), len(fitting) - 1)]


def special_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """PAD and EOS; a tokenizer without PAD pads with EOS. Raises ValueError where EOS has no name."""
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    if not isinstance(eos, int):
        raise ValueError("the tokenizer names no EOS, so no answer could end")
    return pad if isinstance(pad, int) else eos, eos
