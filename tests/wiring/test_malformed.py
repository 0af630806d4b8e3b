"""Malformed commands, one a line in malformed.txt: each is refused in one sentence and exit code 2, before anything is
decoded or written."""

import os
import shlex
from pathlib import Path
from string import Template

import forked
import pytest

COMMANDS = (Path(__file__).parent / "malformed.txt").read_text().splitlines()
PART = 8  # of the commands is tried in each run of the tests


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the commands name: a run, and files that are none."""
    folder = tmp_path_factory.mktemp("things")
    (folder / "text.txt").write_text("hello\n")
    (folder / "bytes").write_bytes(bytes(range(256)) * 20)
    (folder / "prompts.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    (folder / "empty").mkdir()
    done = forked.run(
        *("-m", "parallelbench", "run", "limit=1", "suite.tasks=waiting_line/copy", f"out_dir={folder / 'run'}"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    names = {"TEXT": "text.txt", "BIN": "bytes", "PROMPTS": "prompts.jsonl", "EMPTY": "empty", "RUN": "run"}
    return {name: folder / file for name, file in names.items()}


def fault(command: str, things: dict[str, Path], here: Path) -> str:
    """What is wrong with how a command ends; nothing where it is refused as it should be."""
    filled = Template(command).safe_substitute({name: str(path) for name, path in things.items()})
    try:
        words = shlex.split(filled)
    except ValueError:  # an odd quotation mark is part of the word
        words = filled.split()
    done = forked.run("-m", "parallelbench", *words, cwd=here, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    said = done.stderr.strip()
    written = [path.name for path in here.rglob("*")]
    if done.returncode == 2 and said.startswith("error: ") and "\n" not in said and not written:
        return ""
    return f"{command}: exit code {done.returncode}, wrote {written}, said {said[-300:]!r}"


def test_malformed_commands_are_refused_in_a_sentence(things: dict[str, Path], tmp_path: Path) -> None:
    assert not [found for command in COMMANDS[::PART] if (found := fault(command, things, tmp_path))]


@pytest.mark.slow
def test_all_malformed_commands_are_refused_in_a_sentence(things: dict[str, Path], tmp_path: Path) -> None:
    assert len(COMMANDS) > 250
    assert not [found for command in COMMANDS if (found := fault(command, things, tmp_path))]
