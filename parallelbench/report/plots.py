"""Figures of a report, as SVG, PNG and PDF. This module and `drawing.axes` alone import matplotlib."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, cast

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from parallelbench.records.files import one_line, replace_file
from parallelbench.records.record import NEVER
from parallelbench.report.drawing.axes import by_doubling, end_above_100
from parallelbench.report.drawing.labels import Box, place
from parallelbench.report.drawing.style import GREY, MARKERS, RC, curve_looks
from parallelbench.stats.intervals import Value
from parallelbench.stats.sweeps import pareto

matplotlib.rcParams.update(RC)
LETTER = (4.3, 9)  # points: width of a letter of a label, height of a line
LINES = {"line": "-", "dashed": "--"}
UNDATED: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}

Curves = Mapping[str, Sequence[tuple[str, Value, Value]]]  # curve name to points (label, tpf, score)


@dataclass(frozen=True)
class Plot:
    """A figure that notebooks show."""

    figure: Figure

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.figure.savefig(data, format="png")
        return data.getvalue()

    def save(self, path: str | Path) -> None:
        """Writes it as its suffix says: .png, .svg or .pdf."""
        self.figure.savefig(path)


def quality_against_tpf(curves: Curves, title: str, named: bool = False) -> Figure:
    """Points joined in order of tpf, with both 95 % intervals; each says its knob. named: a lone one says its curve."""
    figure, axes = plt.subplots(figsize=(10, 8) if named else (7.5, 4.8), layout="constrained")
    labels = _draw_curves(axes, curves, list(curves), prominent=True, named=named)
    axes.set(xlabel="tokens per forward (before EOS), log scale", ylabel="score, %", title=title)
    axes.margins(x=0.08)
    end_above_100(axes)
    if named:
        figure.legend(loc="outside lower center", ncols=4)
    else:
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="best")
    _write_labels(figure, axes, labels)
    return figure


def quality_per_task(panels: Mapping[str, Curves], title: str) -> Figure:
    """The same, one small panel per task with shared axes."""
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    figure, grid = _grid(len(panels), 4, (3.1, 2.3), (0.0, 0.8))
    for axes, (task, curves) in zip(grid.flat, panels.items(), strict=False):
        _draw_curves(axes, curves, names)
        axes.set_title(_last(task), fontsize=9)
        axes.set_ylim(-4, 104)
    _finish(figure, grid, len(panels), "tokens per forward", title)
    entries = _entries(grid)
    names = [name for name in names if name in entries]  # a legend shows none with a dash in front
    figure.legend([entries[name] for name in names], names, loc="outside lower center", ncols=min(len(names), 4))
    return figure


def quality_against_reference(curves: Curves, reference: int, title: str) -> Figure:
    """One small panel per curve, each with the reference curve (by its place) in grey under it."""
    names = list(curves)
    grey = sorted(curves[names[reference]], key=lambda p: p[1].value)
    others = [name for i, name in enumerate(names) if i != reference]
    figure, grid = _grid(len(others), 5, (2.7, 2.2), (0.0, 0.9))
    for axes, name in zip(grid.flat, others, strict=False):
        x, y = [p[1].value for p in grey], [100 * p[2].value for p in grey]
        axes.plot(x, y, color="0.6", linewidth=2.5, label=names[reference])
        _draw_curves(axes, {name: curves[name]}, names)
        axes.set_title(textwrap.fill(name, 32), fontsize=9)
    _finish(figure, grid, len(others), "tokens per forward", title)
    grid.flat[0].set_ylim(top=104)
    grid.flat[0].legend([textwrap.fill(names[reference], 28)], fontsize=7, loc="lower left")
    return figure


def quality_against_columns(series: Curves, title: str) -> Figure:
    """One colour per decoder, one labelled point (label, columns, score) per cache, with both 95 % intervals."""
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    looks, shown = curve_looks(list(series)), []
    for name, points in series.items():
        x, y = np.array([p[1].value for p in points]), 100 * np.array([p[2].value for p in points])
        across, along = _bars([p[1] for p in points]), 100 * _bars([p[2] for p in points])
        color, marker, _ = looks[name]
        axes.errorbar(x, y, xerr=across, yerr=along, label=name, color=color, marker=marker, linestyle="none")
        labels: dict[tuple[float, float], list[str]] = {}  # equal points share a label
        for (label, *_), px, py in zip(points, x, y, strict=True):
            labels.setdefault((round(px, 3), round(py, 3)), []).append(label)
        shown += [(", ".join(names), *at, color) for at, names in sorted(labels.items())]
    by_doubling(axes)
    axes.set(xlabel="columns recomputed per sample, log scale", ylabel="score, %", title=title)
    axes.margins(x=0.15)
    end_above_100(axes)
    axes.legend(loc="best")
    _write_labels(figure, axes, shown)
    return figure


Label = tuple[str, float, float, str]  # text, x and y of its point, colour


def _draw_curves(
    axes: Axes, curves: Curves, names: Sequence[str], prominent: bool = False, named: bool = False
) -> list[Label]:
    """Draws each curve as it looks among `names`; returns the labels of its points."""
    looks, labels = curve_looks(names), []
    for name, points in curves.items():
        color, marker, line = looks[name]
        points = sorted(points, key=lambda p: p[1].value)
        x, y = np.array([p[1].value for p in points]), 100 * np.array([p[2].value for p in points])
        axes.errorbar(
            x,
            y,
            xerr=_bars([p[1] for p in points]),
            yerr=100 * _bars([p[2] for p in points]),
            label="_" * (named and len(points) == 1) + name,  # the legend shows none with a dash in front
            color=color,
            ecolor=(color, 0.4 if named else 1.0),
            marker=marker,
            linestyle=line,
            markersize=6 if prominent else 4,
            elinewidth=0.7,
            capsize=2 if prominent else 0,
        )
        if len(points) > 1:
            labels += [(label, px, py, color) for (label, *_), px, py in zip(points, x, y, strict=True)]
        elif named:
            labels.append((" ".join(name.partition(" (")[0].split()[:2]), x[0], y[0], color))
    by_doubling(axes)
    return labels


def _write_labels(figure: Figure, axes: Axes, labels: Sequence[Label]) -> None:
    """Next to their points, with a line to those further away. The figure is as it will be saved."""
    figure.canvas.draw()
    scale = figure.dpi / 72
    at = [axes.transData.transform((x, y)) for _, x, y, _ in labels]
    points = [(float(x), float(y)) for x, y in at]
    sizes = [(LETTER[0] * len(text) * scale, LETTER[1] * scale) for text, *_ in labels]
    taken = [(x - 4 * scale, y - 4 * scale, x + 4 * scale, y + 4 * scale) for x, y in points]
    drawn = [artist.get_window_extent().extents for artist in (axes, axes.get_legend()) if artist is not None]
    within, *covered = (cast(Box, tuple(map(float, extents))) for extents in drawn)
    boxes = place(points, sizes, taken + covered, within)
    for (text, x, y, color), box in zip(labels, boxes, strict=True):
        if box is not None:
            across, up = axes.transData.inverted().transform(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))
            line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.4, "shrinkA": 1, "shrinkB": 3}
            style = {"fontsize": 7, "color": color, "ha": "center", "va": "center_baseline"}
            axes.annotate(text, (x, y), (across, up), arrowprops=line, **style)


def _grid(count: int, most: int, panel: tuple[float, float], around: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    """Panels with shared axes, in up to `most` columns. panel, around: width and height, in inches, of one panel and of
    what surrounds all."""
    columns = min(most, count)
    rows = -(-count // columns)
    size = (panel[0] * columns + around[0], panel[1] * rows + around[1])
    return plt.subplots(rows, columns, figsize=size, layout="constrained", sharex=True, sharey=True, squeeze=False)


def _last(task: str) -> str:
    """The last part of a task's name."""
    return one_line(task.split("/")[-1])


