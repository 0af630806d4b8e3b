"""launcher=slurm and launcher=ray: the plugins of others do the work, and their jobs end as ours do.

No cluster is at hand. submitit's local executor starts jobs as it starts those of Slurm, each in a process of its own
from a pickled task; the tests of it are skipped where hydra-submitit-launcher is not installed.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import SMALL
from test_launcher import SWEEP, folders

HERE = """
_target_: hydra_plugins.parallelbench_local.ClusterLauncher
plugin: hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher
submitit_folder: logs/%j
timeout_min: 10
"""
with_submitit = pytest.mark.skipif(find_spec("submitit") is None, reason="needs hydra-submitit-launcher")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words that choose submitit's executor for this machine, whose workers find what this process does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    (tmp_path / "own/hydra/launcher").mkdir(parents=True)
    (tmp_path / "own/hydra/launcher/here.yaml").write_text(HERE)
    return ["--config-dir", str(tmp_path / "own"), "hydra/launcher=here"]


@pytest.mark.parametrize(("launcher", "package"), [("slurm", "hydra-submitit-launcher"), ("ray", "hydra-ray-launcher")])
def test_a_plugin_that_is_not_installed_is_named(cli, tmp_path: Path, launcher: str, package: str) -> None:
    if find_spec("hydra_plugins") and find_spec(f"hydra_plugins.{package.replace('-', '_')}"):
        pytest.skip("it is installed")
    code, _, err = cli(*SWEEP, f"launcher={launcher}")
    assert code == 2 and err.splitlines()[-1] == f"error: this launcher needs {package}; pip install {package}"
    assert not list(tmp_path.iterdir())


@with_submitit
@pytest.mark.slow
def test_a_sweep_of_another_package_equals_one_in_turn(cli, tmp_path: Path, here: list[str]) -> None:
    assert cli(*SWEEP)[0] == 0
    in_turn = folders(tmp_path)
    (tmp_path / "runs").rename(tmp_path / "before")
    code, out, _ = cli(*SWEEP, *here)
    assert code == 0 and folders(tmp_path) == in_turn
    assert len([line for line in out.splitlines() if line.startswith("task ")]) == len(in_turn) == 4
    assert all(f"runs/{name}" in out for name in in_turn)


@with_submitit
@pytest.mark.slow
def test_a_job_that_is_refused_there_does_not_keep_the_others(cli, tmp_path: Path, here: list[str]) -> None:
    code, _, err = cli("run", "-m", "cache=none,block", *SMALL, "out_dir=runs", *here)
    assert code == 2 and "error: cache=block" in err and "Traceback" not in err
    assert len(folders(tmp_path)) == 1


@with_submitit
@pytest.mark.slow
def test_a_worker_that_dies_there_is_said(cli, tmp_path: Path, here: list[str]) -> None:
    (tmp_path / "dies.py").write_text("import os\n\n\ndef load(**given):\n    os.kill(os.getpid(), 9)\n")
    words = ["model._target_=dies.load", *SMALL, "out_dir=runs"]
    code, _, err = cli("run", "-m", "limit=1,2", *words, *here)
    assert code == 1 and "died of" in err.splitlines()[-1] and "Traceback (most" not in err.splitlines()[0]
