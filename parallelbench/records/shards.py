"""JSON lines of a run's folder that several processes write and any of them may be killed at.

One file holds them, NAME.jsonl. While several processes write, each appends to a shard of its own, NAME.<rank>.jsonl.
Readers take the shards for a part of the file, each id once, so it does not matter when a run is killed. A last line
that was cut off counts as not written.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable


@runtime_checkable
class HasId(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=HasId)


@dataclass(frozen=True)
class Shards(Generic[T]):
    """A kind of lines.

    name: of the file, without suffix.
    dump: an item as JSON in one line.
    load: its JSON values as an item; raises ValueError, TypeError, KeyError or AttributeError where they are none.
    what: an item in messages, and what to do about a line that is none.
    """

    name: str
    dump: Callable[[T], str]
    load: Callable[[Any], T]
    what: tuple[str, str]

    def file(self, folder: Path) -> Path:
        return folder / f"{self.name}.jsonl"

    def append(self, folder: Path, items: Sequence[T], shard: int | None = None) -> None:
        """Appends whole lines, to a shard where several processes write, and waits until they are on disk."""
        path = self.file(folder) if shard is None else folder / f"{self.name}.{shard}.jsonl"
        with open(path, "ab", buffering=0) as file:
            file.write(self._lines(items).encode())
            os.fsync(file.fileno())

    def read(self, folder: Path) -> tuple[dict[str, T], list[str]]:
        """The items of the file and of the shards by their ids, and a sentence for each last line that is cut off.

        A merge that was killed leaves items in both; the file, which may have been rewritten since, is read first.
        Raises ValueError for a line that is no item.
        """
        items: dict[str, T] = {}
        cut_off = []
        for path in self._paths(folder):
            for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
                where = f"line {number} of {path}"
                if not line.endswith(b"\n"):
                    cut_off.append(f"{where} is cut off; delete that line and repeat the run's command to fill it in")
                    continue
                try:
                    item = self.load(json.loads(line))
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    what, remedy = self.what
                    raise ValueError(f"{where} is not {what} ({error}); {remedy}") from error
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
        return sum(path.read_bytes().count(b"\n") for path in self._paths(folder))

    def shards(self, folder: Path) -> list[Path]:
        return sorted(path for path in folder.glob(f"{self.name}.*.jsonl") if path.name.split(".")[1].isdigit())

    def _paths(self, folder: Path) -> list[Path]:
        return [path for path in (self.file(folder), *self.shards(folder)) if path.exists()]

    def _lines(self, items: Sequence[T]) -> str:
        return "".join(self.dump(item) + "\n" for item in items)


def replace_file(path: Path, text: str) -> None:
    """Writes a file by an atomic rename, once it is on disk."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
