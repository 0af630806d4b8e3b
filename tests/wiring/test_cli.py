"""The command line before it decodes: answers at once, in one dialect, with what is nearest to a slip of the pen."""

import importlib
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import forked
import pytest
from conftest import SMALL
from rich.console import Console

from decoders import Generation
from dllm.families import FAMILIES, MODEL_TYPES
from parallelbench.records.provenance import is_dirty
from parallelbench.records.trace import Step
from parallelbench.report.markdown import as_text, table
from parallelbench.run.generator import Request
from parallelbench.run.live import Decoding, play
from parallelbench.tasks.waiting_line import WaitingLine
from parallelbench.wiring.ask import bracketed
from parallelbench.wiring.catalogue import CONF, LISTED, options
from parallelbench.wiring.completion import main as completion
from parallelbench.wiring.menu import COMMANDS, PASSED_ON, WIDTH, find, plain
from parallelbench.wiring.overrides import check_overrides
from parallelbench.wiring.show import main as show
from parallelbench.wiring.sweep import time_left

ROOT = Path(__file__).parents[2]
AT_ONCE = [  # and the exit code
    ("", 0),
    ("--help", 0),
    ("--version", 0),
    ("analyze", 0),
    *((f"{name} --help", 0) for name in COMMANDS),
    ("list", 0),
    ("list decoder", 0),
    ("list tasks", 0),
    ("list stopp", 2),
    ("list stop format=yaml", 2),
    ("run format=yaml", 2),
    ("show decoder credit", 0),
    ("show model tiny", 0),
    ("show suite default", 0),
    ("show task shuffle", 0),
    ("show decoder crdit", 2),
    ("show eb", 0),
    ("show eeb", 2),
    ("demo hello --config-dir=nowhere", 2),
    ("run model=local", 2),
    ("run model=local model.name_or_path=nowhere", 2),
    ("run decoder=3", 2),
    ("demo hello versus=treshold", 2),
    ("demo hello decodr=eb", 2),
    ("demo hello task=shufle", 2),
    ("demo hello svg=nowhere/x.svg", 2),
    ("help", 0),
    ("help analyze pbx", 0),
    ("help lst", 2),
    ("completion bash", 0),
    ("completion zsh", 0),
    ("completion fish", 2),
    ("new decoder eb", 2),
    ("new decoder 1st", 2),
    ("new rule mine", 2),
    ("lst", 2),
    ("analyze thery", 2),
    ("run decoder=thresold", 2),
    ("run -m decoder=credit,thresold", 2),
    ("run -m experiment=threshold decoder=eb", 2),
    ("run experiment=eb", 2),
    ("run decoder.rule.tua=0.3", 2),
    ("run --limt 3", 2),
    ("run --limit", 2),
    ("run limit", 2),
    ("run limit=ten", 2),
    ("run gen_length=30", 2),
    ("run -m decoder.rule.tau=0.5,high", 2),
    ("run decoder=d2f decoder.decoder.rule.tau=-1", 2),
    ("run suite.tasks=[cpoy]", 2),
    ("run stop=eotp stop.scope=row", 2),
    ("demo hello seed=-1", 2),
    ("report nowhere", 2),
    ("score nowhere", 2),
    ("recommend . maxloss=1", 2),
    ("analyze theory taks=copy", 2),
]
HEAVY = "torch transformers datasets scipy matplotlib accelerate".split()
SCRIPT = f"""
import sys
from parallelbench.__main__ import main
for words, code in {AT_ONCE}:
    sys.argv = ["parallelbench", *words.split()]
    try:
        main()
        ended = 0
    except SystemExit as stop:
        ended = stop.code
    loaded = set({HEAVY}) & sys.modules.keys()
    assert ended == code and not loaded, (words, ended, loaded)
"""


