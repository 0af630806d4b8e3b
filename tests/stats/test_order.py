"""Decoding order: correlations by hand, and from the command line."""

import csv
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL
from msgspec.structs import replace
from test_sweep_scores import write_run

from parallelbench.records.record import NEVER
from parallelbench.stats.order import order_correlations


def by_hand(forwards: list[int]) -> float:
    """Kendall's tau-b: concordant less discordant pairs, over the pairs without ties of either kind."""
    pairs = [np.sign(b - a) for a, b in combinations(forwards, 2)]
    return sum(pairs) / np.sqrt(sum(map(abs, pairs)) * len(pairs))


@pytest.mark.parametrize(
    ("forwards", "kendall", "spearman"),
    [
        ([0, 1, 2, 3], 1, 1),
        ([3, 2, 1, 0], -1, -1),
        ([0, 0, 1, 1], 4 / np.sqrt(4 * 6), 4 / np.sqrt(20)),
        ([1, 3, 0, 2], 0, 0),
    ],
)
def test_small_orders_by_hand(tmp_path: Path, forwards: list[int], kendall: float, spearman: float) -> None:
    record = write_run(tmp_path / "run", [1.0], 4, 0.9).records[0]
    record = replace(record, num_tokens=4, committed_at=[*forwards, 0, 0, NEVER, NEVER])
    found = order_correlations(record)
    assert found["kendall"] == pytest.approx(kendall) == pytest.approx(by_hand(forwards))
    assert found["spearman"] == pytest.approx(spearman)
    assert found["kendall_canvas"] == pytest.approx(by_hand([*forwards, 0, 0]))


def test_columns_of_one_forward_have_no_order(tmp_path: Path) -> None:
    record = write_run(tmp_path / "run", [1.0], 4, 0.9).records[0]
    assert order_correlations(replace(record, num_tokens=2, committed_at=[0, 0, NEVER])) == {}
    assert set(order_correlations(replace(record, num_tokens=2, committed_at=[0, 0, 1]))) == {
        "kendall_canvas",
        "spearman_canvas",
    }


def test_from_left_to_right_and_all_at_once_from_the_command_line(cli, tmp_path: Path) -> None:
    for name, *more in (("left", "decoder=left"), ("all", "decoder=fixed", "decoder.rule.k=all")):
        assert cli("run", *more, *SMALL, f"out_dir=runs/{name}")[0] == 0
    code, out, _ = cli("analyze", "order", "runs", "out_dir=order")
    assert code == 0 and "1.00 [0." in out and (tmp_path / "order" / "order.md").exists()
    rows = list(csv.DictReader((tmp_path / "order" / "order.csv").read_text().splitlines()))
    left = [row for row in rows if row["correlation"] == "kendall"]
    assert left and all(row["run"].startswith("left") for row in left)
    assert [float(row["value"]) for row in left] == pytest.approx([1] * len(left))
    assert {row["task"] for row in left} > {"all"}
