"""What figures for print need: labels apart from each other, ticks below every column, one look per decoder."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from parallelbench.records.files import CONF
from parallelbench.report import plots
from parallelbench.report.drawing.labels import place
from parallelbench.report.drawing.style import KINDS, curve_looks, look
from parallelbench.stats.intervals import Value
from parallelbench.wiring.catalogue import options

HUNDRED = (0.0, 0.0, 100.0, 100.0)


def test_labels_cover_neither_points_nor_each_other() -> None:
    rng = np.random.default_rng(0)
    points = [(float(x), float(y)) for x, y in rng.uniform(100, 300, (25, 2))]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in points]
    boxes = place(points, [(30.0, 10.0)] * 25, taken, (0.0, 0.0, 400.0, 400.0))
    placed = [box for box in boxes if box is not None]
    assert len(placed) == 25
    for a, b in [*combinations(placed, 2), *((a, b) for a in placed for b in taken)]:
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    assert place([(50.0, 50.0)], [(30.0, 10.0)], [HUNDRED], HUNDRED) == [None]  # no room
    (left, bottom, right, top), *_ = [box for box in place([(99.0, 50.0)], [(30.0, 10.0)], [], HUNDRED) if box]
    assert 0 <= left < right <= 100 and 0 <= bottom < top <= 100


@pytest.mark.parametrize("kind", KINDS)
def test_choices_look_unlike(kind: str) -> None:
    names = [
        name for name in options(kind) if kind != "model" or "# look: " in (CONF / kind / f"{name}.yaml").read_text()
    ]
    looks = [look(kind, name) for name in names]
    assert len(set(looks)) == len(looks) > 8, f"give a new {kind} the next number after `# look:` in its yaml"
    assert look(kind, "of one's own") == look(kind, "of one's own")


def test_a_decoder_looks_alike_whatever_is_beside_it() -> None:
    few, many = curve_looks(["eb", "threshold"]), curve_looks(["fixed", "eb", "eb cache=dual", "threshold", "wino"])
    assert all(few[name] == many[name] for name in few)
    assert len(set(many.values())) == 5 and many["eb"][0] == many["eb cache=dual"][0]
    assert len({color for color, *_ in curve_looks(["eb model=a", "eb model=b"]).values()}) == 2


def test_curves_of_one_point_say_their_names_beside_it() -> None:
    def point(tpf: float) -> tuple[str, Value, Value]:
        return "0.1", Value(tpf, tpf, tpf, 9), Value(0.5, 0.4, 0.6, 9)

    curves = {"eb (gamma)": [point(1.0), point(2.0)], "klass (tau, kl)": [point(4.0)]}
    figure = plots.quality_against_tpf(curves, "two curves", named=True)
    (axes,) = figure.axes
    assert {label.get_text() for label in axes.texts} == {"0.1", "klass"}
    (legend,) = figure.legends  # below the chart, where it covers no point
    assert [label.get_text() for label in legend.get_texts()] == ["eb (gamma)"]
    plots.plt.close(figure)


def test_every_column_of_a_grid_has_ticks() -> None:
    point = (Value(1.0, 0.9, 1.1, 9), Value(0.5, 0.4, 0.6, 9))
    panels = {f"task{i}": {"eb": [("0.1", *point)]} for i in range(6)}  # four columns, the last two half empty
    figure = plots.quality_per_task(panels, "six tasks")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    lowest = {round(axes.get_position().x0, 2): axes for axes in shown}  # panels go from top to bottom
    assert len(shown) == 6 and len(lowest) == 4
    for axes in lowest.values():
        assert axes.get_xlabel() == "tokens per forward" and axes.xaxis.get_tick_params()["labelbottom"]
    plots.plt.close(figure)


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    def saved(name: str) -> dict[str, bytes]:
        figure = plots.commit_order({"copy": [[0, 1]]}, "order")
        return {path.suffix: path.read_bytes() for path in plots.save(figure, tmp_path / name, ["svg", "png", "pdf"])}

    first = saved("first")
    assert saved("again") == first and list(first) == [".svg", ".png", ".pdf"]


def test_names_are_no_formulas(tmp_path: Path) -> None:
    def point(tpf: float) -> tuple[str, Value, Value]:
        return "$\\frac{$", Value(tpf, tpf, tpf, 9), Value(0.5, 0.4, 0.6, 9)

    figure = plots.quality_against_tpf({"$x_{$": [point(1.0), point(2.0)]}, "a model of $\\frac{$ and $5")
    plots.save(figure, tmp_path / "figure", ("png", "svg"))
    assert len(list(tmp_path.iterdir())) == 2


def test_odd_names_are_drawn(tmp_path: Path) -> None:
    """One that a legend leaves out, and tasks of characters that no font has."""
    one = Value(0.5, 0.4, 0.6, 9)
    panels = {"t/\ud800": {"_mine": [("0.1", one, one)], "eb": [("0.2", one, one)]}}
    plots.save(plots.quality_per_task(panels, "tasks"), tmp_path / "panels", ("png",))
    plots.save(
        plots.task_bars({name: {"t/\ud800": one} for name in ("_mine", "eb")}, ["_mine", "eb"], "tasks"),
        tmp_path / "bars",
        ("png",),
    )
    plots.save(plots.commit_order({"t/\ud800": [[0, 1]]}, "order"), tmp_path / "order", ("png",))
