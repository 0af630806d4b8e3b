"""Writes ParallelBench's waiting-line and Latin-square data again from the published list of names.

    python scripts/generate_official.py names_file=first_last_names.yaml out_dir=DIR [lengths=3-6,15]

For each range of lengths the ten waiting-line tasks, 100 rows each, into DIR/waiting_line (lengths 3-6) or a folder
named by their length, DIR/waiting_line_n15, and DIR/puzzle/latin_square_n4.jsonl. With the published names and lengths
these are the 21 published files, byte by byte. A file that is there with other content is never overwritten.

The released generator does not write the published files: their data were drawn with a rule that it lacks, that no two
people of a line share a first or a last name. Prompts are not part of the files, so no wording is needed here.
"""

import hashlib
import json
import random
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from parallelbench.records.files import replace_file
from parallelbench.report.options import split_options
from parallelbench.tasks.official.manifest import PUBLISHED
from parallelbench.tasks.waiting_line import OPERATIONS, changed_line, write_list
from parallelbench.wiring.exits import explained

PUBLISHED_LENGTHS = "3-6"
NUM_ROWS = 100
MAX_LENGTH = 20
MAX_DRAWS = 10_000
GLOBAL_SEED = 42
LATIN = "latin_square_n4"
Row = dict[str, Any]


def main(arguments: list[str]) -> None:
    defaults = {"names_file": "", "out_dir": "", "lengths": f"{PUBLISHED_LENGTHS},15"}
    paths, options = split_options(arguments, defaults, needs_paths=False)
    if paths or not options["names_file"] or not options["out_dir"]:
        raise ValueError("give names_file=FILE and out_dir=DIR, and lengths=3-6,15 if you like")
    pool, out_dir = read_names(Path(options["names_file"])), Path(options["out_dir"])
    texts = {Path("puzzle") / f"{LATIN}.jsonl": write_rows(latin_square_rows())}
    for part in options["lengths"].split(","):
        folder = Path("waiting_line" if part == PUBLISHED_LENGTHS else f"waiting_line_n{part}")
        for operation in OPERATIONS:
            rows = waiting_line_rows(operation, pool, _lengths(part))
            texts[folder / f"{operation}.jsonl"] = write_rows(rows)
    for path, text in texts.items():
        if (out_dir / path).exists() and (out_dir / path).read_bytes() != text.encode():
            raise ValueError(f"{out_dir / path} holds something else; choose another out_dir")
    for path, text in texts.items():
        (out_dir / path).parent.mkdir(parents=True, exist_ok=True)
        replace_file(out_dir / path, text)
        known = PUBLISHED.get(path.parent.name, {}).get(path.name)
        print(f"{out_dir / path}{'  as published' if known == hashlib.sha256(text.encode()).hexdigest() else ''}")


def _lengths(part: str) -> range:
    """The lengths of "3-6" or "15"."""
    first, _, last = part.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal():
        raise ValueError(f"lengths={part!r} is neither a length nor a range such as {PUBLISHED_LENGTHS}")
    return range(int(first), int(last or first) + 1)


def read_names(path: Path) -> list[str]:
    """The pool "First Last" of a YAML file with a list of first and a list of last names, first names outermost.

    Raises ValueError for a missing file or another layout.
    """
    if not path.is_file():
        raise ValueError(f"names_file={path} does not exist; give the YAML file with the lists of first and last names")
    try:
        names = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML; it must hold a list of first and a list of last names") from error
    two_lists = isinstance(names, list) and len(names) == 2 and all(isinstance(part, list) for part in names)
    if not two_lists or not all(isinstance(name, str) and name and " " not in name for part in names for name in part):
        raise ValueError(f"{path} must hold two lists, of first and of last names, each name one word")
    return [f"{first} {last}" for first in names[0] for last in names[1]]


def task_seed(operation: str) -> int:
    """The seed of a task: its published name, hashed."""
    name = f"{operation}_list" if operation.endswith(("_index", "_random")) else operation
    return (int(hashlib.sha256(name.encode()).hexdigest(), 16) + GLOBAL_SEED) % 65535


