"""Writes small Python problems as JSONL rows: `python scripts/code_problems.py problems.jsonl`.

Each row has a `prompt` for a chat model, in one of three forms, and MBPP's columns (`task_id`, `text`, `code`,
`test_list`). With `--wishes`, every fifth row asks for a known algorithm instead, and has a `prompt` alone. The
problems are drawn from phrases and expressions that belong together: which values are taken, what is done with each,
and what becomes of all. Examples and tests come from running the reference `code`, which is made here and nowhere else.
No published benchmark is a source.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from parallelbench.records.files import replace_file
from parallelbench.tasks.code.tasks import HUMANEVAL_PROMPT, MBPP_PROMPT
from parallelbench.wiring.exits import explained

Piece = tuple[str, str, str]  # part of the name, of the sentence, and of the code

TAKEN: dict[str, list[Piece]] = {  # which values x
    "int": [
        ("even", "even numbers", "x % 2 == 0"),
        ("odd", "odd numbers", "x % 2 == 1"),
        ("positive", "positive numbers", "x > 0"),
        ("negative", "negative numbers", "x < 0"),
        ("two_digit", "numbers with exactly two digits", "10 <= abs(x) <= 99"),
        ("divisible_by_three", "numbers divisible by 3", "x % 3 == 0"),
        ("palindromic", "numbers whose digits read the same backwards", "str(abs(x)) == str(abs(x))[::-1]"),
        ("prime", "prime numbers", "x > 1 and all(x % d for d in range(2, int(x**0.5) + 1))"),
        ("square", "perfect squares", "x >= 0 and int(x**0.5) ** 2 == x"),
    ],
    "str": [
        ("long", "words longer than four letters", "len(x) > 4"),
        ("vowel", "words that begin with a vowel", "x[:1].lower() in set('aeiou')"),
        ("capitalised", "words that begin with a capital letter", "x[:1].isupper()"),
        ("palindromic", "words that read the same backwards", "x.lower() == x.lower()[::-1]"),
        ("double_letter", "words with two equal letters in a row", "any(a == b for a, b in zip(x, x[1:]))"),
        ("distinct_letter", "words whose letters are all different", "len(set(x.lower())) == len(x)"),
    ],
}
DONE: dict[str, list[Piece]] = {  # what is done with each
    "int": [
        ("", "{taken}", "x"),
        ("squares_of", "the squares of the {taken}", "x * x"),
        ("digit_sums_of", "the digit sums of the {taken}", "sum(int(d) for d in str(abs(x)))"),
        ("doubles_of", "the doubles of the {taken}", "2 * x"),
        ("absolute_values_of", "the absolute values of the {taken}", "abs(x)"),
        ("bit_counts_of", "the numbers of one-bits of the {taken}", "bin(abs(x)).count('1')"),
    ],
    "str": [
        ("", "{taken}", "x"),
        ("reversed", "the {taken}, each written backwards", "x[::-1]"),
        ("upper_case", "the {taken}, in upper case", "x.upper()"),
        ("first_letters_of", "the first letters of the {taken}", "x[0]"),
        ("lengths_of", "the lengths of the {taken}", "len(x)"),
        ("vowel_counts_of", "the numbers of vowels of the {taken}", "sum(c in 'aeiou' for c in x.lower())"),
    ],
}
KEPT: list[Piece] = [  # what becomes of all
    ("list", "Return a list of {done}, in the order of the input.", "found"),
    ("sorted", "Return a sorted list of {done}.", "sorted(found)"),
    ("unique", "Return {done} as a list without repetitions, in the order of their first appearance.",
     "list(dict.fromkeys(found))"),
    ("count", "Return how many different values there are among {done}.", "len(set(found))"),
    ("counts", "Return a dictionary that maps each of {done} to how often it appears.",
     "{value: found.count(value) for value in dict.fromkeys(found)}"),
    ("largest", "Return the largest of {done}, or None if there are none.", "max(found, default=None)"),
    ("smallest", "Return the smallest of {done}, or None if there are none.", "min(found, default=None)"),
    ("last_two", "Return a list of the last two of {done}.", "found[-2:]"),
    ("most_common", "Return the most frequent of {done}; of several the one that comes first, None if there are none.",
     "max(found, key=found.count, default=None)"),
    ("pairs", "Return a list of all pairs (a, b) of {done} that stand next to each other.",
     "list(zip(found, found[1:]))"),
    ("alternate", "Return a list of every second one of {done}, beginning with the first.", "found[::2]"),
    ("running", "Return a list that holds, for each of {done}, the largest so far.",
     "[max(found[: i + 1]) for i in range(len(found))]"),
]  # fmt: skip
SOURCES: dict[str, list[Piece]] = {  # what x is drawn from: the parameter, the sentence, the loop
    "int": [
        ("numbers: list[int]", "Given a list of integers, look at the {taken}.", "numbers"),
        ("rows: list[list[int]]", "Given a list of lists of integers, look at the {taken} in all of them.",
         "[x for row in rows for x in row]"),
        ("text: str", "Given a text of integers separated by commas, look at the {taken}.",
         "[int(part) for part in text.split(',')] if text else []"),
        ("counts: dict[str, int]", "Given a dictionary of integers, look at the values that are {taken}.",
         "counts.values()"),
    ],
    "str": [
        ("words: list[str]", "Given a list of words, look at the {taken}.", "words"),
        ("sentence: str", "Given a sentence of words separated by spaces, look at the {taken}.", "sentence.split()"),
        ("owners: dict[str, int]", "Given a dictionary whose keys are words, look at the {taken} among the keys.",
         "owners"),
    ],
}  # fmt: skip
TOPICS = (
    "binary search; merge sort; quick sort; insertion sort; bubble sort; heap sort; counting sort; breadth-first "
    "search of a graph; depth-first search of a graph; the shortest path by Dijkstra's method; the greatest "
    "common divisor; the least common multiple; the sieve of Eratosthenes; the prime factors of a number; the "
    "Fibonacci numbers; Pascal's triangle; the product of two matrices; the transpose of a matrix; the longest "
    "common subsequence; the edit distance of two words; the longest increasing subsequence; the largest sum of "
    "neighbouring numbers; a Caesar cipher; Roman numerals; the conversion of a number to another base; balanced "
    "brackets; an expression in reverse Polish notation; run-length encoding; anagrams grouped together; a word "
    "count of a text; the permutations of a list; the subsets of a set; the towers of Hanoi; the eight queens; "
    "Conway's game of life; a flattened nested list; a rotated list; the median of a list; the standard deviation "
    "of a list; two numbers that add up to a target; a validated e-mail address; the days between two dates; leap "
    "years; the digits of a number added up; Armstrong numbers; perfect numbers; the Collatz sequence; the nth "
    "root by bisection; the power of a number by squaring; a linked list; a stack; a queue made of two stacks; a "
    "binary search tree; a trie; a min-heap; a cache that forgets the least recently used; a bank account; a "
    "tic-tac-toe board; a deck of cards; a timer as a context manager; a decorator that counts calls; a generator "
    "of chunks of a list; a parser of key=value lines; a CSV file summed by column; overlapping intervals merged; "
    "the intersection of two sorted lists; the knapsack problem; coin change"
).split("; ")
WISHES = (
    "Write Python code for this: {topic}. Answer with the code alone.",
    "Show me a short Python implementation of {topic}, with type hints and a docstring.",
    "Implement {topic} in Python and add three assertions that test it.",
    "I am learning Python. Write a function or class for {topic} and explain it in two sentences.",
)
WORDS = "anna Level apple Oslo tree banana otto kiwi Noon letter plum Eve stone river book queue Ada cloud".split()
INTS = [*range(-12, 30), 36, 49, 64, 77, 97, 99, 101, 121, 131, 144]


@dataclass(frozen=True)
class Problem:
    name: str
    parameter: str
    text: str
    code: str
    draws: tuple[Any, ...]  # arguments of its examples and tests

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Each call and the representation of its value."""
        space: dict[str, Any] = {}
        exec(self.code, space)
        return [(f"{self.name}({draw!r})", repr(space[self.name](draw))) for draw in self.draws]


