"""The leaderboard: one row per curve however often it was copied, and only like beside like."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from conftest import SMALL

HEADER = "model,strategy,task,tokens_per_step,score\n"
V1 = f"{HEADER}dream,confidence-threshold,avg,12.0,70\ndream,confidence-threshold,avg,6,85\n"
V2 = f"{HEADER}dream,confidence-threshold,avg,7.2,70\ndream,confidence-threshold,avg,4,85\n"


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def sweep(cli, *more: str, out_dir: str = "a") -> None:
    assert cli("run", "-m", "decoder=fixed", "decoder.rule.k=1,4,8", *SMALL, f"out_dir={out_dir}", *more)[0] == 0


def test_copies_are_one_row_and_conflicts_are_named(cli, tmp_path: Path) -> None:
    sweep(cli)
    assert cli("run", "decoder=threshold", *SMALL, "out_dir=a/threshold")[0] == 0
    shutil.copytree("a", "b/from_another_machine")
    code, _, _ = cli("leaderboard", "a", "b", "out_dir=results/leaderboard")
    assert code == 0
    first = rows(tmp_path / "results/leaderboard/leaderboard.csv")
    assert sorted(row["decoder"] for row in first) == ["fixed", "threshold"]
    assert {row["decoder"]: row["runs"] for row in first} == {"fixed": "3", "threshold": "1"}
    threshold = next(row for row in first if row["decoder"] == "threshold")
    info = json.loads(Path("a/threshold/run.json").read_text())
    assert float(threshold["score %"]) == pytest.approx(100 * info["metrics"]["all"]["score"]["value"])
    assert threshold["n"] == "6" and threshold["device"].startswith(info["device"])
    assert threshold["commit"].rstrip("+") == info["git"]["commit"][:7]
    if float(threshold["score %"]) == 100:
        speed = float(threshold["TPF at 99 % of the best"])
        assert speed == pytest.approx(info["metrics"]["all"]["tpf"]["value"])
        assert threshold["rank"] == "1"
    samples = Path("b/from_another_machine/threshold/samples.jsonl")
    lines = samples.read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {"completion": "other", "latency_s": 9.0})
    samples.write_text("\n".join(lines) + "\n")
    code, out, _ = cli("leaderboard", "a", "b", "out_dir=again")
    assert code == 0 and rows(Path("again/leaderboard.csv")) == first
    (line,) = [line for line in out.splitlines() if line.startswith("Left out")]
    assert "b/from_another_machine/threshold is the same run as a/threshold with other results" in line
    assert samples.read_text().startswith(lines[0])  # nothing is touched


def test_tables_are_written_only_where_asked(cli, tmp_path: Path) -> None:
    sweep(cli)
    before = sorted(tmp_path.rglob("*"))
    a, b, *_ = sorted(map(str, Path("a").iterdir()))
    for words in (["leaderboard", "a"], ["analyze", "compare", a, b], ["analyze", "order", "a"]):
        code, out, err = cli(*words)
        assert code == 0 and out, err
    assert sorted(tmp_path.rglob("*")) == before


def test_unlike_runs_get_tables_of_their_own(cli, tmp_path: Path) -> None:
    sweep(cli)
    sweep(cli, "seed=1")
    sweep(cli, "suite.lengths=[3]")
    info = Path("a") / next(
        config.parent.name for config in Path("a").glob("*/config.yaml") if "seed: 0" in config.read_text()
    )
    shutil.copytree(info, "old")
    samples = (Path("old") / "samples.jsonl").read_text().replace('"task_version": "1"', '"task_version": "0"')
    (Path("old") / "samples.jsonl").write_text(samples)  # an older version of the same tasks
    code, out, _ = cli("leaderboard", "a", "old", "out_dir=results/leaderboard")
    tables = {row["table"] for row in rows(tmp_path / "results/leaderboard/leaderboard.csv")}
    assert code == 0 and len(tables) == 4 and out.count("\n## ") == 4
    assert sum("version 0" in table for table in tables) == 1 and sum("seed=1" in table for table in tables) == 1


def test_published_tables_stay_by_generation(cli, tmp_path: Path) -> None:
    Path("v1.csv").write_text(V1)
    Path("v2.csv").write_text(V2)
    board = {"confidence-threshold": {"80": 5.0, "75": 6.13, "70": 7.2}, "apd": {"80": 9, "75": 9.5, "70": 9.9}}
    Path("dream.json").write_text(json.dumps({"thresholds": [80, 75, 70], "results": board}))
    sweep(cli)
    code, out, _ = cli("leaderboard", "a", "csv=v1.csv,v2.csv", "leaderboard=dream.json", "out_dir=results/leaderboard")
    assert code == 0
    table = rows(tmp_path / "results/leaderboard/leaderboard.csv")
    by_table = {name: [row for row in table if row["table"] == name] for name in {row["table"] for row in table}}
    assert len(by_table) == 3
    v2 = by_table["ParallelBench v2, published"]
    assert [(row["rank"], row["decoder"]) for row in v2] == [("1", "apd"), ("2", "confidence-threshold")]
    assert float(v2[1]["PB80"]) == 5.0 and "v2.csv, which says other than dream.json" in out  # 5.07 from the curve
    assert [float(row["PB70"]) for row in by_table["ParallelBench v1, published"]] == [12.0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "nothing to rank"),
        (["csv=none.csv"], "no file none.csv"),
        (["nowhere"], "no run"),
        (["x=1"], "unknown option"),
    ],
)
def test_mistakes_cost_a_sentence(cli, given: list[str], words: str) -> None:
    code, _, err = cli("leaderboard", *given)
    assert code == 2 and words in err and "Traceback" not in err and not Path("results").exists()