def test_what_needs_no_model_is_said_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines() if " choices=" not in line) <= WIDTH
    assert done.stderr.count("error: ") == sum(code == 2 for _, code in AT_ONCE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if name not in (*PASSED_ON, "list", "show", "new", "completion")]
)
def test_the_menu_has_the_options_of_each_command(name: str) -> None:
    main = importlib.import_module(f"parallelbench.{COMMANDS[name].module}").main
    with pytest.raises(ValueError, match="unknown option") as refused:
        main(["zzz=1"], *[str] * bool(COMMANDS[name].handed))
    known = str(refused.value).split("choose among ")[1]
    assert known == ", ".join(f"{key}=" for key in COMMANDS[name].options)


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["lst"], "unknown command 'lst'; did you mean 'list'"),
        (["analyze", "thery"], "unknown analysis 'thery'; did you mean 'theory'"),
        (["run", "--limt", "3"], "unknown setting 'limt'; did you mean 'limit'"),
        (["run", "decoder", "eb"], "'decoder' is not a setting; write settings as KEY=VALUE"),
        (["run", "--limit"], "limit= has no value; write limit=50"),
        (["recommend", ".", "--max-los", "2"], "unknown option 'max_los=2'; did you mean 'max_loss='"),
        (["run", "-m", "suite.tasks=nap"], "unknown task 'nap'"),
        (["run", "suite.tasks=shufle"], "unknown task 'shufle'; did you mean 'waiting_line/shuffle'?"),
        (["run", "suite.templates=9"], "task 'waiting_line/copy' has no wording 9; give 0 to 3"),
        (["run", "decoder="], "unknown decoder ''; `parallelbench list decoder` lists them all"),
        (["run", "--config-dir", "mein", "decoder=eb"], "--config-dir mein is not a folder"),
        (["list", "--config-dir=mein"], "--config-dir mein is not a folder"),
        (["list", "decodr"], "unknown group 'decodr'; did you mean 'decoder'"),
        (["show", "nope"], "unknown choice 'nope'; `parallelbench list` lists them all"),
        (["show", "local"], "'local' may be model or launcher"),
        (["show", "decoder", "nope"], "unknown decoder 'nope'; `parallelbench list decoder` lists them all"),
        (["run", "model=local"], "model.name_or_path has no default; give it a value: model.name_or_path=..."),
        (["run", "suite=prompts"], "suite.tasks.0.source has no default"),
        (["run", "model.name_or_path=nowhere"], "cannot load model 'nowhere': there is no such folder; give a folder"),
        (["run", "model.name_or_path=tinny"], "unknown model 'tinny'; did you mean 'tiny'?"),
        (["run", "decoder=3"], "decoder=3 is not the name of an option"),
        (["demo", "task=shufle"], "unknown task 'shufle'; did you mean 'waiting_line/shuffle'?"),
    ],
)
def test_a_slip_of_the_pen_gets_the_nearest_word(cli, words: list[str], nearest: str) -> None:
    code, out, err = cli(*words)
    assert code == 2 and not out and err.startswith(f"error: {nearest}") and err.count("\n") == 1


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A --config-dir with a task of one's own, whose module lies next to it, far from the current folder."""
    (tmp_path / "far" / "mine" / "suite").mkdir(parents=True)
    blocks = re.findall(r'^```\w+ title="([^"\n]+)"\n(.*?)^```$', (ROOT / "docs/extending.md").read_text(), re.S | re.M)
    for title in ("my_task.py", "mine/suite/mine.yaml"):
        (tmp_path / "far" / title).write_text(dict(blocks)[title])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "far" / "mine"
    sys.modules.pop("my_task", None)


def test_parts_of_ones_own_are_found_beside_their_config_dir(cli, mine: Path) -> None:
    for words in (["show", "backwards"], ["show", "task", "backwards@0"], ["list", "tasks"]):
        code, out, err = cli(*words, "--config-dir", str(mine))
        assert code == 0 and "backwards" in out.lower(), err
    assert cli("show", "backwards")[0] == 2
    code, out, err = cli("demo", f"--config-dir={mine}", "task=backwards", "decoder=eb", "speed=1000")
    assert code == 0 and "Write the line from last to first" in out, err
    code, _, err = cli("run", "suite=mine", "limit=1", "--config-dir", str(mine), "out_dir=run")
    assert code == 0, err
    assert "mine/backwards" in (mine.parents[1] / "here" / "run" / "samples.jsonl").read_text()


