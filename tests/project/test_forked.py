"""Forked commands are what `subprocess.run` makes of them."""

import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest

CODE = """
import os, signal, sys
print(sys.argv, sys.path[0], os.getcwd(), sorted(os.environ), __name__, "parallelbench" in sys.modules)
print("told", file=sys.stderr)
if sys.argv[1] == "killed": os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "wrong": raise ValueError("wrong")
sys.exit("said" if sys.argv[1] == "said" else int(sys.argv[1]))
"""


@pytest.mark.parametrize("how", ["code", "script", "module"])
@pytest.mark.parametrize("end", ["0", "3", "wrong", "killed", "said"])
def test_a_forked_command_is_a_process_of_its_own(tmp_path: Path, how: str, end: str) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    words = {"code": ["-c", CODE], "script": [str(tmp_path / "mine.py")], "module": ["-m", "mine"]}[how]
    env = {"PATH": os.environ["PATH"], "LC_CTYPE": "C.UTF-8"}
    parts = {"capture_output": True, "text": True, "check": False, "cwd": tmp_path, "env": env}
    real, found = subprocess.run([sys.executable, *words, end], **parts), forked.run(*words, end, cwd=tmp_path, env=env)
    assert (found.args, found.returncode) == (real.args, real.returncode)
    if end != "killed":  # before it wrote out its streams
        assert found.stdout == real.stdout
        assert (
            found.stderr.splitlines()[:1] == ["told"]
            and found.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]
        )
