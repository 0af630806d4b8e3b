"""What a benchmark task is: seeded samples with chat messages, and a pure scorer.

Benchmark and training samples never meet, twice over: their integer seeds come from disjoint ranges, and a prompt
belongs to the benchmark or to training by a hash of its text, so that even a task with few instances (4x4 Sudoku) is
never trained on.
"""

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol, cast, runtime_checkable

from dllm.validation import Checked, Count, Interval, check

TRAIN_SEED_MIN = 2**31  # benchmark seeds are below, training seeds at or above
HELD_OUT_BUCKETS = 16  # one prompt in 16 is the benchmark's
PLACE = "suite.tasks.N"  # where a message names a task's setting; a run puts the task's number in
Seed = Annotated[int, Interval(f"[0, {TRAIN_SEED_MIN})", "larger seeds belong to training")]  # of the benchmark


@dataclass(frozen=True)
class Sample(Checked):
    """One benchmark instance.

    data: all that the scorer needs (JSON values only).
    target: one right answer; the only one, unless the task has many.
    gen_len: tokens that an answer may take where a run does not say.
    form: what the answer looks like, with [MASK] for each token to decode, where that is given.
    constraint: what every answer of the right form matches, `{"regex": ...}` or `{"json_schema": ...}`; None where the
        task names none. A run decides whether answers are held to it.
    """

    id: str
    task: str
    messages: Sequence[Mapping[str, Any]]
    data: Mapping[str, Any]
    target: str
    gen_len: Count = 64
    form: str | None = None
    constraint: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Draw:
    """A prompt, what its scorer needs and one correct answer, before it becomes a numbered sample.

    wordings: the same question in other words.
    instance: the text whose hash says whether benchmark or training owns the question. None: the prompt.
    picture: what the prompt asks about, shown before it: a PIL image by `image()`, a data URL by `url()`, as
        `shapes.Painted` has them. None: the prompt is all.
    constraint: as in `Sample`.
    """

    prompt: str
    data: Mapping[str, Any]
    target: str
    wordings: Sequence[str] = ()
    instance: str | None = None
    picture: Any = None
    constraint: Mapping[str, Any] | None = None

    def messages(self, *, images: bool = False) -> list[dict[str, Any]]:
        """The chat that asks it. images: whether a picture is in it as an image, not as text."""
        if self.picture is None:
            return [{"role": "user", "content": self.prompt}]
        image = {"type": "image", "image": self.picture.image() if images else self.picture.url()}
        return [{"role": "user", "content": [image, {"type": "text", "text": self.prompt}]}]

    @property
    def is_held_out(self) -> bool:
        """Whether the question belongs to the benchmark (never trained on), in all its wordings."""
        return is_held_out(self.prompt if self.instance is None else self.instance)

    def worded(self, wording: int) -> "Draw":
        """The same question in wording number `wording` alone; 0 is the prompt. Raises IndexError for one that is not
        there."""
        return replace(self, prompt=(self.prompt, *self.wordings)[wording], wordings=(), instance=self.prompt)


@runtime_checkable
class Task(Protocol):
    """A benchmark task. `score` is pure and returns values in [0, 1], at least `score` (lenient) and `score_strict`."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def samples(self, limit: int, seed: int) -> list[Sample]: ...

    def score(self, sample: Sample, completion: str) -> dict[str, float]: ...


@runtime_checkable
class Drawable(Protocol):
    """A task that makes its own instances; `draw` must take all randomness from `rng`."""

    @property
    def name(self) -> str: ...

    def draw(self, rng: random.Random, index: int) -> Draw: ...


@runtime_checkable
class ManyAnswers(Protocol):
    """A task some of whose samples have many right answers."""

    def nearest(self, sample: Sample, completion: str) -> str:
        """The right answer that has most in common with a completion, to say where that went wrong."""
        ...


@runtime_checkable
class Published(Protocol):
    """A suite of ParallelBench's own data, of generation v1 or v2."""

    @property
    def generation(self) -> str: ...


def common(a: Sequence[str], b: Sequence[str]) -> int:
    """Places at which two sequences agree."""
    return sum(x == y for x, y in zip(a, b, strict=False))


def said(message: Mapping[str, Any]) -> str:
    """What a chat message says, with [image] in place of a picture."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part["type"] == "text" else "[image]" for part in content)


def question(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the user says in a chat: the text that `is_held_out` is asked about."""
    return "\n".join(said(message) for message in messages if message["role"] == "user")


def is_held_out(prompt: str) -> bool:
    """Whether a prompt belongs to the benchmark (never trained on)."""
    return zlib.crc32(prompt.encode()) % HELD_OUT_BUCKETS == 0


def first_wording(name: str) -> str:
    """The name of a task in its first wording: `waiting_line/copy` of itself and of `waiting_line/copy@2`."""
    first, _, number = name.rpartition("@")
    return first if number.isdecimal() else name


def bench_samples(task: Drawable, limit: Count, seed: Seed) -> list[Sample]:
    """The first `limit` benchmark samples of a seed; a longer list starts with the shorter one. Sample i of a task asks
    the same in each of its wordings."""
    check(bench_samples, limit=limit, seed=seed)
    samples = []
    for index in range(limit):
        rng = random.Random(f"{first_wording(task.name)}/{seed}/{index}")
        draw = task.draw(rng, index)
        while not draw.is_held_out:
            draw = task.draw(rng, index)
        name = f"{task.name}/{seed}/{index}"
        samples.append(Sample(name, task.name, draw.messages(), draw.data, draw.target, constraint=draw.constraint))
    return samples


class Drawn(Checked):
    """Base of tasks whose samples are instances that they draw themselves (`Drawable`)."""

    def samples(self, limit: int, seed: int) -> list[Sample]:
        """As `bench_samples`."""
        return bench_samples(cast(Drawable, self), limit, seed)


def train_draw(task: Drawable, seed: int, index: int, held_out: bool = False) -> Draw:
    """Training instance number `index` of a seed, disjoint from every benchmark sample; with `held_out` an instance for
    validation instead, whose prompt is the benchmark's.

    Raises ValueError when the seed belongs to the benchmark.
    """
    if seed < TRAIN_SEED_MIN:
        raise ValueError(f"training seed {seed} is below {TRAIN_SEED_MIN}; smaller seeds belong to the benchmark")
    rng = random.Random(f"{first_wording(task.name)}/{seed}/{index}")
    draw = task.draw(rng, rng.randrange(2**16))
    while draw.is_held_out != held_out:
        draw = task.draw(rng, rng.randrange(2**16))
    return draw
