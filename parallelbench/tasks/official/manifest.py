"""The published files of ParallelBench v1 (furiosa-ai/ParallelBench at 72de8f7): SHA256SUMS, which `sha256sum --check`
reads too."""

from pathlib import Path


def _read_sums() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in Path(__file__).with_name("SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, path = line.split()
        folder, _, file = path.partition("/")
        found.setdefault(folder, {})[file] = digest
    return found


PUBLISHED = _read_sums()
"""sha256 by folder and file."""