def _entries(grid: np.ndarray) -> dict[str, Any]:
    """What panels' legends hold, by its labels."""
    return {label: entry for axes in grid.flat for entry, label in zip(*axes.get_legend_handles_labels(), strict=True)}


def _finish(figure: Figure, grid: np.ndarray, used: int, xlabel: str, title: str) -> None:
    """Names the axes and hides the panels after the first `used`; the lowest one left in each column has ticks and
    label."""
    figure.suptitle(title, fontsize=11)
    figure.supylabel("score, %", fontsize=9)
    for axes in grid.flat[used:]:
        axes.set_visible(False)
    for column in grid.T:
        lowest = [axes for axes in column if axes.get_visible()][-1]
        lowest.tick_params(labelbottom=True)
        lowest.set_xlabel(xlabel, fontsize=9)


def task_bars(rows: Mapping[str, Mapping[str, Value]], curves: Sequence[str], title: str) -> Figure:
    """Score per task (groups on the axis) and run (one bar each) with 95 % intervals.

    rows[run][task]; curves: the curve of each run, which gives its colour, paler from run to run.
    """
    tasks = list(dict.fromkeys(task for row in rows.values() for task in row))
    figure, axes = plt.subplots(figsize=(max(7.5, min(14, 0.9 * len(tasks) + 3)), 4.6), layout="constrained")
    width = 0.84 / len(rows)
    looks = curve_looks(list(dict.fromkeys(curves)))
    for i, (name, row) in enumerate(rows.items()):
        at = np.array([j for j, task in enumerate(tasks) if task in row]) - 0.42 + (i + 0.5) * width
        values = [row[task] for task in tasks if task in row]
        error = 100 * _bars(values)
        heights = [100 * v.value for v in values]
        color, paler = looks[curves[i]][0], curves[:i].count(curves[i]) / curves.count(curves[i])
        axes.bar(
            at, heights, width, yerr=error, label=name, color=(color, 1 - 0.8 * paler), error_kw={"linewidth": 0.7}
        )
    axes.set_xticks(range(len(tasks)), [_last(task) for task in tasks], rotation=35, ha="right")
    axes.set(ylabel="score, %", title=title, ylim=(0, 106))
    axes.grid(False, axis="x")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


