"""What runs reach compared with what any decoder can: per task, score against forwards, the best possible accuracy of
sampling from exact marginals (`stats.bounds`), and the same decoders on an ideal model of the task's own tokens, whose
losses are none of the network's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

import dllm
from parallelbench.records.files import out_folder, write_csv, write_text
from parallelbench.records.record import Record, Run
from parallelbench.report import plots
from parallelbench.report.markdown import csv_lines, table
from parallelbench.report.options import Untrusted, split_options, suite_runs, whole_number, yes_or_no
from parallelbench.report.plots import exact
from parallelbench.stats.curves import curve_names, run_names
from parallelbench.stats.groups import grouped
from parallelbench.stats.intervals import Value
from parallelbench.stats.metrics import measure
from parallelbench.studies.bounds import best_accuracies, best_values, optimal_bounds
from parallelbench.studies.ideal import OPEN, Shape, answers, ideal, in_tokens, operation, shapes_of, tasks_of

OPTIONS = {"samples": "100", "out_dir": "results/frontier", "figures": "png", "trust": "false"}
PRICES = np.concatenate([[0], np.geomspace(1e-3, 4, 80)])  # of a forward, in accuracy
MAX_CURVES = 8  # more are drawn alike


@dataclass(frozen=True)
class Point:
    """One row of frontier.csv: a run, or its decoder on the ideal model, on one task.

    nfe: mean forwards.
    bound: best possible accuracy of sampling at that mean.
    """

    run: str
    task: str
    model: str
    nfe: float
    score: Value
    bound: float


@dataclass(frozen=True)
class Best:
    """One row of bounds.csv: answers of n items in at most `steps` forwards.

    kl_items, kl_tokens: optimal L*_T in bits, where an item is one token, and for the answer's real tokens.
    accuracy: best possible accuracy of sampling items.
    """

    task: str
    n: int
    steps: int
    kl_items: float
    kl_tokens: float
    accuracy: float


def main(arguments: Sequence[str], build_part: Callable[[Mapping[str, Any], bool], Any]) -> str:
    """Writes frontier.csv, bounds.csv, report.md and two figures; returns the report."""
    paths, options = split_options(arguments, OPTIONS)
    samples, trust = whole_number("samples", options["samples"]), yes_or_no("trust", options["trust"])
    kinds = plots.figure_formats(options["figures"])
    runs = suite_runs(paths)
    parts = [_parts(run, lambda config: build_part(config, trust)) for run in runs]
    out_dir = out_folder(options["out_dir"])
    shapes = {task: found for task in tasks_of(runs) if (found := shapes_of(task, runs))}
    if not shapes:
        raise ValueError(f"no run holds a task with several answers ({', '.join(OPEN)}) of lists short enough to list")
    tokenizer = dllm.load("tiny").tokenizer
    assert tokenizer is not None

    values = {
        task: np.sum([shape.share * best_values(shape.items, PRICES) for shape in found], axis=0)
        for task, found in shapes.items()
    }
    names, refused = run_names(runs), {}
    points = []
    for name, run, made in tqdm(list(zip(names, runs, parts, strict=True)), desc="ideal models", unit="run"):
        for task, found in shapes.items():
            records = [record for record in run.records if record.task == task]
            if records:
                nfe, score = measure("nfe", records).value, measure("score", records)
                points.append(Point(name, task, run.info["model"], nfe, score, _bound(values[task], nfe)))
            if not records or name in refused or not _are_tokens_of(tokenizer, records):
                continue
            try:
                forwards, score = ideal(run, made, found, tokenizer, samples)
            except ValueError as error:
                refused[name] = str(error)
                continue
            points.append(Point(name, task, "ideal", forwards, score, _bound(values[task], forwards)))
    bests = [best for task, found in shapes.items() for shape in found for best in _bests(task, shape, tokenizer)]
    write_csv(out_dir / "frontier.csv", csv_lines(points), "\n")
    write_csv(out_dir / "bounds.csv", csv_lines(bests), "\n")
    curves = dict(zip(names, curve_names(names, runs), strict=True))
    plots.save(_score_figure(points, shapes, values, curves), out_dir / "frontier", kinds)
    plots.save(_bits_figure(bests), out_dir / "kl_bounds", kinds)
    return write_text(out_dir / "report.md", _markdown(points, bests, refused))


def _parts(run: Run, build_part: Callable[[Mapping[str, Any]], Any]) -> tuple[Any, Any] | str:
    """A run's decoder and stop rule, or why they cannot be made. Raises ValueError for what is not trusted."""
    run.check_filled()
    try:
        return build_part(run.config["decoder"]), build_part(run.config["stop"])
    except Untrusted as error:
        raise ValueError(f"{run.folder}: {error}") from error
    except ValueError as error:
        return str(error)


