"""launcher=slurm and launcher=ray: workers on other machines write what a sweep in turn writes, whatever is killed.

The clusters are of this machine alone: a Slurm of one node, and a Ray of two. Their tests are skipped where slurm-wlm,
munge or ray are not installed.
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_launcher import SWEEP, folders
from test_pool import die_if_told, print_and_shout, sleep_on_device, write_for_ever

from parallelbench.wiring.clusters import SRUN, ray_jobs
from parallelbench.wiring.pool import Died, Worker, share_out

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
PLACES = 2
SLURM = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
GresTypes=gpu
NodeName={host} CPUs={places} Gres=gpu:{places}
PartitionName=all Nodes=ALL Default=YES
"""


@pytest.fixture(autouse=True)
def workers_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def places(work, *command: str, number: int = 1) -> list:
    return [partial(Worker, work, command)] * number


def test_workers_behind_a_command() -> None:
    reports: list[object] = []
    jobs = ["a", "die", "b"]
    done = dict(share_out(jobs, places(print_and_shout, "env"), lambda index, report: reports.append(report)))
    assert done == {0: "A", 1: Died(-signal.SIGKILL), 2: "B"} and reports == jobs


def test_a_worker_behind_a_command_ends_with_its_parent(tmp_path: Path) -> None:
    (start,) = places(write_for_ever, "env")
    worker = start()
    worker.send(str(tmp_path / "moment"))
    wait_for((tmp_path / "moment").exists)
    worker.jobs.close()  # as the end of this process would
    assert worker.exit_code() == 0


def test_a_cluster_that_is_not_there_is_refused(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    code, _, err = cli(*SWEEP, "launcher=slurm")
    assert code == 2 and err.strip().splitlines()[-1].startswith("error: launcher=slurm needs srun;")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match="launcher=ray needs Ray; pip install ray"):
        list(ray_jobs([0.0], sleep_on_device, None, None))


def test_a_worker_that_never_begins_takes_no_job() -> None:
    """As one that waits for a machine, or whose command is refused."""
    waits = places(print_and_shout, "sh", "-c", "sleep 60")
    done = share_out(["a", "b"], [*waits, *places(print_and_shout, "env")], lambda index, report: None)
    assert dict(done) == {0: "A", 1: "B"}
    with pytest.raises(ValueError, match="workers end before they begin, the last with exit code 3"):
        list(share_out(["a"], places(print_and_shout, "sh", "-c", "exit 3"), lambda index, report: None))