@dataclass(frozen=True)
class Series:
    """Points (x, value) in the colour of number `color`: a line without intervals (theory), or marks with them."""

    label: str
    points: Sequence[tuple[float, Value]]
    color: int
    style: Literal["line", "dashed", "filled", "hollow", "cross"]


def exact(value: float) -> Value:
    """A value of theory, which has no interval."""
    return Value(value, value, value, 0)


def shares_over(series: Sequence[Series], xlabel: str, title: str) -> Figure:
    """Shares in % over a number; several kinds of series side by side."""
    figure, axes = plt.subplots(figsize=(6.6, 4.4), layout="constrained")
    _draw_series(axes, series)
    axes.set(xlabel=xlabel, ylabel="valid answers, %", title=title)
    if all(x >= 1.5 for one in series for x, _ in one.points):  # numbers of items
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def shares_per_task(panels: Mapping[str, Sequence[Series]], xlabel: str, title: str) -> Figure:
    """The same over a logarithmic axis, one panel per task with shared axes; series of one label look alike in all."""
    figure, grid = _grid(len(panels), 2 if len(panels) == 4 else 3, (3.9, 3.1), (2.4, 0.6))
    for axes, (task, series) in zip(grid.flat, panels.items(), strict=False):
        _draw_series(axes, series)
        axes.set_title(_last(task), fontsize=9)
        by_doubling(axes)
    _finish(figure, grid, len(panels), xlabel, title)
    entries = _entries(grid)
    figure.legend(list(entries.values()), list(entries), loc="outside right upper")
    return figure


