"""Runs end to end on the shipped model: files, resume, refusals, sweeps, plug-ins, reports. In one process where
possible."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import SMALL, samples
from hydra.utils import get_object

from parallelbench.__main__ import main
from parallelbench.records.record import read_run
from parallelbench.stats.metrics import METRICS


def test_a_run_writes_config_info_and_samples(cli, tmp_path: Path) -> None:
    code, out, _ = cli("run", "decoder=credit", *SMALL, "out_dir=here")
    assert code == 0 and out.strip().splitlines()[-1] == "here"
    info = json.loads((tmp_path / "here" / "run.json").read_text())
    assert info["status"] == "done"
    assert set(info["metrics"]) == {"waiting_line/copy", "waiting_line/shuffle", "all"}
    for row in info["metrics"].values():
        assert set(row) >= METRICS.keys()
        assert all(set(value) == {"value", "ci_low", "ci_high", "n"} for value in row.values())
        assert 0 <= row["score"]["value"] <= 1
    assert len(samples(tmp_path / "here")) == 6
    assert "decoders.Credit" in (tmp_path / "here" / "config.yaml").read_text()


def test_the_same_command_finds_a_finished_run(cli, tmp_path: Path) -> None:
    _, first, _ = cli("run", *SMALL)
    folder = tmp_path / first.strip().splitlines()[-1]
    before = (folder / "samples.jsonl").read_bytes(), (folder / "run.json").read_bytes()
    code, again, _ = cli("run", *SMALL)
    assert code == 0 and again.strip().splitlines()[-1] == first.strip().splitlines()[-1]
    assert before == ((folder / "samples.jsonl").read_bytes(), (folder / "run.json").read_bytes())


@pytest.mark.parametrize("keep", [0, 1, 3, 5, 6])
@pytest.mark.parametrize("torn", [False, True])
def test_an_unfinished_run_is_resumed_to_the_same_samples(cli, tmp_path: Path, keep: int, torn: bool) -> None:
    cli("run", *SMALL, "out_dir=whole")
    cli("run", *SMALL, "out_dir=cut")
    folder = tmp_path / "cut"
    lines = (folder / "samples.jsonl").read_bytes().splitlines(keepends=True)
    rest = lines[keep][:-20] if torn and keep < 6 else b""
    (folder / "samples.jsonl").write_bytes(b"".join(lines[:keep]) + rest)
    info = json.loads((folder / "run.json").read_text()) | {"status": "partial"}
    (folder / "run.json").write_text(json.dumps(info))
    code, _, _ = cli("run", *SMALL, "out_dir=cut")
    assert code == 0 and read_run(folder).info["status"] == "done"
    assert sorted(samples(folder), key=lambda r: r["id"]) == sorted(samples(tmp_path / "whole"), key=lambda r: r["id"])


def test_a_report_leaves_unfinished_runs_out(cli, tmp_path: Path) -> None:
    cli("run", *SMALL, "out_dir=runs/whole")
    cli("run", *SMALL, "decoder=credit", "out_dir=runs/cut")
    folder = tmp_path / "runs" / "cut"
    (folder / "samples.jsonl").write_bytes(b"".join((folder / "samples.jsonl").read_bytes().splitlines(True)[:2]))
    info = json.loads((folder / "run.json").read_text()) | {"status": "partial"}
    (folder / "run.json").write_text(json.dumps(info))
    code, out, _ = cli("report", "runs", "out_dir=page")
    assert code == 0 and "Not finished, left out: runs/cut" in out
    assert "\nthreshold tau=0.9 " in out and "\ncredit" not in out
    code, out, _ = cli("report", "runs/cut", "out_dir=page")
    assert code == 0 and "shown as they are" in out


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_samples(cli, tmp_path: Path) -> None:
    arguments = ["limit=20", "batch_size=4", "decoder=fixed"]
    cli("run", *arguments, "out_dir=whole")
    for delay in (0.0, 0.5, 1.5):
        folder = tmp_path / f"killed{delay}"
        command = [sys.executable, "-m", "parallelbench", "run", *arguments, f"out_dir={folder}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (folder / "samples.jsonl").exists():
            time.sleep(0.02)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert len(samples(folder)) < 240
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
        assert sorted(samples(folder), key=lambda r: r["id"]) == sorted(
            samples(tmp_path / "whole"), key=lambda r: r["id"]
        )


def test_a_run_goes_on_to_a_larger_limit(cli, tmp_path: Path) -> None:
    arguments = ["run", "suite.tasks=[waiting_line/copy,puzzle/sudoku_n4]", "out_dir=run", "batch_size=2"]
    cli(*arguments, "limit=1")
    few = samples(tmp_path / "run")
    cli(*arguments, "limit=3")
    cli(*arguments[:2], "out_dir=whole", "batch_size=2", "limit=3")
    more = samples(tmp_path / "run")
    assert [r for r in more if r["id"].endswith("/0")] == few
    assert {r["id"]: r["completion"] for r in more} == {r["id"]: r["completion"] for r in samples(tmp_path / "whole")}
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["limit"] == 3
    code, _, err = cli(*arguments, "limit=2")
    assert code == 2 and "limit=3, not 2" in err
    assert samples(tmp_path / "run") == more


def test_a_sweep_goes_on_to_a_larger_limit(cli, tmp_path: Path) -> None:
    """In its folders; with a smaller limit it begins anew beside them."""
    sweep = ["run", "-m", "decoder=fixed", "decoder.rule.k=1,2", "suite.tasks=[waiting_line/copy]", "out_dir=a"]

    def folders(limit: int) -> dict[str, list]:
        assert cli(*sweep, f"limit={limit}")[0] == 0
        return {folder.name: samples(folder) for folder in (tmp_path / "a").iterdir()}

    first = folders(2)
    assert folders(2) == first and len(first) == 2
    for name in first:  # a copy is left alone
        shutil.copytree(tmp_path / "a" / name, tmp_path / "a" / f"{name}-copy")
    grown = folders(3)
    for name in first:
        assert len(grown[name]) == 3 and grown[f"{name}-copy"] == first[name]
        shutil.rmtree(tmp_path / "a" / f"{name}-copy")
    grown = folders(4)
    assert grown.keys() == first.keys()
    assert all(len(grown[name]) == 4 and all(one in grown[name] for one in first[name]) for name in first)
    assert folders(4) == grown
    beside = folders(2)  # where the name that it would have is taken, by what has grown
    assert {name: beside[name] for name in grown} == grown
    assert sorted(len(there) for there in beside.values()) == [2, 2, 4, 4]
    assert folders(2) == beside
    assert sorted(map(len, folders(3).values())) == [3, 3, 4, 4]


@pytest.mark.usefixtures("as_a_user_has_it")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decoder=sledgehammer"], "unknown decoder 'sledgehammer'; `parallelbench list decoder`"),
        (["decoder=credit", "decoder.rule.tau=-1.0"], "error: decoder.rule.tau=-1.0; give a number in (0, 1e6]"),
        (["decoder=fixed", "decoder.rule.k=0"], "error: decoder.rule.k=0; give a whole number"),
        (["decoder=prophet", "decoder.rule.gaps=[3,nan,1]"], "error: decoder.rule.gaps[1]=nan; give a number in"),
        (["decoder=credit", "decoder.transforms.0.beta=abc"], "error: decoder.transforms.0.beta='abc'; give a num"),
        (["cache=interval", "cache.refresh_every=0"], "error: cache.refresh_every=0; give a whole number"),
        (["decoder=wino", "cache=dual"], "needs cache=none"),
        (["suite.tasks=[waiting_line/nap]"], "unknown task 'waiting_line/nap'"),
        (["gen_length=40"], "gen_length=40 is not a multiple of block_length=32; use gen_length=32"),
        (["gen_length=many"], "gen_length='many'; give a whole number"),
        (["cache=block"], "needs a block-causal model"),
        (["model=local", "model.name_or_path=/nowhere"], "cannot load model '/nowhere'"),
        (["limit=0"], "limit=0"),
        (["batch_size=0"], "batch_size=0"),
        (["seed=2147483648"], "seed=2147483648; give a whole number in [0, 2147483648)"),
        (["decoder.rule.taau=1"], "unknown setting 'decoder.rule.taau'; did you mean 'decoder.rule.tau'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(cli, tmp_path: Path, arguments: list[str], message: str) -> None:
    code, out, err = cli("run", *SMALL[1:2], *arguments, "out_dir=never")
    assert code == 2 and out == ""
    assert len(err.strip().splitlines()) == 1 and err.startswith("error: ") and message in err
    assert not (tmp_path / "never").exists()


def test_a_directory_of_another_run_is_refused_and_kept(cli, tmp_path: Path) -> None:
    cli("run", *SMALL, "out_dir=mine")
    before = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    code, _, err = cli("run", *SMALL, "seed=1", "out_dir=mine")
    assert code == 2 and "mine holds a run with seed=0, not 1" in err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    code, _, err = cli("run", *SMALL, "out_dir=other")
    assert code == 2 and "is not empty" in err
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_results_of_other_weights_are_not_mixed(cli, tmp_path: Path) -> None:
    cli("run", *SMALL, "out_dir=run")
    path = tmp_path / "run" / "run.json"
    info = json.loads(path.read_text())
    info["identity"]["weights"] = "0" * 16
    path.write_text(json.dumps(info))
    code, _, err = cli("run", *SMALL, "out_dir=run")
    assert code == 2 and "other weights" in err and json.loads(path.read_text()) == info


def test_a_folder_named_conf_does_not_shadow_ours(cli, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "__init__.py").write_text("")
    assert "decoder=credit" in cli("list")[1]
    assert cli("run", *SMALL, "out_dir=run")[0] == 0
    (tmp_path / "taken").write_text("")
    assert "taken is a file" in cli("run", *SMALL, "out_dir=taken")[2]


def test_damaged_records_are_named_and_kept(cli, tmp_path: Path) -> None:
    cli("run", *SMALL, "out_dir=run")
    path = tmp_path / "run" / "samples.jsonl"
    whole = path.read_bytes()
    for damage, message in (
        (whole[:-30], "line 6 of run/samples.jsonl is cut off"),
        (whole.replace(b'"id"', b'"di"', 1), "line 1 of run/samples.jsonl is not a record"),
    ):
        path.write_bytes(damage)
        for command in (["run", *SMALL, "out_dir=run"], ["report", "run"], ["score", "run"]):
            code, _, err = cli(*command)
            assert code == 2 and message in err and len(err.strip().splitlines()) == 1
            assert path.read_bytes() == damage


def test_scores_are_recomputed_from_disk(cli, tmp_path: Path) -> None:
    cli("run", *SMALL, "decoder.rule.tau=0.5", "out_dir=run")
    path = tmp_path / "run" / "samples.jsonl"
    before = samples(tmp_path / "run")
    path.write_text(path.read_text().replace('"score": 1.0', '"score": 0.25').replace('"score": 0.0', '"score": 0.25'))
    code, _, _ = cli("score", "run")
    assert code == 0 and samples(tmp_path / "run") == before


def test_sweep_and_report(cli, tmp_path: Path) -> None:
    code, _, _ = cli("run", "-m", *SMALL, "decoder=fixed,credit", "cache=none,dual")
    assert code == 0
    code, out, _ = cli("report", "results/runs", "out_dir=page")
    assert code == 0 and out.strip().splitlines()[-1] == "page/report.html"
    names = {path.name for path in (tmp_path / "page").iterdir()}
    plots = {
        f"{n}.{ext}"
        for n in ("quality_tpf", "quality_columns", "tasks", "tasks_tpf", "commit_order_slowest", "commit_order_fast")
        for ext in ("png",)
    }
    assert names == plots | {"report.html", "report.md", "summary.csv", "tasks.csv"}
    text = (tmp_path / "page" / "report.md").read_text()
    assert "quality_columns.png" in text
    assert text.count("| fixed k=1 cache=") == 4 and text.count("| credit tau=0.9 cache=") == 4
    with open(tmp_path / "page" / "summary.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted((row["method"], row["knob"]) for row in rows if row["method"].startswith("credit")) == [
        (f"credit cache={cache}", "tau=0.9") for cache in ("dual", "none")
    ]
    assert all(float(row["score_low"]) <= float(row["score"]) <= float(row["score_high"]) for row in rows)
    assert all(float(row["tpf"]) > 0 and row["n"] == rows[0]["n"] for row in rows)


def test_a_refused_job_does_not_stop_a_sweep(cli, tmp_path: Path) -> None:
    """One whose parts do not fit. A value that no job can have stops it before anything is written."""
    code, _, err = cli("run", "-m", *SMALL, "decoder=wino", "cache=dual,none")
    assert code == 2 and err.count("error:") == 1 and "needs cache=none" in err
    assert len(list((tmp_path / "results" / "runs").glob("*/run.json"))) == 1
    code, _, err = cli("run", "-m", *SMALL, "decoder.rule.tau=0.9,0", "out_dir=never")
    assert code == 2 and err.count("error:") == 1 and not (tmp_path / "never").exists()


def test_a_job_that_dies_does_not_stop_a_sweep(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine" / "decoder").mkdir(parents=True)
    (tmp_path / "my_dying.py").write_text(DYING_RULE)
    (tmp_path / "mine" / "decoder" / "dying.yaml").write_text(
        "_target_: decoders.Decoder\nrule: {_target_: my_dying.Dying}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, err = cli("run", "-m", *SMALL, "--config-dir", "mine", "decoder=dying,fixed")
    assert code == 1 and "died of ZeroDivisionError: three is too many" in err and "Traceback" in err
    status = {json.loads(path.read_text())["status"] for path in (tmp_path / "results" / "runs").glob("*/run.json")}
    assert status == {"partial", "done"}
    (kept,) = [path for path in (tmp_path / "results" / "runs").glob("*dying*")]
    assert read_run(kept).records == []


DYING_RULE = """
from dataclasses import dataclass
import torch
from decoders import CommitRule

