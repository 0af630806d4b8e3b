"""ParallelBench's Table 1 and Figure 2 (arXiv 2510.04767) again: closed forms, ideal models that go through the real
loop, and the shipped model, side by side."""

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

import dllm
from parallelbench.records.files import out_folder, replace_file, write_csv
from parallelbench.report import plots
from parallelbench.report.markdown import csv_lines, table
from parallelbench.report.options import split_options, whole_number
from parallelbench.report.plots import exact
from parallelbench.studies.bounds import TASKS, threshold_accuracy
from parallelbench.studies.theory_cells import OPEN, Cell, Edge, Shipped, cell, edge, tiny

OPTIONS = {
    "tasks": ",".join(TASKS),
    "n": "3..10",
    "k": "1,2,3,4,n",
    "samples": "2000",
    "tiny": "100",
    "out_dir": "results/theory",
    "figures": "png",
}
GAMMAS = (0.3, 0.4, 0.49, 0.51, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


def main(arguments: Sequence[str]) -> str:
    """Writes theory.csv, thresholds.csv, tiny.csv, report.md and the figures; returns the report."""
    paths, options = split_options(arguments, OPTIONS, needs_paths=False)
    if paths:
        raise ValueError(f"analyze theory reads no runs, but was given {paths[0]}; write options as key=value")
    tasks = options["tasks"].split(",")
    if unknown := [task for task in tasks if task not in TASKS]:
        raise ValueError(f"unknown task {unknown[0]!r}; the theory has {', '.join(TASKS)}")
    lengths, sizes = _lengths(options["n"]), _sizes(options["k"])
    largest = max(size if isinstance(size, int) else 1 for size in sizes)
    if largest > max(lengths):
        raise ValueError(f"k={largest} items per step, but the longest list has n={max(lengths)}; give k of 1 to n")
    samples, shipped = whole_number("samples", options["samples"]), whole_number("tiny", options["tiny"], 0)
    kinds = plots.figure_formats(options["figures"])
    out_dir = out_folder(options["out_dir"])

    began = time.perf_counter()
    per_step = {n: sorted({n if size == "n" else int(size) for size in sizes}) for n in lengths}
    grid = [(task, n, k) for task in tasks for n in lengths for k in per_step[n] if k <= n]  # others: for longer lists
    cells = [cell(task, n, k, tau, samples) for task, n, k in tqdm(grid, desc="ideal models") for tau in (0, 1)]
    points = [(task, n, gamma) for task in tasks for n in lengths for gamma in _gammas(n)]
    edges = [edge(task, n, gamma, max(20, samples // 10)) for task, n, gamma in tqdm(points, desc="thresholds")]
    model = dllm.load("tiny") if shipped else None
    chosen = [(task, n, k) for task, n, k in grid if task in OPEN and n <= 10 and k in (1, 2, n)]
    rows = [
        tiny(model, task, n, k, tau, shipped, max(20, samples // 2))
        for task, n, k in tqdm(chosen, desc="tiny", disable=model is None)
        for tau in (0, 1)
        if model
    ]
    for name, lines in (("theory", cells), ("thresholds", edges), ("tiny", rows)):
        if lines:
            write_csv(out_dir / f"{name}.csv", csv_lines(lines), "\n")
    figures = _figures(cells, edges, rows, out_dir, kinds)
    text = _markdown(cells, edges, rows, figures)
    replace_file(out_dir / "report.md", text)
    return f"{text}\n{out_dir / 'report.md'}: {time.perf_counter() - began:.0f} s"


def _lengths(text: str) -> list[int]:
    """`3..10`, or `3,5,8`."""
    first, dots, last = text.partition("..")
    ends = [first, last] if dots else text.split(",")
    if not all(re.fullmatch("[0-9]{1,2}", end) and 2 <= int(end) <= 20 for end in ends):
        raise ValueError(f"n={text}; give list lengths of 2 to 20 as 3..10 or 3,5,8")
    numbers = [int(end) for end in ends]
    if dots and numbers[0] > numbers[1]:
        raise ValueError(f"n={text} is an empty range; write the smaller length first")
    return list(range(numbers[0], numbers[1] + 1)) if dots else sorted(set(numbers))


def _sizes(text: str) -> list[int | str]:
    sizes = text.split(",")
    if not all(re.fullmatch("n|[1-9][0-9]?", size) for size in sizes):
        raise ValueError(f"k={text}; give items per step of at least 1 as 1,2,4, and n for all at once")
    return [size if size == "n" else int(size) for size in sizes]


def _gammas(n: int) -> list[float]:
    """The grid, and both sides of (n - 1) / n. The decoder takes equality for enough and the paper does not, so at
    equality rounding would decide."""
    edge = (n - 1) / n
    return sorted([*(gamma for gamma in GAMMAS if abs(gamma - edge) > 1e-9), edge - 1e-3, edge + 1e-3])


PANELS = {  # Figure 2: name, task, tau
    "fig2a": ("shuffle", 1),
    "fig2b": ("shuffle", 0),
    "fig2c": ("replace_random", 1),
    "fig2d": ("replace_random", 0),
}


def _figures(
    cells: Sequence[Cell], edges: Sequence[Edge], rows: Sequence[Shipped], out_dir: Path, kinds: Sequence[str]
) -> list[tuple[str, str]]:
    """Saves Figure 2's panels; returns (caption, file) of those for which there are cells."""
    figures = []
    for name, (task, tau) in PANELS.items():
        chosen = [one for one in cells if (one.task, one.tau) == (task, tau)]
        beside = [one for one in rows if (one.task, one.tau) == (task, tau)]
        series = list(_panel(chosen, beside))
        if series:
            caption = f"{task.replace('_', ' ')}, {'sampling (tau = 1)' if tau else 'greedy (tau = 0)'}"
            plots.save(plots.shares_over(series, "items n", caption), out_dir / name, kinds)
            figures.append((caption, f"{name}.png"))
    longest = max(one.n for one in edges)
    series = []
    for color, task in enumerate(task for task in OPEN if any(one.task == task for one in edges)):
        chosen = [one for one in edges if (one.task, one.n) == (task, longest)]
        closed = [(gamma, exact(threshold_accuracy(task, longest, gamma))) for gamma in np.linspace(0.3, 1, 1401)]
        series.append(plots.Series(f"{task}, closed form", closed, color, "line"))
        ideal = [(one.gamma, one.accuracy_ideal) for one in chosen]
        series.append(plots.Series(f"{task}, ideal model", ideal, color, "filled"))
    if series:
        caption = f"greedy with a confidence threshold, n = {longest}"
        plots.save(plots.shares_over(series, "threshold gamma", caption), out_dir / "fig2e", kinds)
        figures.append((caption, "fig2e.png"))
    return figures


def _panel(cells: Sequence[Cell], rows: Sequence[Shipped]) -> Iterator[plots.Series]:
    """Curves for k = 1, 2 and n: closed form, ideal model, its argmax where it is greedy, and tiny."""
    for color, name in enumerate(("1", "2", "n")):
        chosen = [one for one in cells if str(one.k) == name or (name == "n" and one.k == one.n)]
        beside = [one for one in rows if str(one.k) == name or (name == "n" and one.k == one.n)]
        if not chosen:
            continue
        closed = [(float(one.n), exact(one.accuracy_closed)) for one in chosen]
        ideal = [(one.n - 0.08, one.accuracy_ideal) for one in chosen]
        yield plots.Series(f"k={name}, closed form", closed, color, "line")
        yield plots.Series(f"k={name}, ideal model", ideal, color, "filled")
        argmax = [(one.n, one.accuracy_argmax) for one in chosen]
        alike = [(float(n), exact(value)) for n, value in argmax if value is not None]
        if alike:
            yield plots.Series(f"k={name}, ideal, argmax", alike, color, "cross")
        if beside:
            shares = [(one.n + 0.08, one.accuracy_any_order) for one in beside]
            yield plots.Series(f"k={name}, tiny", shares, color, "hollow")


READ = """Closed forms (`parallelbench/studies/bounds.py`), ideal models (exact posteriors through the real denoising
loop and decoders, {samples} decodes per setting with chance in it) and the shipped model. n items are decoded
k per step in random order. C(Y|X) is the total correlation that one step loses and L_T the loss at k per
step, both in bits. Greedy (tau = 0) decoding meets exact ties in an ideal model; they are broken at random,
as the closed form assumes, by sampling at a temperature of 0.001. `accuracy_argmax` in `theory.csv` breaks
them by argmax, to the same item everywhere. All intervals are 95 %. Shuffle counts the unchanged
order as valid, as the paper's analysis does."""
TINY = """`tiny` infills lists whose length and punctuation are given ({samples} benchmark samples per setting, built-in
scorers). A person is two tokens, a first and a last name; the theory's item is the person. So k counts
persons: a step decodes k first names in random order, and one step at the end all last names, which the first
names determine. The ideal model here is that of the built-in task, whose shuffle must change the order; "any
order" counts an unchanged one as valid and is what the figures show."""
EDGES = """Thresholds (`thresholds.csv`): shuffle is right iff gamma > 1/2, replace random iff gamma >= (n - 1) / n; the
ideal model agrees in {right} of {all} settings on both sides of these edges. At equality the paper's rule
waits and `threshold` commits. With ties broken at random, a shuffle at gamma <= 1/2 still has a chance
(`accuracy_random_ties`)."""


def _markdown(
    cells: Sequence[Cell], edges: Sequence[Edge], rows: Sequence[Shipped], figures: Sequence[tuple[str, str]]
) -> str:
    lines = ["# Theory of parallel decoding", "", READ.format(samples=max(one.accuracy_ideal.n for one in cells)), ""]
    lines += ["## Table 1", "", "Valid answers in %: closed form / ideal model with its interval.", ""]
    heads = ["task", "n", "k", "C bits", "L_T bits", "sampling (tau = 1)", "greedy (tau = 0)", "greedy, argmax"]
    lengths = sorted({one.n for one in cells})
    shown = {lengths[0], lengths[len(lengths) // 2], lengths[-1]}
    pairs: dict[tuple[str, int, int], dict[int, Cell]] = {}
    for one in cells:
        if one.n in shown:
            pairs.setdefault((one.task, one.n, one.k), {})[one.tau] = one
    settings = []
    for (task, n, k), pair in pairs.items():
        both = [f"{_percent(pair[t].accuracy_closed)} / {pair[t].accuracy_ideal.text('.1f', 100)}" for t in (1, 0)]
        bits = [f"{pair[1].total_correlation:.4f}", f"{pair[1].kl_bound:.4f}"]
        settings.append([task, str(n), str(k), *bits, *both, _percent(pair[0].accuracy_argmax or 0.0)])
    inside = [one.accuracy_ideal.ci_low <= one.accuracy_closed <= one.accuracy_ideal.ci_high for one in cells]
    lines += [
        *table(heads, settings),
        "",
        f"In {sum(inside)} of {len(cells)} settings of `theory.csv` the closed form lies within the ideal model's "
        "interval (95 % are expected where an accuracy is not 0 or 1).",
        "",
        "## Figure 2",
        "",
    ]
    for caption, file in figures:
        lines += [f"![{caption}]({file})", ""]
    right = sum(one.accuracy_ideal.value == one.accuracy_closed for one in edges)
    lines += [EDGES.format(right=right, all=len(edges)), ""]
    if rows:
        lines += ["## The shipped model", "", TINY.format(samples=rows[0].accuracy_tiny.n), ""]
        shares = []
        for one in rows:
            setting = [one.task, *map(str, (one.n, one.k, one.tau)), _percent(one.accuracy_ideal)]
            shares.append(
                [*setting, *(value.text(".1f", 100) for value in (one.accuracy_tiny, one.accuracy_any_order))]
            )
        heads = ["task", "n", "k", "tau", "ideal %", "tiny %", "tiny, any order %"]
        lines += [*table(heads, shares), ""]
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
