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

from dllm.validation import Interval
from parallelbench.tasks.base import Draw, Drawn, Sample, common
from parallelbench.tasks.names import FIRST_NAMES, LAST_NAMES

FRAMES = (
    "{{people}}\nThese people wait at the service desk. {order} Answer with the list only.",
    "{{people}}\nThis is the queue outside the bakery, from its front. {order} Reply with the new list alone.",
    "{order} Give the result as a list of the same form and say nothing else. This is the queue:\n{{people}}",
    "Queue: {{people}}\nTask: {order}\nOutput: the list only",
)
ORDERS = {
    "copy": (
        "Write the line exactly as it stands.",
        "Copy it without any change.",
        "Repeat the queue below exactly as it is.",
        "copy",
    ),
    "reverse": (
        "Write the line from last to first.",
        "Turn it around, so that whoever came last is in front.",
        "Put the queue below into the opposite order.",
        "reverse",
    ),
    "sort": (
        "Sort the line alphabetically, comparing whole names.",
        "Arrange it from A to Z by whole names.",
        "Put the queue below into alphabetical order of whole names.",
        "sort by whole name",
    ),
    "shuffle": (
        "Shuffle the line into any other order.",
        "Mix it up: any order but this one will do.",
        "Rearrange the queue below at random, so that its order changes.",
        "shuffle, any other order",
    ),
    "insert_index": (
        'Let "{person}" join at index {index}, counting from 0.',
        '"{person}" joins so that {index} people stand in front of the newcomer.',
        'Insert "{person}" into the queue below at index {index}; the first index is 0.',
        'insert "{person}" as number {number}',
    ),
    "insert_random": (
        'Let "{person}" join at a place of your choice.',
        '"{person}" joins wherever you like.',
        'Insert "{person}" into the queue below at any index.',
        'insert "{person}" anywhere',
    ),
    "remove_index": (
        "The person at index {index}, counting from 0, leaves.",
        "Whoever has {index} people in front goes home.",
        "Remove the person at index {index} from the queue below; the first index is 0.",
        "remove number {number}",
    ),
    "remove_random": (
        "One person of your choice leaves.",
        "Somebody goes home, and you choose who.",
        "Remove any one person from the queue below.",
        "remove anyone",
    ),
    "replace_index": (
        'Let "{person}" take the place at index {index}, counting from 0.',
        '"{person}" comes instead of whoever has {index} people in front.',
        'Replace the person at index {index} of the queue below by "{person}"; the first index is 0.',
        'replace number {number} by "{person}"',
    ),
    "replace_random": (
        'Let "{person}" take the place of one person of your choice.',
        '"{person}" comes instead of anyone you like.',
        'Replace any one person of the queue below by "{person}".',
        'replace anyone by "{person}"',
    ),
}
# of each operation in its four wordings; number is index + 1
WORDINGS = {
    operation: tuple(frame.format(order=order) for frame, order in zip(FRAMES, orders, strict=True))
    for operation, orders in ORDERS.items()
}
OPERATIONS = tuple(WORDINGS)
LIST = r'\["[^"\[\]]+"(, "[^"\[\]]+")*\]'  # the exact form of a list of people
People = Annotated[int, Interval("[2, 20]", "people in a waiting line")]


@dataclass(frozen=True)
class WaitingLine(Drawn):
    """One operation on lists of `lengths` people (sample i has lengths[i % len(lengths)])."""

    operation: str
    lengths: Sequence[People] = (3, 4, 5, 6)
    version: str = "1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.operation not in WORDINGS:
            raise ValueError(f"unknown operation {self.operation!r}; choose one of {', '.join(WORDINGS)}")
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
        answer = changed_line(self.operation, people, person, place)
        while self.operation == "shuffle" and answer == people:
            answer = rng.sample(people, n)
        prompt, *wordings = (
            wording.format(people=write_list(people), person=person, index=place, number=place + 1)
            for wording in WORDINGS[self.operation]
        )
        data = {"people": people, "person": person, "index": place}
        return Draw(prompt, data, write_list(answer), wordings, constraint={"regex": LIST})

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
        people, answer = list(sample.data["people"]), parse_lenient(completion)
        if self.operation == "shuffle":
            from scipy.optimize import linear_sum_assignment  # takes a second to load, which `list` does not need

            answer = (answer + [""] * len(people))[: len(people)]
            shared = np.array([[common(given.split(), one.split()) for one in people] for given in answer])
            line = [people[i] for i in linear_sum_assignment(shared, maximize=True)[1]]
            return sample.target if line == people else write_list(line)
        if not self.operation.endswith("_random"):
            return sample.target
        lines, names = lines_anywhere(self.operation, people, sample.data["person"]), " ".join(answer).split()
        return write_list(max(lines, key=lambda line: common(" ".join(line).split(), names)))


def is_valid(operation: str, answer: list[str], people: list[str], person: str | None, target: list[str]) -> bool:
    """Whether a line is a right answer: any that the operation allows, or `target` where it allows but one."""
    if operation == "shuffle":
        return sorted(answer) == sorted(people) and answer != people
    return answer in lines_anywhere(operation, people, person) if operation.endswith("_random") else answer == target


def lines_anywhere(operation: str, people: list[str], person: str | None) -> list[list[str]]:
    """All right answers of an operation at a place of one's choice, from the front on."""
    places = range(len(people) + operation.startswith("insert"))
    return [changed_line(operation, people, person, place) for place in places]


def changed_line(operation: str, people: list[str], person: str | None, place: int) -> list[str]:
    """The line after an operation at a place, chosen or given. A line to be shuffled is returned as it is."""
    kind = operation.split("_")[0]
    if kind not in ("insert", "remove", "replace"):
        return {"reverse": people[::-1], "sort": sorted(people)}.get(kind, people)
    joining = [] if kind == "remove" else [person or ""]
    return people[:place] + joining + people[place + (kind != "insert") :]


def write_list(people: Sequence[str]) -> str:
    """People as the canonical list text: `["A B", "C D"]`."""
    return json.dumps(list(people), ensure_ascii=False)


def parse_lenient(text: str) -> list[str]:
    """Items after the last `[` up to the next `]` (either may be missing), without quotes, spaces and empty items."""
    body = text.rsplit("[", 1)[-1].split("]", 1)[0]
    return [item for item in (part.strip(" \n\"'") for part in body.split(",")) if item]


def parse_strict(text: str) -> list[str] | None:
    """Items of exactly `["A B", "C D"]`, or None for any other text."""
    if not re.fullmatch(LIST, text):
        return None
    return text[2:-2].split('", "')
