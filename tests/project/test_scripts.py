"""Every script runs once on its smallest setting; the shell scripts with a `python` that only writes its commands down.
Training has its own tests (`test_training.py`, `test_certainty.py`, `test_traces.py`)."""

import json
import os
import runpy
import shlex
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import forked
import pytest
import torch

import dllm
from parallelbench.training.usage import adapted, parts, trained
from parallelbench.wiring.menu import COMMANDS
from parallelbench.wiring.overrides import check_overrides

ROOT = Path(__file__).parents[2]
BENCHES = {
    "step.py": ("batch=1 block=4 vocab=300 repeats=1", "threshold"),
    "cache.py": ("shape=toy batch=1 prompt=4 gen=4 block=2 k=2 caches=none", "none"),
    "speed.py": ("batch_size=2 repeats=1 tasks=2", "credit 0.9"),
    "products.py": ("repeats=1", "576 -> 49152"),
    "gpu.py": ("shape=toy prompt=4 gen=4 block=2 k=2 batches=1,2 modes=eager dtype=float32", "block      2 eager"),
    "constraint.py": ("window=4 prompt=4 layers=1 repeats=1", "strings of up to 20"),
    "operations.py": ("cache=dual by=line", "   1 dllm/model.py"),
}
SHELL = [path for folder in ("bench", "published", ".") for path in sorted((ROOT / "scripts" / folder).glob("*.sh"))]
for name in ("all", "records", "render"):  # runs the others, is sourced by them, and needs their pages
    SHELL.remove(ROOT / "scripts" / "published" / f"{name}.sh")
STUB = '#!/usr/bin/env bash\nprintf "%q " "$@" >> "$COMMANDS"\necho >> "$COMMANDS"\n'


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | env
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "name",
    [
        "step.py",
        "cache.py",
        "speed.py",
        "products.py",
        "gpu.py",
        "constraint.py",
        pytest.param("operations.py", marks=pytest.mark.slow),
    ],
)
def test_a_benchmark_runs(name: str) -> None:
    options, row = BENCHES[name]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = forked.run(ROOT / "scripts" / "bench" / name, *options.split(), cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    assert any(line.startswith(row) for line in done.stdout.splitlines())


def test_the_page_on_a_gpu_shows_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts" / "bench")
    page, bench = ROOT / "results" / "published" / "gpu", runpy.run_path(str(ROOT / "scripts" / "bench" / "gpu.py"))
    cells = json.loads((page / "gpu.json").read_text())["cells"]
    assert len(cells) == 18 and bench["markdown"](cells) in (page / "report.md").read_text()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="shape=llada-8b is for a GPU, and there is none; give shape=toy"):
        bench["read_options"]([])


def test_a_step_asks_for_few_operations() -> None:
    """In a step in which no row enters a window or ends; the numbers are those of `docs/performance.md`."""
    bench = runpy.run_path(str(ROOT / "scripts" / "bench" / "operations.py"))
    loop, model = bench["split"](bench["count"](1, "none", "threshold"))
    assert loop <= 71 and model <= 16
    library = compile("torch.zeros(1)", str(ROOT / ".venv" / "lib" / "library.py"), "exec")
    with bench["Operations"]() as operations:
        exec(library, {"torch": torch})
    assert list(operations.places) == [("elsewhere", "", 0)]  # README's environment lies in the repository


