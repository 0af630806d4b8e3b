"""Values that no user means and surroundings that nobody wants: each is refused in a sentence at once, or does no
harm."""

import csv
import errno
import json
import os
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
import yaml

from parallelbench.records import files
from parallelbench.records.files import in_short, inert, replace_file, write_csv
from parallelbench.records.record import MOST_KNOBS, read_run
from parallelbench.stats.table import measured_on
from parallelbench.wiring.menu import understood

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).parents[1] / "stored"
COPY = "waiting_line/copy"
LONG = "a" * 5000
REFUSED = [  # and a part of the sentence
    ("run -m decoder=fixed decoder.rule.k=range(1,1e9)", "is a sweep of 999999999 runs; give at most"),
    ("run -m decoder=fixed decoder.rule.k=sort(range(1,1000000000))", "is a sweep of"),
    ("run -m decoder=fixed decoder.rule.k=shuffle(range(1,1000000000))", "is a sweep of"),
    ("run -m decoder=fixed decoder.rule.k=range(10,1,0)", "is a sweep of inf runs"),
    ("run -m decoder=fixed decoder.rule.k=range(1,1)", "decoder.rule.k=range(1,1) is a sweep of nothing"),
    ("run -m decoder=fixed decoder.rule.k=range(5,1)", "is a sweep of nothing"),
    ("run -m decoder.rule.tau=interval(0,1)", "has no end of values"),
    ("run -m seed=range(0,200) limit=range(1,200)", "a sweep of 39800 runs"),
    ("run -m decoder=glob(zz*)", "decoder=glob(zz*) is a sweep of nothing"),
    ("run decoder=glob(*)", "add -m to run each"),
    ("run decoder=eb,threshold", "decoder=eb,threshold is several values; add -m to run each"),
    ("run decoder.rule.tau=0.5,0.7", "add -m to run each"),
    ("demo hello decoder=eb,threshold", "several values"),
    (f"run decoder.rule={'[' * 300}", "nested more than 20 levels deep"),
    (f"run decoder.rule={'{a:' * 200}1{'}' * 200}", "nested more than"),
    (f"run template={'[' * 500}{']' * 500}", "nested more than"),
    (f"run decoder={LONG * 10}", "has 50008 characters"),
    (f"run decoder={LONG}", "is a name that no file has"),
    (f"run {LONG}=1", "is a name that no file has"),
    (f"run {LONG * 20}=1", "characters; give at most"),
    (f"run suite.tasks=[{','.join([COPY] * 3000)}]", "characters; give at most"),
    (f"run suite.tasks={','.join([COPY] * 200)}", "each once"),
    ("run suite.tasks=[copy,waiting_line/copy]", "each once"),
    (f"run suite.tasks={LONG}", "unknown task"),
    ("run decoder._target_=5", "decoder._target_=5 is not a name of a class; give one"),
    ("run decoder.rule._target_=[a]", "decoder.rule._target_=['a'] is not a name of a class; give one"),
    ("run cache._target_=null", "cache._target_=None is not a name of a class; give one"),
    (LONG, "unknown command"),
    (f"show decoder {LONG}", "unknown decoder"),
    (f"list {LONG}", "unknown group"),
    (f"report {LONG}", "holds no run"),
    (f"report . {LONG}=1", "unknown option"),
    ("run out_dir=~root/x", "another user's"),
    ("run out_dir='~root/x'", "another user's"),
    ("run --config-dir=~/none", "home/none is not a folder"),
]


