"""What a report leads with, which seconds it shows, and what its tables say of few samples."""

from dataclasses import replace as changed
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from test_page import make_run

from parallelbench.records.record import Run, read_run
from parallelbench.report import report
from parallelbench.report.compare import _markdown, compare
from parallelbench.report.page import page_data
from parallelbench.report.report import write_report
from parallelbench.report.sections.equal_quality import about
from parallelbench.stats.curves import curve_names, run_names
from parallelbench.stats.intervals import Value, _shown
from parallelbench.stats.leading import crowned, leading, marked
from parallelbench.stats.metrics import aggregate
from parallelbench.stats.paired import pair
from parallelbench.stats.speed_at_quality import EqualQuality, equal_quality
from parallelbench.stats.table import measured_on
from parallelbench.stats.timing import busy, unreliable

TASKS = ["easy/plain", "hard/plain"]


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of a report's time."""
    monkeypatch.setattr(report.plots, "save", lambda *given: None)
    for name in ("quality_against_tpf", "quality_per_task", "task_bars", "commit_order"):
        monkeypatch.setattr(report.plots, name, lambda *given, **named: None)
    monkeypatch.setattr(report, "write_page", lambda *given: None)


def sweep(num: int = 16) -> list[Run]:
    return [make_run("threshold", tau, "none", TASKS, num, seed=i) for i, tau in enumerate((0.5, 0.7, 0.9))]


def with_decoder(run: Run, name: str, text_of: str = "", **info: object) -> Run:
    choices = run.info["choices"] | {"decoder": name}
    return replace(run, info=run.info | {"choices": choices, "knobs": {}, "text_of": text_of} | info)


def slower(run: Run, factor: float, cpu: float | None = None) -> Run:
    """A run with other seconds. cpu: its CPU seconds to its wall seconds."""
    records = [replace(r, latency_s=factor * r.latency_s, share_s=factor * r.share_s) for r in run.records]
    return replace(run, records=[replace(r, cpu_s=None if cpu is None else cpu * r.share_s) for r in records])


@pytest.mark.parametrize("tries", [1, 2])
def test_small_tries_do_not_take_the_lead(tries: int, tmp_path: Path) -> None:
    small = [make_run("eb", gamma, "none", TASKS[:1], 3, seed=9) for gamma in (0.1, 0.2)[:tries]]
    small = [
        replace(run, records=[replace(r, scores={"score": 1.0, "score_strict": 1.0}) for r in run.records])
        for run in small
    ]
    runs = [*small, *sweep()]
    assert leading(runs) == list(range(tries, tries + 3))
    text = write_report(runs, tmp_path, lambda run: "python -m parallelbench run")
    head = text.partition("## Runs")[0]
    assert "At 97 % of the best score, threshold" in head and "over the same 32 samples" in head
    assert "eb" in head.partition("Over other samples")[2] and "(3 samples)" in head
    names = run_names(runs)
    metrics = {name: aggregate(run.records) for name, run in zip(names, runs, strict=True)}
    equal = equal_quality(runs, curve_names(names, runs))
    data = page_data(runs, metrics, lambda run: "", equal)
    assert [run["is_apart"] for run in data["runs"]] == [True] * tries + [False] * 3  # type: ignore[attr-defined]
    assert data["equal"]["use"] >= tries and "eb" in str(data["apart"])  # type: ignore[index]


def test_verified_text_is_marked_and_not_the_best_by_rounding() -> None:
    run = sweep()[0]
    slow = with_decoder(run, "ar")
    better = [replace(r, scores={"score": 1.0, "score_strict": 1.0}) for r in run.records]
    lookup = replace(with_decoder(run, "prompt_lookup", "ar"), records=better)
    assert marked("p", lookup) == "p (same text as ar)" and marked("a", slow) == "a"
    assert crowned([lookup, slow]) == [1] and crowned([lookup, run]) == [0, 1]  # here nothing else has that text
    ahead = with_decoder(run, "freedave", "threshold tau=0.7")
    assert crowned([ahead, *sweep()]) == [1, 2, 3] and crowned([ahead, sweep()[0]]) == [0, 1]
    elsewhere = with_decoder(run, "linear_spec", "ar", model="another", drafter="tiny")
    assert crowned([elsewhere, slow]) == [0, 1] and crowned([with_decoder(slow, "ar", model="another"), elsewhere]) == [
        0
    ]


