"""The page of a report: what it is made from, what it says, and that it holds in a browser."""

import json
from pathlib import Path

import pytest
from conftest import SMALL

from parallelbench.record import readable_runs


@pytest.fixture
def folder(cli, tmp_path: Path) -> Path:
    """One run, and folders beside it that are none."""
    cli("run", *SMALL, "out_dir=runs/good")
    return tmp_path / "runs"


def spoil(folder: Path, name: str, **changes: str | bytes | None) -> None:
    """A copy of the good run in which files hold something else, None for nothing at all."""
    (folder / name).mkdir()
    files = {path.name: path.read_bytes() for path in (folder / "good").iterdir()}
    for file, content in {**files, **{key.replace("_", "."): value for key, value in changes.items()}}.items():
        if content is not None:
            (folder / name / file).write_bytes(content.encode() if isinstance(content, str) else content)


def test_what_is_no_run_is_named_and_skipped(cli, folder: Path) -> None:
    info = json.loads((folder / "good" / "run.json").read_text())
    whole = (folder / "good" / "samples.jsonl").read_bytes()
    spoil(folder, "binary", run_json=b"\xff\xfe\x00")
    spoil(folder, "cut", samples_jsonl=whole[:-30])
    spoil(folder, "foreign", run_json='{"name": "of another program"}')
    spoil(folder, "half", run_json=(folder / "good" / "run.json").read_text()[:40])
    spoil(folder, "keyless", run_json=json.dumps({key: info[key] for key in info if key != "choices"}))
    spoil(folder, "listed", run_json="[1, 2]")
    spoil(folder, "lost", run_json=None)
    spoil(folder, "newer", run_json=json.dumps(info | {"schema": 2}))
    spoil(folder, "unset", config_yaml="decoder: {}\n")
    (folder / "folder" / "run.json").mkdir(parents=True)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, out, err = cli("report", "runs", "out_dir=page")
    assert code == 0 and "1 runs" in out
    lines = err.strip().splitlines()
    wanted = {
        "binary": "not valid JSON",
        "cut": "is cut off",
        "folder": "no config.yaml",
        "foreign": "schema None",
        "half": "not valid JSON",
        "keyless": "nothing says its choices",
        "listed": "holds no run",
        "lost": "no run.json",
        "newer": "has schema 2",
        "unset": "nothing says its suite",
    }
    assert len(lines) == len(wanted)
    for line, (name, why) in zip(lines, wanted.items(), strict=True):
        assert line.startswith("skipped: ") and f"runs/{name}" in line and why in line
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_left_is_refused(cli, folder: Path) -> None:
    (folder / "good" / "run.json").write_text("{}")
    code, out, err = cli("report", "runs", "out_dir=page")
    assert code == 2 and not out and err.startswith("error: runs/good holds no run of this package")
    assert not Path("page").exists()
    with pytest.raises(ValueError, match=r"nowhere holds no run"):
        readable_runs([Path("nowhere")])
