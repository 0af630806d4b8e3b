"""The README's two commands and its example are what they promise."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def block(marker: str) -> str:
    """The fenced code block that holds a marker."""
    (found,) = [code for code in re.findall(r"```\w*\n(.*?)```", README, flags=re.DOTALL) if marker in code]
    return found


def test_the_library_example_runs() -> None:
    done = subprocess.run([sys.executable, "-c", block("dllm.load(")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '["Eva Frost", "Ben Cole", "Ada Bach"]' in done.stdout


def test_the_two_commands_are_there() -> None:
    assert "pip install -c constraints.txt -e . && python -m parallelbench run decoder=credit" in README
    assert "pip install -c constraints.txt -e '.[dev]' && pytest" in README
