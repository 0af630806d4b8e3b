"""Intervals against closed forms, and how often simulated ones hold the truth: few settings here, all of them slowly.

`scripts/interval_coverage.py` makes the data and the table of docs/intervals.md.
"""

import re
import runpy
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest, t as student, ttest_rel

from parallelbench.stats.intervals import bounded, places, product
from parallelbench.stats.loss import upper_limit

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "interval_coverage.py"))
FEW = [  # kind, interval, data, size, the least and the most that may hold the truth
    ("scores", "score", "5 % of samples uniform in 0 to 1, others 1", "50", 0.93, 1),
    ("scores", "score, all", "right or wrong, tasks from 5 to 99 % right", "12 x 50", 0.89, 0.995),
    ("forwards", "TPF", "ordinary", "50", 0.89, 1),
    ("forwards", "TPF", "3 % of samples take 32 forwards", "20", 0.93, 1),
    ("seconds", "latency s", "batches vary by 40 %", "5 batches", 0.89, 1),
    ("differences", "B - A", "1 % worse, 0 % better", "50", 0.93, 1),
    ("differences", "B - A", "10 % worse, 10 % better", "50", 0.89, 0.995),
    ("ratios", "NFE B/A", "B takes 0 to 3 forwards fewer", "12 x 50", 0.89, 1),
    ("ratios", "NFE B/A", "B takes fewer, A 32 on 3 % of samples", "50", 0.93, 1),
    ("ranks", "tau", "39 decoders, 38 to 62 % right, tau 0.81", "12 x 10", 0.83, 1),  # a percentile interval: never
]


@pytest.mark.parametrize(("right", "n"), [(10, 20), (30, 60), (120, 200), (0, 50)])
def test_shares_have_wilsons_interval(right: int, n: int) -> None:
    value = bounded(np.repeat([1.0, 0.0], [right, n - right]), 0, 1)
    known = binomtest(right, n).proportion_ci(0.95, method="wilson")
    wider = sqrt(n / (n - 1)) - 1  # the variance within strata is the unbiased one
    assert (value.ci_low, value.ci_high) == pytest.approx((known.low, known.high), abs=wider * (known.high - known.low))
    few = bounded(np.repeat([1.0, 0.0], [48, 2]), 0, 1)  # Wilson's leaves out 0.99, which shows this in 8 of 100
    assert few.ci_high > 0.99 and binomtest(48, 50).proportion_ci(0.95, method="wilson").high < 0.99


@pytest.mark.parametrize(("lost", "gained", "n"), [(0, 0, 50), (5, 3, 50), (2, 0, 50), (30, 10, 200), (6, 6, 20)])
def test_differences_of_zeros_and_ones_have_tangos_interval(lost: int, gained: int, n: int) -> None:
    change = np.repeat([-1.0, 1.0, 0.0], [lost, gained, n - lost - gained])
    value = bounded(change, -1, 1)
    known = (-upper_limit(-change, 0.025), upper_limit(change, 0.025))
    assert (value.ci_low, value.ci_high) == pytest.approx(known, abs=0.02 * (known[1] - known[0]))
    assert value.has_interval  # no difference seen is none proved


def test_values_that_fill_their_range_have_students_interval() -> None:
    rng = np.random.default_rng(0)
    columns = rng.uniform(10, 90, (2, 400))
    value, known = bounded(columns[0] - columns[1], -100, 100), ttest_rel(*columns).confidence_interval()
    assert (value.ci_low, value.ci_high) == pytest.approx((known.low, known.high), abs=0.1 * (known.high - known.low))
    single, mean = product(columns[:1], (1,)), columns[0].mean()
    step = float(student.isf(0.025, 399)) * columns[0].std(ddof=1) / sqrt(400)
    assert (single.ci_low, single.ci_high) == pytest.approx((mean - step, mean + step), abs=0.1 * step)
    ratio, inverse = product(columns, (1, -1)), product(columns[::-1], (1, -1))
    assert ratio.ci_low * inverse.ci_high == pytest.approx(1)  # A/B says what B/A says


def test_tasks_of_one_sample_are_one_stratum() -> None:
    assert places(np.array(["a", "b", "c"]), 3).tolist() == [0, 0, 0]
    assert places(np.array(["a", "a", "b"]), 3).tolist() == [0, 0, 0]
    assert places(np.array(["a", "a", "b", "c"]), 4).tolist() == [1, 1, 0, 0]
    assert places(np.array(["a", "a", "b", "b"]), 4).tolist() == [0, 0, 1, 1]
    assert bounded(np.array([0.0, 1.0, 1.0]), 0, 1, np.array(["a", "b", "c"])).has_interval


@pytest.mark.parametrize(("kind", "name", "data", "size", "least", "most"), FEW)
def test_intervals_hold_the_truth(kind: str, name: str, data: str, size: str, least: float, most: float) -> None:
    """100 draws, or 25: of 95 %, 89 to 100 are within three standard errors, so the ranges are of what must not come
    back."""
    setting = next(s for s in SCRIPT["KINDS"][kind]() if (s.data, s.size) == (data, size))
    assert least <= setting.coverage(100)[name] <= most


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCRIPT["KINDS"])
def test_every_printed_interval_holds_the_truth_as_often_as_the_docs_say(kind: str) -> None:
    told = {}
    for line in (ROOT / "docs" / "intervals.md").read_text().splitlines():
        if (cells := re.fullmatch(r"\| (.+) \| (.+) \| (\S*\d+.*: .+) \|", line)) is not None:
            sizes = (cell.split(": ") for cell in cells[3].split("; "))
            told |= {(cells[1], cells[2], size): int(share) for size, share in sizes}
    times = 50 if kind in ("curves", "ranks") else 200  # or more
    for name, data, size, share in SCRIPT["rows"](200, [kind]):
        error = 100 * sqrt(max(share * (1 - share), 0.01) * 2 / times)
        assert abs(100 * share - told[name, data, size]) < 3.5 * error