def _are_tokens_of(tokenizer: PreTrainedTokenizerBase, records: Sequence[Record]) -> bool:
    """Whether a run's tokens are those of the ideal model: only then its decoder can be compared on both."""
    return all(tokenizer.decode(list(record.token_ids)) == record.completion for record in records)


def _bound(values: np.ndarray, nfe: float) -> float:
    """Best accuracy for a mean number of forwards."""
    return float(min(1, (values + PRICES * nfe).min()))


def _bests(task: str, shape: Shape, tokenizer: PreTrainedTokenizerBase) -> list[Best]:
    listed = answers(operation(task), shape.record.data)
    tokens = optimal_bounds(in_tokens(listed, tokenizer, len(shape.record.committed_at))[0])
    items, shares = optimal_bounds(shape.items), best_accuracies(shape.items)
    rows = range(len(tokens))
    last = len(items) - 1
    return [Best(task, shape.n, t + 1, items[min(t, last)], tokens[t], shares[min(t, last)]) for t in rows]


def _score_figure(
    points: Sequence[Point],
    shapes: Mapping[str, Sequence[Shape]],
    values: Mapping[str, Any],
    curves: Mapping[str, str],
) -> plots.Figure:
    decoders = list(dict.fromkeys(curves.values()))
    panels = {}
    for task, found in shapes.items():
        most = max(found[-1].items.length, *(point.nfe for point in points if point.task == task))
        grid = [1 + (most - 1) * i / 200 for i in range(201)]
        bounds = [(x, exact(_bound(values[task], x))) for x in grid]
        series = [plots.Series("bound, mean forwards", bounds, -1, "line")]
        reached = [(shape.share, best_accuracies(shape.items)) for shape in found]
        steps = range(1, found[-1].items.length + 1)
        fixed = [(float(t), exact(sum(s * best[min(t, len(best)) - 1] for s, best in reached))) for t in steps]
        series.append(plots.Series("bound, forwards of each", fixed, -1, "dashed"))
        for point in (point for point in points if point.task == task):
            color = decoders.index(curves[point.run]) if len(decoders) <= MAX_CURVES else int(point.model == "ideal")
            who = curves[point.run] if len(decoders) <= MAX_CURVES else "decoders"
            style = "hollow" if point.model == "ideal" else "filled"
            series.append(plots.Series(f"{who}, {point.model}", [(point.nfe, point.score)], color, style))
        panels[task] = _joined(series)
    title = "score against forwards per sample, the best possible, and the same decoders on ideal models"
    return plots.shares_per_task(panels, "forwards per sample (log scale)", title)


def _joined(series: Sequence[plots.Series]) -> list[plots.Series]:
    """Series of one label as one."""
    by_label = grouped(series, lambda one: one.label).values()
    return [replace(parts[-1], points=[point for part in parts for point in part.points]) for parts in by_label]


def _bits_figure(bests: Sequence[Best]) -> plots.Figure:
    series = []
    for color, task in enumerate(dict.fromkeys(best.task for best in bests)):
        longest = max(best.n for best in bests if best.task == task)
        chosen = [best for best in bests if (best.task, best.n) == (task, longest)]
        name = f"{operation(task)}, n = {longest}"
        items = [(float(b.steps), exact(b.kl_items)) for b in chosen]
        tokens = [(float(b.steps), exact(b.kl_tokens)) for b in chosen]
        series.append(plots.Series(f"{name}, items", items, color, "line"))
        series.append(plots.Series(f"{name}, tokens", tokens, color, "dashed"))
    return plots.bits_over(series, "steps T", "least loss of T steps from marginals, optimal L*_T")


