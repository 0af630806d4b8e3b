"""Markdown tables."""

from collections.abc import Sequence

from parallelbench.stats.intervals import Value


def table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table_head(cells: Sequence[str], num_left: int = 1) -> list[str]:
    """Headings and the rule below them; all columns but the first `num_left` are numbers."""
    return [table_row(cells), table_row(["---"] * num_left + ["---:"] * (len(cells) - num_left))]


def with_interval(value: Value, show: str) -> str:
    """A value and its interval in a format such as ".2f"; the value alone where it has none."""
    return value.text(show)
