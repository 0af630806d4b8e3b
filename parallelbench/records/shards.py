"""JSON lines of a run's folder that several processes write and any of them may be killed at.

One file holds them, NAME.jsonl. While several processes write, each appends to a shard of its own, NAME.<rank>.jsonl.
Readers take the shards for a part of the file, each id once, so it does not matter when a run is killed. A line that
was cut off counts as not written.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable

from msgspec import DecodeError
from msgspec.json import Decoder

from parallelbench.records.files import append, parse_json, read_bytes, replace_file
from parallelbench.records.typed import typed

BLANK = b" \t\r\0"  # zeros are what a crash leaves where a line should be


@runtime_checkable
class HasId(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=HasId)


class _CutOff(ValueError):
    """A line that begins as an object and is no JSON."""


@dataclass(frozen=True)
class Shards(Generic[T]):
    """A kind of lines.

    name: of the file, without suffix.
    decoder: from JSON to an item.
    dump: an item as JSON in one line.
    check: raises ValueError for an item that can be none though its types are right.
    what: an item in messages, and what to do about a line that is none.
    """

    name: str
    decoder: Decoder[T]
    dump: Callable[[T], str]
    check: Callable[[T], None]
    what: tuple[str, str]

    def file(self, folder: Path) -> Path:
        return folder / f"{self.name}.jsonl"

    def append(self, folder: Path, items: Sequence[T], shard: int | None = None) -> None:
        """Appends whole lines, to a shard where several processes write, and waits until they are on disk."""
        append(self.file(folder) if shard is None else folder / f"{self.name}.{shard}.jsonl", self._lines(items))

    def read(self, folder: Path) -> tuple[dict[str, T], list[str]]:
        """The items of the file and of the shards by their ids, and a sentence for each line that is cut off: the last,
        or one that others were written after.

        A merge that was killed leaves items in both; the file, which may have been rewritten since, is read first.
        Raises ValueError for a line that is no item.
        """
        items: dict[str, T] = {}
        cut_off = []
        for path in self._paths(folder):
            for number, line in enumerate(read_bytes(path).split(b"\n"), start=1):
                line = line.strip(BLANK)
                if not line:
                    continue
                try:
                    item = self._load(line)
                    self.check(item)
                except _CutOff:
                    cut_off.append(
                        f"line {number} of {path} is cut off; delete that line and repeat the run's command to fill it "
                        "in"
                    )
                    continue
                except ValueError as error:
                    what, remedy = self.what
                    raise ValueError(f"line {number} of {path} is not {what} ({error}); {remedy}") from error
                items.setdefault(item.id, item)
        return items, cut_off

    def merge(self, folder: Path) -> list[T]:
        """All items, once what a killed run left is tidied up: shards are merged, lines that were cut off removed."""
        items, cut_off = self.read(folder)
        if cut_off or self.shards(folder):
            self.rewrite(folder, list(items.values()))
        return list(items.values())

    def rewrite(self, folder: Path, items: Sequence[T]) -> None:
        """Rewrites the file atomically with all items; then the shards may go."""
        replace_file(self.file(folder), self._lines(items))
        for shard in self.shards(folder):
            shard.unlink()

    def count(self, folder: Path) -> int:
        """Lines that all processes have written so far."""
        return sum(line.startswith(b"{") for path in self._paths(folder) for line in path.read_bytes().split(b"\n"))

    def shards(self, folder: Path) -> list[Path]:
        return sorted(path for path in folder.glob(f"{self.name}.*.jsonl") if path.name.split(".")[1].isdigit())

    def _load(self, line: bytes) -> T:
        try:
            return self.decoder.decode(line)
        except (DecodeError, RecursionError):
            pass  # Python's reader takes halves of surrogate pairs, and tells what is cut off from what is wrong
        try:
            values = parse_json(line.decode("utf-8"))
        except ValueError as error:
            raise (_CutOff if line.startswith(b"{") else ValueError)(str(error)) from error
        return typed(values, self.decoder.type)

    def _paths(self, folder: Path) -> list[Path]:
        return [path for path in (self.file(folder), *self.shards(folder)) if os.path.lexists(path)]

    def _lines(self, items: Sequence[T]) -> str:
        return "".join(self.dump(item) + "\n" for item in items)
