"""Several processes decode one run: the same records as one process, whatever is killed, and nobody waits for ever."""

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import SMALL, ended, samples, torchrun
from msgspec.structs import replace

from parallelbench.records.record import SAMPLES, read_run
from parallelbench.run import processes, resume
from parallelbench.run.generator import Generator
from parallelbench.run.job import Job
from parallelbench.run.processes import Processes
from parallelbench.run.resume import OpenJob
from parallelbench.stats.table import run_table
from parallelbench.tasks import Sample


def leave_shards(folder: Path, torn: bool = True) -> None:
    """Makes a finished run of six samples one that three processes were killed in, with four of the samples left."""
    lines = (folder / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "samples.jsonl").write_bytes(lines[0])
    (folder / "samples.0.jsonl").write_bytes(lines[0] + lines[3])  # killed between merging and deleting: line 0 twice
    (folder / "samples.2.jsonl").write_bytes(lines[1] + lines[5] + (lines[2][:-20] if torn else b""))
    info = json.loads((folder / "run.json").read_text()) | {"status": "partial"}
    (folder / "run.json").write_text(json.dumps(info))


def test_two_processes_write_what_one_writes_and_refuse_once(cli, tmp_path: Path) -> None:
    """A sweep of three: the middle one is refused, and nobody waits for a process that is not coming."""
    launched = torchrun(
        tmp_path, 2, "run", "-m", *SMALL, "limit=4", "decoder=threshold,wino,prefix", "cache=dual", "out_dir=two"
    )
    assert cli("run", "-m", *SMALL, "limit=4", "decoder=threshold,wino,prefix", "cache=dual", "out_dir=one")[0] == 2
    assert not torch.distributed.is_initialized()
    code, out = ended(launched)
    assert code != 0 and "exitcode  : 2" in out
    assert [line for line in out.splitlines() if line.startswith("error: ")] == [
        "error: this decoder looks at its tokens in the same forward, which needs cache=none"
    ]
    folders = sorted(path.parent.name for path in (tmp_path / "one").glob("*/run.json"))
    assert len(folders) == 2
    for name in folders:
        one, two = (tmp_path / number / name for number in ("one", "two"))
        assert out.count(f"two/{name}: 8 samples\n") == 1
        assert samples(two) == samples(one) and len(samples(two)) == 8
        assert sorted(path.name for path in two.iterdir()) == ["config.yaml", "run.json", "samples.jsonl"]
        info, alone = (read_run(folder).info for folder in (two, one))
        assert info["status"] == "done" and (info["processes"], alone["processes"]) == (2, 1)
        assert "2 processes at once" in run_table(read_run(two))
        for metric in ("score", "nfe", "tpf"):
            assert info["metrics"]["all"][metric] == alone["metrics"]["all"][metric]


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_run_killed_in_three_processes_is_resumed(cli, tmp_path: Path, num_processes: int) -> None:
    for name in ("whole", "cut"):
        assert cli("run", *SMALL, f"out_dir={name}")[0] == 0
    leave_shards(tmp_path / "cut")
    if num_processes == 1:
        code, out, _ = cli("run", *SMALL, "out_dir=cut")
    else:
        code, out = ended(torchrun(tmp_path, num_processes, "run", *SMALL, "out_dir=cut"))
    assert code == 0 and "cut: 6 samples, 4 already there" in out
    assert samples(tmp_path / "cut") == samples(tmp_path / "whole")
    assert not list((tmp_path / "cut").glob("samples.*.jsonl"))
    assert read_run(tmp_path / "cut").info["status"] == "done"


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["main", "worker", "launcher"])
def test_a_process_that_dies_ends_the_others_and_costs_nothing_written(cli, tmp_path: Path, victim: str) -> None:
    arguments = ["run", "limit=20", "batch_size=4", "decoder=fixed"]
    folder = tmp_path / "killed"
    launched = torchrun(tmp_path, 2, *arguments, "out_dir=killed")
    while not (folder / "samples.1.jsonl").exists():
        time.sleep(0.02)
    children = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
    os.kill({"main": int(children[0]), "worker": int(children[1]), "launcher": launched.pid}[victim], signal.SIGKILL)
    assert ended(launched)[0] != 0
    kept = {record.id for record in read_run(folder).records}
    assert 0 < len(kept) < 240
    code, out, _ = cli(*arguments, "out_dir=killed")
    assert code == 0 and f"{len(kept)} already there" in out
    assert cli(*arguments, "out_dir=whole")[0] == 0
    assert samples(folder) == samples(tmp_path / "whole")