def problems(rng: random.Random) -> Iterator[Problem]:
    """All problems once, in an order drawn by `rng`."""
    pieces = [parts for kind in ("int", "str") for parts in product(SOURCES[kind], TAKEN[kind], DONE[kind], KEPT)]
    rng.shuffle(pieces)
    for (parameter, given, loop), taken, done, kept in pieces:
        name = "_".join(part for part in (kept[0], done[0], taken[0]) if part)
        plural = done[1].format(taken=taken[1])
        plural = plural if plural.startswith("the ") else f"the {plural}"
        text = f"{given.format(taken=taken[1])} {kept[1].format(done=plural)}"
        code = (
            f"def {name}({parameter}):\n    found = [{done[2]} for x in {loop} if {taken[2]}]\n    return {kept[2]}\n"
        )
        if " if text else []" in loop:
            code = code.replace(f"in {loop} if", f"in ({loop}) if")
        yield Problem(name, parameter, text, code, tuple(draw(parameter, rng) for _ in range(3)))


def draw(parameter: str, rng: random.Random) -> Any:
    """An argument for a parameter of `SOURCES`."""
    ints, words = [rng.choice(INTS) for _ in range(rng.randint(4, 8))], rng.sample(WORDS, rng.randint(3, 6))
    values: dict[str, Any] = {
        "numbers": ints,
        "rows": [ints[:3], ints[3:]],
        "text": ",".join(map(str, ints)),
        "counts": dict(zip(words, ints, strict=False)),
        "words": [*words, words[0]],
        "sentence": " ".join([*words, words[0]]),
        "owners": dict(zip(words, ints, strict=False)),
    }
    return values[parameter.split(":")[0]]