@pytest.mark.parametrize("kind", ["decoder", "cache", "task", "model"])
def test_a_new_part_runs_as_it_is_written(
    cli, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    families, types = dict(FAMILIES), dict(MODEL_TYPES)
    code, out, err = cli("new", kind, f"first_{kind}")
    assert code == 0, err
    ran = 0
    for line in out.partition("Now (pytest comes by pip install pytest):\n")[2].splitlines():
        program, *words = shlex.split(line)
        if program == "pytest":
            module = runpy.run_path(str(tmp_path / words[0]))
            for name in [name for name in module if name.startswith("test_")]:
                module[name](*[tmp_path] * module[name].__code__.co_argcount)
                ran += 1
        elif words[:2] == ["-m", "parallelbench"]:
            code, _, err = cli(
                *words[2:], *["limit=1", "suite.tasks=copy"][: (kind != "task") + 1 if words[2] == "run" else 0]
            )
            assert code == 0, (line, err)
        else:
            subprocess.run([sys.executable, *words], check=True, env={"PYTHONPATH": str(ROOT)})
    assert ran == 1
    written = {path: path.read_text() for path in tmp_path.glob("*.py")}
    code, _, err = cli("new", kind, f"first_{kind}")
    assert code == 2 and "exists; choose another name" in err
    assert written == {path: path.read_text() for path in tmp_path.glob("*.py")}
    for known, before in ((FAMILIES, families), (MODEL_TYPES, types)):
        for name in known.keys() - before.keys():
            del known[name]
    sys.modules.pop(f"my_first_{kind}", None)


def test_options_are_understood_with_dashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert plain(["--batch-size", "4", "--limit=3", "decoder=eb"]) == ["batch_size=4", "limit=3", "decoder=eb"]
    assert plain(["--cfg", "job", "-m", "--seed", "-1"], valued=["--cfg"]) == ["--cfg", "job", "-m", "seed=-1"]
    assert plain(["--max-loss", "--limit"]) == ["max_loss=", "limit="]
    assert bracketed("suite.tasks=a,b") == "suite.tasks=[a,b]" and bracketed("suite.lengths=3") == "suite.lengths=[3]"
    assert (
        bracketed("suite.tasks=[a]") == "suite.tasks=[a]"
        and bracketed("suite.grammar=harper") == "suite.grammar=harper"
    )
    (tmp_path / "--odd").mkdir()
    assert plain(["--odd"]) == ["--odd"]


def test_a_run_takes_lists_and_numbers_as_they_are_typed(cli, tmp_path: Path) -> None:
    tasks = "suite.tasks=waiting_line/copy,waiting_line/reverse"
    code, _, err = cli("run", "--limit", "1", "--batch-size=2", tasks, "out_dir=run")
    assert code == 0, err
    assert len((tmp_path / "run" / "samples.jsonl").read_text().splitlines()) == 2


def test_show_says_what_a_choice_is(cli) -> None:
    code, out, _ = cli("show", "decoder", "credit")
    assert code == 0 and "arXiv 2510.06133" in out and "Adds trace credit to the logits" in out
    assert re.search(r"^  decoder.rule.tau=0.9 +a number in \(0, 1e6\] \(above 1: one token", out, re.MULTILINE)
    assert re.search(r"^  \+decoder.transforms.0.tuning_free=false +true or false$", out, re.MULTILINE)
    assert "  decoder.rule.tau=0.5,0.6,0.7,0.8,0.9,0.95,0.99" in out
    code, out, _ = cli("show", "task", "shuffle")
    assert code == 0 and "Shuffle the line into any other order" in out and "score 1, score_strict 1" in out
    assert "run suite.tasks=waiting_line/shuffle traces=1" in out  # zsh takes brackets for a pattern
    code, out, _ = cli("show", "task", "copy@2")
    assert code == 0 and "Repeat the queue below exactly as it is" in out and "leniently" in out.split("Scorer")[1]
    code, out, _ = cli("show", "decoder", "d2f")
    assert code == 0 and re.search(r"^  decoder.decoder.rule.tau=0.9 ", out, re.MULTILINE) and "defaults" not in out
    assert "python -m parallelbench run -m decoder=d2f decoder.running.open_at=A,B,C" in out
    code, out, _ = cli("show", "suite", "official_v2")
    assert code == 0 and re.search(r"^  gen_length=null$", out, re.MULTILINE)
    code, out, _ = cli("show", "model", "tiny")
    assert code == 0 and "num_hidden_layers        5" in out and "5.5 MB" in out


def test_the_list_says_what_was_verified_of_each_model(cli) -> None:
    code, out, _ = cli("list", "model")
    said = re.findall(r"^  model=(\w+) [^[]+\[verified:\s[^]]+\]", out, re.MULTILINE)
    assert code == 0 and said == list(options("model"))
    code, out, _ = cli("show", "model", "llada21")
    assert code == 0 and "not its text" in out


@pytest.mark.parametrize("group", LISTED)
def test_every_choice_can_be_shown(group: str) -> None:
    for name in options(group):
        text = show([group, name])
        assert max(map(len, text.splitlines())) <= WIDTH and f"{group}={name}" in text
        if group != "experiment" and "_target_: decoders" in (CONF / group / f"{name}.yaml").read_text():
            assert re.search(r"^decoders\.\w+\n  \w", text, re.MULTILINE), f"{name}: no docstring was found"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("parallelbench rep", {"report"}),
        ("parallelbench run decoder=cre", {"credit", "credit_free"}),
        ("parallelbench run -m decoder.rule.gam", {"decoder.rule.gamma="}),
        ("parallelbench analyze or", {"order", "oracle"}),
        ("parallelbench analyze theory sam", {"samples="}),
        ("parallelbench show model tiny_b", {"tiny_block"}),
        ("parallelbench report fold", {"folder"}),
    ],
)
def test_bash_completes_words(tmp_path: Path, line: str, wanted: set[str]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "completion.sh").write_text(completion(["bash"]))
    script = (
        f'source completion.sh; COMP_LINE="{line}" COMP_POINT={len(line)}; _parallelbench; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == wanted, done.stderr


def test_a_sweep_says_which_job_it_is_at_and_ends_in_one_table(cli, tmp_path: Path) -> None:
    sweep = ["run", "-m", *SMALL, "limit=1", "decoder.rule.tau=0.5,0.9", "cache=dual", "out_dir=runs"]
    code, out, err = cli(*sweep)
    assert code == 0, err
    second = r"job 2 of 2(, about \d+ \w+ left)?: tiny threshold tau=0.9 cache=dual\nruns/tiny-threshold-dual-tau0.9-"
    assert re.search(second, out)
    summary, (*_, command) = (part.splitlines() for part in out.split("\n\n")[-2:])
    assert summary[0].split()[:4] == ["run", "n", "score", "%"]
    assert max(len(line) for line in out.splitlines() if line != command) <= WIDTH
    assert [line.split("  ")[0] for line in summary[1:3]] == ["threshold tau=0.5", "threshold tau=0.9"]
    assert summary[-1] == "plots and a page: python -m parallelbench report runs"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]  # nothing of the sweeper's
    (folder,) = tmp_path.glob("runs/tiny-threshold-dual-tau0.9-*")
    folder.rename(folder.with_name(f"{folder.name}-mine"))  # what is in it counts, not its name
    code, out, _ = cli(*sweep)
    assert code == 0 and out.count("2 samples, 2 already there") == 2 and len(list(tmp_path.glob("runs/*"))) == 2


