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
from parallelbench.stats.metrics import ALL, Value, resample_counts
from parallelbench.stats.paired import Paired, interval, pair
from parallelbench.stats.sweeps import sign_flip_p

LEGEND = (
    "B - A: difference in points; NFE, TPF: B's over A's; 95 % intervals from a paired bootstrap over samples within "
    "their tasks. p: two-sided paired permutation test of equal scores (signs of the differences flipped), of each "
    "task alone, not corrected for the number of tasks. better, worse: samples on which B scores more, less."
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
    return f"{markdown}\n{out_dir}"


def compare(paired: Paired) -> dict[str, Comparison]:
    """By task, and over all samples."""
    counts = resample_counts(paired.tasks)
    rows = {}
    for task in (*np.unique(paired.tasks), ALL):
        of = np.full(len(paired.tasks), True) if task == ALL else paired.tasks == task
        score, weights, n = paired.score[:, of], counts[:, of], int(of.sum())
        nfe, tokens = (weights @ numbers[:, of].T for numbers in (paired.nfe, paired.tokens))  # [resample, run]
        change = score[1] - score[0]
        with np.errstate(divide="ignore", invalid="ignore"):  # a run may have no tokens at all
            tpf = (tokens[:, 1] / nfe[:, 1]) / (tokens[:, 0] / nfe[:, 0])
        rows[str(task)] = Comparison(
            n,
            float(score[0].mean()),
            float(score[1].mean()),
            interval(weights @ change / n, n),
            sign_flip_p(change),
            int((change > 0).sum()),
            int((change < 0).sum()),
            interval(nfe[:, 1] / nfe[:, 0], n),
            interval(tpf, n),
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
    named = " ".join(f"{group}={choices[group]}" for group in ("model", "decoder", "cache", "stop", "suite"))
    return f"{run.folder} ({named})"


def _write_csv(path: Path, rows: dict[str, Comparison]) -> None:
    with replacing(path) as file:
        writer = csv.writer(file)
        ratios = [
            f"{name}{part}" for name in ("difference", "nfe_ratio", "tpf_ratio") for part in ("", "_low", "_high")
        ]
        writer.writerow(["task", "n", "score_a", "score_b", "p", "better", "worse", *ratios])
        for task, row in rows.items():
            values = (row.difference, row.nfe_ratio, row.tpf_ratio)
            numbers = [number for v in values for number in (v.value, v.ci_low, v.ci_high)]
            writer.writerow([task, row.n, row.score_a, row.score_b, row.p, row.better, row.worse, *numbers])
