"""Processes that write into one results folder at once, and are killed there: no record is corrupted or lost."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import SMALL, samples

from parallelbench.records.lock import LOCK, writing
from parallelbench.records.record import read_run

ROOT = Path(__file__).parents[2]
RUNS, RECORDS = 3, 40
WRITER = """
import os, random, sys, time
from pathlib import Path
from parallelbench.records.facts import Facts
from parallelbench.records.record import *
from parallelbench.records.lock import writing

def record(i):
    text = f"written by {os.getpid()} " + "x" * 5000  # more than a pipe or a page takes at once
    scores = {"score": 1.0, "score_strict": 1.0}
    return Record(str(i), "t", "1", "", prompt_sha(""), {}, "", text, [], 0, scores, 1, 1, [], "eos", 1.0, 1.0, 1, "0")

rng = random.Random(os.getpid())
names = sys.argv[2:]
rng.shuffle(names)
for name in names:
    folder = Path(sys.argv[1]) / name
    config = {"name": name, "decoder": {}, "suite": {}, "batch_size": 1}
    try:
        with writing(folder):
            known = {r.id for r in open_run(folder, config, {})}
            info = {"schema": SCHEMA, "status": "partial", "config_hash": config_hash(config), "choices": {},
                    "model": "m", "device": "cpu", "identity": {}, **vars(Facts())}
            if read_info(folder).get("status") == "done":
                continue
            write_info(folder, info)
            missing = [i for i in range(RECORDS) if str(i) not in known]
            for i in missing:
                SAMPLES.append(folder, [record(i)], rng.choice([None, 0, 1]))
                print("kept", name, i, os.getpid(), flush=True)
                time.sleep(0.01)  # so that kills hit somebody at work
            SAMPLES.rewrite(folder, read_run(folder).records)
            write_info(folder, {**info, "status": "done"})
    except ValueError as error:
        print("refused", error, flush=True)
        time.sleep(0.01)
""".replace("RECORDS", str(RECORDS))


def start(folder: Path, names: Sequence[str]) -> subprocess.Popen:
    command = [sys.executable, "-c", WRITER, str(folder), *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output(process: subprocess.Popen) -> list[list[str]]:
    """The whole lines: a killed process may have been cut off in its last."""
    text, _ = process.communicate(timeout=60)
    return [line.split(" ", 1) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_killed_each_record_is_there_once_as_it_was_written(tmp_path: Path, seed: int) -> None:
    """Four writers of the same three runs at a time, two of them killed, until all is done."""
    rng, names = random.Random(seed), [f"run-{i}" for i in range(RUNS)]
    kept: dict[tuple[str, str], str] = {}
    refused = killed = 0
    for _ in range(30):
        writers = [start(tmp_path, names) for _ in range(4)]
        for writer in rng.sample(writers, 2):
            time.sleep(rng.uniform(0.05, 0.3))
            writer.kill()
        for writer in writers:
            for word, rest in output(writer):
                assert word in ("kept", "refused"), rest
                refused += word == "refused"
                if word == "kept":
                    name, i, pid = rest.split()
                    assert (name, i) not in kept, "what was written is never written again"
                    kept[name, i] = pid
            assert writer.returncode in (0, -signal.SIGKILL)
            killed += writer.returncode != 0
        infos = [tmp_path / name / "run.json" for name in names]
        if all(path.exists() and json.loads(path.read_text())["status"] == "done" for path in infos):
            break
    else:
        raise AssertionError("the runs were never finished")
    assert refused and killed
    for name in names:
        run = read_run(tmp_path / name)
        assert sorted(int(record.id) for record in run.records) == list(range(RECORDS))
        lines = (tmp_path / name / "samples.jsonl").read_text().splitlines()
        assert len(lines) == RECORDS
        for record in run.records:
            pid = kept.get((name, record.id))  # killed between writing it and saying so
            assert pid is None or record.completion.startswith(f"written by {pid} ")


HOLDER = "import sys, time; from pathlib import Path; from parallelbench.records.lock import writing\n"
HOLDER += "with writing(Path(sys.argv[1])): print('held', flush=True); time.sleep(300)"


def test_a_second_process_is_refused_and_a_killed_one_holds_nothing(cli, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, "here"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        code, _, err = cli("run", *SMALL, "out_dir=here")
        assert (
            code == 2
            and f"error: here is being written by process {holder.pid} on " in err
            and "run the command again" in err
        )
        assert [path.name for path in Path("here").iterdir()] == [LOCK]
        holder.kill()
    assert cli("run", *SMALL, "out_dir=here")[0] == 0
    assert sorted(path.name for path in Path("here").iterdir()) == ["config.yaml", "run.json", "samples.jsonl"]
    with writing(Path("here")):
        assert cli("score", "here")[0] == 2
    assert cli("score", "here")[0] == 0


def test_without_locks_a_run_is_written_with_a_warning(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    code, _, err = cli("run", *SMALL, "out_dir=here")
    assert code == 0 and "here cannot be locked (Operation not supported)" in err and len(samples(Path("here"))) == 6


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(3))
def test_command_lines_at_one_run_end_like_one_of_them(cli, tmp_path: Path, trial: int) -> None:
    assert cli("run", *SMALL, "limit=30", "out_dir=alone")[0] == 0
    rng = random.Random(trial)
    command = [sys.executable, "-m", "parallelbench", "run", *SMALL, "limit=30", "out_dir=together"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    logs = []
    for _ in range(4):
        group = [
            subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        time.sleep(rng.uniform(4, 15))
        group[0].kill()
        logs += [(process.communicate(timeout=300)[1], process.returncode) for process in group]
    assert cli("run", *SMALL, "limit=30", "out_dir=together")[0] == 0
    assert samples(tmp_path / "together") == samples(tmp_path / "alone")
    assert {code for _, code in logs} <= {0, 2, -signal.SIGKILL}
    assert all("being written by process" in log for log, code in logs if code == 2)