def test_a_long_sweep_says_how_long_it_takes() -> None:
    told = [time_left(seconds, ended, 5) for seconds, ended in ((0.0, 0), (2.0, 1), (20.0, 1), (90.0, 3), (600.0, 1))]
    assert told == ["", "", ", about 80 s left", ", about 60 s left", ", about 40 min left"]


def test_demo_plays_two_decoders_and_draws_them(cli, tmp_path: Path) -> None:
    code, out, err = cli("demo", "decoder=eb", "versus=fixed", "svg=decode.svg")
    assert code == 0, err
    sample = WaitingLine("shuffle").samples(1, 0)[0]
    assert sample.messages[0]["content"].splitlines()[0] in out
    assert "tiny eb gamma=0.1" in out and "tiny fixed k=1" in out and "32 forwards for 10 tokens" in out
    assert "\x1b" not in out and out.count("forwards for") == 2  # no terminal: the end alone
    answers = [line for line in out.splitlines() if line.startswith('["')][-2:]
    assert all(WaitingLine("shuffle").score(sample, answer)["score"] == 1 for answer in answers)
    picture = (tmp_path / "decode.svg").read_text()
    assert picture.count('class="name"') == 2 and "score 100 %" in picture
    code, out, _ = cli("demo", "What is this?", "svg=own.svg", "--gen-length", "8", "block_length=8")
    assert code == 0 and "What is this?" in out
    assert "score" not in (tmp_path / "own.svg").read_text().split("</style>")[1]


