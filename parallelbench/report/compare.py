"""Two runs over the same samples: what the second gains or loses, sample by sample."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parallelbench.records.files import out_folder, replace_file, replacing
from parallelbench.records.record import Run, find_runs, read_run
from parallelbench.report.markdown import table_head, table_row, with_interval
from parallelbench.report.options import split_options
from parallelbench.stats.curves import knobs
from parallelbench.stats.intervals import Value, bounded, product
from parallelbench.stats.metrics import ALL
from parallelbench.stats.paired import Paired, pair
from parallelbench.stats.sweeps import sign_flip_p

LEGEND = (
    "B - A: difference in points; NFE, TPF: B's over A's; 95 % intervals of paired samples within their tasks, which "
    "allow for losses, gains and slow samples of the faster run that are too rare to have shown. p: two-sided paired "
    "permutation test of equal scores (signs of the differences flipped), of each task alone, not corrected for the "
    "number of tasks. better, worse: samples on which B scores more, less."
)


@dataclass(frozen=True)
class Comparison:
    """B against A over n samples. Scores in per cent, difference in points, ratios of sums."""

    n: int
    score_a: float
    score_b: float
    difference: Value
    p: float
    better: int
    worse: int
    nfe_ratio: Value
    tpf_ratio: Value


def main(arguments: Sequence[str]) -> str:
    """Writes compare.csv and compare.md."""
    paths, options = split_options(arguments, {"out_dir": "results/compare"})
    if len(paths) != 2:
        raise ValueError(f"{len(paths)} run directories given; name two, A and B")
    a, b = (_one_run(path) for path in paths)
    rows = compare(pair([a, b]))
    out_dir = out_folder(options["out_dir"])
    _write_csv(out_dir / "compare.csv", rows)
    markdown = _markdown(a, b, rows)
    replace_file(out_dir / "compare.md", markdown)
    return f"{markdown}\n{out_dir / 'compare.md'}"


def compare(paired: Paired) -> dict[str, Comparison]:
    """By task, and over all samples."""
    rows = {}
    for task in (*np.unique(paired.tasks), ALL):
        of = np.full(len(paired.tasks), True) if task == ALL else paired.tasks == task
        part = paired.part(of)
        change, slow = part.score[1] - part.score[0], part.slow()
        most = max(100.0, float(np.abs(change).max()))
        columns = np.stack([part.nfe[1], part.nfe[0], part.tokens[0], part.tokens[1]])
        means = columns.mean(1)
        slower = np.array([[slow[1], *means[1:]], [means[0], slow[0], *means[2:]]])  # a slow sample of B, of A
        fewer, faster = int(means[0] >= means[1]), int(means[3] * means[1] <= means[2] * means[0])
        rows[str(task)] = Comparison(
            len(change),
            float(part.score[0].mean()),
            float(part.score[1].mean()),
            bounded(change, -most, most, part.tasks),
            sign_flip_p(change),
            int((change > 0).sum()),
            int((change < 0).sum()),
            product(columns[:2], (1, -1), part.tasks, slower[fewer, :2]),
            product(columns, (-1, 1, -1, 1), part.tasks, slower[faster]),
        )
    return rows


def _one_run(path: Path) -> Run:
    folders = find_runs([path])
    if len(folders) > 1:
        raise ValueError(f"{path} holds {len(folders)} runs; name one of them, such as {folders[0]}")
    return read_run(folders[0])


def _markdown(a: Run, b: Run, rows: dict[str, Comparison]) -> str:
    heads = ["task", "n", "A %", "B %", "B - A", "p", "better", "worse", "NFE B/A", "TPF B/A"]
    lines = ["# B against A", "", *(f"- {name}: {_title(run)}" for name, run in (("A", a), ("B", b))), ""]
    lines += table_head(heads)
    for task, row in rows.items():
        cells = [
            str(row.n),
            f"{row.score_a:.1f}",
            f"{row.score_b:.1f}",
            with_interval(row.difference, "+.1f"),
            f"{row.p:.2g}",
        ]
        cells += [
            str(row.better),
            str(row.worse),
            with_interval(row.nfe_ratio, ".3f"),
            with_interval(row.tpf_ratio, ".3f"),
        ]
        lines.append(table_row([task, *cells]))
    return "\n".join([*lines, "", LEGEND, ""])


def _title(run: Run) -> str:
    choices = run.info["choices"]
    named = [f"{group}={choices[group]}" for group in ("model", "decoder", "cache", "stop", "suite")]
    named[2:2] = [f"{key}={value}" for key, value in knobs(run).items()]
    return f"{run.folder} ({' '.join(named)})"


def _write_csv(path: Path, rows: dict[str, Comparison]) -> None:
    with replacing(path) as file:
        writer = csv.writer(file)
        ratios = [
            f"{name}{part}" for name in ("difference", "nfe_ratio", "tpf_ratio") for part in ("", "_low", "_high")
        ]
        writer.writerow(["task", "n", "score_a", "score_b", "p", "better", "worse", *ratios])
        for task, row in rows.items():
            values = (row.difference, row.nfe_ratio, row.tpf_ratio)
            numbers = [cell for value in values for cell in value.cells()]
            writer.writerow([task, row.n, row.score_a, row.score_b, row.p, row.better, row.worse, *numbers])