@dataclass(frozen=True)
class Dying(CommitRule):
    def init(self, shape):
        return {"steps": torch.zeros(shape.batch, 1)}

    def __call__(self, view, candidates, memory):
        memory["steps"] += 1
        if memory["steps"].max() == 3:
            raise ZeroDivisionError("three is too many")
        return view.masked & False
"""


def test_a_decoder_from_outside(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine" / "decoder").mkdir(parents=True)
    (tmp_path / "my_rules.py").write_text(OUTSIDE_RULE)
    (tmp_path / "mine" / "decoder" / "gap.yaml").write_text(
        "_target_: decoders.Decoder\nconfidence: margin\nrule: {_target_: my_rules.Gap, gap: 0.5}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, err = cli("run", *SMALL, "--config-dir", "mine", "decoder=gap", "out_dir=out")
    assert code == 0, err
    assert len(samples(tmp_path / "out")) == 6


OUTSIDE_RULE = """
from dataclasses import dataclass
from decoders import CommitRule

@dataclass(frozen=True)
class Gap(CommitRule):
    gap: float

    def __call__(self, view, candidates, memory):
        return candidates.confidence >= self.gap
"""


def test_choices_are_listed(cli) -> None:
    code, out, _ = cli("list")
    assert code == 0
    for choice in (
        "decoder=credit",
        "cache=dual",
        "stop=strict_eos",
        "model=tiny",
        "suite=default",
        "limit=50",
        "puzzle/sudoku_n4",
    ):
        assert choice in out
    assert cli("frobnicate")[0] == 2
    assert cli("report", "nowhere")[0] == 2
    assert cli()[1].startswith("python -m parallelbench COMMAND")


def test_the_console_script_is_the_command_line(cli) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["parallelbench"].partition(":")
    assert get_object(f"{module}.{function}") is main
    assert cli("--version")[:2] == (0, f"dllm-parallelbench {project['version']}\n")