@contextmanager
def daemon(*command: str, **environment: str) -> Iterator[subprocess.Popen]:
    with open(os.devnull, "w") as quiet:
        process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def wait_for(what, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it does not come up"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Slurm of one node with two simulated GPUs."""
    if os.geteuid() or not all(map(shutil.which, PROGRAMS)):
        pytest.skip("needs root and the Debian packages slurm-wlm and munge")
    folder, host = tmp_path_factory.mktemp("slurm"), socket.gethostname()
    (folder / "spool").mkdir()
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    for gpu in range(PLACES):
        os.mknod(folder / f"gpu{gpu}", stat.S_IFCHR | 0o600, os.makedev(1, 3))  # Slurm wants devices: /dev/null
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/gpu[0-{PLACES - 1}]\n")
    (folder / "slurm.conf").write_text(SLURM.format(host=host, folder=folder, places=PLACES))
    munge = [f"--{name}={folder}/{at}" for name, at in (("key-file", "key"), ("socket", "munge.socket"))]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    conf = str(folder / "slurm.conf")
    with ExitStack() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", conf)
        running.enter_context(daemon("munged", "--foreground", "--force", *munge))
        wait_for((folder / "munge.socket").exists)
        for program in ("slurmctld", "slurmd"):
            running.enter_context(daemon(program, "-D", "-f", conf, "-L", f"{folder}/{program}.log"))
        idle = ["sinfo", "--noheader", "--states=idle", "--format=%n"]
        wait_for(lambda: subprocess.run(idle, capture_output=True, text=True, check=False).stdout.strip() == host)
        yield


@contextmanager
def ray_node(*options: str) -> Iterator[subprocess.Popen]:
    """A node with one CPU and one simulated GPU."""
    ray, here = str(Path(sys.executable).with_name("ray")), str(Path(__file__).parents[2])
    paths = [here, f"{here}/tests", f"{here}/tests/wiring"]
    size = ["--num-cpus=1", "--num-gpus=1", "--object-store-memory=80000000"]
    here_only = ["--node-ip-address=127.0.0.1", "--disable-usage-stats"]
    with daemon(ray, "start", "--block", *size, *here_only, *options, PYTHONPATH=os.pathsep.join(paths)) as node:
        yield node


@pytest.fixture(scope="module")
def ray() -> Iterator[subprocess.Popen]:
    """A Ray of two nodes; the second one."""
    if find_spec("ray") is None:
        pytest.skip("needs ray")
    import ray

    def gpus() -> int:
        try:
            ray.init(address="auto", log_to_driver=False)
            return ray.cluster_resources().get("GPU", 0)
        except ConnectionError:
            return 0
        finally:
            ray.shutdown()

    with ExitStack() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.1:26379")
        running.enter_context(ray_node("--head", "--port=26379", "--include-dashboard=false"))
        wait_for(lambda: gpus() == 1)
        second = running.enter_context(ray_node("--address=127.0.0.1:26379"))
        wait_for(lambda: gpus() == 2)
        yield second


def sweep(folder: Path, *options: str) -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    with open(folder / "log.txt", "a") as log:
        command = [sys.executable, "-m", "parallelbench", *SWEEP, *options]
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


def workers() -> list[int]:
    """Of Slurm; not the sruns that carry their words."""
    pattern = f"^{sys.executable} -m parallelbench.wiring.pool"
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def seen(done: dict[int, tuple[str, float, float, int]]) -> list[str]:
    """The devices of each process, all jobs done."""
    assert len(done) == 6
    return sorted(devices for devices, _ in {(devices, pid) for devices, _, _, pid in done.values()})


@pytest.mark.slow
def test_each_worker_of_slurm_sees_its_own_gpu(slurm) -> None:
    starts = places(sleep_on_device, *SRUN, "--gpus=1", number=PLACES)
    assert seen(dict(share_out([1.0] * 6, starts, lambda index, report: None))) == ["0", "1"]


@pytest.mark.slow
def test_each_actor_of_ray_sees_its_own_gpu(ray) -> None:
    assert seen(dict(ray_jobs([1.0] * 6, sleep_on_device, None, None))) == ["0", "0"]  # the GPU of each node


@pytest.mark.slow
def test_an_actor_that_dies_costs_its_job_only(ray) -> None:
    done = dict(ray_jobs(["a", "die", "b", "die", "c"], die_if_told, None, None))
    assert done == {0: "A", 1: Died(None), 2: "B", 3: Died(None), 4: "C"}


@pytest.mark.slow
def test_a_sweep_on_slurm_equals_one_in_turn_also_when_a_worker_is_killed(slurm, tmp_path: Path) -> None:
    options = ("launcher=slurm", f"hydra.launcher.workers={PLACES}", 'hydra.launcher.options=["--gpus=1"]')
    assert sweep(tmp_path / "in_turn").wait() == 0
    killed = sweep(tmp_path / "slurm", *options)
    wait_for(lambda: len(list(tmp_path.glob("slurm/runs/*/samples.jsonl"))) > 0)
    for worker in workers():  # one of them may not have begun
        os.kill(worker, signal.SIGKILL)
    assert killed.wait() == 1
    assert len(folders(tmp_path / "slurm")) >= 2 and "its worker ended with" in (tmp_path / "slurm/log.txt").read_text()
    assert sweep(tmp_path / "slurm", *options).wait() == 0
    assert folders(tmp_path / "slurm") == folders(tmp_path / "in_turn")


@pytest.mark.slow
def test_a_sweep_on_ray_equals_one_in_turn_also_when_a_node_is_killed(ray, tmp_path: Path) -> None:
    assert sweep(tmp_path / "in_turn").wait() == 0
    killed = sweep(tmp_path / "ray", "launcher=ray")
    wait_for(lambda: len(list(tmp_path.glob("ray/runs/*/samples.jsonl"))) > 0)
    found = subprocess.run(["pgrep", "-P", str(ray.pid), "-f", "raylet/raylet"], capture_output=True, check=True)
    os.kill(int(found.stdout), signal.SIGKILL)  # its actors end with it
    assert killed.wait() in (0, 1)  # the node had a job or none
    assert sweep(tmp_path / "ray", "launcher=ray").wait() == 0
    assert folders(tmp_path / "ray") == folders(tmp_path / "in_turn")
