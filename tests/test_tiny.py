"""The shipped model: an accuracy floor with one token per step, and ParallelBench's phenomenon in small."""

import json

import pytest

import dllm
from decoders import Decoder, FixedK, StrictEos, Threshold, generate
from dllm.load import ASSETS
from parallelbench.tasks import builtin_tasks
from parallelbench.tasks.base import TRAIN_SEED_MIN

TASKS = builtin_tasks()


@pytest.fixture(scope="module")
def tiny() -> dllm.DiffusionLM:
    return dllm.load("tiny")


def accuracy(model: dllm.DiffusionLM, task: str, decoder: Decoder, n: int = 20) -> float:
    samples = TASKS[task].samples(n, seed=4)
    outputs = generate(model, [s.messages for s in samples], decoder=decoder, stop=StrictEos(), batch_size=n)
    return sum(TASKS[task].score(s, o.text)["score_strict"] for s, o in zip(samples, outputs, strict=True)) / n


@pytest.mark.parametrize("task", TASKS)
def test_one_token_per_step_solves_every_task(tiny: dllm.DiffusionLM, task: str) -> None:
    assert accuracy(tiny, task, Decoder(FixedK(1))) >= 0.85


def test_parallel_decoding_breaks_dependent_tokens_only(tiny: dllm.DiffusionLM) -> None:
    assert accuracy(tiny, "waiting_line/copy", Decoder(FixedK("all"))) >= 0.85
    assert accuracy(tiny, "waiting_line/shuffle", Decoder(FixedK("all"))) <= 0.3
    assert accuracy(tiny, "waiting_line/shuffle", Decoder(Threshold(0.9))) >= 0.85


def test_its_record_says_how_it_was_trained() -> None:
    record = json.loads((ASSETS / "tiny" / "training.json").read_text())
    assert record["config"]["data"]["seed"] >= TRAIN_SEED_MIN
    assert {"steps", "sequences", "seconds", "final_loss", "device", "parameters", "torch"} <= set(record)