READ = """Lines are what theory allows, points what decoders reach (95 % intervals). An answer is sampled in
steps, each from exact marginals given what is written. `bound, forwards of each`: the largest share of valid
answers with at most T forwards for every answer, over all ways to split its people into T steps, unequal and
chosen anew after each step. `bound, mean forwards`: the same where T is free and the mean counts, as in a run,
whose forwards differ from sample to sample (an answer already spoilt may be finished at once). A step's
positions may not depend on the tokens that it is about to write. So this is no bound on a decoder that picks
tokens or positions by their probability: greedy decoding removes a random person of an odd number in one
forward, because the likeliest person of each place makes a valid list (of an even number two in the middle are
equally likely, and it fails half the time). Bounds count people; a person is two tokens, and each list has
punctuation and EOS, which cost a real decoder forwards that the bound does not need. `bounds.csv` has the least
loss in bits for people and for the real tokens.

Hollow points: the same decoder and stop rule on the ideal model of the task, all valid answers equally likely,
in the run's own tokens and length. What they miss cannot be blamed on the network; what the run misses beyond
them can. Ties of ideal probabilities are broken at random, ties of confidence go to the left."""


SURE = """Tasks with one valid answer per prompt (copy, reverse, sort, the index operations, Sudoku) have no panel:
no split loses anything there, and one forward reaches 100 %. Latin squares (576 answers of 16 cells) have too
many splits to be searched."""


def _markdown(points: Sequence[Point], bests: Sequence[Best], refused: Mapping[str, str]) -> str:
    lines = ["# Best possible score for a number of forwards", "", "![score against forwards](frontier.png)", ""]
    lines += [READ, "", SURE]
    above = [f"{point.run} on {operation(point.task)}" for point in points if point.score.ci_low > point.bound]
    if above:
        lines += ["", f"Above the bound of sampling, by greedy choice: {'; '.join(above)}."]
    if refused:
        lines += ["", "Not run on ideal models: " + "; ".join(f"{name} ({why})" for name, why in refused.items()) + "."]
    lines += [
        "",
        "## Runs",
        "",
        "Score in % at mean forwards; bound: best possible share of sampling at that mean.",
        "",
    ]
    heads = ["run", "task", "forwards", "score", "bound", "ideal: forwards", "score", "bound"]
    pairs: dict[tuple[str, str], list[str]] = {}
    for point in points:
        cells = pairs.setdefault((point.run, point.task), [point.run, operation(point.task)])
        cells += [f"{point.nfe:.2f}", point.score.text(".1f", 100), f"{100 * point.bound:.1f}"]
    lines += table(heads, ([*cells, *[""] * (len(heads) - len(cells))] for cells in pairs.values()), 2)
    lines += ["", "## Best splits", "", "![least loss in bits](kl_bounds.png)", ""]
    lines += [
        "L*_T in bits for people / tokens, and the best possible share of valid answers in %; later 0 and 100.",
        "",
    ]
    bests = [best for best in bests if best.kl_tokens > 1e-9 or best.accuracy < 1 - 1e-9]
    most = max(best.steps for best in bests)
    splits: dict[tuple[str, int], list[str]] = {}
    for best in bests:
        cells = splits.setdefault((best.task, best.n), [operation(best.task), str(best.n)])
        cells.append(f"{best.kl_items:.2f} / {best.kl_tokens:.2f}, {100 * best.accuracy:.0f}")
    heads = ["task", "n", *(f"T = {t}" for t in range(1, most + 1))]
    lines += table(heads, ([*cells, *[""] * (len(heads) - len(cells))] for cells in splits.values()))
    return "\n".join([*lines, ""])
