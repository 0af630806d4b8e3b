"""Adds a few traces to published records: the first sample of each task, decoded once more by three runs of a page.

`python scripts/published/traces.py PAGE ...`, with folders below results/published that hold runs.tar.xz

The runs are one token per forward, the fastest within two points of the best score, and the fastest of all, where their
decoders tell their steps. Records stay as they are: a trace is kept only if it ends in its record.
"""

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from parallelbench.records.record import Run
from parallelbench.report.options import suite_runs
from parallelbench.stats.leading import leading
from parallelbench.stats.metrics import measure
from parallelbench.wiring.command import command

ROOT = Path(__file__).parents[2]
NEAR = 0.02  # of the best score, as a share


def chosen(runs: Sequence[Run]) -> list[Run]:
    """The slowest, the fastest good one and the fastest, each once."""
    led = [runs[i] for i in leading(runs) if not runs[i].facts.is_ceiling]
    tpf = {id(run): measure("tpf", run.records).value for run in led}
    score = {id(run): measure("score", run.records).value for run in led}
    good = [run for run in led if score[id(run)] >= max(score.values()) - NEAR]
    picked = [
        min(led, key=lambda run: tpf[id(run)]),
        *(max(some, key=lambda run: tpf[id(run)]) for some in (good, led)),
    ]
    return list({id(run): run for run in picked}.values())


def add_traces(page: str) -> None:
    archive = ROOT / "results" / "published" / page / "runs.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "xJf", archive, "-C", folder], check=True)
        for run in chosen(suite_runs([Path(folder)])):
            print(f"{page}: {run.folder.name}", flush=True)
            words = [*shlex.split(command(run)), "traces=1", f"out_dir={run.folder}"]
            subprocess.run([sys.executable, *words[1:]], cwd=ROOT, check=False)  # a loop that tells no steps is refused
        order = ["--exclude", "*.tmp", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "."]
        tar = subprocess.run(["tar", "c", "-C", folder, *order], check=True, capture_output=True).stdout
        archive.write_bytes(subprocess.run(["xz", "-9e"], input=tar, check=True, capture_output=True).stdout)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("error: no page is named; name folders below results/published, such as first-look")
    for name in sys.argv[1:]:
        add_traces(name)
