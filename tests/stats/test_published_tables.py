"""PBx of published tables: the leaderboard from the published curves where they are at hand, small tables by hand."""

import csv
import json
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
from test_sweep_scores import write_run

from parallelbench.stats import protocol
from parallelbench.stats.protocol import deviations
from parallelbench.stats.published import TOP_K, pbx_table, read_tables

HEADER = "model,strategy,task,tokens_per_step,score"
SMALL = f"""{HEADER}
m,confidence-threshold,avg,3,70
m,confidence-threshold,avg,1,90
m,confidence-threshold,avg,2,60
m,confidence-threshold,avg,2,80
m,confidence-threshold,waiting_line-copy,9,100
m,confidence-topk,avg,1,90
m,confidence-topk,avg,2,78
m,confidence-topk,avg,4,72
"""
LEADERBOARD_V2 = """
diffucoder confidence-factor 0 0 0
diffucoder confidence-threshold 0 0 1.835
diffucoder confidence-topk 0 0 0
diffucoder entropy-topk 0 0 0
diffucoder l2r 0 0 0
diffucoder random 0 0 0
diffucoder topk-margin 0 0 0
dream confidence-factor 5.171 6.485 7.376
dream confidence-threshold 5.625 6.417 7.201
dream confidence-topk 2.000 2.000 2.000
dream entropy-topk 1.000 2.000 2.000
dream klass 3.683 3.683 3.683
dream l2r 1.000 1.000 1.000
dream random 0 2.000 4.000
dream topk-margin 2.000 2.000 2.000
llada10 confidence-factor 0 4.822 5.757
llada10 confidence-threshold 4.017 4.742 5.290
llada10 confidence-topk 1.000 1.000 2.000
llada10 entropy-topk 1.000 1.000 1.000
llada10 l2r 0 1.000 1.000
llada10 random 0 0 1.000
llada10 topk-margin 1.000 1.000 2.000
llada15 confidence-factor 4.052 4.970 5.655
llada15 confidence-threshold 4.087 4.824 5.418
llada15 confidence-topk 1.000 1.000 2.000
llada15 dus 0 1.083 1.343
llada15 entropy-topk 1.000 1.000 1.000
llada15 klass 3.250 3.250 3.250
llada15 l2r 0 1.000 1.000
llada15 random 0 0 1.000
llada15 slowfast 4.240 4.537 4.797
llada15 topk-margin 1.000 1.000 2.000
llada15 wino 5.916 6.398 6.930
"""
EXACT = {
    ("dream", "confidence-threshold", 80): 5.625042686151871,
    ("dream", "confidence-threshold", 75): 6.416725490342204,
    ("dream", "confidence-threshold", 70): 7.201046336485695,
    ("dream", "confidence-factor", 80): 5.17058035460145,
    ("llada15", "confidence-threshold", 80): 4.08744227760899,
    ("llada15", "dus", 75): 1.0825688073394497,  # two configurations of equal speed count as the better one
}


def reference(name: str) -> Path:
    """A published table, which the repository does not hold: in PARALLELBENCH_REFERENCE or beside the repository."""
    beside = Path(__file__).parents[3] / "shared" / "reference"
    path = Path(os.environ.get("PARALLELBENCH_REFERENCE", beside)) / name
    if not path.exists():
        pytest.skip(f"no {name}; name its folder in PARALLELBENCH_REFERENCE")
    return path


def by_hand(points: list[tuple[float, float]], level: int, discrete: bool) -> float:
    """PBx as the leaderboard computes it: from the fastest point down to the first pair around the level."""
    if discrete:
        return max((x for x, y in points if y >= level), default=0.0)
    best: dict[float, float] = {}
    for x, y in points:
        best[x] = max(y, best.get(x, y))
    line = sorted(best.items(), reverse=True)
    if line[0][1] >= level:
        return line[0][0]
    for (x1, y1), (x0, y0) in pairwise(line):
        if y0 >= level > y1:
            return x0 + (x1 - x0) * (y0 - level) / (y0 - y1)
    return 0.0


