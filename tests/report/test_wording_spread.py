"""Scores across wordings: closed forms first, then a report of made-up runs."""

import numpy as np
import pytest
from msgspec.structs import replace
from test_page import make_run

from parallelbench.records.questions import question, wording
from parallelbench.records.record import Run
from parallelbench.report.page import page_data
from parallelbench.report.sections.rewording import wording_lines
from parallelbench.stats.metrics import aggregate, measure
from parallelbench.stats.table import run_table
from parallelbench.stats.wordings import across_wordings
from parallelbench.studies.ideal import operation
from parallelbench.tasks.base import first_wording

TASK = "waiting_line/shuffle"


def worded(name: str, right: list[list[int]], tau: object = 1, nfe: int = 8) -> Run:
    """A run in as many wordings as `right` has rows, 1 for each right answer."""
    run = make_run(name, tau, "none", [TASK], len(right[0]), seed=0)
    records = []
    for number, row in enumerate(right):
        task = TASK + f"@{number}" * bool(number)
        for i, (record, score) in enumerate(zip(run.records, row, strict=True)):
            scores = {"score": float(score), "score_strict": float(score)}
            asked = {"id": f"{task}/0/{i}", "task": task, "scores": scores}
            records.append(replace(record, **asked, nfe=nfe, num_tokens=16))
    return replace(run, records=records)


def test_names_of_wordings() -> None:
    for task, number in ((TASK, 0), (f"{TASK}@2", 2), (f"{TASK}@12", 12)):
        assert (first_wording(task), wording(task), operation(task)) == (TASK, number, "shuffle")
    assert (first_wording("own@home"), wording("own@home")) == ("own@home", 0)
    run = worded("eb", [[1, 0], [0, 1]])
    assert question(run.records[1]) == question(run.records[3]) == (TASK, "/0/1")


def test_wordings_that_change_nothing_leave_the_ranking() -> None:
    rng = np.random.default_rng(1)
    runs = [
        worded(name, [right] * 3)
        for name, right in (("eb", [1] * 20), ("wino", (rng.random(20) < 0.5).astype(int).tolist()))
    ]
    found = across_wordings(runs, ["eb", "wino"])
    assert found is not None and found.numbers == (0, 1, 2) and found.questions == 20 and found.ranked == "score"
    for pair in found.pairs:
        assert pair.tau is not None and (pair.tau.value, pair.tau.ci_low, pair.tau.ci_high) == (1, 1, 1)
        assert pair.same_best == 1
    assert found.same_best == 1 and found.best == [["eb"]] * 3
    assert all(spread.value == 0 and spread.has_interval for spread, _, _ in found.spread.values())


def test_wordings_that_turn_the_ranking_around_are_told() -> None:
    good, bad = [1] * 20, [1] * 5 + [0] * 15
    runs = [worded("eb", [good, bad]), worded("wino", [bad, good]), worded("fixed", [[0] * 20] * 2)]
    names = ["eb", "wino", "fixed"]
    found = across_wordings(runs, names)
    assert found is not None and found.best == [["eb"], ["wino"]] and found.same_best == 0
    (pair,) = found.pairs
    assert pair.tau is not None and pair.tau.value == pytest.approx(1 / 3)  # two of three pairs keep their order
    spread, high, low = found.spread[0]
    assert (spread.value, high, low) == (75, 0, 1) and 40 < spread.ci_low < 75 < spread.ci_high < 95
    assert [value.value for value in found.score[1]] == [25, 100]
    text = "\n".join(wording_lines(found, names))
    assert (
        "| run | wording 0 | wording 1 | spread |" in text and "tau 0.33" in text and "Best in wording 1: wino." in text
    )
    metrics = {name: aggregate(run.records) for name, run in zip(names, runs, strict=True)}
    told = page_data(runs, metrics, str, None, found)["wordings"]
    assert (
        isinstance(told, dict) and told["rows"][1]["numbers"][0][0] == 25 and "all in wording 1" in run_table(runs[0])
    )


def test_curves_are_ranked_by_speed_at_equal_quality() -> None:
    good, bad = [1] * 20, [1] * 5 + [0] * 15
    runs = [
        worded(name, [good, row], knob, nfe)
        for name, fast, row in (("eb", 2, bad), ("wino", 4, good))
        for knob, nfe in ((1, fast), (2, 8))
    ]
    found = across_wordings(runs, ["eb", "eb", "wino", "wino"])
    assert found is not None and found.ranked == "TPF at 97 % of the best score"
    assert found.best == [["eb"], ["wino"]] and found.pairs[0].tau is not None and found.pairs[0].tau.value == -1


def test_runs_in_one_wording_have_no_spread() -> None:
    assert across_wordings([worded("eb", [[1, 0]]), worded("wino", [[1, 0]])], ["eb", "wino"]) is None
    assert across_wordings([worded("eb", [[1, 0]] * 2), worded("wino", [[1, 0]])], ["eb", "wino"]) is None


def test_one_question_is_enough_for_a_report() -> None:
    found = across_wordings([worded("eb", [[1], [1]]), worded("wino", [[1], [0]])], ["eb", "wino"])
    assert found is not None and found.pairs[0].tau is None and found.best == [["eb", "wino"], ["eb"]]
    assert "all decoders tie" in "\n".join(wording_lines(found, ["eb", "wino"]))


def test_wordings_of_a_question_are_one_observation() -> None:
    """Four wordings that are all right or all wrong together say no more than one."""
    right = [1] * 15 + [0] * 5
    one, four = worded("eb", [right]), worded("eb", [right] * 4)
    for metric in ("score", "tpf", "nfe"):
        a, b = measure(metric, one.records), measure(metric, four.records)
        assert (b.value, b.ci_low, b.ci_high) == pytest.approx((a.value, a.ci_low, a.ci_high))
        assert (a.n, b.n) == (20, 80)
