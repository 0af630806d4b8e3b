"""Nothing is lost and nothing is overwritten: damaged folders, full disks, odd paths, planted links, foreign locales,
strange clocks and Ctrl-C. Every command ends in a sentence, and its repetition goes on."""

import ast
import errno
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import SMALL, samples

from parallelbench.records.files import append, os_sentence, parse_json, printable, replace_file, to_json
from parallelbench.records.record import SAMPLES, SCHEMA, read_run

ROOT = Path(__file__).parents[2]


def slowly(value: object) -> Any:
    """A case that says nothing new, for the long run."""
    return pytest.param(value, marks=pytest.mark.slow)


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
        for name, decoder in (("good", "credit"), ("bad", "threshold")):
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
        assert text.startswith(f"there: {os.strerror(number)}; ") and text.endswith(" and run the command again")


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


@pytest.mark.parametrize("room", [2000, slowly(150), slowly(4000)])
def test_a_run_on_a_full_disk_goes_on_when_there_is_space(cli, here: Path, room: int) -> None:
    """room: bytes that a file may have; the records take 5,000."""
    with file_limit(room):
        code, _, err = cli(*RUN, "decoder=threshold", "out_dir=full")
    assert code == (2 if room < 1000 else 1), err
    assert err.count("error: ") == 1 and "File too large; raise the limit" in err and "Traceback" not in err
    lines = (here / "full" / "samples.jsonl").read_bytes() if (here / "full" / "samples.jsonl").exists() else b""
    assert lines.endswith(b"\n") or not lines
    code, _, err = cli(*RUN, "decoder=threshold", "out_dir=full")
    assert code == 0, err
    assert of_bad(here / "full") == of_bad(here / "runs" / "bad")


CUTS = ["glued", "zeros", *map(slowly, ("last", "first", "middle", "blank", "no newline"))]


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


@pytest.mark.parametrize("status", ["partial", slowly("done")])
@pytest.mark.parametrize("schema", [99, "1", slowly(SCHEMA + 1), slowly(None)])
def test_other_schemas_are_refused_before_anything_is_written(cli, here: Path, schema: object, status: str) -> None:
    edit(here / "runs" / "bad", schema=schema, status=status)
    before = content(here / "runs")
    for command in ([*RUN, "decoder=threshold", "out_dir=runs/bad"], ["score", "runs/bad"], ["trace", "runs/bad"]):
        code, _, err = cli(*command)
        assert code == 2 and err.startswith("error: ") and f"schema {schema!r}" in err and len(err.splitlines()) == 1
    assert content(here / "runs") == before


def test_traces_of_a_newer_schema_are_refused_before_a_forward(cli, here: Path) -> None:
    path = here / "runs" / "bad" / "traces.jsonl"
    path.write_text(path.read_text().replace('"schema":1', '"schema":2'))
    (here / "runs" / "bad" / "samples.jsonl").unlink()
    before = content(here / "runs")
    code, out, err = cli(*RUN, "decoder=threshold", "out_dir=runs/bad")
    assert code == 2 and "its schema is 2" in err and "already there" not in out
    assert content(here / "runs") == before


READERS = ["score", "leaderboard", *map(slowly, ("report", "recommend", "pbx", "oracle", "frontier"))]


@pytest.mark.parametrize("reader", READERS)
def test_one_damaged_folder_is_named_and_skipped_by_every_reader(cli, here: Path, reader: str) -> None:
    shutil.copytree(here / "runs" / "bad", here / "runs" / "worse")
    edit(here / "runs" / "bad", choices=3)
    text = (here / "runs" / "worse" / "samples.jsonl").read_text()
    (here / "runs" / "worse" / "samples.jsonl").write_text(text.replace('"nfe": ', '"nfe": 0, "nef": ', 1))
    if reader in ("pbx", "oracle", "frontier"):  # of a sweep
        assert cli(*RUN, "decoder=credit", "decoder.rule.tau=0.5", "out_dir=runs/next")[0] == 0
        reader = f"analyze {reader}"
    code, out, err = cli(*reader.split(), "runs", *["samples=1"] * reader.endswith("frontier"))
    assert code == 0, err
    said = " ".join((out + err).split())
    assert "runs/bad holds no run of this package (choices is 3, not an object)" in said
    assert "line 1 of runs/worse/samples.jsonl is not a record" in said


