"""Small inputs of public bug reports (`tests/cases/NAME`): each `run.sh` prints the right value or a refusal."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "cases"


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir()))
def test_case(case: str, tmp_path: Path) -> None:
    """The file `right` is a regular expression. It must match in what `run.sh` prints to either stream."""
    folder = shutil.copytree(CASES / case, tmp_path / case)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    env = {**os.environ, "PYTHONPATH": str(CASES.parents[1]), "PATH": path}
    done = subprocess.run(["sh", "run.sh"], cwd=folder, env=env, capture_output=True, text=True, check=False)
    shown = done.stdout + done.stderr
    assert "Traceback" not in shown and re.search((folder / "right").read_text().strip(), shown, re.MULTILINE), shown