def test_what_nobody_means_is_refused_in_a_short_sentence(cli, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for line, said in REFUSED:
        code, out, err = cli(*line.split())
        assert code == 2 and not out and said in err, (line[:80], code, err)
        assert err.count("\n") == 1 and len(err) < 1700 and "a" * 101 not in err, (line[:80], len(err))
    assert not list(tmp_path.iterdir())


def test_a_folder_of_home_is_understood_in_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    told = {
        "out_dir=~/x": "out_dir=/h/x",
        "out_dir='~/x'": "out_dir='/h/x'",
        'model.name_or_path="~/x y"': 'model.name_or_path="/h/x y"',
        "+model.adapter=~/x": "+model.adapter=/h/x",
        "data.source=[~/a,'~/b',c]": "data.source=[/h/a,'/h/b',c]",
        "model.name_or_path=~/a,~/b": "model.name_or_path=/h/a,/h/b",
        "--config-dir=~/mine": "--config-dir=/h/mine",
        "svg=~/x.svg": "svg=/h/x.svg",
        "csv=~": "csv=/h",
    }
    assert {word: understood([word])[0] for word in told} == told
    same = ["~decoder.rule", "template='~/x'", "say x=~/y", "a=b~/c", "report", "x=1~", "~", "out_dir=a/~/b"]
    assert understood(same) == same
    monkeypatch.setenv("HOME", "/h o")
    assert understood(["out_dir=~/x"]) == ["out_dir='/h o/x'"]


def test_a_sweep_over_a_pattern_of_names(cli, tmp_path: Path) -> None:
    code, _, err = cli("run", "-m", "decoder=glob(thresh*)", "limit=1", "suite.tasks=copy", "out_dir=out")
    assert code == 0, err
    runs = [read_run(folder) for folder in tmp_path.glob("out/*")]
    assert {run.info["choices"]["decoder"] for run in runs} == {"threshold"}
    assert all(run.config["suite"]["tasks"] == [COPY] for run in runs)  # by its whole name


def test_own_options_are_shown_and_their_classes_found(cli, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    (tmp_path / "my_own_rules.py").write_text(
        "from parallelbench.tasks import Suite\nfrom parallelbench.tasks.waiting_line import WaitingLine\n"
        "class Mine(WaitingLine):\n    @property\n    def name(self): return 'mine/copy9'\n"
        "def make(): return Suite([Mine('copy')])\n"
    )
    for group, name, text in (
        ("suite", "nine", "_target_: my_own_rules.make"),
        ("suite", "wrong", "_target_: my_own_rulez.make"),
        ("decoder", "nine", "# threshold of mine\n_target_: decoders.Decoder\nrule: {_target_: decoders.Threshold}"),
    ):
        (tmp_path / "mine" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / group / f"{name}.yaml").write_text(text)
    code, out, err = cli("show", "decoder", "nine", "--config-dir", "mine")
    assert code == 0 and "threshold of mine" in out and "run --config-dir mine decoder=nine" in out, err
    code, _, err = cli("list", "tasks", "--config-dir", "mine")
    assert code == 2 and "names my_own_rulez.make, which cannot be imported" in err and "PYTHONPATH" in err, err
    (tmp_path / "mine" / "suite" / "wrong.yaml").unlink()
    code, out, err = cli("list", "tasks", "--config-dir", "mine")
    assert code == 0 and "suite=nine: mine/copy9" in out, err
    code, out, err = cli("show", "task", "mine/copy9", "--config-dir", "mine")
    assert code == 0 and "run --config-dir mine suite=nine traces=1" in out, err


STREAMS = {  # a shell's redirection of two samples: the exit code, and what stderr says
    "2>&-": (0, ""),
    ">&-": (1, "error: standard output took no text (it is closed)"),
    ">&- 2>&- <&-": (1, ""),
    ">/dev/full": (1, "error: standard output took no text (No space left on device)"),
    "2>/dev/full": (0, ""),
    "| head -c 0": (0, ""),  # the exit code is head's
}


@pytest.mark.parametrize("redirect", [">&- 2>&- <&-", *(pytest.param(r, marks=pytest.mark.slow) for r in STREAMS)])
def test_a_run_is_whole_whatever_becomes_of_its_streams(tmp_path: Path, redirect: str) -> None:
    command = f"{sys.executable} -m parallelbench run limit=2 suite.tasks=copy out_dir=out {redirect}"
    shell = f"{command} " if "2>" in redirect else f"{command} 2>err"
    shell = f"{command} 2>err" if redirect == ">&-" else shell
    if redirect.startswith("|"):
        shell = command.replace("|", "2>err |")
    done = subprocess.run(["sh", "-c", shell], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    code, said = STREAMS[redirect]
    told = (tmp_path / "err").read_text() if (tmp_path / "err").exists() else ""
    assert done.returncode == code and said in told, told
    assert "Traceback" not in told and "Error executing" not in told
    run = read_run(tmp_path / "out")
    assert run.info["status"] == "done" and len(run.records) == 2


def test_a_stream_that_fails_is_told_at_the_end(tmp_path: Path) -> None:
    """The same of a command that needs no model."""
    for redirect, code, said in (
        (">/dev/full", 1, "took no text"),
        (">&-", 1, "it is closed"),
        ("| head -c 0; true", 0, ""),
    ):
        done = subprocess.run(
            ["sh", "-c", f"{sys.executable} -m parallelbench list tasks {redirect}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert done.stderr.count("\n") <= 1


@pytest.fixture
def stored(tmp_path: Path):
    """A finished run with other words in run.json, config.yaml and its sample."""

    def make(name: str = "run", info: dict | None = None, record: dict | None = None, **config) -> Path:
        folder = tmp_path / name
        shutil.copytree(STORED, folder)
        for file, changes in (("run.json", info or {}), ("samples.jsonl", record or {})):
            content = json.loads((folder / file).read_text() if file == "run.json" else first_line(folder / file))
            choices = {**content.get("choices", {}), **changes.pop("choices", {})}
            content |= changes | ({"choices": choices} if choices else {}) | ({"status": "done"} if choices else {})
            (folder / file).write_text(json.dumps(content) + "\n")
        content = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump({**content, **config}))
        return folder

    return make


def first_line(file: Path) -> str:
    return file.read_text().splitlines()[0]


def deep(levels: int) -> dict:
    value: dict = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"info": {"schema": True}}, "has schema True, not 1"),
        ({"info": {"schema": 1.0}}, "has schema 1.0, not 1"),
        ({"info": {"schema": "1" * 9000}}, "has schema '1111"),
        ({"info": {"knobs": {f"k{i}": i for i in range(20_000)}}}, f"has 20000 knobs, more than {MOST_KNOBS}"),
        ({"info": {"choices": {f"k{i}": "x" for i in range(20_000)}}}, "choices, more than"),
        ({"decoder": {f"k{i}": i for i in range(20_000)}}, "more than 5000 settings"),
        ({"decoder": deep(60)}, "more than 40 levels"),
        ({"suite": {"tasks": [[[[[deep(45)]]]]]}}, "more than 40 levels"),
    ],
)
def test_a_folder_that_is_no_run_is_refused_at_once(cli, stored, change: dict, said: str) -> None:
    folder = stored(**change)
    with pytest.raises(ValueError, match=said) as refused:
        read_run(folder)
    assert str(folder) in str(refused.value) and len(str(refused.value)) < 500