def test_samples_of_another_suite_are_refused_at_once(cli, here: Path) -> None:
    edit(here / "runs" / "bad", status="partial")
    path = here / "runs" / "bad" / "samples.jsonl"
    path.write_text(path.read_text().replace('{"id": "waiting_line/copy/0/0"', '{"id": "elsewhere/0"'))
    before = content(here / "runs")
    code, _, err = cli(*RUN, "decoder=threshold", "out_dir=runs/bad")
    assert code == 2 and "sample 'elsewhere/0'" in err and content(here / "runs") == before


LINKS = ["writer.tmp", "run.json.tmp", *map(slowly, ("config.yaml.tmp", "samples.jsonl.tmp", "traces.jsonl.tmp"))]


@pytest.mark.parametrize("name", LINKS)
def test_planted_links_are_not_followed(cli, here: Path, name: str) -> None:
    (here / "mine").write_text("years of work")
    cut(here / "runs" / "bad", "glued")
    (here / "runs" / "bad" / name).symlink_to(here / "mine")
    code, _, err = cli(*RUN, "decoder=threshold", "out_dir=runs/bad")
    assert (code == 2 and f"runs/bad/{name} is not what" in err) if name == "writer.tmp" else code == 0, err
    assert (here / "mine").read_text() == "years of work"


@pytest.mark.slow
def test_a_report_follows_no_links(cli, here: Path) -> None:
    (here / "mine").write_text("years of work")
    (here / "page").mkdir()
    for name in ("report.md", "summary.csv", "report.html", "quality_tpf.png"):
        (here / "page" / name).symlink_to(here / "mine")
    assert cli("report", "runs", "out_dir=page")[0] == 0
    assert (here / "mine").read_text() == "years of work" and not (here / "page" / "report.md").is_symlink()


@pytest.mark.parametrize("clock", [iter(range(10**6, 0, -1)).__next__, slowly(lambda: 5.0)])
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
        code, _, err = cli(*RUN, "decoder=threshold", "out_dir=new")
        assert code == 130 and err.endswith(INTERRUPTED) and "Traceback" not in err
    assert cli(*RUN, "decoder=threshold", "out_dir=new")[0] == 0
    assert of_bad(here / "new") == of_bad(here / "runs" / "bad")
    monkeypatch.setattr("parallelbench.report.report.write_report", interrupted)
    assert cli("report", "runs")[::2] == (130, INTERRUPTED[1:])


INTERRUPTED = "\nerror: interrupted; run the same command again to resume\n"


def python(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen:
    known = {key: value for key, value in os.environ.items() if key not in ("LANG", "LC_ALL", "PYTHONUTF8")}
    variables = {**known, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, *arguments]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background job would inherit to ignore it
    return subprocess.Popen(command, cwd=cwd, env=variables, start_new_session=True, preexec_fn=heed, **streams)


def test_files_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    """The folder's name, the prompt and the model's answer are not ASCII; the run resumes and is reported."""
    script = """
import sys
from pathlib import Path
from parallelbench.records.files import read_bytes, replace_file
from parallelbench.records.record import SAMPLES, Record, open_run, prompt_sha
from parallelbench.records.lock import writing
import locale
assert locale.getencoding().upper() not in ("UTF-8", "UTF8"), locale.getencoding()
folder = Path(sys.argv[1])
scores = {"score": 1.0, "score_strict": 1.0}
prompt = "\\u00dcber \\u4f60"
texts = ("a", "t", "1", prompt, prompt_sha(prompt), {"\\u00e4": 1}, "", "\\U0001f600")
record = Record(*texts, [1], 1, scores, 1, 1, [0], "eos", 1.0, 1.0, 1, "a")
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
        process = python("-c", script, "übung", cwd=tmp_path, **foreign)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (2, b"\\xdcber \\u4f60\n"), err
        assert err == b"error: \\xfc\n"
    (folder,) = tmp_path.iterdir()
    assert os.fsencode(folder.name) == "übung".encode()
    text = (folder / "samples.jsonl").read_bytes().decode("utf-8")
    assert text.count("\n") == 1 and "Über 你" in text and "😀" in text
    assert yaml.safe_load((folder / "config.yaml").read_bytes().decode("utf-8"))["decoder"] == {"name": "ü"}


# ---- the long run

BIG = b"".join(os.urandom(1) for _ in range(3000))
FILES = ("samples.jsonl", "run.json", "config.yaml", "traces.jsonl")


def in_place(name: str, put: Callable[[Path], object]) -> Callable[[Path], object]:
    """A damage that takes the place of a file."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        put(folder / name)

    return damage


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


PLACES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": lambda path: path.touch(),
    "garbage": lambda path: path.write_bytes(BIG),
    "zeros": lambda path: path.write_bytes(b"\0" * 4096),
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "unreadable": lambda path: path.symlink_to("/proc/self/mem"),
    "deep": lambda path: path.write_bytes(b"[" * 100_000 + b"\n"),
    "a number": lambda path: path.write_bytes(b"3\n"),
    "latin-1": lambda path: path.write_bytes('{"id": "\xfc"}\n'.encode("latin-1")),
}
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "cut at its first byte": lambda data: data[:1],
    "cut in the middle": lambda data: data[: len(data) // 2],
    "cut before its end": lambda data: data[:-2],
    "behind a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "twice": lambda data: data + data,
    "with Windows' line ends": lambda data: data.replace(b"\n", b"\r\n"),
    "a byte flipped": lambda data: data[:100] + bytes([data[100] ^ 0x80]) + data[101:],
}


