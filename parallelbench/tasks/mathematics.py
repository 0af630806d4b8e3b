"""GSM8K (arXiv 2110.14168) and MATH (arXiv 2103.03874; the 500 problems of arXiv 2305.20050): word problems with one
answer, which the model works towards in words. Zero-shot, in our own wording."""

import logging
import re
from dataclasses import dataclass

from dllm.validation import Checked, Count
from parallelbench.tasks.base import Sample
from parallelbench.tasks.number import read_boxed, read_number
from parallelbench.tasks.rows import Row, draw_rows

GSM8K_PROMPT = (
    "{question}\n\nWork it out step by step. End with a line `#### N`, where N is the answer as a number alone."
)
READ = 4000  # characters of a completion's end that math-verify, which is quadratic, is given
MATH_PROMPT = "{problem}\n\nWork it out step by step. Put the final answer, and nothing else, into \\boxed{{}}."


@dataclass(frozen=True)
class Gsm8k(Checked):
    """Grade-school mathematics: rows with `question`, and `answer` that ends in `#### N` or is a number of JSON.

    source: a JSONL file or a data set, see `draw_rows`.
    """

    source: str = "openai/gsm8k"
    subset: str | None = "main"
    split: str = "test"
    gen_len: Count = 256
    name: str = "gsm8k"
    version: str = "2"

    def samples(self, limit: int, seed: int) -> list[Sample]:
        return [self._sample(row) for row in draw_rows(self.source, self.subset, self.split, limit, seed)]

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """`score` takes the number after `####`, in \\boxed{}, after "answer is", or else the last one, whatever its
        units and commas; `score_strict` wants the asked last line."""
        wanted = read_number(sample.target)
        lines = completion.strip().splitlines()
        strict = bool(lines) and re.fullmatch(r"#### ?-?[0-9][0-9,]*(\.[0-9]+)?", lines[-1].strip())
        return {
            "score": float(read_number(completion) == wanted),
            "score_strict": float(bool(strict) and read_number(lines[-1]) == wanted),
        }

    def _sample(self, row: Row) -> Sample:
        question, answer = row.text("question"), row.text("answer", numbers=True)
        if not isinstance(row.values["answer"], str):
            answer = f"#### {answer}"
        number = answer.rpartition("####")[2].strip()
        if "####" not in answer or read_number(number) is None:
            raise ValueError(f"{row.where}: the answer does not end in '#### N' but in {answer[-40:]!r}")
        messages = [{"role": "user", "content": GSM8K_PROMPT.format(question=question)}]
        return Sample(f"{self.name}/{row.index}", self.name, messages, {}, f"#### {number}", self.gen_len)


@dataclass(frozen=True)
class Math(Checked):
    """Competition mathematics: rows with `problem`, and `answer` or a `solution` with a \\boxed answer. Needs
    math-verify, which decides whether two LaTeX answers are the same.

    source: a JSONL file or a data set, see `draw_rows`.
    """

    source: str = "HuggingFaceH4/MATH-500"
    subset: str | None = None
    split: str = "test"
    gen_len: Count = 512
    name: str = "math500"
    version: str = "2"

    def samples(self, limit: int, seed: int) -> list[Sample]:
        is_same("1", "1")  # raises before anything is decoded when math-verify is missing
        return [self._sample(row) for row in draw_rows(self.source, self.subset, self.split, limit, seed)]

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """`score` takes the last answer found, \\boxed first; `score_strict` the content of the last \\boxed{} only."""
        boxed = read_boxed(completion)
        strict = boxed is not None and is_same(sample.target, f"\\boxed{{{boxed}}}")
        return {"score": float(strict or is_same(sample.target, completion)), "score_strict": float(strict)}

    def _sample(self, row: Row) -> Sample:
        answer = row.text("answer") if "answer" in row.values else read_boxed(row.text("solution"))
        if not answer:
            raise ValueError(f"{row.where}: no answer, neither in a field 'answer' nor as \\boxed{{}} in the solution")
        messages = [{"role": "user", "content": MATH_PROMPT.format(problem=row.text("problem"))}]
        return Sample(f"{self.name}/{row.index}", self.name, messages, {}, f"\\boxed{{{answer}}}", self.gen_len)


def is_same(target: str, completion: str) -> bool:
    """Whether the answer found in the end of a completion is mathematically the target. A comparison that takes longer
    than five seconds counts as no. Raises ValueError where math-verify is not installed."""
    try:
        from math_verify import parse, verify  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(
            "MATH answers are compared with the package math-verify, which is not installed; "
            "pip install 'dllm-parallelbench[eval]'"
        ) from error
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # a sample that is wrong is no warning
    return bool(verify(parse(improper(target)), parse(improper(completion[-READ:]))))


def improper(text: str) -> str:
    """A text with \\frac{5}{4} for 1 1/4, which math-verify takes for 1."""

    def fraction(match: re.Match[str]) -> str:
        whole, part, of = map(int, match.groups())
        return rf"\frac{{{whole * of + part}}}{{{of}}}" if part < of else match[0]

    return re.sub(r"(?<![\w./^}])([0-9]{1,9})\s+([0-9]{1,9})/([0-9]{1,9})(?![0-9/.])", fraction, text)