ODD = "=1+1|cmd\n\x1b[31m<script>alert(1)</script>![](http://x.invalid/p.png)"


def test_names_of_strangers_do_no_harm_in_reports(cli, tmp_path: Path, stored) -> None:
    """Formulas, markup, pictures, line breaks, escape sequences and bars in the names of all that has one."""
    stored(
        "runs/run",
        info={"model": ODD, "device": ODD, "choices": {"decoder": ODD, "suite": ODD}, "knobs": {ODD: ODD}},
        record={"task": ODD},
    )
    for command in (["report", "runs", "out_dir=r"], ["leaderboard", "runs", "out_dir=l"], ["recommend", "runs"]):
        code, out, err = cli(*command)
        assert code == 0, (command, err)
        assert "\x1b" not in out + err
    for file in (tmp_path / "r" / "report.md", tmp_path / "l" / "leaderboard.md"):
        text = file.read_text()
        assert "<script" not in text and "](http" not in text and "\x1b" not in text
        tables = [line for line in text.splitlines() if line.startswith("|")]
        assert tables and all(line.endswith("|") for line in tables)
    for file in [*tmp_path.glob("r/*.csv"), *tmp_path.glob("l/*.csv")]:
        for row in csv.reader(StringIO(file.read_bytes().decode(), newline="")):
            assert not [cell for cell in row if cell.startswith(("=", "+", "@", "\t", "\r"))], (file, row)


def test_cells_are_no_formulas_and_numbers_stay(tmp_path: Path) -> None:
    cells = ["=1", "+a", "-b", "@c", "\td", "\re", "-0.5", "+1e-3", "-1", "a=b", "", -0.5, None, "-1+1", "-.5"]
    write_csv(tmp_path / "x.csv", [cells])
    (row,) = csv.reader(StringIO((tmp_path / "x.csv").read_bytes().decode(), newline=""))
    safe = [f"'{cell}" for cell in cells[:6]]
    assert row == [*safe, "-0.5", "+1e-3", "-1", "a=b", "", "-0.5", "", "'-1+1", "-.5"]


def test_markdown_keeps_its_own_pictures() -> None:
    assert inert("![plot](plot.png)\n[a](b.md) a < b") == "![plot](plot.png)\n[a](b.md) a < b"
    for link in ("![](http://x)", "![]( http://x)", "[a](javascript:1)", "![](//x)", "![](<http://x>)"):
        assert "](" not in inert(link)


def test_long_words_are_cut_and_paths_are_not() -> None:
    path = "/".join(["folder" * 10] * 6)
    assert in_short(f"{path} is there\n") == f"{path} is there"
    assert in_short("b" * 5000 + "; give c") == "b" * 100 + "...; give c"
    assert len(in_short("x, " * 5000)) < 1700


def test_a_clock_that_stands_still_or_jumps_is_told(stored) -> None:
    assert "clock" not in measured_on(read_run(stored("right")))
    assert "clock that stood still or jumped" in measured_on(read_run(stored("still", record={"share_s": 1.6e-8})))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_what_a_disk_refuses_is_told_with_the_file(tmp_path: Path, monkeypatch, call: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="Input/output") as refused:
        replace_file(tmp_path / "a.txt", "x")
    assert refused.value.filename == str(tmp_path / "a.txt") and not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", files.NO_SYNC)
def test_a_file_system_that_cannot_wait_for_its_disk_can_be_used(tmp_path: Path, monkeypatch, number: int) -> None:
    def fail(_: int) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "fsync", fail)
    replace_file(tmp_path / "a.txt", "x")
    files.append(tmp_path / "a.txt", "y\n")
    assert (tmp_path / "a.txt").read_text() == "x\ny\n"


@pytest.mark.parametrize("out_dir", ["link", "link/below"])
def test_a_link_to_nothing_is_named(cli, tmp_path: Path, out_dir: str) -> None:
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(ValueError, match="link is a link to nothing, which does not exist"):
        files.out_folder(tmp_path / out_dir)