@pytest.mark.usefixtures("as_a_user_has_it")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "train fit.stepz=3",
            "unknown setting 'fit.stepz'; did you mean 'fit.steps'? `parallelbench train",
        ),
        ("train fit={stepz:3}", "unknown setting 'fit.stepz'; did you mean 'fit.steps'? `parallelbench"),
        ("train recipe=tinny", "unknown recipe 'tinny'; did you mean 'tiny'? Choose among dparallel, "),
        (f"train recipe=tiny out_dir={__file__}", "test_scripts.py is a file; choose another out_dir"),
        (f"distill model=tiny_ar out_dir={__file__}", "test_scripts.py is a file; choose another out_dir"),
        ("train model._target_=5", "model._target_=5 is not a name of a class; give one"),
        ("train fit.steps=many", "error: fit.steps='many'; give a whole number"),
        ("train recipe=tiny_ar", "error: objective=next_token trains an autoregressive LM, and init=null"),
        ("train fit.steps=[3", "fit.steps=[3 is not in Hydra's grammar"),
        ("train data.weights.puzzle/sudoku_n4=5", 'write "data.weights={puzzle/sudoku_n4: 5}"'),
        ("train foo", "'foo' is not a setting; write settings as KEY=VALUE"),
        ("distill foo seed=1", "'foo' is not a setting; write settings as KEY=VALUE"),
        ("collect_traces limit=3 foo", "'foo' is not a setting; write settings as KEY=VALUE"),
        ("train_filter foo", "'foo' is not a setting; write settings as KEY=VALUE"),
        ("answer foo", "'foo' is not a setting; write settings as KEY=VALUE"),
        (f"train --config-dir {ROOT / 'conf'} fit.stepz=3", "unknown setting 'fit.stepz'"),
        ("distill limt=3", "unknown setting 'limt'; did you mean 'limit'"),
        ("collect_traces decoder=orcle", "unknown decoder 'orcle'; did you mean 'oracle'"),
        ("collect_traces decoder=threshold decoder.rule.tau=high", "error: decoder.rule.tau='high'; give"),
        ("train_filter filter=blok", "unknown filter 'blok'; did you mean 'block'"),
        ("answer prompt=a prompst=b", "unknown setting 'prompst'; did you mean 'prompt'"),
    ],
)
def test_a_slip_of_the_pen_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    message: str,
) -> None:
    name, *words = arguments.split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "scripts" / f"{name}.py"), run_name="__main__")
    told = capsys.readouterr()
    assert stop.value.code == 2 and told.out == "" and len(told.err.splitlines()) == 1, told.err
    assert told.err.startswith("error: ") and message in told.err and not [*tmp_path.iterdir()]


def test_the_command_that_decodes_with_an_adapter_exists() -> None:
    model = dllm.load("tiny-block")
    words = adapted(model, "tiny-block", "first", Path("out/second"), {"block": 8})
    _, _, told = trained(Path("out/second"), "training loss of 0.1", parts(model), words).partition("with it: ")
    line = shlex.split(told)
    check_overrides(line[4:])
    spec = f"+model.spec={{block: 8,mask_id: {model.spec.mask_id}}}"
    assert line[4:] == [
        *("model=local", "cache=block", "block_length=8", "stop=block_eos", "model.name_or_path=tiny-block"),
        *("+model.adapter=[first,out/second]", spec),
    ]


@pytest.mark.parametrize("name", BENCHES)
def test_a_benchmark_refuses_what_it_does_not_know(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts" / "bench")
    main = runpy.run_path(str(ROOT / "scripts" / "bench" / name))["main"]
    for argument in ("--help", "speed=1", "repeats=many", "batch=many"):
        with pytest.raises(ValueError, match=r"options are|unknown option"):
            main([argument])


def commands(script: Path, folder: Path) -> list[list[str]]:
    """What a shell script would run with python, in order."""
    stub = folder / "bin" / "python"
    stub.parent.mkdir()
    stub.write_text(STUB)
    stub.chmod(stub.stat().st_mode | stat.S_IEXEC)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    (folder / "conf").symlink_to(ROOT / "conf")
    log = folder / "commands"
    done = run("bash", script, cwd=folder, PATH=f"{stub.parent}:{os.environ['PATH']}", COMMANDS=str(log))
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.stem)
def test_commands_of_a_shell_script_exist(tmp_path: Path, script: Path) -> None:
    found = commands(script, tmp_path)
    assert found
    for command in found:
        if command[:3] == ["-m", "parallelbench", "run"]:
            check_overrides([argument for argument in command[3:] if argument != "-m"])
        else:
            is_command = command[:2] == ["-m", "parallelbench"] and command[2] in COMMANDS
            is_module = command[0] == "-m" and find_spec(command[1]) is not None
            assert is_command or is_module or (ROOT / command[0]).is_file()


def test_the_antibody_example_says_how_it_is_used() -> None:
    done = forked.run(ROOT / "examples" / "decode_antibody.py")
    assert done.returncode == 2 and "usage: decode_antibody.py WHEEL_OR_FOLDER" in done.stdout