def test_a_demo_in_a_terminal_shows_every_forward() -> None:
    steps = [Step(0, (0, 3), 3, [(1, 5, 0.9)], []), Step(1, (0, 3), 3, [(0, 4, 0.8), (2, 1, 0.7)], [])]
    generation = Generation("a b", [4, 5], 2, 2, 6, 1.0, "eos", [1, 0, 1])
    written = StringIO()
    console = Console(file=written, force_terminal=True, width=40, color_system=None)
    decoding = Decoding("name", Scripted(generation, steps), Request([{"role": "user", "content": "x"}], 3))
    play([decoding], console, 1000.0)
    shown = written.getvalue()
    order = [
        shown.index(text) for text in ("forward 1: 1 of 3", "_ b _", "forward 2: 3 of 3", "a b .", "2 forwards for 2")
    ]
    assert order == sorted(order)


@dataclass(frozen=True)
class Scripted:
    """A generator that has decoded before it is asked; its model only knows the texts of its tokens."""

    generation: Generation
    steps: list[Step]

    @property
    def model(self) -> "Scripted":
        return self

    def decode(self, ids: list[int]) -> str:
        return {4: "a", 5: "b", 1: ""}[ids[0]]

    def prompt_len(self, request: Request) -> int:
        return 1

    def traced(
        self, batch: list[Request], tell: Callable[[Step], None] | None = None
    ) -> list[tuple[Generation, list[Step]]]:
        for step in self.steps:
            if tell is not None:
                tell(step)
        return [(self.generation, self.steps)]


def notebook() -> list[str]:
    """The code cells of the notebook."""
    text = (ROOT / "examples" / "first_hour.ipynb").read_text()
    assert len(text) < 60_000, "keep its outputs small"
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


