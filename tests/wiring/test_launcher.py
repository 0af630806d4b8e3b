"""launcher=local: a sweep on several workers writes what the same sweep writes in turn, whatever is killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import SMALL, samples

SWEEP = ["run", "-m", "decoder=threshold", "decoder.rule.tau=0.5,0.9", "cache=none,dual", *SMALL, "out_dir=runs"]


def folders(path: Path) -> dict[str, list[dict]]:
    return {info.parent.name: samples(info.parent) for info in sorted(path.glob("runs/*/run.json"))}


@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_a_sweep_on_workers_equals_one_in_turn(cli, tmp_path: Path, workers: int) -> None:
    assert cli(*SWEEP)[0] == 0
    in_turn = folders(tmp_path)
    assert len(in_turn) == 4
    (tmp_path / "runs").rename(tmp_path / "before")
    code, out, _ = cli(*SWEEP, "launcher=local", f"hydra.launcher.workers={workers}")
    assert code == 0 and folders(tmp_path) == in_turn
    heads = [line for line in out.splitlines() if line.startswith("task ")]
    assert len(heads) == 4 and all(f"runs/{name}" in out for name in in_turn)


@pytest.mark.slow
def test_one_that_is_refused_does_not_keep_the_others(cli, tmp_path: Path) -> None:
    sweep = ["run", "-m", "cache=none,block", *SMALL, "out_dir=runs"]  # that tiny has no blocks, its worker finds out
    code, _, err = cli(*sweep, "launcher=local", "hydra.launcher.workers=2")
    assert code == 2 and "error: cache=block" in err and "Traceback" not in err
    assert len(folders(tmp_path)) == 1


@pytest.mark.parametrize("launcher", ["basic", "local"])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("decoder.rule.taux=0.7,0.8", "unknown setting 'decoder.rule.taux'; did you mean 'decoder.rule.tau'?"),
        ("decodr=credit,threshold", "unknown setting 'decodr'; did you mean 'decoder'?"),
        ("sutie.lengths=[3],[4]", "unknown setting 'sutie.lengths'; did you mean 'suite.lengths'?"),
        ("decoder=credit,treshold", "unknown decoder 'treshold'; did you mean 'threshold'?"),
        ("~limt", "unknown setting 'limt'; did you mean 'limit'?"),
    ],
)
def test_a_sweep_over_what_is_not_there_writes_nothing(
    cli, tmp_path: Path, wrong: str, words: str, launcher: str
) -> None:
    code, out, err = cli("run", "-m", wrong, *SMALL, "cache=none,dual", f"launcher={launcher}")
    assert code == 2 and err.startswith(f"error: {words}") and err.count("\n") == 1 and not out
    assert not list(tmp_path.iterdir())


def test_impossible_numbers_of_workers_are_refused(cli) -> None:
    code, _, err = cli(*SWEEP, "launcher=local", "hydra.launcher.workers=0")
    assert code == 2 and "workers=0 of LocalLauncher; give a whole number" in err


def sweep(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "parallelbench", *SWEEP, "limit=40", "launcher=local", "hydra.launcher.workers=2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with open(folder / "log.txt", "a") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def children(pid: int) -> list[int]:
    done = subprocess.run(["pgrep", "-P", str(pid), "-f", "spawn_main"], capture_output=True, text=True, check=False)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(10))
def test_kills_at_random_times_lose_nothing(tmp_path: Path, trial: int) -> None:
    """Five kill a worker, five the parent; the repeated command ends like an undisturbed sweep."""
    rng = random.Random(trial)
    (tmp_path / "whole").mkdir()
    process = sweep(tmp_path / "whole")
    assert process.wait(600) == 0
    (tmp_path / "cut").mkdir()
    process = sweep(tmp_path / "cut")
    deadline = time.monotonic() + rng.uniform(5, 20)
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    if process.poll() is None:
        workers = children(process.pid)
        os.kill(rng.choice(workers) if trial % 2 and workers else process.pid, signal.SIGKILL)
    process.wait(600)
    process = sweep(tmp_path / "cut")
    assert process.wait(600) == 0
    assert folders(tmp_path / "cut") == folders(tmp_path / "whole")
    infos = [json.loads(path.read_text()) for path in (tmp_path / "cut").glob("runs/*/run.json")]
    assert len(infos) == 4 and all(info["status"] == "done" for info in infos)
