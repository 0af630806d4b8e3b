"""The wheel, built and installed in a bare environment of another folder, and what the repository weighs."""

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from dllm.shipped import ASSETS, IN_THE_REPOSITORY
from parallelbench.tasks.text.grammar import HARPER
from parallelbench.wiring import menu

ROOT = Path(__file__).parents[2]
MB = 10**6
OF_SMOLLM2 = ("dllm/assets/smollm2-ar/", "dllm/assets/smollm2-block/", "dllm/assets/smollm2-draft/")


def test_the_wheel_leaves_out_what_loading_says_it_does() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    names = [folder.name for folder in ASSETS.iterdir()]
    left_out = [name for name in names if any(fnmatch(f"dllm/assets/{name}", one) for one in wheel["exclude"])]
    assert sorted(left_out) == sorted(IN_THE_REPOSITORY)


def test_the_version_is_one() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    assert (version, str(citation["date-released"])) == newest.groups()
    assert citation["version"] == version


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone")
def test_the_tree_is_light() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sizes = {name: (ROOT / name).lstat().st_size for name in tracked.split("\0") if (ROOT / name).is_file()}
    assert sum(sizes.values()) <= 108 * MB
    assert sum(size for name, size in sizes.items() if not name.startswith(OF_SMOLLM2)) < 64 * MB


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_is_light_and_whole(wheel: Path) -> None:
    assert wheel.stat().st_size <= 30 * MB
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"dllm/py.typed", "decoders/py.typed", "parallelbench/py.typed", "decoders/__init__.pyi"} <= names
    tops = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert tops == {"dllm", "decoders", "parallelbench"}
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert f"parallelbench/{path.relative_to(ROOT)}" in names


def test_a_bare_environment_runs_a_task_and_trains(wheel: Path, tmp_path: Path) -> None:
    """Beside the wheel it has what this environment has but for the clone: its own folder comes first."""
    venv.create(tmp_path / "env", with_pip=False)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (site / "libraries.pth").write_text("\n".join(libraries) + "\n")

    def run(*arguments: str) -> subprocess.CompletedProcess:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        python = tmp_path / "env" / "bin" / "python"
        command = [python, "-m", "parallelbench", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    done = run("run", "decoder=credit", "limit=1", "suite.tasks=[waiting_line/copy]", "out_dir=run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "samples.jsonl").exists()
    assert "KEY=VALUE" in run("train", "--help").stdout
    refused = run("run", "model=tiny_uniform", "limit=1")
    assert refused.returncode == 2 and "in the repository and not in the installed wheel" in refused.stderr


@pytest.mark.parametrize(
    ("lacking", "command", "extra"),
    [
        ("matplotlib", "report runs", "report"),
        ("vl_convert", "analyze oracle a b", "report"),
        ("lm_eval", "lm_eval", "eval"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    cli, monkeypatch: pytest.MonkeyPatch, lacking: str, command: str, extra: str
) -> None:
    monkeypatch.setattr(menu, "find_spec", lambda name: None if name == lacking else name)
    code, _, err = cli(*command.split())
    assert code == 2 and f"needs {lacking}; pip install 'dllm-parallelbench[{extra}]'" in err


def test_text_is_not_scored_without_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "harper", None)
    with pytest.raises(
        ValueError, match=r"scored with harper, which is not here; pip install 'dllm-parallelbench\[text\]'"
    ):
        HARPER.version  # noqa: B018