def test_commands_of_the_notebook_are_right() -> None:
    lines = [line for code in notebook() for line in code.splitlines() if line.startswith("!")]
    assert len(lines) > 3
    for line in lines:
        name, words = find(shlex.split(line)[3:])
        if name == "run":
            check_overrides([word for word in words if word != "-m"])
        assert name in COMMANDS


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(cli, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    scope: dict[str, object] = {"__name__": "notebook"}
    for code in notebook():
        if code.startswith("!"):
            for line in code.splitlines():
                ended, _, err = cli(*shlex.split(line)[3:])
                assert ended == 0, err
        else:
            exec(compile(code, "first_hour.ipynb", "exec"), scope)
    assert "it keeps them" in capsys.readouterr().out and (tmp_path / "decode.svg").exists()
    assert len(list(tmp_path.glob("results/runs/*/run.json"))) == 6


def test_a_warning_is_one_sentence() -> None:
    code = "import warnings\nfrom parallelbench.wiring.exits import explained\n"
    code += "with explained():\n    warnings.warn('slow,\\n but right')\n"
    done = forked.run("-c", code)
    assert done.returncode == 0 and done.stderr == "warning: slow, but right\n"


def test_untracked_results_do_not_make_a_run_dirty() -> None:
    assert not is_dirty("") and not is_dirty("?? decode.svg\n?? page/report.html")
    assert is_dirty(" M README.md") and is_dirty("?? page/report.html\n?? decoders/rules/mine.py")


def test_reports_fit_a_terminal() -> None:
    """Wide tables go on below, long names and cells go on in the next line; commands stay whole."""
    heads, cells = [f"column {i}" for i in range(9)], [f"{i}.5 [1.25, 9.75]" for i in range(9)]
    rows = [["threshold tau=0.9", *cells], ["a name of many words " * 4, *cells]]
    lines = [
        "# Title",
        "",
        *table(["run", *heads], rows),
        "",
        "![plot](plot.png)",
        "",
        "word " * 40,
    ]
    told = as_text("\n".join([*lines, "      python -m parallelbench " + "x" * 200]), folds=True).splitlines()
    assert max(map(len, told[:-1])) <= WIDTH and "plot.png" not in str(told) and len(told[-1]) > 200
    assert sum(line.startswith("threshold tau=0.9 ") for line in told) == 3
    assert all(sum(f"{i}.5 [1.25, 9.75]" in line for line in told) == 2 for i in range(9))
    assert as_text("\n".join(lines), folds=False).splitlines()[-1] == "word " * 40


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh is installed")
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("parallelbench ana", "analyze"),
        ("parallelbench run -m decoder=eb lim", "limit="),
        ("parallelbench analyze theory sam", "samples="),
        ("parallelbench show model tiny_b", "tiny_block"),
    ],
)
def test_zsh_completes_words(tmp_path: Path, line: str, wanted: str) -> None:
    (tmp_path / "completion.zsh").write_text(completion(["zsh"]))
    script = f"""compdef() {{ : }}; _files() {{ : }}; typeset -A compstate=(nmatches 1)
        compadd() {{ while [[ "$1" != -- ]]; do shift; done; shift; print -l -- "$@" }}
        source completion.zsh; words=({line}); CURRENT=$#words; _parallelbench"""
    done = subprocess.run(["zsh", "-fc", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    offered = [word for word in done.stdout.split() if word.startswith(line.split()[-1])]
    assert offered == [wanted], done.stderr


def test_a_sweep_of_both_lengths_leaves_it_to_each_job_whether_they_fit() -> None:
    check_overrides(["gen_length=32,128", "block_length=32,64"])
    with pytest.raises(ValueError, match="gen_length=30 is not a multiple"):
        check_overrides(["gen_length=32,30"])


def test_experiments_are_swept_each_over_its_grid_and_end_in_a_choice(cli, tmp_path: Path) -> None:
    code, out, err = cli("run", "-m", "experiment=dilated,left", "suite.tasks=copy", "limit=2", "out_dir=runs")
    assert code == 0, err
    names = [f"dilated base={base}" for base in (2, 3, 6)] + [f"left k={k}" for k in (1, 2, 4, 8, 16)]
    assert [line.split(": tiny ")[1] for line in out.splitlines() if line.startswith("job ")] == names
    *_, sentence, last = out.split("\n\n")[-1].splitlines()
    taken = re.match(r"Take (.*): [\d.]+ \[[\d., ]+\] tokens per forward", out[out.index("Take ") :].replace("\n", " "))
    assert taken and taken[1] in names
    command = shlex.split(last)
    assert command[:4] == ["python", "-m", "parallelbench", "run"] and sentence
    code, out, _ = cli(*command[3:], f"out_dir={next(tmp_path.glob('runs/*'))}", "hydra.mode=MULTIRUN")
    assert code == 0


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (
            ["-m", "experiment=threshold", "decoder=eb"],
            "values for decoder=threshold, not for decoder=eb; give experime",
        ),
        (
            ["-m", "experiment=eb,credit", "decoder=wino"],
            "values for decoder=eb, not for decoder=wino; give experiment=",
        ),
        (["-m", "experiment=eb", "decoder=edit"], "decoder=edit; give values of its own knob without experiment=eb"),
        (["-m", "experiment=[threshold,eb]"], "for the last; give experiment=threshold,eb to sweep each"),
        (["experiment=eb"], "experiment=eb is a sweep over decoder.rule.gamma; add -m"),
        (["-m", "experiment=threshold,eb", "decoder.rule.tau=0.9"], "unknown setting 'decoder.rule.tau'"),
    ],
)
def test_a_grid_is_not_for_another_decoder_nor_left_out(cli, tmp_path: Path, words: list[str], refused: str) -> None:
    code, out, err = cli("run", *words)
    assert code == 2 and refused in err and not out and not list(tmp_path.iterdir())