def record_with(**values: object) -> Callable[[Path], object]:
    """Sets values of the first record; `...` takes them out."""

    def damage(folder: Path) -> None:
        path = folder / "samples.jsonl"
        first, *rest = path.read_text().splitlines(keepends=True)
        record = {key: value for key, value in (json.loads(first) | values).items() if value is not ...}
        path.write_text("".join([json.dumps(record) + "\n", *rest]))

    return damage


def info_with(**values: object) -> Callable[[Path], object]:
    return lambda folder: edit(folder, **values)


def config_with(text: str) -> Callable[[Path], object]:
    return changed("config.yaml", lambda data: data + text.encode())


BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
RECORDS = {
    "id": [["list"], {}, 3, None, "elsewhere/0", ...],
    "task": [3, "waiting_line/nap"],
    "scores": [{}, 3, {"score": "1", "score_strict": 1}, {"score": math.nan, "score_strict": 1}],
    "nfe": [0, -1, 1.5, "1", None, math.inf, 10**400],
    "num_tokens": [-1, None],
    "latency_s": [0, math.nan, "fast"],
    "share_s": [0, "fast"],
    "batch_size": [0, True],
    "token_ids": [3, ["a"], None],
    "committed_at": ["x", [None]],
    "completion": [None, "\ud800", "\x1b[2J"],
    "data": [[], None],
    "unknown": [1],
}
INFOS = {
    "parameters": [math.nan],
    "schema": [2, 99, "1", None, 1.5],
    "status": ["over", None],
    "choices": [3, [], {"model": 3}, {"model": "tiny"}],
    "identity": [3, {"weights": 1}, {"weights": "0", "tasks": {}}],
    "config_hash": [3],
    "device": [None],
    "knobs": [3],
    "text_of": [None, ["ar"]],
    "is_autoregressive": [1, "yes"],
    "git": ["main"],
    "processes": ["two"],
}
CONFIGS = {
    "a bomb": BOMB,
    "a date": "when: 2026-01-01\n",
    "a set": "these: !!set {a, b}\n",
    "a python object": "run: !!python/object/apply:os.system [id]\n",
    "two keys": "limit: 4\n",
    "no text keys": "3: 4\n",
    "a suite of 3": "suite: 3\n",
    "a decoder of 3": "decoder: 3\n",
    "a batch size of text": "batch_size: many\n",
    "nan": "seed: .nan\n",
}
DAMAGES = {
    **{f"{name} is {what}": in_place(name, put) for name in FILES for what, put in PLACES.items()},
    **{f"{name} is {what}": changed(name, change) for name in FILES for what, change in CHANGES.items()},
    **{f"a record with {key}={v!r:.40}": record_with(**{key: v}) for key, values in RECORDS.items() for v in values},
    **{f"run.json with {key}={v!r:.40}": info_with(**{key: v}) for key, values in INFOS.items() for v in values},
    **{f"config.yaml with {what}": config_with(text) for what, text in CONFIGS.items()},
    **{
        f"a folder {name}": lambda folder, name=name: (folder / name).mkdir() for name in ("writer.tmp", "run.json.tmp")
    },
    **{
        f"a line cut: {case}": lambda folder, case=case: cut(folder, case)
        for case in ("last", "first", "middle", "blank")
    },
    "an empty shard": lambda folder: (folder / "samples.0.jsonl").touch(),
    "a foreign shard": lambda folder: (folder / "samples.0.jsonl").write_text("{}\n"),
    "a shard of a folder": lambda folder: (folder / "samples.7.jsonl").mkdir(),
}


