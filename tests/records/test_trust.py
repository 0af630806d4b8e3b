"""What a stranger's files may do: a run folder is read, and nothing that it names is run unless the user says so."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dllm.validation import SHOWN
from parallelbench.records.record import read_run
from parallelbench.wiring.catalogue import CONF, GROUPS
from parallelbench.wiring.command import command
from parallelbench.wiring.conf import PARTS, build_part, doubt, known_targets

pytestmark = pytest.mark.core
STORED = Path(__file__).parents[1] / "stored"
SUITE = {"_target_": "parallelbench.Suite", "tasks": ["waiting_line/copy"]}
PATH = {"_target_": "pathlib.Path", "_args_": ["PWNED"]}
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {  # a suite of a stored config, and what the refusal says
    "sympify": ({"_target_": "sympy.sympify", "a": "open('PWNED','w')"}, "suite|_target_=sympy.sympify"),
    "hub": ({"_target_": "torch.hub.load", "repo_or_dir": ".", "model": "m", "source": "local"}, "could run anything"),
    "pickle": ({"_target_": "torch.load", "f": "x.pt", "weights_only": False}, "could run anything"),
    "remote": ({"_target_": "transformers.AutoModel.from_pretrained", "trust_remote_code": True}, "AutoModel"),
    "own function": ({"_target_": "parallelbench.records.files.replace_file", "path": PATH, "content": "x"}, "replace"),
    "own module's open": ({"_target_": "parallelbench.records.files.os.system", "command": "touch PWNED"}, "os.system"),
    "through a class": ({"_target_": "parallelbench.Suite.build.__globals__.get"}, "__globals__"),
    "a function that loads": ({"_target_": "dllm.load", "name_or_path": "someone/model"}, "dllm.load"),
    "builtin": ({"_target_": "builtins.open", "file": "PWNED", "mode": "w"}, "builtins.open"),
    "nested": ({**SUITE, "tasks": [{"_target_": "os.system", "command": "touch PWNED"}]}, "tasks.0._target_=os.system"),
    "deep in a list": ({**SUITE, "bertscore": [[{"a": [{"_target_": "os.abort"}]}]]}, "bertscore.0.0.a.0._target_"),
    "without the sandbox": (
        {**SUITE, "tasks": [{"_target_": "parallelbench.HumanEval", "unsandboxed": True}]},
        "tasks.0.unsandboxed=True",
    ),
    "no text": ({**SUITE, "_target_": ["os.system"]}, "_target_=['os.system']"),
    "partial": ({**SUITE, "_partial_": True}, "_partial_=True"),
    "not recursive": ({**SUITE, "_recursive_": False}, "_recursive_=False"),
    "positional": ({**SUITE, "_args_": [["waiting_line/copy"]]}, "_args_="),
    "convert": ({**SUITE, "_convert_": "none"}, "_convert_=none"),
    "environment": ({**SUITE, "tasks": ["${oc.env:HOME}"]}, "tasks.0=${oc.env:HOME}, which could read the environment"),
    "interpolated target": ({**SUITE, "_target_": "${oc.env:X,os.abort}"}, "_target_=${oc.env:X,os.abort}"),
    "host": ({**SUITE, "grammar": "http://127.0.0.1:9"}, "grammar=http://127.0.0.1:9, which names another machine"),
    "HOST": ({**SUITE, "grammar": " HTTPS://127.0.0.1:9"}, "names another machine"),
}


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., Path]:
    """A finished run with other parts in its config."""

    def make(folder: str = "run", **parts: Any) -> Path:
        shutil.copytree(STORED, tmp_path / folder)
        file = tmp_path / folder / "config.yaml"
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **parts}))
        return tmp_path / folder

    return make


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_no_command_makes_what_a_strangers_config_names(cli, tmp_path: Path, stored) -> None:
    for number, (suite, says) in enumerate(HOSTILE.values()):
        folder = stored(f"run{number}", suite=suite)
        before = files(tmp_path)
        code, out, err = cli("score", str(folder))
        assert code == 2 and not out and err.count("\n") == 1, (suite, code, out, err)
        assert folder.name in err and says.split("|")[-1] in err and "trust=true" in err, err
        for part in ("decoder", "stop")[: 1 + (number == 0)]:
            (tmp_path / "other").mkdir()
            folder = stored("other/run", **{part: suite})
            code, out, err = cli("analyze", "frontier", str(folder), "out_dir=f")
            assert code == 2 and not out and err.count("\n") == 1 and "trust=true" in err, (part, suite, err)
            shutil.rmtree(tmp_path / "other")
        assert files(tmp_path) == before, suite


def test_what_is_refused_is_made_for_who_asks_for_it(cli, stored) -> None:
    folder = stored(suite={"_target_": "pathlib.Path"})
    code, _, err = cli("score", str(folder), "trust=true")
    assert code == 2 and "its config names no suite but PosixPath" in err
    code, _, err = cli("score", str(folder), "trust=yes")
    assert code == 2 and err == "error: trust=yes; give true or false\n"


def test_a_grammar_of_the_users_own_may_be_anywhere(cli, stored) -> None:
    """And replaces the one that the run names, which is not asked."""
    folder = stored(
        suite={
            **SUITE,
            "tasks": yaml.safe_load((STORED / "config.yaml").read_text())["suite"]["tasks"],
            "grammar": "http://x.invalid",
        }
    )
    code, _, err = cli("score", str(folder), "grammar=harper")
    assert code == 0, err


def test_all_that_is_shipped_is_trusted() -> None:
    for group in GROUPS:
        for file in (CONF / group).rglob("*.yaml"):
            config = yaml.safe_load(file.read_text())
            told = {key: value for key, value in config.items() if key != "defaults"}
            found = doubt(told, GROUPS)
            assert not found or "${." in found or "${data_dir" in found, (file, found)  # resolved when it is stored
    assert {"decoders.Decoder", "dllm.WindowCache", "parallelbench.Suite"} <= known_targets(PARTS)
    assert not {
        name for name in known_targets(PARTS) if name.startswith("dllm.load") or name.rpartition(".")[2].islower()
    }
    assert build_part({"_target_": "decoders.Threshold", "tau": 0.5}).tau == 0.5


@pytest.mark.parametrize(
    "change",
    [
        *({"suite": suite} for suite, _ in list(HOSTILE.values())[::4]),
        {"hydra": {"run": {"dir": "${oc.env:HOME}"}}},
        {"hydra": {"launcher": {"_target_": "os.system", "command": "touch PWNED"}}},
        {"x\ntouch PWNED": 1},
        {"sink": {"a": {"_target_": "parallelbench.Wandb"}}},
    ],
)
def test_no_command_is_printed_that_runs_what_a_config_names(stored, change: dict) -> None:
    told = command(read_run(stored(**change)))
    assert told.startswith("# no command: its config says ") and "++" not in told and len(told) < 3 * SHOWN
    assert told.isprintable()


@pytest.mark.parametrize("option", ["../../x", "a b", "a\nb", "${oc.env:HOME}", "a=b"])
def test_no_command_is_printed_for_choices_that_are_none(stored, option: str) -> None:
    folder = stored()
    info = json.loads((folder / "run.json").read_text())
    info["choices"]["decoder"] = option
    (folder / "run.json").write_text(json.dumps(info))
    told = command(read_run(folder))
    assert told.startswith("# no command: its config says decoder=") and told.isprintable()
    info["choices"] = {**info["choices"], "decoder": "threshold", "hydra.searchpath": "[pkg://os]"}
    (folder / "run.json").write_text(json.dumps(info))
    assert command(read_run(folder)).startswith("# no command")
    assert os.path.exists(folder)
