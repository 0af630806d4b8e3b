"""The two 4x4 puzzles of ParallelBench: a Latin square (many answers, every cell depends on others) and a Sudoku (one
answer).

Wording and instances are our own. Deviations: zero-shot; Sudoku is scored by validity (fits the givens and the
rules), which for a puzzle with one solution is the same as matching it.
"""

import random
import string
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import permutations

from parallelbench.tasks.base import Draw, Drawn, Sample, common

HOLES = 4  # empty cells of a Sudoku
LATIN_WORDINGS = (
    "{symbols}\nFill a 4x4 Latin square with these symbols. Answer with four lines of comma-separated symbols only.",
    "{symbols}\nWrite a 4x4 grid in which each row and each column holds every one of these symbols once. Reply with "
    "four lines, commas between the symbols, and nothing else.",
    "Write any Latin square of order 4, one row a line, commas between the symbols, and nothing else. These are the "
    "symbols:\n{symbols}",
    "Symbols: {symbols}\nTask: 4x4 Latin square\nOutput: four lines only, comma-separated",
)
SUDOKU_WORDINGS = (
    "{grid}\nSolve this 4x4 Sudoku with 2x2 boxes, where 0 is an empty cell. "
    "Answer with four lines of four digits only.",
    "{grid}\nReplace every 0 so that each row, each column and each 2x2 box holds the digits 1 to 4 once. Reply with "
    "four lines of four digits and nothing else.",
    "Solve the 4x4 Sudoku below, whose empty cells are written 0, and write its four lines of four digits and nothing "
    "else.\n{grid}",
    "Sudoku:\n{grid}\nTask: solve, 0 is empty, boxes are 2x2\nOutput: four lines of four digits only",
)


@dataclass(frozen=True)
class LatinSquare(Drawn):
    """Write any 4x4 Latin square over four given symbols, as CSV."""

    name: str = "puzzle/latin_square_n4"
    version: str = "1"

    def draw(self, rng: random.Random, index: int) -> Draw:
        symbols = rng.sample(string.ascii_uppercase + string.digits, 4)
        square = rng.choice(latin_squares())
        target = _write_square(square, symbols)
        prompt, *wordings = (wording.format(symbols=",".join(symbols)) for wording in LATIN_WORDINGS)
        return Draw(prompt, {"symbols": symbols}, target, wordings)

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """`score` takes the first four lines over the symbols, as published; `score_strict` wants exactly four rows
        of four."""
        symbols = set(sample.data["symbols"])
        rows = [[cell.strip() for cell in line.split(",")] for line in completion.split("\n")]
        found = [row for row in rows if set(row) == symbols]
        is_square = len(rows) == 4 and all(len(row) == 4 for row in rows)
        return {
            "score": float(len(found) >= 4 and is_latin(found[:4], symbols)),
            "score_strict": float(is_square and is_latin(rows, symbols)),
        }

    def nearest(self, sample: Sample, completion: str) -> str:
        """By characters in their places."""
        squares = (_write_square(square, sample.data["symbols"]) for square in latin_squares())
        return max(squares, key=lambda text: common(text, completion))


@dataclass(frozen=True)
class Sudoku(Drawn):
    """Complete a 4x4 Sudoku with four empty cells and exactly one solution."""

    name: str = "puzzle/sudoku_n4"
    version: str = "1"

    def draw(self, rng: random.Random, index: int) -> Draw:
        grid = rng.choice(sudoku_grids())
        holes = set(rng.sample(range(16), HOLES))
        while not _has_one_solution(grid, holes):
            holes = set(rng.sample(range(16), HOLES))
        cells = ["0" if i in holes else str(digit) for i, digit in enumerate(grid)]
        puzzle, target = _write_grid(cells), _write_grid([str(digit) for digit in grid])
        prompt, *wordings = (wording.format(grid=puzzle) for wording in SUDOKU_WORDINGS)
        return Draw(prompt, {"grid": puzzle}, target, wordings)

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """`score` ignores spaces, commas and lines that are not four digits; `score_strict` wants exactly four lines
        of four."""
        lines = [line.replace(" ", "").replace(",", "") for line in completion.split("\n")]
        found = [line for line in lines if len(line) == 4 and set(line) <= set(string.digits)]
        lenient = len(found) == 4 and solves("".join(found), sample.data["grid"])
        return {"score": float(lenient), "score_strict": float(lenient and completion == "\n".join(found))}


@cache
def latin_squares() -> tuple[tuple[tuple[int, ...], ...], ...]:
    """All 576 Latin squares of order 4, each drawn with equal probability."""
    squares: list[tuple[tuple[int, ...], ...]] = [()]
    for _ in range(4):
        squares = [
            (*square, row)
            for square in squares
            for row in permutations(range(4))
            if all(row[c] != above[c] for above in square for c in range(4))
        ]
    return tuple(squares)


@cache
def sudoku_grids() -> tuple[tuple[int, ...], ...]:
    """All 288 complete 4x4 Sudoku grids, as 16 digits each."""
    grids = (tuple(cell + 1 for row in square for cell in row) for square in latin_squares())
    return tuple(grid for grid in grids if all(len(set(box)) == 4 for box in _boxes(grid)))


def _boxes(grid: Sequence[int]) -> list[tuple[int, ...]]:
    corners = (0, 2, 8, 10)
    return [(grid[c], grid[c + 1], grid[c + 4], grid[c + 5]) for c in corners]


def _has_one_solution(grid: tuple[int, ...], holes: set[int]) -> bool:
    kept = [i for i in range(16) if i not in holes]
    return sum(all(other[i] == grid[i] for i in kept) for other in sudoku_grids()) == 1


def solves(answer: str, puzzle: str) -> bool:
    """Whether 16 digits keep the puzzle's givens (0 is an empty cell, lines may be broken) and the rules."""
    givens = puzzle.replace("\n", "")
    fits = all(given in ("0", cell) for given, cell in zip(givens, answer, strict=True))
    return fits and tuple(map(int, answer)) in sudoku_grids()


def is_latin(rows: Sequence[Sequence[str]], symbols: Set[str]) -> bool:
    """Whether every row and every column is made of exactly the symbols (rows may repeat some)."""
    return all(set(line) == symbols for line in [*rows, *zip(*rows, strict=False)])


def _write_square(square: Sequence[Sequence[int]], symbols: Sequence[str]) -> str:
    return "\n".join(",".join(symbols[cell] for cell in row) for row in square)


def _write_grid(cells: Sequence[str]) -> str:
    return "\n".join("".join(cells[r : r + 4]) for r in range(0, 16, 4))
