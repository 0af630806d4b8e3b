"""Tables: their lines in Markdown and CSV, and Markdown as a terminal shows it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from textwrap import wrap
from typing import Any

from parallelbench.records.files import one_line
from parallelbench.stats.intervals import Value
from parallelbench.stats.table import WIDTH

PIPE = r"\|"  # of a cell's own
FIRST = 40  # characters of a table's first column in a terminal; longer names take several lines


def table_row(cells: Sequence[str]) -> str:
    """A line of a table; what would end a cell or a line inside one is escaped."""
    return f"| {' | '.join(one_line(cell).replace('|', PIPE) for cell in cells)} |"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], num_left: int = 1) -> list[str]:
    """The lines of a table: headings, the rule below them, and rows; all columns but the first `num_left` are
    numbers."""
    rule = ["---"] * num_left + ["---:"] * (len(heads) - num_left)
    return [table_row(cells) for cells in (heads, rule, *rows)]


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


def as_text(markdown: str, folds: bool) -> str:
    """For a terminal: columns aligned, wide tables cut into several that begin with the same column, pictures left out.
    folds: whether long lines are wrapped too; indented ones, which are commands, stay whole."""
    lines = list[str]()
    for is_table, block in groupby(markdown.splitlines(), lambda line: line.startswith("| ")):
        if is_table:
            lines += _aligned([[cell.replace(PIPE, "|") for cell in line[2:-2].split(" | ")] for line in block])
            continue
        for line in block:
            if line.startswith("!["):
                continue
            if line or (lines and lines[-1]):
                is_whole = line.startswith(" ") or not folds
                lines += [line] if is_whole else wrap(line, WIDTH, break_on_hyphens=False) or [""]
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    heads, rule, *body = rows if len(rows) > 1 else [rows[0], [""] * len(rows[0])]
    body = [[*row, *[""] * len(heads)][: len(heads)] for row in body]
    widest = [max([1, *map(len, [*head.split(), *(row[i] for row in body)])]) for i, head in enumerate(heads)]
    first = min(widest[0], FIRST)
    widths = [first, *(min(width, WIDTH - first - 2) for width in widest[1:])]
    left = list(range(1, len(heads)))
    while left:
        shown = [0, left.pop(0)]
        while left and sum(widths[i] + 2 for i in (*shown, left[0])) - 2 <= WIDTH:
            shown.append(left.pop(0))
        for row in (heads, *body):
            cells = [wrap(row[i], widths[i], break_on_hyphens=False) or [""] for i in shown]
            for parts in zip_longest(*cells, fillvalue=""):
                sided = zip(shown, parts, strict=True)
                yield "  ".join(
                    f"{part:{'>' if rule[i].endswith(':') else '<'}{widths[i]}}" for i, part in sided
                ).rstrip()
        if left:
            yield ""
