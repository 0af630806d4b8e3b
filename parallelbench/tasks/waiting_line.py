"""Ten operations on a waiting line of people (ParallelBench, arXiv 2510.04767, section 4), in our own wording.

Copy, reverse, sort and the index operations have one answer: their tokens are independent given the prompt. Shuffle
and the random operations have many: the tokens of one answer depend on each other, which is what committing in
parallel breaks. Deviations from the published tasks: zero-shot, the list comes first in the prompt, sort compares
whole names as its label does (the published prompt says "by last name"), and an inserted person shares no name with
the others.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from conf.knobs import In, Knobs
from parallelbench.tasks.base import Draw, Sample, bench_samples, common
from parallelbench.tasks.names import FIRST_NAMES, LAST_NAMES

_DESK = "\nThese people wait at the service desk. "
_ONLY = " Answer with the list only."

TEMPLATES = {
    "copy": "{people}" + _DESK + "Write the line exactly as it stands." + _ONLY,
    "reverse": "{people}" + _DESK + "Write the line from last to first." + _ONLY,
    "sort": "{people}" + _DESK + "Sort the line alphabetically, comparing whole names." + _ONLY,
    "shuffle": "{people}" + _DESK + "Shuffle the line into any other order." + _ONLY,
    "insert_index": "{people}" + _DESK + 'Let "{person}" join at index {index}, counting from 0.' + _ONLY,
    "insert_random": "{people}" + _DESK + 'Let "{person}" join at a place of your choice.' + _ONLY,
    "remove_index": "{people}" + _DESK + "The person at index {index}, counting from 0, leaves." + _ONLY,
    "remove_random": "{people}" + _DESK + "One person of your choice leaves." + _ONLY,
    "replace_index": "{people}" + _DESK + 'Let "{person}" take the place at index {index}, counting from 0.' + _ONLY,
    "replace_random": "{people}" + _DESK + 'Let "{person}" take the place of one person of your choice.' + _ONLY,
}
OPERATIONS = tuple(TEMPLATES)
People = Annotated[int, In("[2, 20]", "people in a waiting line")]


@dataclass(frozen=True)
class WaitingLine(Knobs):
    """One operation on lists of `lengths` people (sample i has lengths[i % len(lengths)])."""

    operation: str
    lengths: Sequence[People] = (3, 4, 5, 6)
    version: str = "1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.operation not in TEMPLATES:
            raise ValueError(f"unknown operation {self.operation!r}; choose one of {', '.join(TEMPLATES)}")
        if not self.lengths:
            raise ValueError("lengths=[] of WaitingLine; give at least one number of people")

    @property
    def name(self) -> str:
        return f"waiting_line/{self.operation}"

    def draw(self, rng: random.Random, index: int) -> Draw:
        """One instance; first names and last names are distinct within it."""
        n = self.lengths[index % len(self.lengths)]
        firsts, lasts = rng.sample(FIRST_NAMES, n + 1), rng.sample(LAST_NAMES, n + 1)
        *people, person = (f"{first} {last}" for first, last in zip(firsts, lasts, strict=True))
        place = rng.randrange(n + 1 if self.operation.startswith("insert") else n)
        answer = _answer(self.operation, people, person, place, rng)
        prompt = TEMPLATES[self.operation].format(people=write_list(people), person=person, index=place)
        return Draw(prompt, {"people": people, "person": person, "index": place}, write_list(answer))

    def samples(self, limit: int, seed: int) -> list[Sample]:
        return bench_samples(self, limit, seed)

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """`score` reads the list leniently (text around it, missing brackets), `score_strict` wants the exact
        JSON-like form."""
        strict = parse_strict(completion)
        people, person, target = list(sample.data["people"]), sample.data["person"], parse_lenient(sample.target)
        return {
            "score": float(is_valid(self.operation, parse_lenient(completion), people, person, target)),
            "score_strict": float(
                strict is not None and is_valid(self.operation, strict, people, person, target),
            ),
        }

    def nearest(self, sample: Sample, completion: str) -> str:
        """By names in their places: the two of a person count one each."""
        people, person = list(sample.data["people"]), sample.data["person"]
        answer, places = parse_lenient(completion), range(len(people))
        if self.operation == "shuffle":
            from scipy.optimize import linear_sum_assignment  # takes a second to load, which `list` does not need

            answer = (answer + [""] * len(people))[: len(people)]
            shared = np.array([[common(given.split(), one.split()) for one in people] for given in answer])
            line = [people[i] for i in linear_sum_assignment(shared, maximize=True)[1]]
            return sample.target if line == people else write_list(line)
        lines = {
            "insert_random": [[*people[:i], person, *people[i:]] for i in range(len(people) + 1)],
            "remove_random": [people[:i] + people[i + 1 :] for i in places],
            "replace_random": [[*people[:i], person, *people[i + 1 :]] for i in places],
        }.get(self.operation)
        names = " ".join(answer).split()
        return (
            sample.target if lines is None else write_list(max(lines, key=lambda x: common(" ".join(x).split(), names)))
        )


def is_valid(operation: str, answer: list[str], people: list[str], person: str | None, target: list[str]) -> bool:
    """Whether a line is a right answer: any that the operation allows, or `target` where it allows but one."""
    if operation == "shuffle":
        return sorted(answer) == sorted(people) and answer != people
    if operation == "insert_random":
        if person not in answer:
            return False
        place = answer.index(person)
        return answer[:place] + answer[place + 1 :] == people
    if operation == "remove_random":
        return any(answer == people[:i] + people[i + 1 :] for i in range(len(people)))
    if operation == "replace_random":
        return any(answer == [*people[:i], person, *people[i + 1 :]] for i in range(len(people)))
    return answer == target


def _answer(operation: str, people: list[str], person: str, place: int, rng: random.Random) -> list[str]:
    """One correct answer; the random operations use `place` as their choice."""
    kind = operation.split("_")[0]
    if kind == "copy":
        return people
    if kind == "reverse":
        return people[::-1]
    if kind == "sort":
        return sorted(people)
    if kind == "shuffle":
        answer = people
        while answer == people:
            answer = rng.sample(people, len(people))
        return answer
    after = place if kind == "insert" else place + 1
    return people[:place] + ([] if kind == "remove" else [person]) + people[after:]


def write_list(people: Sequence[str]) -> str:
    """People as the canonical list text: `["A B", "C D"]`."""
    return json.dumps(list(people), ensure_ascii=False)


def parse_lenient(text: str) -> list[str]:
    """Items after the last `[` up to the next `]` (either may be missing), without quotes, spaces and empty items."""
    body = text.rsplit("[", 1)[-1].split("]", 1)[0]
    return [item for item in (part.strip(" \n\"'") for part in body.split(",")) if item]


def parse_strict(text: str) -> list[str] | None:
    """Items of exactly `["A B", "C D"]`, or None for any other text."""
    if not re.fullmatch(r'\["[^"\[\]]+"(, "[^"\[\]]+")*\]', text):
        return None
    return text[2:-2].split('", "')