def pbx_rows(folder: Path) -> dict[tuple[str, str, int], float]:
    rows = csv.DictReader((folder / "pbx.csv").read_text().splitlines())
    return {(row["model"], row["strategy"], x): float(row[str(x)]) for row in rows for x in (80, 75, 70)}


def test_the_v2_leaderboard_comes_out_of_the_published_curves(cli, tmp_path: Path) -> None:
    path = reference("parallelbench_v2_reference.csv")
    code, _, _ = cli("analyze", "pbx", f"csv={path}", "out_dir=out")
    found = pbx_rows(tmp_path / "out")
    assert code == 0 and len(found) == 99
    for line in LEADERBOARD_V2.split("\n")[1:-1]:
        model, strategy, *values = line.split()
        for level, value in zip((80, 75, 70), values, strict=True):
            assert found[model, strategy, level] == pytest.approx(float(value), abs=5.01e-4)
    for key, value in EXACT.items():
        assert found[key] == pytest.approx(value, abs=1e-9)
    rows = [row for row in csv.DictReader(path.read_text().splitlines()) if row["task"] == "avg"]
    for model, strategy, level in found:
        points = [
            (float(r["tokens_per_step"]), float(r["score"]))
            for r in rows
            if r["strategy"] == strategy and r["model"] == model
        ]
        assert found[model, strategy, level] == pytest.approx(by_hand(points, level, strategy in TOP_K), abs=1e-9)


def test_the_v1_table_is_known_as_such_and_linear_for_every_strategy() -> None:
    tables = read_tables([reference("parallelbench_v1_reference.csv")], [])
    found = pbx_table(tables.curves, tables.generation)
    assert tables.generation == "v1" and len(found) == 85
    published = {
        "confidence-threshold": (8.92, 10.85, 12.0),
        "confidence-topk": (0, 1.79, 2.37),
        "l2r": (0, 1.19, 1.48),
    }
    for strategy, values in published.items():
        assert [found["dream", strategy][level] for level in (80, 75, 70)] == pytest.approx(values, abs=5.01e-3)


def test_a_small_table_by_hand_in_both_generations(cli, tmp_path: Path) -> None:
    (tmp_path / "small.csv").write_text(SMALL)
    topk = {"v1": [1 + 10 / 12, 3, 4], "v2": [1, 2, 4]}  # linear between points, and at points alone
    for generation, expected in topk.items():
        code, out, _ = cli("analyze", "pbx", "csv=small.csv", f"generation={generation}", f"out_dir={generation}")
        found = pbx_rows(tmp_path / generation)
        assert code == 0 and re.search("confidence-threshold +2.000 +2.500 +3.000", out)
        assert [found["m", "confidence-threshold", x] for x in (80, 75, 70)] == [2, 2.5, 3]
        assert [found["m", "confidence-topk", x] for x in (80, 75, 70)] == pytest.approx(expected)
        assert (tmp_path / generation / "published.png").exists()


def test_the_sites_layout_and_the_leaderboards_numbers_beside_the_computed(cli, tmp_path: Path) -> None:
    (tmp_path / "site" / "dream").mkdir(parents=True)
    (tmp_path / "site" / "dream" / "confidence-threshold.csv").write_text("task,tps,accuracy\navg,4,85\navg,7.2,70\n")
    board = {"confidence-threshold": {"80": 5.0, "75": 6.13, "70": 7.2}, "apd": {"80": 0, "75": 1.5, "70": 2}}
    (tmp_path / "dream.json").write_text(json.dumps({"thresholds": [80, 75, 70], "results": board}))
    code, out, _ = cli("analyze", "pbx", "csv=site", "leaderboard=dream.json", "out_dir=out")
    found = pbx_rows(tmp_path / "out")
    assert code == 0 and "## Published, v2" in out and found["dream", "apd", 75] == 1.5
    assert found["dream", "confidence-threshold", 75] == pytest.approx(4 + 3.2 * 10 / 15)
    assert "2 of 3 entries equal the leaderboard's: dream confidence-threshold PB80 5.07, leaderboard 5.00" in out


TASKS = [f"t{i:02}" for i in range(17)]
V1 = {"suite": "parallelbench.OfficialSuite", "tasks": TASKS, "version": "v1-aa-bb+1+languagetool-6.6"}
AR = {"is_autoregressive": True}


