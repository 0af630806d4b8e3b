"""Which question a record asks, whatever its wording: `TASK@2` is a task in its wording number 2, and its sample i asks
what sample i of `TASK` asks."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from parallelbench.records.record import Record
from parallelbench.tasks.base import first_wording

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their keys, both in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def wording(task: str) -> int:
    """0 of `waiting_line/copy`, 2 of `waiting_line/copy@2`."""
    return int(task.removeprefix(first_wording(task)).removeprefix("@") or 0)


def question(record: Record) -> tuple[str, str]:
    return first_wording(record.task), record.id.removeprefix(record.task)
