"""Prompts of the user's own, from a file or a data set: to see what a decoder costs on them, or to distil on."""

from dataclasses import dataclass
from typing import Literal

from dllm.validation import Checked, Count
from parallelbench.tasks.base import PLACE, Sample
from parallelbench.tasks.mathematics import is_same
from parallelbench.tasks.number import read_number
from parallelbench.tasks.rows import Row, draw_rows


@dataclass(frozen=True)
class Prompts(Checked):
    """Rows with a prompt, and an answer where there is something to check.

    source, subset, split: a file or a data set, see `draw_rows`.
    prompt: the column of a text; of a list of texts, which the user says one after the other (MT-bench's `turns`); or
        of a chat, `[{"role": ..., "content": ...}, ...]`, whose last message by the assistant is left out.
    answer: the column of a text or a number. None: there is none.
    check: when an answer is right: "never_mind" (always), "same" (the same text but for white space), "number" (the
        same number, as in GSM8K), "math" (mathematically the same, as in MATH; needs math-verify).
    """

    source: str
    subset: str | None = None
    split: str = "train"
    prompt: str = "prompt"
    answer: str | None = None
    check: Literal["never_mind", "same", "number", "math"] = "never_mind"
    gen_len: Count = 128
    name: str = "prompts"
    version: str = "1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.check != "never_mind" and self.answer is None:
            raise ValueError(f"check={self.check} needs right answers; name their column with answer=")

    def samples(self, limit: int, seed: int) -> list[Sample]:
        if self.check == "math":
            is_same("1", "1")  # raises before anything is decoded when math-verify is missing
        return [self._sample(row) for row in draw_rows(self.source, self.subset, self.split, limit, seed)]

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        right = {
            "never_mind": lambda: True,
            "same": lambda: completion.split() == sample.target.split(),
            "number": lambda: read_number(completion) == read_number(sample.target),
            "math": lambda: is_same(sample.target, completion),
        }[self.check]()
        return {"score": float(right), "score_strict": float(right)}

    def _sample(self, row: Row) -> Sample:
        messages = row.chat(self.prompt, setting=f"{PLACE}.prompt")
        if messages[-1]["role"] == "assistant" and len(messages) > 1:
            messages.pop()
        target = "" if self.answer is None else row.text(self.answer, setting=f"{PLACE}.answer", numbers=True)
        if self.check == "number" and read_number(target) is None:
            raise ValueError(f"{row.where}: {self.answer!r} is {target[-40:]!r}, in which there is no number")
        return Sample(f"{self.name}/{row.index}", self.name, messages, {}, target, self.gen_len)
