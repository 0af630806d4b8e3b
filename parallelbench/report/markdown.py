"""Tables: their lines in Markdown, and lines of CSV."""

from collections.abc import Iterable, Sequence
from typing import Any

from parallelbench.stats.intervals import Value


def table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table_head(cells: Sequence[str], num_left: int = 1) -> list[str]:
    """Headings and the rule below them; all columns but the first `num_left` are numbers."""
    return [table_row(cells), table_row(["---"] * num_left + ["---:"] * (len(cells) - num_left))]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], num_left: int = 1) -> list[str]:
    """The lines of a table."""
    return [*table_head(heads, num_left), *map(table_row, rows)]


def csv_lines(rows: Sequence[Any]) -> list[list[object]]:
    """Heading and lines of dataclasses of one kind. A `Value` has columns for its limits and its samples."""
    lines = [_cells(row) for row in rows]
    cells = [[f"{v:.9g}" if isinstance(v, float) else v for v in line.values()] for line in lines]
    return [list(lines[0]), *cells]


def _cells(row: Any) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in vars(row).items():
        if isinstance(value, Value):
            of = f"{name.removeprefix('accuracy_')}_" if "ci_low" in found else ""  # a second interval
            found |= {name: value.value, f"{of}ci_low": value.ci_low, f"{of}ci_high": value.ci_high}
            found.setdefault("samples", value.n)
        else:
            found[name] = value
    return found