def test_shards_are_a_part_of_the_run_they_were_left_in(cli, tmp_path: Path) -> None:
    cli("run", *SMALL, "out_dir=run")
    folder = tmp_path / "run"
    (folder / "samples.backup.jsonl").write_bytes((folder / "samples.jsonl").read_bytes())
    leave_shards(folder, torn=False)
    before = [record.id for record in read_run(folder).records]
    assert len(before) == len(set(before)) == 4
    assert cli("report", "run", "out_dir=page")[0] == 0
    assert "| threshold tau=0.9 | 4 |" in (tmp_path / "page" / "report.md").read_text()
    assert cli("score", "run")[0] == 0
    assert [record["id"] for record in samples(folder)] == before
    assert sorted(path.name for path in folder.glob("samples.*.jsonl")) == ["samples.backup.jsonl"]


def test_a_damaged_shard_is_named(cli, tmp_path: Path) -> None:
    cli("run", *SMALL, "out_dir=run")
    leave_shards(tmp_path / "run")
    for command in ("report", "score"):
        code, _, err = cli(command, "run")
        assert code == 2 and "line 3 of run/samples.2.jsonl is cut off" in err


def test_merging_again_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli) -> None:
    cli("run", *SMALL, "out_dir=run")
    folder = tmp_path / "run"
    leave_shards(folder, torn=False)
    records = read_run(folder).records
    delete = Path.unlink

    def die(path: Path, **options: bool) -> None:
        if path.match("samples.*.jsonl"):
            pytest.fail("killed before deleting")
        delete(path, **options)

    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", die)
        with pytest.raises(pytest.fail.Exception):
            SAMPLES.rewrite(folder, records)
    assert len(list(folder.glob("samples.*.jsonl"))) == 2
    assert read_run(folder).records == records
    for _ in range(2):
        SAMPLES.rewrite(folder, read_run(folder).records)
        assert read_run(folder).records == records and not list(folder.glob("samples.*.jsonl"))


def test_a_record_scored_again_is_not_replaced_by_its_shard(tmp_path: Path, cli) -> None:
    cli("run", *SMALL, "out_dir=run")
    folder = tmp_path / "run"
    first = read_run(folder).records[0]
    SAMPLES.append(folder, [replace(first, scores={"score": 0.25, "score_strict": 0.25})], shard=0)
    assert read_run(folder).records[0] == first and len(read_run(folder).records) == 6


def test_a_run_that_lost_samples_stays_partial(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as lossy:
        start = resume._start
        lossy.setattr(resume, "_start", lambda job, count: start(job, count) | {job.batches[0][0].id})
        cli("run", *SMALL, "out_dir=run")
    assert read_run(tmp_path / "run").info["status"] == "partial"
    code, out, _ = cli("run", *SMALL, "out_dir=run")
    assert code == 0 and "5 already there" in out
    assert read_run(tmp_path / "run").info["status"] == "done"


def test_work_is_balanced() -> None:
    """Tasks of 16 + 4 samples, half of them with long prompts: no process gets all full batches or all long ones."""
    sizes = [(16, 30), (4, 31), (16, 32), (4, 33), (16, 90), (4, 91), (16, 92), (4, 93)]
    batches = [
        [Sample(f"{length}-{i}", "task", [{"role": "user", "content": "x" * length}], {}, "") for i in range(num_rows)]
        for num_rows, length in sizes
    ]
    generator = Mock(spec=Generator, prompt_len=lambda request: len(request.messages[0]["content"]))
    job = Job(generator, (), batches, {}, {}, Path())
    lengths = [
        [len(s.messages[0]["content"]) for b in OpenJob(job, set(), Processes(r, 2)).share() for s in b] for r in (0, 1)
    ]
    assert sorted(lengths[0] + lengths[1]) == sorted(length for num_rows, length in sizes for _ in range(num_rows))
    assert len(lengths[0]) == len(lengths[1]) and max(map(sum, lengths)) < 1.05 * min(map(sum, lengths))
    assert OpenJob(job, {sample.id for sample in batches[0]}).share() == batches[1:]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_item_is_dealt_once(count: int) -> None:
    shares = [Processes(rank, count).share(range(7)) for rank in range(count)]
    assert sorted(item for share in shares for item in share) == list(range(7))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_processes_of_one_machine_get_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for rank in range(6):  # two machines of three processes and two GPUs
        state = SimpleNamespace(local_process_index=rank % 3, process_index=rank, num_processes=6)
        monkeypatch.setattr(processes, "PartialState", lambda state=state, **_: state)
        assert processes.join() == Processes(rank, 6)
    assert chosen == [0, 1, 0, 0, 1, 0]