def bits_over(series: Sequence[Series], xlabel: str, title: str) -> Figure:
    """Bounds in bits over a number."""
    figure, axes = plt.subplots(figsize=(6.6, 4.4), layout="constrained")
    for one in series:
        x, y = [x for x, _ in one.points], [value.value for _, value in one.points]
        axes.plot(x, y, color=f"C{one.color}", label=one.label, marker=".", linestyle=LINES.get(one.style, "none"))
    axes.set(xlabel=xlabel, ylabel="bits", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return figure


def _draw_series(axes: Axes, series: Sequence[Series]) -> None:
    for one in series:
        color, points = f"C{one.color}" if one.color >= 0 else "black", sorted(one.points, key=lambda p: p[0])
        x, y = np.array([x for x, _ in points]), 100 * np.array([value.value for _, value in points])
        if one.style in LINES:
            axes.plot(x, y, color=color, linestyle=LINES[one.style], linewidth=1.3, label=one.label)
            continue
        fill = color if one.style == "filled" else "none"
        error = 100 * _bars([value for _, value in points])
        marker = {"filled": "o", "hollow": "D", "cross": "x"}[one.style]
        style = {"marker": marker, "markersize": 4.5, "markerfacecolor": fill, "capsize": 2, "linewidth": 0.9}
        axes.errorbar(x, y, yerr=error, color=color, linestyle="none", label=one.label, **style)
    axes.set_ylim(-4, 104)


def commit_order(orders: Mapping[str, Sequence[Sequence[int]]], title: str) -> Figure:
    """Mean forward at which each response column was committed, one row per task. orders: see `commits_by_task`."""
    width = max(len(columns) for rows in orders.values() for columns in rows)
    mean = np.full((len(orders), width), np.nan)
    for i, rows in enumerate(orders.values()):
        order = np.array(list(zip_longest(*rows, fillvalue=NEVER))).T
        committed = np.where(order >= 0, order, np.nan)
        counts = (order >= 0).sum(0)
        shown = counts > 0
        mean[i, : order.shape[1]][shown] = np.nansum(committed[:, shown], axis=0) / counts[shown]
    figure, axes = plt.subplots(figsize=(8.5, 0.34 * len(orders) + 1.6), layout="constrained")
    axes.grid(False)
    image = axes.imshow(mean, aspect="auto", cmap="viridis", interpolation="nearest")
    figure.colorbar(image, ax=axes, label="mean forward of commit (from 0)")
    axes.set_yticks(range(len(orders)), [_last(task) for task in orders])
    axes.set(xlabel="response column", title=title)
    return figure


def figure_formats(text: str) -> tuple[str, ...]:
    """The option figures=png,pdf. Raises ValueError for a format that no figure is written in."""
    kinds = tuple(text.split(","))
    for kind in kinds:
        if kind not in UNDATED:
            raise ValueError(f"figures={text}; give one or more of {','.join(UNDATED)}")
    return kinds


def save(figure: Figure, path: Path, kinds: Sequence[str] = ("png",)) -> list[Path]:
    """Writes path.png, or path.KIND of each kind, without dates, and closes the figure. A PNG has 256 colours, which
    makes it a third as large."""
    paths = [path.with_suffix(f".{kind}") for kind in kinds]
    for target in paths:
        file, kind = BytesIO(), target.suffix[1:]
        figure.savefig(file, format=kind, metadata=UNDATED[kind])
        if kind == "png":
            image = Image.open(file).convert("RGB").quantize(256, dither=Image.Dither.NONE)
            image.save(file := BytesIO(), "PNG", optimize=True)
        replace_file(target, file.getvalue())
    plt.close(figure)
    return paths


def _bars(values: Sequence[Value]) -> np.ndarray:
    """Distances to the interval's ends, `[2, n]`."""
    return np.array([[v.value - v.ci_low for v in values], [v.ci_high - v.value for v in values]]).clip(min=0)


Panels = Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]  # x label, curve: speed and score in per cent


def tradeoff(panels: Panels, title: str) -> Figure:
    """Curves of score against speed with their common Pareto front, one panel per kind of speed. Where curves are many,
    those that touch a front have colours and the others are grey."""
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    touching = list(dict.fromkeys(name for curves in panels.values() for name, _, _ in _front(curves)))
    shown = names if len(names) <= len(MARKERS) else touching
    size = (5.6 * len(panels) + 2.6, 4.8)
    figure, grid = plt.subplots(1, len(panels), figsize=size, layout="constrained", sharey=True, squeeze=False)
    colors = matplotlib.colormaps["tab20" if len(shown) > 10 else "tab10"]
    for axes, (label, curves) in zip(grid.flat, panels.items(), strict=True):
        for name, (x, y) in curves.items():
            order = np.argsort(x)
            if name in shown:
                i = shown.index(name)
                style = {"color": colors(i), "marker": MARKERS[i % len(MARKERS)], "label": name, "zorder": 3}
            else:
                style = {"color": "0.8", "marker": ".", "label": "others", "zorder": 1}
            axes.plot(x[order], y[order], markersize=5, linewidth=1, **style)
        front = _front(curves)
        x, y = [speed for _, speed, _ in front], [score for *_, score in front]
        best = {"color": "black", "linewidth": 5, "alpha": 0.18, "zorder": 2, "label": "Pareto front"}
        axes.step([0.9 * min(x), *x], [y[0], *y], where="pre", **best)
        by_doubling(axes)
        axes.set(xlabel=f"{label}, log scale", ylim=(0, 104))
    grid.flat[0].set_ylabel("score, mean over tasks, %")
    entries = _entries(grid[:, :1])
    order = [*(name for name in shown if name in entries), *(name for name in entries if name not in shown)]
    figure.legend([entries[name] for name in order], order, loc="outside right center", fontsize=7)
    figure.suptitle(title, fontsize=11)
    return figure


def _front(curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[tuple[str, float, float]]:
    """Curve, speed and score of the points that no other point of any curve beats, by speed."""
    points = [(name, float(x), float(y)) for name, curve in curves.items() for x, y in zip(*curve, strict=True)]
    speed, score = np.array([x for _, x, _ in points]), np.array([y for *_, y in points])
    return [points[i] for i in pareto(speed, score)]