def test_choices_are_listed_and_shown_as_json(cli) -> None:
    listed = json.loads(cli("list", "--format", "json")[1])
    assert set(listed) == {*LISTED, "tasks", "settings"} and listed["settings"]["limit=50"] == "samples per task"
    assert {f"decoder={name}" for name in options("decoder")} == set(listed["decoder"])
    shown = json.loads(cli("show", "decoder", "eb", "format=json")[1])
    assert (shown["kind"], shown["name"], shown["facts"]["deviations"]) == ("decoder", "eb", "none known")
    assert {"key": "decoder.rule.gamma", "default": "0.1", "takes": "a number in [0, 1e6]"} in shown["settings"]
    assert shown["grids"]["eb"] == [{"decoder.rule.gamma": "0.01,0.05,0.1,0.25,0.5,1.0,2.0"}]
    task = json.loads(cli("show", "task", "copy", "format=json")[1])
    assert task["scores"]["score"] == 1 and json.loads(task["target"]) == json.loads(task["prompt"].splitlines()[0])


def test_runs_and_what_reads_them_print_one_object(cli, tmp_path: Path) -> None:
    words = ["run", "-m", "decoder=left", "decoder.rule.k=1,2", "suite.tasks=copy", "limit=4", "out_dir=r"]
    code, out, err = cli(*words, "--format", "json")
    told = json.loads(out)
    assert code == 0 and "job 2 of 2: tiny left k=2" in err and "left k=2" in told["take"][0]["sentence"]
    infos = {
        str(path.parent.relative_to(tmp_path)): json.loads(path.read_text()) for path in tmp_path.glob("r/*/run.json")
    }
    assert {run["folder"]: run["metrics"]["all"]["nfe"] for run in told["runs"]} == {
        folder: info["metrics"]["all"]["nfe"] for folder, info in infos.items()
    }
    assert [run["name"] for run in told["runs"]] == ["left k=1", "left k=2"]
    assert shlex.split(told["runs"][0]["command"])[:4] == ["python", "-m", "parallelbench", "run"]
    code, out, _ = cli("report", "r", "out_dir=page", "format=json")
    reported = json.loads(out)
    assert code == 0 and (tmp_path / reported["page"]).exists() and len(reported["runs"]) == 2
    code, out, _ = cli("recommend", "r", "max_loss=90", "format=json")
    (group,) = json.loads(out)["groups"]
    assert code == 0 and group["choices"]["all"]["reference"]["name"] in ("left k=1", "left k=2")
    code, out, err = cli("run", "limit=4", "cache=block", "format=json", "out_dir=s")
    assert code == 2 and json.loads(out) == {"runs": [], "take": []} and "cache=block" in err
