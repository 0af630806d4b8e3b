"""Speed at equal quality on hand-made runs whose curves are known."""

from pathlib import Path

import numpy as np
import pytest

from parallelbench.records.record import Record, Run
from parallelbench.report.sections.equal_quality import equal_quality_lines
from parallelbench.stats.speed_at_quality import equal_quality, speed_at, speeds


def run(score: list[float], nfe: int, tasks: list[str] | None = None) -> Run:
    """A run with one record per score; every sample has 12 tokens."""
    names = tasks or ["a"] * len(score)
    rest = {"task_version": "1", "prompt": "", "prompt_sha": "", "data": {}, "target": "", "completion": ""}
    rest |= {"token_ids": [], "queried": 0, "committed_at": [], "stopped_by": "eos"}
    rest |= {"latency_s": 0.0, "share_s": 0.0, "batch_size": 1, "batch": ""}
    records = [
        Record(id=str(i), task=task, num_tokens=12, scores={"score": s}, nfe=nfe, **rest)
        for i, (s, task) in enumerate(zip(score, names, strict=True))
    ]
    return Run(Path("run"), {"decoder": {}, "suite": {}}, {"choices": {}}, records)


@pytest.mark.parametrize(
    ("level", "expected"),
    [(1.0, 1.0), (0.9, 2.0), (0.85, 2.5), (0.8, 3.0), (0.5, 4.0), (0.1, 4.0)],
)
def test_the_curve_is_linear_between_its_points(level: float, expected: float) -> None:
    tpf, score = np.array([3.0, 1.0, 2.0, 4.0]), np.array([0.8, 1.0, 0.9, 0.5])
    assert speed_at(tpf, score, level) == pytest.approx(expected)


def test_a_level_above_the_curve_is_not_reached_and_the_fastest_crossing_counts() -> None:
    assert np.isnan(speed_at(np.array([1.0, 2.0]), np.array([0.5, 0.4]), 0.6))
    assert speed_at(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 0.5, 1.0, 0.0]), 0.75) == pytest.approx(3.25)


def test_equal_curves_have_no_lead_and_a_faster_one_has_it_surely() -> None:
    good, bad = [1.0] * 95 + [0.0] * 5, [1.0] * 60 + [0.0] * 40
    curves = {
        "threshold": [run([1.0] * 100, 12), run(good, 6), run(bad, 4)],
        "same": [run([1.0] * 100, 12), run(good, 6), run(bad, 4)],
        "faster": [run([1.0] * 100, 6), run(good, 3), run(bad, 2)],
        "poor": [run(bad, 4)],
    }
    table = speeds(curves, "threshold")
    for level, speed in table["same"].items():
        assert speed.lead is not None and speed.lead.value == 0 and speed.lead.ci_low <= 0 <= speed.lead.ci_high
        faster = table["faster"][level]
        assert faster.tpf is not None and faster.lead is not None and speed.tpf is not None
        assert faster.tpf.value == pytest.approx(2 * speed.tpf.value) and faster.lead.ci_low > 0
        assert table["poor"][level].tpf is None


def test_samples_are_drawn_within_their_task() -> None:
    # task b always fails: drawing over all samples would move the score, drawing within tasks cannot
    score, tasks = [1.0] * 10 + [0.0] * 10, ["a"] * 10 + ["b"] * 10
    table = speeds({"threshold": [run(score, 12, tasks), run(score, 6, tasks)]}, "threshold")
    speed = table["threshold"][0.99].tpf
    assert speed is not None and speed.value == speed.ci_low == speed.ci_high == 2


def test_one_sweep_is_enough_for_an_answer() -> None:
    runs = [run([1.0] * 50, 12), run([1.0] * 50, 6), run([1.0] * 50, 4)]
    equal = equal_quality(runs, ["threshold", "threshold", "credit"])
    assert equal is not None and equal.winner == "credit" and list(equal.rows) == ["credit", "threshold"]
    assert equal_quality(runs, ["threshold", "eb", "credit"]) is None


def test_decoders_that_reach_no_level_are_named_in_one_sentence() -> None:
    runs = [run([1.0] * 50, 12), run([1.0] * 50, 6), run([0.0] * 50, 3)]
    curves = ["threshold", "threshold", "eb"]
    equal = equal_quality(runs, curves)
    assert equal is not None
    lines = equal_quality_lines(equal, runs, ["a", "b", "c"], curves)
    assert [line.split(" |")[0] for line in lines if line.startswith("| ")] == ["| decoder", "| ---", "| threshold"]
    assert any(line.endswith("No level is reached by eb.") for line in lines)


def test_other_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="other samples"):
        speeds({"threshold": [run([1.0], 2)], "x": [run([1.0, 1.0], 2)]}, "threshold")
