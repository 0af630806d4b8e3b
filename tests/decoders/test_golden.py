"""Recorded decodes and logits of published implementations (`tests/golden`, a few of each) replay as they were."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import forked
import pytest

GOLDEN = Path(__file__).parents[1] / "golden"


def replay(folder: Path) -> subprocess.CompletedProcess[str]:
    return forked.run("-m", "tests.golden.replay", folder, cwd=Path(__file__).parents[2])


@pytest.mark.core
def test_recordings_replay() -> None:
    done = replay(GOLDEN)
    cases = [path for path in GOLDEN.glob("*/*.json") if path.parent.name != "models"]
    last = re.fullmatch(r"(\d+) passed \((\d+) with stand-ins\), 0 failed, 0 skipped", done.stdout.splitlines()[-1])
    assert last, done.stdout + done.stderr
    assert done.returncode == 0 and int(last[1]) == len(cases) >= 50 and int(last[2]) <= 0.15 * len(cases)


def test_what_is_not_known_is_skipped(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "models", tmp_path / "models")
    for group in ("unheard_of", "wino_edge"):
        (tmp_path / group).mkdir()
        (tmp_path / group / "case.json").write_text("{}")
    done = replay(tmp_path)
    assert done.stdout.splitlines()[-1] == "0 passed (0 with stand-ins), 0 failed, 2 skipped"
    assert done.returncode == 0


@pytest.mark.parametrize("group", ["fastdllm_llada", "slowfast", "fastdllm_v2"])
def test_a_changed_recording_is_noticed(tmp_path: Path, group: str) -> None:
    """A replay that could not fail would show nothing."""
    shutil.copytree(GOLDEN / "models", tmp_path / "models")
    (tmp_path / group).mkdir()
    for path in (GOLDEN / group).glob("*.json"):
        trace = json.loads(path.read_text())
        first = next(step["changes"] for step in trace["steps"] if step["changes"])[0]
        first[2] = (first[2] + 1) % 190  # another token
        (tmp_path / group / path.name).write_text(json.dumps(trace))
    done = replay(tmp_path)
    number = len(list((tmp_path / group).iterdir()))
    assert done.returncode == 1 and f"{number} failed" in done.stdout.splitlines()[-1]
