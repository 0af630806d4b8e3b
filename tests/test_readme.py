"""What the README shows is run as it stands there."""

import os
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


def test_the_decoder_example_runs(tmp_path: Path) -> None:
    (tmp_path / "my_rules.py").write_text(block("# my_rules.py"))
    (tmp_path / "mine" / "decoder").mkdir(parents=True)
    (tmp_path / "mine" / "decoder" / "gap.yaml").write_text(block("# mine/decoder/gap.yaml"))
    (command,) = re.findall(r"`PYTHONPATH=\. python (-m parallelbench run [^`]*)`", README)
    arguments = [*command.split(), "limit=2", "suite.tasks=[waiting_line/copy]", "out_dir=out"]
    env = os.environ | {"PYTHONPATH": "."}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out" / "samples.jsonl").read_text().splitlines()) == 2


def test_the_two_commands_are_there() -> None:
    assert "pip install -c constraints.txt -e . && python -m parallelbench run decoder=credit" in README
    assert "pip install -c constraints.txt -e '.[dev]' && pytest" in README