def told(folder: Path) -> dict[str, object]:
    """What no damage that reads well has changed."""
    return {r.id: (r.task, r.task_version, r.prompt, r.target, r.token_ids) for r in read_run(folder).records}


@contextmanager
def in_time(seconds: int) -> Iterator[None]:
    def late(*given: object) -> None:
        raise TimeoutError(f"nothing for {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.parametrize("status", ["done", "partial"])
def test_damaged_folders_are_named_or_finished(cli, made: Path, tmp_path: Path, status: str) -> None:
    """Every damage read by `recommend` beside a good run, and by `run`, which finishes it or refuses it in a
    sentence; what it refuses it leaves alone."""
    whole, failures = told(made / "runs" / "bad"), []
    outcomes = {"finished": 0, "refused": 0, "read": 0, "skipped": 0}
    for name, damage in DAMAGES.items():
        home = tmp_path / "case"
        shutil.copytree(made / "runs", home / "runs")
        bad = home / "runs" / "bad"
        edit(bad, status=status)
        damage(bad)
        before = content(home)
        try:
            with in_time(120), pytest.MonkeyPatch.context() as patch:
                patch.chdir(home)
                code, out, err = cli("recommend", "runs")
                assert code == 0 and content(home) == before, err
                outcomes["skipped" if "runs/bad" in out else "read"] += 1
                code, out, err = cli(*RUN, "decoder=threshold", "out_dir=runs/bad")
                assert code in (0, 2) and "Traceback" not in err, err
                if code == 0:
                    assert told(bad) == whole
                    outcomes["finished"] += 1
                else:
                    assert err.startswith("error: ") and len(err.splitlines()) == 1, err
                    assert content(home) == before
                    outcomes["refused"] += 1
        except (Exception, AssertionError) as error:
            failures.append(f"{name}: {type(error).__name__}: {error}"[:600])
        shutil.rmtree(home)
    print(f"{len(DAMAGES)} damages of a run that is {status}: {outcomes}, {len(failures)} not as promised")
    assert not failures, "\n".join(failures)


LONG = "x" * 256
ODD = {  # a name of a folder, and what becomes of a run there
    "with space": 0,
    "two\nlines": 0,
    "übung 你好 😀": 0,
    "-dash": 0,
    "--help": 0,
    "it's": 0,
    '"quoted"': 0,
    "a=b,c": 0,
    "$HOME;ls": 0,
    "\x1b[31mred": 0,
    "deep/" * 20 + "end": 0,
    "../beside": 0,
    "x" * 255: 0,
    LONG: 2,
    "y/" * 2200: 2,
    "/dev/null": 2,
    "/dev/null/x": 2,
    "/dev/full": 2,
    "/proc/x": 2,
    "file/x": 2,
    "loop": 2,
    "dangling": 2,
}


@pytest.mark.slow
def test_odd_paths_hold_a_run_or_are_refused(cli, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    os.chdir(tmp_path / "home")
    Path("file").write_text("mine")
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("/proc/nowhere/x")
    failures = []
    for name, expected in ODD.items():
        quoted = name.replace("\\", "\\\\").replace("'", "\\'")
        for command in ([*RUN, f"out_dir='{quoted}'"], ["score", name], ["trace", f"./{name}"]):
            try:
                code, _, err = cli(*command)
            except Exception as error:
                failures.append(f"{name[:40]!r} {command[0]}: {type(error).__name__}: {error}"[:400])
                continue
            as_promised = code == expected and "Traceback" not in err
            if not as_promised or (code and (not err.startswith("error: ") or len(err.splitlines()) != 1)):
                failures.append(f"{name[:40]!r} {command[0]}: {code}: {err}"[:400])
    print(f"{len(ODD)} odd paths x 3 commands, {len(failures)} not as promised")
    assert Path("file").read_text() == "mine" and not failures, "\n".join(failures)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [[], ["-m", "decoder=credit,threshold", "launcher=local"]], ids=["alone", "local"])
def test_ctrl_c_ends_in_one_sentence(tmp_path: Path, launcher: list[str]) -> None:
    """The signal reaches the whole group, as a terminal sends it."""
    command = ["-m", "parallelbench", "run", "limit=200", "batch_size=2", "decoder.rule.tau=1.1", *launcher]
    process = python(*command, *[] if launcher else ["out_dir=run"], cwd=tmp_path)
    deadline = time.monotonic() + 240
    while not list(tmp_path.rglob("samples.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert err.count(INTERRUPTED.strip().encode()) == 1 and b"Traceback" not in out + err
