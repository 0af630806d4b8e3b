"""The pool of workers: every job once, never two on a device, deaths cost one job, nobody outlives the parent."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from multiprocessing import Pipe
from pathlib import Path

import pytest

from parallelbench.wiring.pool import Died, Worker, devices, run_jobs, share_out

FOUR = [{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(4)]


def sleep_on_device(job: float, report) -> tuple[str, float, float, int]:
    began = time.monotonic()
    report("began")
    time.sleep(job)
    return os.environ["CUDA_VISIBLE_DEVICES"], began, time.monotonic(), os.getpid()


def die_if_told(job: str, report) -> str:
    if job == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return job.upper()


def print_and_shout(job: str, report) -> str:
    """stdout may belong to the messages, also where C writes to it."""
    print("no message")
    os.system("echo no message")
    report(job)
    return die_if_told(job, report)


def write_for_ever(job: str, report) -> None:
    while True:
        Path(job).write_text(str(time.monotonic()))
        time.sleep(0.02)


def test_four_devices_work_at_a_time_and_none_has_two_jobs() -> None:
    reports: list[int] = []
    done = dict(run_jobs([0.4] * 8, sleep_on_device, FOUR, lambda index, report: reports.append(index)))
    assert sorted(done) == sorted(reports) == list(range(8))
    by_device: dict[str, list[tuple[float, float]]] = {}
    for device, began, ended, _ in done.values():
        by_device.setdefault(device, []).append((began, ended))
    assert sorted(by_device) == ["0", "1", "2", "3"]
    for spans in by_device.values():
        assert all(first[1] <= second[0] for first, second in zip(sorted(spans), sorted(spans)[1:], strict=False))
    assert len({pid for *_, pid in done.values()}) == 4  # workers stay
    moments = sorted(began for _, began, _, _ in done.values())
    assert any(sum(b <= t < e for _, b, e, _ in done.values()) > 1 for t in moments)


class Quick(Worker):
    """Has done a job as soon as it has it. The first one is ready at once, the others when job 1 is done."""

    def __init__(self, others: "list[Quick]") -> None:
        (self.connection, self.far), self.index, self.others = Pipe(), None, others
        if not others:
            self.far.send(("ready", None))
        others.append(self)

    def send(self, job: int) -> None:
        self.far.send(("result", job))
        for other in self.others[1:] if job == 1 else ():
            other.far.send(("ready", None))

    def close(self) -> None:
        self.far.close()

    kill = close

    def exit_code(self) -> int:
        return 0


def test_more_workers_than_jobs_that_are_left_may_be_ready_at_once() -> None:
    """Three start for three jobs; when the last two are ready, a single job is left."""
    made: list[Quick] = []
    done = dict(share_out([0, 1, 2], [partial(Quick, made)] * 3, lambda index, report: None))
    assert done == {0: 0, 1: 1, 2: 2} and len(made) == 3


def test_a_worker_that_dies_costs_its_job_only() -> None:
    done = dict(run_jobs(["a", "die", "b", "die", "c"], die_if_told, [{}] * 2))
    assert done == {0: "A", 1: Died(-signal.SIGKILL), 2: "B", 3: Died(-signal.SIGKILL), 4: "C"}


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    script = (
        "from test_pool import run_jobs, write_for_ever\n"
        "if __name__ == '__main__':\n"
        f"    list(run_jobs([{str(tmp_path / 'a')!r}, {str(tmp_path / 'b')!r}], write_for_ever, [{{}}] * 2))\n"
    )
    (tmp_path / "parent.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py")], env=environment)
    deadline = time.monotonic() + 120
    while not ((tmp_path / "a").exists() and (tmp_path / "b").exists()):
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    time.sleep(1)
    last = [(tmp_path / name).read_text() for name in "ab"]
    time.sleep(0.5)
    assert last == [(tmp_path / name).read_text() for name in "ab"]


def test_devices_are_the_visible_gpus_or_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert devices() == [{"CUDA_VISIBLE_DEVICES": "3"}, {"CUDA_VISIBLE_DEVICES": "5"}]
    assert devices(1) == [{"CUDA_VISIBLE_DEVICES": "3"}]
    for wrong in (0, 3):
        with pytest.raises(ValueError, match=f"{wrong} workers"):
            devices(wrong)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert devices(3) == [{"OMP_NUM_THREADS": "2"}] * 3
    assert len(devices()) == 8
