"""What several tests share: models made in the test, with random weights sharpened so that confidences spread over
(0, 1), and the command line called in this process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from checked import Checks  # before our packages, whose functions it wraps
from jaxtyping import config
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from dllm import DiffusionLM, ModelSpec
from parallelbench.__main__ import main
from parallelbench.tasks.code.sandbox import check_sandbox

torch.set_num_threads(1)  # the tensors are tiny; threads only wait for each other

VOCAB, PAD, EOS, MASK = 48, 45, 46, 47
BLOCK = 8

SPECS = {
    "full": {},
    "shifted": {"shift": 1},
    "block_causal": {"block": BLOCK},
    "shifted_block_causal": {"shift": 1, "block": BLOCK},
    "context_causal": {"shift": 1, "block": BLOCK, "context_causal": True},
    "mixed": {"mix": 1, "response_position": 24},
}


def make_model(kind: str, seed: int = 0, layers: int = 2) -> DiffusionLM:
    """A float32 model of one of the kinds in SPECS."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.6,
        "eos_token_id": None,
        "bos_token_id": None,
    }
    shifted = "shifted" in kind
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = Qwen2ForCausalLM(Qwen2Config(**sizes)) if shifted else LlamaForCausalLM(LlamaConfig(**sizes))
    model = DiffusionLM(backbone, ModelSpec(MASK, (EOS,), PAD, **SPECS[kind]), name=kind)
    if model.mix is not None:
        model.mix.reset_(0.5, torch.Generator().manual_seed(seed))
    return model.eval()


@pytest.fixture(params=SPECS)
def model(request: pytest.FixtureRequest) -> DiffusionLM:
    return make_model(request.param)


@pytest.fixture
def prompts() -> list[list[int]]:
    """Ragged prompts of ids below the special ones."""
    rng = torch.Generator().manual_seed(3)
    return [torch.randint(0, PAD, (n,), generator=rng).tolist() for n in (5, 11, 3, 8)]


@pytest.fixture(autouse=True)
def types_of_first_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks types and shapes in each function's first call in a test function; with `-m "slow or not slow"` in all."""
    Checks.calls = 1 if "not slow" in request.config.getoption("markexpr") else float("inf")
    Checks.test = request.node.nodeid.partition("[")[0]
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def as_a_user_has_it(types_of_first_calls: None) -> Iterator[None]:
    """Without the tests' own type checks, which would refuse values of wrong types before the parts do."""
    config.update("jaxtyping_disable", True)
    yield


@pytest.fixture(scope="session")
def sandboxed() -> None:
    """Programs can be walled in here."""
    try:
        check_sandbox()
    except ValueError as error:
        pytest.skip(str(error))


SECONDS = ("latency_s", "share_s", "cpu_s")
SMALL = ["limit=3", "batch_size=2", "suite.tasks=[waiting_line/copy,waiting_line/shuffle]"]


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line."""
    monkeypatch.setattr(sys, "argv", ["parallelbench", *arguments])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: call(monkeypatch, capsys, *arguments)


def samples(folder: Path) -> list[dict]:
    """Records without their timing."""
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in SECONDS} for line in lines]


def torchrun(folder: Path, num_processes: int, *arguments: str) -> subprocess.Popen:
    """`torchrun -m parallelbench` in a folder, stdout and stderr in one pipe."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "parallelbench", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(launched: subprocess.Popen) -> tuple[int, str]:
    """Exit code and output. Fails, and ends the processes, when they are not done after two minutes."""
    try:
        out, _ = launched.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        launched.terminate()
        raise
    return launched.returncode, out
