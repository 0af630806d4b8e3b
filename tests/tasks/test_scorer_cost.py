"""Scorers take time in proportion to a completion's length, and end whatever it holds."""

import random
import time
from collections.abc import Callable
from functools import partial

import pytest

from parallelbench.tasks import builtin_tasks, text_tasks
from parallelbench.tasks.base import Sample, Task
from parallelbench.tasks.code.tasks import humaneval_programs, trim
from parallelbench.tasks.mathematics import Gsm8k, Math
from parallelbench.tasks.number import read_boxed
from parallelbench.tasks.official.scores import ListScore, parse_list_strict
from parallelbench.tasks.structured import json_tasks
from parallelbench.tasks.text.grammar import LONGEST_WORD, PIECE, Harper

TEXTS = (  # repeated until they are long
    *("a", "a ", " ", "\n", "1", "1.", "1. ", "1/", ",", ", ", "\\", "-", "7" * 50 + " ", "Ada Bach, "),
    *(
        "\\boxed{",
        "\\boxed{1}",
        "{",
        "}",
        "{}",
        "\\frac{",
        "(",
        "[",
        '["',
        '["a", "a"',
        '{"a":',
        '{"a": 1}, ',
        "####",
        "#### 1\n",
        "answer is ",
    ),
    *("^{9", "9^", "$$", "$x$ ", "\\sqrt{", "a{b}c ", "the the ", ". ", '." ', "'", "```\n", "```python\n", "def f(\n"),
    *("def f():\n", "0000\n", "1,2,3,4\n", "A,B\n", "\t", "\N{MINUS SIGN}", "\N{GRINNING FACE}", "\x00", "\ud800"),
)


def tasks() -> list[Task]:
    return [*builtin_tasks().values(), *text_tasks().values(), *json_tasks().values()]


def of(task: Task) -> Sample:
    return task.samples(1, 0)[0]


MATH = Sample("m/0", "m", [], {}, "\\boxed{12}")
LIST = Sample("l/0", "l", [], {"people": ["A B", "C D"], "person": None}, '["C D", "A B"]')


def scorers() -> dict[str, Callable[[str], object]]:
    """What is called with a completion, by name."""
    found = {task.name: partial(task.score, of(task)) for task in tasks()}
    gsm8k, math, lines = Gsm8k("x"), Math("x"), ListScore("shuffle")
    return found | {
        "gsm8k": lambda text: gsm8k.score(MATH, text),
        "math500": lambda text: math.score(MATH, text),
        "official list": lambda text: (lines.score(LIST, text), parse_list_strict(text)),
        "programs": lambda text: (humaneval_programs("def f():", "f", text), trim(text)),
    }


def seconds(score: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    score(text)
    return time.process_time() - began


def oracle(text: str) -> str | None:
    """The last \\boxed{} by trying each from the right."""
    at = len(text)
    while (at := text.rfind("\\boxed{", 0, at)) >= 0:
        depth, start = 1, at + len("\\boxed{")
        for end in range(start, len(text)):
            if text[end - 1] != "\\":
                depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[start:end].strip()
    return None


def test_the_last_box_is_found_in_one_pass() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choice(["\\boxed{", "{", "}", "\\{", "\\}", "1", " "]) for _ in range(rng.randint(0, 14)))
        assert read_boxed(text) == oracle(text), text
    assert seconds(read_boxed, "\\boxed{" * 30_000) < 2  # by the square it was minutes


def test_a_word_that_harper_cannot_hold_is_a_mistake() -> None:
    assert Harper().check("a" * 100_000) == [f"a word of more than {LONGEST_WORD} characters"]
    assert not Harper().check("The cat sat on the mat.")


def test_a_long_text_is_read_in_pieces_that_end_at_spaces() -> None:
    from parallelbench.tasks.text.grammar import _pieces

    for text in ("", "The cat sat.", "cat " * 3000, " " * 5000, "a b\n" * 2000 + "end"):
        pieces = _pieces(text)
        assert "".join(pieces) == text and all(len(piece) <= PIECE for piece in pieces)
        assert len(text) > PIECE or pieces in ([text], [])


@pytest.mark.slow
@pytest.mark.parametrize("name", scorers())
def test_scoring_is_linear_in_the_length(name: str, capsys: pytest.CaptureFixture) -> None:
    score, worst = scorers()[name], (0.0, "")
    for text in TEXTS:
        short, long = (text * (size // len(text)) for size in (100_000, 200_000))
        score(short[:100])  # loads what it needs
        first, second = seconds(score, short), seconds(score, long)
        worst = max(worst, (second, text))
        assert second < 3.5 * first + 0.3, f"{text!r}: {first:.2f} s, twice as long {second:.2f} s"
    with capsys.disabled():
        print(f"\n{name}: {len(TEXTS)} texts of 200,000 characters, at most {worst[0]:.2f} s ({worst[1]!r})")
