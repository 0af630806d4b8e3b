"""Recorded decodes and logits of published implementations (`tests/golden`, a few of each) replay as they were."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def replay(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.golden.replay", folder]
    return subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)


def test_recordings_replay() -> None:
    done = replay(GOLDEN)
    cases = [path for path in GOLDEN.glob("*/*.json") if path.parent.name != "models"]
    assert done.stdout.splitlines()[-1] == f"{len(cases)} passed, 0 failed, 0 skipped", done.stdout + done.stderr
    assert done.returncode == 0 and len(cases) >= 36


def test_a_changed_recording_is_noticed(tmp_path: Path) -> None:
    """A replay that could not fail would show nothing."""
    shutil.copytree(GOLDEN / "models", tmp_path / "models")
    group = "fastdllm_llada"
    (tmp_path / group).mkdir()
    for path in (GOLDEN / group).glob("*.json"):
        trace = json.loads(path.read_text())
        late, early = trace["steps"][2]["changes"], trace["steps"][0]["changes"]
        early.append(late.pop())  # one commit a little earlier
        (tmp_path / group / path.name).write_text(json.dumps(trace))
    done = replay(tmp_path)
    assert done.returncode == 1 and "2 failed" in done.stdout