def waiting_line_rows(operation: str, pool: Sequence[str], lengths: Sequence[int]) -> list[Row]:
    """100 rows of a waiting-line task, equally many of each of the consecutive `lengths`, each with its demonstration.

    Raises ValueError for lengths that do not share 100 rows or that the names cannot fill.
    """
    _check_lengths(lengths)
    rng = random.Random(task_seed(operation))
    buckets: dict[int, list[Row]] = {n: [] for n in lengths}
    size = NUM_ROWS // len(lengths)
    stream = _line_stream(operation, pool, lengths, rng)
    while any(len(bucket) < size for bucket in buckets.values()):
        row = next(stream)
        bucket = buckets[row["metadata"]["length"]]
        if len(bucket) < size:  # what a full bucket does not take is drawn all the same
            bucket.append(row)
    return _with_demonstrations([row for n in lengths for row in buckets[n]], stream)


def latin_square_rows() -> list[Row]:
    """100 rows of the 4x4 Latin square, each with its demonstration."""
    stream = _latin_stream(random.Random(task_seed(LATIN)))
    return _with_demonstrations(list(islice(stream, NUM_ROWS)), stream)


def write_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as published: one compact JSON object a line."""
    return "".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n" for row in rows)


def _check_lengths(lengths: Sequence[int]) -> None:
    consecutive = bool(lengths) and list(lengths) == list(range(lengths[0], lengths[-1] + 1))
    if not consecutive or not 2 <= lengths[0] <= lengths[-1] <= MAX_LENGTH or NUM_ROWS % len(lengths):
        raise ValueError(
            f"lengths={list(lengths)}; give consecutive lengths from 2 to {MAX_LENGTH}, as many as divide {NUM_ROWS}"
        )


def _with_demonstrations(rows: Sequence[Row], stream: Iterator[Row]) -> list[Row]:
    """Each row with an example that the same stream draws after all rows."""
    return [{**row, "input": {**row["input"], "icl_examples": [next(stream)]}} for row in rows]


def _line_stream(operation: str, pool: Sequence[str], lengths: Sequence[int], rng: random.Random) -> Iterator[Row]:
    """Rows without end. The random operations draw their place too, but show it in the example alone."""
    kind, _, choice = operation.partition("_")
    while True:
        people = _people(pool, rng.randint(lengths[0], lengths[-1]), rng)
        task: Row = {"context": write_list(people)}
        metadata: Row = {"length": len(people)}
        facts: Row = {"input": people}
        person, place = None, 0
        if kind in ("insert", "remove", "replace"):
            person = _other(pool, people, rng) if kind != "remove" else None
            place = rng.randint(0, len(people) if kind == "insert" else len(people) - 1)
            given = {"word": person} if person else {}
            metadata |= {"index": place if choice == "index" else None, **given}
            facts |= given
            task |= given | ({"index": place} if choice == "index" else {})
        answer = list(changed_line(operation, people, person, place))
        while kind == "shuffle" and answer == people:
            rng.shuffle(answer)
        many = kind == "shuffle" or choice == "random"
        row: Row = {"input": task, "answer": {**facts, "example": write_list(answer)} if many else write_list(answer)}
        if kind not in ("sort", "reverse", "remove"):
            row["output_format"] = write_list(["[MASK]"] * len(answer))
        yield {**row, "metadata": metadata}


def _people(pool: Sequence[str], n: int, rng: random.Random) -> list[str]:
    for _ in range(MAX_DRAWS if len(pool) > n else 0):
        people = rng.sample(pool, n)
        firsts, lasts = zip(*(name.split(" ") for name in people), strict=True)
        if len(set(firsts)) == len(set(lasts)) == n:
            return people
    raise ValueError(f"{len(pool)} names are too few to draw {n} people who share none; give more names")


def _other(pool: Sequence[str], people: Sequence[str], rng: random.Random) -> str:
    """Anyone who does not stand in the line; may share a name with those who do."""
    taken = set(people)
    return rng.choice([name for name in pool if name not in taken])


def _latin_stream(rng: random.Random) -> Iterator[Row]:
    """A cyclic square with rows and columns shuffled: not every Latin square can come out, as published."""
    while True:
        symbols = rng.sample(string.ascii_uppercase + string.digits, 4)
        rows = [symbols[i:] + symbols[:i] for i in range(4)]
        rng.shuffle(rows)
        columns = list(zip(*rows, strict=True))
        rng.shuffle(columns)
        example = "\n".join(",".join(row) for row in zip(*columns, strict=True))
        task = {"size": 4, "symbols": f"[{', '.join(symbols)}]"}
        yield {"input": task, "answer": {"symbols": symbols, "example": example}, "metadata": {"length": 4}}


if __name__ == "__main__":
    with explained():
        main(sys.argv[1:])
