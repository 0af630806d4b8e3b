"""Nothing is lost and nothing is overwritten: damaged folders, full disks, odd paths, planted links, foreign locales,
strange clocks and Ctrl-C. Every command ends in a sentence, and its repetition goes on."""

import ast
import errno
import json
import math
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from conftest import SMALL, samples

from parallelbench.records.files import append, os_sentence, parse_json, printable, replace_file, to_json
from parallelbench.records.record import SAMPLES, SCHEMA, read_run

ROOT = Path(__file__).parent.parent
RUN = ["run", *SMALL, "traces=1"]


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size`: a disk that is full there, which takes the part that fits."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs, `good` and `bad`, of unlike decoders, with traces."""
    home = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for name, decoder in (("good", "fixed"), ("bad", "threshold")):
            patch.setattr(sys, "argv", ["parallelbench", *RUN, f"decoder={decoder}", f"out_dir=runs/{name}"])
            from parallelbench.__main__ import main

            main()
    return home


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    """A copy of the two runs in the working directory of `cli`."""
    shutil.copytree(made / "runs", tmp_path / "runs")
    return tmp_path


def content(folder: Path) -> dict[str, bytes | str]:
    """Every file below a folder."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else "no file"
    return found


def edit(folder: Path, **values: object) -> None:
    """Sets values of run.json."""
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def of_bad(folder: Path) -> list[dict]:
    return sorted(samples(folder), key=lambda line: line["id"])


# ---- writing


def test_what_finds_no_space_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append(path, "first\n")
    with file_limit(100), pytest.raises(OSError, match="File too large") as refused:
        append(path, "x" * 200 + "\n")
    assert refused.value.errno == errno.EFBIG and refused.value.filename == str(path)
    assert path.read_text() == "first\n"
    append(path, "second\n")
    assert path.read_text() == "first\nsecond\n"


def test_short_writes_are_continued_and_interrupted_ones_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "lines", os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data[:3])))
    append(path, "a line of more than three bytes\n")
    assert path.read_text() == "a line of more than three bytes\n"
    calls = []

    def interrupted(file: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return write(file, bytes(data[:3]))

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        append(path, "another\n")
    assert path.read_text() == "a line of more than three bytes\n"


def test_lines_go_behind_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("cut of")
    append(path, "whole\n")
    assert path.read_text() == "cut of\nwhole\n"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "file", tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (tmp_path / "file.tmp").symlink_to(elsewhere)
    replace_file(path, "new ü \ud800")
    assert path.read_bytes() == "new ü \\ud800".encode() and elsewhere.read_text() == "mine"
    with file_limit(100), pytest.raises(OSError):
        replace_file(path, "x" * 200)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["elsewhere", "file"] and path.read_text() == "new ü \\ud800"


def test_json_has_no_nan(tmp_path: Path) -> None:
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            to_json({"loss": value})
        with pytest.raises(ValueError, match="is not JSON"):
            parse_json(json.dumps(value))
    with pytest.raises(ValueError, match="too deeply"):
        parse_json("[" * 100_000)
    assert parse_json(to_json({"a": "ü\n"})) == {"a": "ü\n"}


def test_terminals_are_not_steered() -> None:
    assert printable("a\x1b[2Jb\nü\u202e") == "a\\x1b[2Jb\nü\\u202e"


def test_every_error_of_the_system_names_a_fix() -> None:
    for number in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENAMETOOLONG, errno.EISDIR):
        text = os_sentence(OSError(number, os.strerror(number), "there"))
        assert text.startswith(f"there: {os.strerror(number)}; ") and text.endswith(" and repeat the command")


WRITERS = ("parallelbench/records/files.py", "dllm/checkpoint.py", "parallelbench/tasks/code/")  # the last: a sandbox


def test_texts_are_utf_8_and_written_in_one_place() -> None:
    """A file that is opened in the locale's encoding, or written where a full disk would leave half of it."""
    for path in (p for part in ("dllm", "decoders", "parallelbench", "scripts") for p in (ROOT / part).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            text = ast.unparse(node.func)
            words = [word.arg for word in node.keywords]
            given = [
                word.value for word in (*node.args, *(k.value for k in node.keywords)) if isinstance(word, ast.Constant)
            ]
            if text.endswith((".read_text", ".write_text")):
                assert "encoding" in words or len(node.args) > (text.endswith(".write_text")), f"{name}: {text}"
            if text == "open" and not name.startswith(WRITERS):
                assert "encoding" in words or any(isinstance(w, str) and "b" in w for w in given), f"{name}: open"
            assert text != "os.replace" or name.startswith(WRITERS), f"{name} replaces files by itself"
            assert text not in ("json.dump", "time.time"), f"{name}: {text}"
            if name.startswith("parallelbench/") and not name.startswith(WRITERS):
                assert not text.endswith(".write_text"), f"{name}: {text}"


# ---- runs


@pytest.mark.parametrize("room", [150, 2000, 6500])
def test_a_run_on_a_full_disk_goes_on_when_there_is_space(cli, here: Path, room: int) -> None:
    """room: bytes that a file may have; the records take 8,000."""
    with file_limit(room):
        code, _, err = cli(*RUN, "decoder=threshold", "out_dir=full")
    assert code == (2 if room < 1000 else 1), err
    assert err.count("error: ") == 1 and "File too large; raise the limit" in err and "Traceback" not in err
    lines = (here / "full" / "samples.jsonl").read_bytes() if (here / "full" / "samples.jsonl").exists() else b""
    assert lines.endswith(b"\n") or not lines
    code, _, err = cli(*RUN, "decoder=threshold", "out_dir=full")
    assert code == 0, err
    assert of_bad(here / "full") == of_bad(here / "runs" / "bad")


CUTS = ["last", "first", "middle", "glued", "zeros", "blank", "no newline"]


def cut(folder: Path, where: str) -> None:
    """One line of an unfinished run is cut off, or is what a crash leaves in its place."""
    path = folder / "samples.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    half = lines[2][:100]
    path.write_bytes(
        b"".join(
            {
                "last": [*lines[:3], half],
                "first": [lines[0][:50], b"\n", *lines[1:4]],
                "middle": [*lines[:2], half, b"\n", *lines[3:5]],
                "glued": [*lines[:2], half, *lines[3:5]],
                "zeros": [*lines[:2], b"\0" * 4096, b"\n", *lines[3:5], b"\0" * 100],
                "blank": [b"\n", *lines[:2], b"\n \r\n", *lines[3:5]],
                "no newline": [*lines[:2], lines[2].rstrip(b"\n")],
            }[where]
        )
    )
    edit(folder, status="partial")


@pytest.mark.parametrize("where", CUTS)
def test_a_run_with_a_cut_line_anywhere_resumes(cli, here: Path, where: str) -> None:
    whole = of_bad(here / "runs" / "bad")
    cut(here / "runs" / "bad", where)
    code, _, err = cli(*RUN, "decoder=threshold", "out_dir=runs/bad")
    assert code == 0, err
    assert of_bad(here / "runs" / "bad") == whole and read_run(here / "runs" / "bad").info["status"] == "done"


@pytest.mark.parametrize("status", ["partial", "done"])
@pytest.mark.parametrize("schema", [SCHEMA + 1, 99, "1", None])
def test_other_schemas_are_refused_before_anything_is_written(cli, here: Path, schema: object, status: str) -> None:
    edit(here / "runs" / "bad", schema=schema, status=status)
    before = content(here / "runs")
    for command in ([*RUN, "decoder=threshold", "out_dir=runs/bad"], ["score", "runs/bad"], ["trace", "runs/bad"]):
        code, _, err = cli(*command)
        assert code == 2 and err.startswith("error: ") and f"schema {schema}" in err and len(err.splitlines()) == 1
    assert content(here / "runs") == before


def test_traces_of_a_newer_schema_are_refused_before_a_forward(cli, here: Path) -> None:
    path = here / "runs" / "bad" / "traces.jsonl"
    path.write_text(path.read_text().replace('"schema":1', '"schema":2'))
    (here / "runs" / "bad" / "samples.jsonl").unlink()
    before = content(here / "runs")
    code, out, err = cli(*RUN, "decoder=threshold", "out_dir=runs/bad")
    assert code == 2 and "its schema is 2" in err and "already there" not in out
    assert content(here / "runs") == before


def test_one_damaged_folder_is_named_and_skipped_by_every_reader(cli, here: Path) -> None:
    shutil.copytree(here / "runs" / "bad", here / "runs" / "worse")
    edit(here / "runs" / "bad", choices=3)
    shutil.copytree(here / "runs" / "good", here / "runs" / "next")
    command = [*RUN, "decoder=fixed", "decoder.rule.k=4", "out_dir=runs/next"]
    shutil.rmtree(here / "runs" / "next")
    assert cli(*command)[0] == 0
    text = (here / "runs" / "worse" / "samples.jsonl").read_text()
    (here / "runs" / "worse" / "samples.jsonl").write_text(text.replace('"nfe": ', '"nfe": 0, "nef": ', 1))
    for words in ("report", "recommend", "leaderboard", "score", "analyze pbx", "analyze oracle", "analyze frontier"):
        options = ["samples=1"] if words.endswith("frontier") else []
        code, out, err = cli(*words.split(), "runs", *options)
        assert code == 0, (words, err)
        said = " ".join((out + err).split())
        assert "runs/bad holds no run of this package (choices is 3, not an object)" in said, words
        assert "line 1 of runs/worse/samples.jsonl is not a record" in said, words


def test_samples_of_another_suite_are_refused_at_once(cli, here: Path) -> None:
    edit(here / "runs" / "bad", status="partial")
    path = here / "runs" / "bad" / "samples.jsonl"
    path.write_text(path.read_text().replace('{"id": "waiting_line/copy/0/0"', '{"id": "elsewhere/0"'))
    before = content(here / "runs")
    code, _, err = cli(*RUN, "decoder=threshold", "out_dir=runs/bad")
    assert code == 2 and "sample 'elsewhere/0'" in err and content(here / "runs") == before


@pytest.mark.parametrize(
    "name", ["writer.tmp", "run.json.tmp", "config.yaml.tmp", "samples.jsonl.tmp", "traces.jsonl.tmp"]
)
def test_planted_links_are_not_followed(cli, here: Path, name: str) -> None:
    (here / "mine").write_text("years of work")
    cut(here / "runs" / "bad", "glued")
    (here / "runs" / "bad" / name).symlink_to(here / "mine")
    code, _, err = cli(*RUN, "decoder=threshold", "out_dir=runs/bad")
    assert (code == 2 and f"runs/bad/{name} is not what" in err) if name == "writer.tmp" else code == 0, err
    (here / "page").mkdir()
    for report in ("report.md", "summary.csv", "report.html", "quality_tpf.svg"):
        (here / "page" / report).symlink_to(here / "mine")
    assert cli("report", "runs/good", "out_dir=page")[0] == 0
    assert (here / "mine").read_text() == "years of work"


@pytest.mark.parametrize("clock", [lambda: 5.0, iter(range(10**6, 0, -1)).__next__], ids=["frozen", "backwards"])
def test_strange_clocks_leave_finite_numbers(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]
) -> None:
    monkeypatch.setattr("parallelbench.run.measure.time.perf_counter", clock)
    code, _, err = cli(*RUN, "out_dir=run")
    monkeypatch.undo()
    assert code == 0, err
    info = parse_json((tmp_path / "run" / "run.json").read_text())
    for row in info["metrics"].values():
        assert all(math.isfinite(v) and v >= 0 for value in row.values() for v in value.values())
    assert all(record.latency_s > 0 for record in read_run(tmp_path / "run").records)


def test_an_interrupted_command_says_how_to_go_on(cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(SAMPLES), "append", interrupted)
        assert cli(*RUN, "decoder=threshold", "out_dir=new")[::2] == (130, INTERRUPTED)
    assert cli(*RUN, "decoder=threshold", "out_dir=new")[0] == 0
    assert of_bad(here / "new") == of_bad(here / "runs" / "bad")
    monkeypatch.setattr("parallelbench.report.report.write_report", interrupted)
    assert cli("report", "runs")[::2] == (130, INTERRUPTED)


INTERRUPTED = "error: interrupted; repeat the command to go on\n"


def python(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen:
    known = {key: value for key, value in os.environ.items() if key not in ("LANG", "LC_ALL", "PYTHONUTF8")}
    variables = {**known, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *arguments], cwd=cwd, env=variables, **streams)


def test_files_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    """The folder's name, the prompt and the model's answer are not ASCII; the run resumes and is reported."""
    script = """
import sys
from pathlib import Path
from parallelbench.records.files import read_bytes, replace_file
from parallelbench.records.record import SAMPLES, Record, open_run
from parallelbench.records.lock import writing
import locale
assert locale.getencoding().upper() not in ("UTF-8", "UTF8"), locale.getencoding()
folder = Path("\\u00fcbung")
scores = {"score": 1.0, "score_strict": 1.0}
record = Record("a", "t", "1", "\\u00dcber \\u4f60", "", {"\\u00e4": 1}, "", "\\U0001f600", [1], 1, scores, 1, 1, [0], "eos", 1.0, 1, "a")
config = {"decoder": {"name": "\\u00fc"}, "suite": {}, "batch_size": 1}
with writing(folder):
    known = open_run(folder, config, {})
    SAMPLES.append(folder, [record] if not known else [])
from parallelbench.wiring.exits import explained
with explained():
    print(open_run(folder, config, {})[0].prompt)
    raise ValueError("\\u00fc")
"""
    for _ in range(2):
        foreign = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        process = python("-c", script, cwd=tmp_path, **foreign)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (2, b"\\xdcber \\u4f60\n"), err
        assert err == b"error: \\xfc\n"
    (folder,) = tmp_path.iterdir()
    assert os.fsencode(folder.name) == "übung".encode()
    text = (folder / "samples.jsonl").read_bytes().decode("utf-8")
    assert text.count("\n") == 1 and "Über 你" in text and "😀" in text
    assert yaml.safe_load((folder / "config.yaml").read_bytes().decode("utf-8"))["decoder"] == {"name": "ü"}