def test_own_runs_stand_beside_published_ones_of_their_generation_only(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "NUM_ROWS", {"v1": 34, "v2": 34})
    (tmp_path / "small.csv").write_text(SMALL)
    for name, suite in {"v1": "parallelbench.OfficialSuite", "own": "parallelbench.Suite"}.items():
        for score, nfe, tau in (([1.0] * 34, 16, 0.9), ([1.0] * 17 + [0.0] * 17, 8, 0.8)):
            write_run(tmp_path / name / str(nfe), score, nfe, tau, **V1 | {"suite": suite})
    for stop in ("never", "strict_eos"):
        write_run(tmp_path / "two" / stop, [1.0] * 34, 16 - len(stop), 0.9, choices={"stop": stop}, **V1)
    stop = "threshold stop=strict_eos: stop=strict_eos, published runs decode the whole canvas (stop=never)"
    for runs, generation, enters, reason in (
        ("v1", "v1", "threshold", None),
        ("v1", "v2", None, "suite=mine is v1 data, the numbers are v2's"),
        ("own", "v1", None, "suite=mine is not ParallelBench's data"),
        ("two", "v1", "threshold stop=never", stop),
    ):
        code, out, _ = cli("analyze", "pbx", runs, "csv=small.csv", f"generation={generation}", "out_dir=out")
        table = csv.DictReader((tmp_path / "out" / "pbx.csv").read_text().splitlines())
        assert code == 0 and [row["strategy"] for row in table][2:] == [enters] * (enters is not None)
        assert (tmp_path / "out" / "pbx.md").read_text().count("(your runs)") == (enters is not None)
        assert (f"Not comparable with published numbers: {reason}." in out) == ("Not comparable" in out) == bool(reason)


@pytest.mark.parametrize(
    ("changed", "rows", "reasons"),
    [
        ({}, 1708, []),
        ({}, 1700, ["1700 of 1708 rows were decoded"]),
        ({"tasks": TASKS[1:]}, 1708, ["suite=mine ran with 16 tasks, the published means are over 17"]),
        ({"version": "v1-unpublished-aa-bb+1"}, 1708, ["its data are not the published files"]),
        ({"version": "v1-aa-bb+1+harper-2"}, 1708, ["harper-2 checks grammar, not LanguageTool"]),
        ({"choices": {"cache": "dual"}}, 1708, ["cache=dual, published runs have none"]),
        ({"config": {"gen_length": 32}}, 1708, ["gen_length=32, published runs have gen_length=null"]),
        ({"config": {"block_length": 8}}, 1708, ["block_length=8, published runs have block_length=null"]),
        (
            {"config": {"block_length": 8}, "info": {"block_is_knob": True}},
            1708,
            [],  # DUS is published by its block
        ),
        ({"decoder": {"temperature": 0.5}}, 1708, ["temperature=0.5, published runs are greedy"]),
        (
            {"info": {"dtype": "float32"}},
            1708,
            ["dtype=float32, published runs have bfloat16, whose confidences tie where others differ"],
        ),
        (
            {"choices": {"model": "dream"}, "info": {"commits_k": True}},
            1708,
            [
                "it commits k tokens per step, published runs of Dream follow its time schedule (decoder=dream "
                "decoder.rule.per_step=K)"
            ],
        ),
        ({"choices": {"model": "dream"}, "info": {"fixed_number": True}}, 1708, []),
        ({"info": AR, "config": {"gen_length": 1024}, "choices": {"stop": "strict_eos"}}, 1708, []),
        ({"info": AR}, 1708, ["gen_length=None, published runs have gen_length=1024"]),
    ],
)
def test_what_keeps_a_run_from_a_published_table(tmp_path: Path, changed: dict, rows: int, reasons: list[str]) -> None:
    assert deviations(write_run(tmp_path / "run", [1.0] * rows, 8, 0.9, **V1 | changed), "v1") == reasons


