"""Two runs over the same samples: what the second gains or loses, sample by sample. Or two folders of runs: whether
they rank the same decoders alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from msgspec import structs
from scipy.stats import rankdata

from parallelbench.records.files import write_tables
from parallelbench.records.record import Run, find_runs
from parallelbench.report.markdown import table
from parallelbench.report.options import split_options, suite_run
from parallelbench.stats.agreement import agreement
from parallelbench.stats.curves import knobs, method
from parallelbench.stats.intervals import CONFIDENCE, Value, bounded, product
from parallelbench.stats.paired import Paired, means, pair, side_by_side
from parallelbench.stats.sweeps import sign_flip_p

LEGEND = (
    "B - A: difference in points; NFE, TPF: B's over A's; 95 % intervals of paired samples within their tasks, which "
    "allow for losses, gains and slow samples of either run that are too rare to have shown. p: two-sided paired "
    "permutation test of equal scores (signs of the differences flipped), of each task alone, not corrected for the "
    "number of tasks. better, worse: samples on which B scores more, less. "
    "A question in several wordings is one observation in intervals and p. Below 30 questions a table has no "
    "intervals of pairs: they would be too wide to say something."
)
RANKS = (
    "Decoders with the same knobs in both folders, over the tasks and samples that both have; other caches, stops and "
    "models do not tell runs apart. The rank is after each number, 1 is the highest. tau: Kendall's rank "
    "correlation (tau-b) of all rows with a 95 % bootstrap interval, samples drawn within their tasks and alike for "
    "all runs; chance swaps ranks and so pulls tau towards 0, and the interval has room for that. Where decoders lie "
    "in close pairs it holds the truth in about 88 %. TPF: tokens before EOS per forward."
)


FEW = 30  # questions below which intervals of pairs say little
UNDECIDED = (
    "*: the interval and p disagree on whether the scores are equal. They are two tests, both near their limit: take "
    "it as undecided."
)


@dataclass(frozen=True)
class Comparison:
    """B against A over n samples. Scores in per cent, difference in points, ratios of sums. questions: of the samples,
    which may have several wordings."""

    n: int
    questions: int
    score_a: float
    score_b: float
    difference: Value
    p: float
    better: int
    worse: int
    nfe_ratio: Value
    tpf_ratio: Value

    @property
    def is_undecided(self) -> bool:
        """Whether interval and p disagree on whether scores are equal."""
        apart = self.difference.ci_low > 0 or self.difference.ci_high < 0
        return self.questions >= FEW and apart != (self.p < 1 - CONFIDENCE)

    def text(self, value: Value, show: str) -> str:
        """A value with its interval where there are samples enough to say something."""
        number = replace(value, ci_low=value.value, ci_high=value.value).text(show)
        return value.text(show) if self.questions >= FEW else f"{number} (too few samples)"


def main(arguments: Sequence[str]) -> str:
    """Compares two runs, or the ranks of two folders with several runs each; with out_dir in files too."""
    paths, options = split_options(arguments, {"out_dir": ""})
    if len(paths) != 2:
        raise ValueError(f"{len(paths)} run directories given; name two, A and B")
    found = [find_runs([path]) for path in paths]
    if min(map(len, found)) > 1:
        return _ranks(paths, [[suite_run(folder) for folder in folders] for folders in found], options["out_dir"])
    a, b = (_one_run(path) for path in paths)
    rows = compare(pair([a, b]))
    return write_tables(options["out_dir"], "compare", _lines(rows), _markdown(a, b, rows))


def compare(paired: Paired) -> dict[str, Comparison]:
    """By task, and over all samples."""
    rows = {}
    for task, of in paired.by_task():
        part = paired.part(of)
        moved, slow, asked = part.score[1] - part.score[0], part.slow(), part.questions
        change, most = asked.mean(moved), asked.weights.max()
        columns = asked.mean(np.stack([part.nfe[1], part.nfe[0], part.tokens[0], part.tokens[1]])) * asked.weights
        means = columns.mean(1)
        slower = most * np.array([[slow[1], *means[1:]], [means[0], slow[0], *means[2:]]])  # a slow sample of B, of A
        rows[task] = Comparison(
            len(moved),
            len(change),
            float(part.score[0].mean()),
            float(part.score[1].mean()),
            bounded(change, -100, 100, asked.strata, asked.weights),
            sign_flip_p(change * asked.weights),
            int((moved > 0).sum()),
            int((moved < 0).sum()),
            product(columns[:2], (1, -1), asked.strata, slower[:, :2]),
            product(columns, (-1, 1, -1, 1), asked.strata, slower),
        )
    return rows


def _ranks(paths: Sequence[Path], folders: Sequence[Sequence[Run]], out_dir: str) -> str:
    """Raises ValueError for folders with too few decoders or no sample in common, or where samples of one name
    have other prompts."""
    by_name = [_by_name(path, runs) for path, runs in zip(paths, folders, strict=True)]
    names = [name for name in by_name[0] if name in by_name[1]]
    if len(names) < 3:
        raise ValueError(f"{paths[0]} and {paths[1]} have {len(names)} decoders in common; a ranking takes at least 3")
    runs = [own[name] for own in by_name for name in names]
    shared = set.intersection(*({(record.task, record.id) for record in run.records} for run in runs))
    if not shared:
        raise ValueError(f"{paths[0]} and {paths[1]} have no sample in common; run one of them on the other's suite")
    kept = [[record for record in run.records if (record.task, record.id) in shared] for run in runs]
    paired = side_by_side([structs.replace(run, records=own) for run, own in zip(runs, kept, strict=True)])
    of, cut = means(paired), len(names)
    taus = [agreement(values[:, :cut], values[:, cut:], len(paired.tasks)) for values in (of.score, of.tpf)]
    columns = [values[0, part] for values in (of.score, of.tpf) for part in (slice(cut), slice(cut, None))]

    left_out = [name for own, other in (by_name, by_name[::-1]) for name in own if name not in other]
    lines = ["# Rankings", "", *(f"- {name}: {path}" for name, path in zip("AB", paths, strict=True))]
    lines += [f"- tasks: {', '.join(np.unique(paired.tasks))}; {len(paired.tasks)} samples of each decoder"]
    lines += [f"- finished in one folder alone: {', '.join(left_out)}"] if left_out else []
    ranks = [rankdata(-column.round(9), method="min") for column in columns]
    cells = [
        [f"{number:{show}} ({rank:.0f})" for number, rank in zip(column, its, strict=True)]
        for column, its, show in zip(columns, ranks, (".1f", ".1f", ".2f", ".2f"), strict=True)
    ]
    lines += ["", *table(["decoder", "A %", "B %", "A TPF", "B TPF"], zip(names, *cells, strict=True))]
    score, tpf = ("none, all are alike" if tau is None else tau.text(".2f") for tau in taus)
    markdown = "\n".join([*lines, "", f"tau of scores: {score}; tau of TPF: {tpf}", "", RANKS, ""])
    heads = ("decoder", "score_a", "score_b", "tpf_a", "tpf_b")
    return write_tables(out_dir, "ranks", [heads, *zip(names, *columns, strict=True)], markdown)


def _by_name(path: Path, runs: Sequence[Run]) -> dict[str, Run]:
    """Finished runs by decoder and knobs."""
    named: dict[str, Run] = {}
    for run in runs:
        name = " ".join([method(run), *(f"{key}={value}" for key, value in knobs(run).items())])
        if name in named and run.info["status"] == "done":
            raise ValueError(f"{path} has two runs of {name}, {named[name].folder} and {run.folder}; leave one out")
        if run.info["status"] == "done" and run.records:
            named[name] = run
    return named


def _one_run(path: Path) -> Run:
    folders = find_runs([path])
    if len(folders) > 1:
        raise ValueError(f"{path} holds {len(folders)} runs; name one of them, such as {folders[0]}")
    return suite_run(folders[0])


def _markdown(a: Run, b: Run, rows: dict[str, Comparison]) -> str:
    heads = ["task", "n", "A %", "B %", "B - A", "p", "better", "worse", "NFE B/A", "TPF B/A"]
    lines = ["# B against A", "", *(f"- {name}: {_title(run)}" for name, run in (("A", a), ("B", b))), ""]
    cells = []
    for task, row in rows.items():
        scores = [f"{row.score_a:.1f}", f"{row.score_b:.1f}", row.text(row.difference, "+.1f")]
        counts = [f"{row.p:.2g}{'*' * row.is_undecided}", str(row.better), str(row.worse)]
        ratios = [row.text(ratio, ".3f") for ratio in (row.nfe_ratio, row.tpf_ratio)]
        cells.append([task, str(row.n), *scores, *counts, *ratios])
    notes = [UNDECIDED, ""] if any(row.is_undecided for row in rows.values()) else []
    return "\n".join([*lines, *table(heads, cells), "", *notes, LEGEND, ""])


def _title(run: Run) -> str:
    choices = run.info["choices"]
    named = [f"{group}={choices[group]}" for group in ("model", "decoder", "cache", "stop", "suite")]
    named[2:2] = [f"{key}={value}" for key, value in knobs(run).items()]
    return f"{run.folder} ({' '.join(named)})"


def _lines(rows: dict[str, Comparison]) -> Iterator[list[object]]:
    ratios = [f"{name}{part}" for name in ("difference", "nfe_ratio", "tpf_ratio") for part in ("", "_low", "_high")]
    yield ["task", "n", "score_a", "score_b", "p", "better", "worse", *ratios]
    for task, row in rows.items():
        numbers = [cell for value in (row.difference, row.nfe_ratio, row.tpf_ratio) for cell in value.cells()]
        yield [task, row.n, row.score_a, row.score_b, row.p, row.better, row.worse, *numbers]
