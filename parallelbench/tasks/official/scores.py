"""ParallelBench's scorers of lists and puzzles as published, loopholes included, and next to them `score_corrected`.

As published, `score` reads an answer leniently and `score_strict` strictly; each repeats what the authors' code
accepts, so that numbers compare. `score_corrected` mends what that gets wrong and is the lenient score elsewhere:

- sort: the prompt asks for last names in order, the published answer has whole names (so first names) in order;
- Sudoku: any solution of the puzzle counts, not the stored one alone;
- Latin square: four rows of four cells and nothing else (a row with a fifth cell and lines of junk pass as published).
"""

import re
from dataclasses import dataclass

from parallelbench.tasks.base import Sample
from parallelbench.tasks.puzzles import LatinSquare, solves
from parallelbench.tasks.waiting_line import is_valid


@dataclass(frozen=True)
class ListScore:
    """An operation on a list; needs data `people` and `person` (None where nobody joins)."""

    operation: str
    version: str = "1"

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        people, person, target = list(sample.data["people"]), sample.data["person"], parse_list(sample.target)
        lenient, strict = parse_list(completion), parse_list_strict(completion)
        score = is_valid(self.operation, lenient, people, person, target)
        is_sort = self.operation == "sort"
        return {
            "score": float(score),
            "score_strict": float(strict is not None and is_valid(self.operation, strict, people, person, target)),
            "score_corrected": float(is_sorted_by_last_name(lenient, people) if is_sort else score),
        }


@dataclass(frozen=True)
class LatinSquareScore:
    """Any Latin square over data `symbols`, from the first four lines over them. Published without a strict form."""

    version: str = "1"

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        score = LatinSquare().score(sample, completion)["score"]
        corrected = LatinSquare().score(sample, completion.strip())["score_strict"]
        return {"score": score, "score_strict": score, "score_corrected": corrected}


@dataclass(frozen=True)
class SudokuScore:
    """The stored solution; corrected: any solution of data `grid` (0 is an empty cell)."""

    version: str = "1"

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        target = "".join(sample.target.split())
        digits = ["".join(re.findall(r"[0-9]", line)) for line in completion.split("\n")]
        found = [line for line in digits if len(line) == 4]
        answer = "".join(found)
        lines = [line.strip() for line in completion.strip().split("\n") if line.strip()]
        strict = len(lines) == 4 and all(len(line) == 4 for line in lines) and "".join(lines) == target
        return {
            "score": float(len(found) == 4 and answer == target),
            "score_strict": float(strict),
            "score_corrected": float(len(found) == 4 and solves(answer, sample.data["grid"])),
        }


def parse_list(text: str) -> list[str]:
    """Items after the last `[` up to the next `]` (either may be missing) without quotes and spaces around them.

    Unlike our own reading, a newline or a single quote stays with its item.
    """
    body = text.rsplit("[", 1)[-1].split("]", 1)[0]
    return [item.strip('" ') for item in body.split(",") if item.strip()]


def parse_list_strict(text: str) -> list[str] | None:
    """Items between the last `[` and the next `]`, each in double quotes, split by a comma and one space; None where
    anything differs. Text around the brackets is let pass."""
    found = re.fullmatch(r'.*\[("[^"\[\]]*"(?:, "[^"\[\]]*")*)\][^\[]*', text, flags=re.DOTALL)
    return found[1][1:-1].split('", "') if found else None


def is_sorted_by_last_name(answer: list[str], people: list[str]) -> bool:
    """Whether the answer holds these people with their last names in alphabetical order, ignoring case."""
    lasts = [name.split(" ")[-1].casefold() for name in answer]
    return sorted(answer) == sorted(people) and lasts == sorted(lasts)