def as_head(problem: Problem) -> str:
    """The function's head and docstring, to be completed."""
    examples = "".join(f"    >>> {call}\n    {value}\n" for call, value in problem.calls[:2])
    head = f'def {problem.name}({problem.parameter}):\n    """{problem.text}\n\n{examples}    """'
    return HUMANEVAL_PROMPT.format(prompt=head)


def as_tests(problem: Problem) -> str:
    return MBPP_PROMPT.format(text=problem.text, tests="\n".join(tests(problem)))


def as_wish(problem: Problem) -> str:
    return f"Write a Python function `{problem.name}({problem.parameter})`. {problem.text}"


def tests(problem: Problem) -> list[str]:
    return [f"assert {call} == {value}" for call, value in problem.calls]


FORMS: dict[str, Callable[[Problem], str]] = {"head": as_head, "tests": as_tests, "wish": as_wish}


def rows(count: int, seed: int, forms: list[str], wishes: bool) -> Iterator[dict[str, Any]]:
    """At most `count` rows, their forms in turn."""
    rng = random.Random(seed)
    free = [wish.format(topic=topic) for wish in WISHES for topic in TOPICS] if wishes else []
    rng.shuffle(free)
    for index, problem in zip(range(count), problems(rng), strict=False):
        if free and index % 5 == 4:
            yield {"prompt": free.pop()}
            continue
        yield {
            "task_id": index,
            "prompt": FORMS[forms[index % len(forms)]](problem),
            "text": problem.text + f" Name the function `{problem.name}`.",
            "code": problem.code,
            "test_list": tests(problem),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Write small Python problems as JSONL rows")
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--skip", type=int, default=0, help="leave out so many from the first, as those trained on")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--wishes", action="store_true", help="every fifth row asks for a known algorithm instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with explained():
        if options.count < 1 or options.skip < 0:
            raise ValueError(
                f"--count {options.count}, --skip {options.skip}; give a count of 1 or more, a skip of 0 or more"
            )
        found = list(rows(options.skip + options.count, options.seed, options.forms, options.wishes))[options.skip :]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(options.out, "".join(json.dumps(row) + "\n" for row in found))
        print(f"{options.out}: {len(found)} problems")


if __name__ == "__main__":
    main()