def test_seconds_of_a_busy_machine_are_not_shown(tmp_path: Path) -> None:
    idle = [slower(run, 1.0, 0.97) for run in sweep()]
    assert unreliable(idle) == {} and unreliable(sweep()) == {} and busy(idle[0]) == ""  # old records do not say it
    crowded = [*idle[:2], slower(idle[2], 1.0, 0.4)]
    assert list(unreliable(crowded)) == [2] and "on a busy machine (wall time 2.5" in measured_on(crowded[2])
    text = write_report(crowded, tmp_path, lambda run: "")
    rows = [line for line in text.partition("## Runs")[2].splitlines() if line.startswith("| threshold")]
    assert [row.count("\N{EN DASH}") for row in rows[:3]] == [2 * (f"tau={0.9}" in row) for row in rows[:3]]
    assert "Seconds are left out for `threshold tau=0.9`" in text
    on_gpu = replace(crowded[2], info=crowded[2].info | {"device": "cuda, 1 GPU"})
    assert unreliable([on_gpu]) == {}  # a thread that waits for a GPU


def test_seconds_per_forward_that_lie_far_apart_are_not_shown(tmp_path: Path) -> None:
    runs = sweep()
    spread = [*runs[:2], slower(runs[2], 5.0)]
    assert set(unreliable(spread)) == {0, 1, 2}
    other = replace(spread[2], config=spread[2].config | {"batch_size": 1})
    assert unreliable([*spread[:2], other]) == {}
    assert set(unreliable([*spread, other])) == {0, 1, 2, 3}  # of the same machine, with nothing to compare it with
    cached = replace(
        runs[0], records=[replace(r, queried=r.queried // 5, latency_s=r.latency_s / 4) for r in runs[0].records]
    )
    assert unreliable([cached, *runs[1:]]) == {}  # it computes less
    text = write_report(spread, tmp_path, lambda run: "")
    assert "all 3 runs (seconds per forward differ by" in text and "tokens/s" not in text and "latency" not in text
    cells = (tmp_path / "summary.csv").read_text().splitlines()
    place = cells[0].split(",").index("tokens_per_s")
    assert [line.split(",")[place] for line in cells[1:]] == [""] * 3


def test_a_title_names_the_model_that_was_chosen_where_its_folder_makes_several(tmp_path: Path) -> None:
    runs = [
        replace(run, info=run.info | {"model": "smollm2", "choices": run.info["choices"] | {"model": "smollm2_block"}})
        for run in sweep()
    ]
    assert write_report(runs, tmp_path, lambda run: "").startswith("# smollm2-block: 3 runs")
    assert write_report(sweep(), tmp_path, lambda run: "").startswith("# tiny: 3 runs")


def test_no_lead_is_told_where_none_is_shown() -> None:
    assert "its lead over" not in about(EqualQuality(0.9, "threshold", {}, frozenset(), ()))


@pytest.mark.parametrize(
    ("number", "said"),
    [(-0.03, "-<0.05"), (0.03, "+<0.05"), (0.0, "+0.0"), (-1e-15, "+0.0"), (-0.06, "-0.1"), (-4.0, "-4.0")],
)
def test_no_limit_reads_minus_zero(number: float, said: str) -> None:
    assert _shown(number, "+.1f") == said


def test_few_pairs_have_no_interval_in_a_table() -> None:
    few, many = sweep(10)[:2], sweep(20)[:2]
    text = _markdown(few[0], few[1], compare(pair(few)))
    assert text.count("(too few samples)") == 9 and "[" not in text.partition("| task")[2].partition("B - A:")[0]
    rows = _markdown(many[0], many[1], compare(pair(many))).splitlines()
    (all_row,) = [row for row in rows if row.startswith("| all")]
    assert "too few" not in all_row and "[" in all_row


def test_p_and_interval_do_not_disagree_without_a_word() -> None:
    runs = sweep()[:2]
    row = compare(pair(runs))["all"]
    apart, same = Value(-1.7, -4.0, -0.03, 80), Value(-1.7, -4.0, 0.5, 80)
    assert changed(row, difference=apart, p=0.12).is_undecided and changed(row, difference=same, p=0.01).is_undecided
    assert not changed(row, difference=apart, p=0.01).is_undecided
    text = _markdown(runs[0], runs[1], {"all": changed(row, difference=apart, p=0.12)})
    assert "-1.7 [-4.0, -<0.05]" in text and "0.12*" in text and "disagree" in text


def test_a_timed_record_has_the_seconds_of_the_processor(cli, tmp_path: Path) -> None:
    code, out, _ = cli("run", "limit=2", "suite.tasks=[waiting_line/copy]", "out_dir=run")
    assert code == 0 and "measured on" in out
    records = read_run(tmp_path / "run").records
    assert all(record.cpu_s is not None and 0 < record.cpu_s <= 1.2 * record.share_s + 0.01 for record in records)
    assert np.isfinite([record.cpu_s for record in records]).all()  # type: ignore[arg-type]
