"""Writes ParallelBench's waiting-line and Latin-square data again from the published list of names.

    python scripts/generate_official.py names_file=first_last_names.yaml out_dir=DIR [lengths=3-6,15]

For each range of lengths the ten waiting-line tasks, 100 rows each, into DIR/waiting_line (lengths 3-6) or a folder
named by their length, DIR/waiting_line_n15, and DIR/puzzle/latin_square_n4.jsonl. With the published names and lengths
these are the 21 published files, byte by byte. A file that is there with other content is never overwritten.
"""

import hashlib
import sys
from pathlib import Path

from parallelbench.records.files import replace_file
from parallelbench.report.options import split_options
from parallelbench.tasks.official.draws import (
    LATIN,
    latin_square_rows,
    read_names,
    waiting_line_rows,
    write_rows,
)
from parallelbench.tasks.official.manifest import PUBLISHED
from parallelbench.tasks.waiting_line import OPERATIONS
from parallelbench.wiring.exits import explained

PUBLISHED_LENGTHS = "3-6"


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


if __name__ == "__main__":
    with explained():
        main(sys.argv[1:])
