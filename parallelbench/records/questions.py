"""Which question a record asks, whatever its wording: `TASK@2` is a task in its wording number 2, and its sample i asks
what sample i of `TASK` asks."""

from collections.abc import Sequence

from parallelbench.records.record import Record
from parallelbench.tasks.base import first_wording


def wording(task: str) -> int:
    """0 of `waiting_line/copy`, 2 of `waiting_line/copy@2`."""
    return int(task.removeprefix(first_wording(task)).removeprefix("@") or 0)


def question(record: Record) -> tuple[str, str]:
    return first_wording(record.task), record.id.removeprefix(record.task)


def numbered(records: Sequence[Record]) -> list[int]:
    """A number for each record that the wordings of its question share."""
    number: dict[tuple[str, str], int] = {}
    return [number.setdefault(question(record), len(number)) for record in records]