def test_an_adaptive_run_shares_no_batchs_forwards_with_v2(tmp_path: Path) -> None:
    v2 = {"suite": "parallelbench.OfficialV2Suite", "tasks": TASKS}
    run = write_run(tmp_path / "threshold", [1.0] * 1700, 8, 0.9, **v2)
    assert deviations(run, "v2") == ["its forwards are each sample's own, the v2 leaderboard counts those of a batch"]
    fixed = {"fixed_number": True}
    assert deviations(write_run(tmp_path / "fixed", [1.0] * 1700, 8, 0.9, info=fixed, **v2), "v2") == []


def test_generations_are_never_mixed(tmp_path: Path) -> None:
    two, one = tmp_path / "two.csv", tmp_path / "dream.json"
    two.write_text(f"{HEADER}\ndream,confidence-threshold,avg,4,85\ndream,confidence-threshold,avg,7.2,70\n")
    results = {"confidence-threshold": {"80": 8.92, "75": 10.85, "70": 12.0}}
    one.write_text(json.dumps({"thresholds": [80, 75, 70], "results": results}))
    assert read_tables([two], []).generation == "v2" and read_tables([], [one]).generation == "v1"
    with pytest.raises(ValueError, match=r"v1 .*dream\.json.* and v2 .*two\.csv.* cannot stand side by side"):
        read_tables([two], [one])
    with pytest.raises(ValueError, match="generation=v1, but the table is of v2"):
        read_tables([two], [], "v1")
    small = tmp_path / "small.csv"
    small.write_text(SMALL)
    with pytest.raises(ValueError, match="give generation=v1 or generation=v2"):
        read_tables([small], [])
    with pytest.raises(ValueError, match=r"copy\.csv is the second file that holds m confidence-threshold"):
        (tmp_path / "copy.csv").write_text(SMALL)
        read_tables([small, tmp_path / "copy.csv"], [], "v2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no column model, strategy, task, tokens_per_step, score"),
        ("model,strategy,task,score\n", "has no column tokens_per_step"),
        (f"{HEADER}\n", "has no rows below its header"),
        (f"{HEADER}\nm,s,avg,1,80\nm,s,avg,2\n", "line 3 of .*bad.csv has 4 cells, the header 5"),
        (f"{HEADER}\nm,s,avg,fast,80\n", "line 2 of .*bad.csv: tokens_per_step is 'fast', not a number"),
        (f"{HEADER}\nm,s,avg,1,nan\n", "line 2 of .*bad.csv: score is 'nan', not a number"),
        (f"{HEADER}\nm,s,avg,-1,80\n", "line 2 of .*bad.csv: tokens_per_step is '-1', not a number of at least 0"),
        (f"{HEADER}\nm,s,avg,0,80\n", "line 2 of .*bad.csv has 0 tokens per step"),
        (f"{HEADER}\nm,s,avg,1,800\n", "line 2 of .*bad.csv has 1 tokens per step and score 800"),
        (f"{HEADER}\n\nm,,avg,1,80\n", "line 3 of .*bad.csv has an empty name"),
        (f'{HEADER}\nm,"s,avg,1,80\n', "bad.csv is not a CSV file"),
        (f"{HEADER}\nm,s,waiting_line-copy,1,80\n", "has no 'avg' rows for m s"),
    ],
)
def test_malformed_tables_are_refused_with_their_line(cli, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "bad.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_tables([tmp_path / "bad.csv"], [], "v2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "m.json is not valid JSON"),
        ("[]", "m.json is no leaderboard file"),
        ('{"thresholds": [90], "results": {}}', "m.json is no leaderboard file"),
        (
            '{"thresholds": [80, 75, 70], "results": {"s": {"80": 1}}}',
            "s does not have one number for each of 80, 75, 70",
        ),
        (
            '{"thresholds": [80, 75, 70], "results": {"s": {"80": 1, "75": 2, "70": null}}}',
            "m.json: s is None, not a number",
        ),
    ],
)
def test_malformed_leaderboards_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "m.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_tables([], [tmp_path / "m.json"], "v2")


def test_missing_files_are_named(cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for argument, message in (
        ("csv=none.csv", "there is no file none.csv"),
        ("leaderboard=empty", "empty holds no .json"),
    ):
        code, _, err = cli("analyze", "pbx", argument)
        assert code == 2 and message in err and not (tmp_path / "results").exists()
