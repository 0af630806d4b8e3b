"""A row decodes to the same tokens, forwards and queried columns in any batch: random decodes of the shipped models in
float64, where rounding decides no near tie, and how far soft steps amplify the rounding of float32."""

import random
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from conftest import make_model
from hydra.utils import instantiate
from omegaconf import OmegaConf
from test_contract import FILES, load

import dllm
from decoders import Decoder, FixedK, Never, Slerp, Smoothing, SoftStep, decode
from decoders.decode_job import check_parts
from decoders.spread import NO_CACHE
from decoders.state import DecodeState
from decoders.types import Update, View
from dllm.cache import DelayedCache, WindowCache
from dllm.shipped import shipped_models
from parallelbench.tasks import builtin_tasks
from parallelbench.wiring.catalogue import CONF

ROWS, SHARDS = 10_000, 10


@cache
def model_of(name: str, dtype: torch.dtype = torch.float64) -> dllm.DiffusionLM:
    return dllm.load(name, dtype=dtype)


@cache
def parts_of(group: str) -> list:
    return [instantiate(OmegaConf.load(path)) for path in sorted((CONF / group).glob("*.yaml"))]


@cache
def decoders() -> list[Decoder]:
    return [load(path) for path in FILES]


def draw_prompt(model: dllm.DiffusionLM, rng: random.Random) -> list[int]:
    """A benchmark prompt of the model's own, or noise."""
    if rng.random() < 0.3:
        task = rng.choice(list(builtin_tasks().values()))
        return model.encode([{"role": "user", "content": task.draw(rng, rng.randrange(100)).prompt}])
    return [rng.randrange(3, model.vocab_size) for _ in range(rng.randint(1, 24))]


def draw_cache(rng: random.Random) -> object:
    """A shipped cache, or one of random sizes."""
    around, every = rng.choice([None, 0, 1, 5, 16]), rng.choice([None, 1, 2, 5])
    window = WindowCache(around, rng.choice([None, 0, 3, 16]), every, rng.choice([0, 2]), rng.random() < 0.3)
    return rng.choice([*parts_of("cache"), window, DelayedCache(every, rng.choice([None, 0, 4]), rng.random() < 0.3)])


def draw(number: int) -> tuple[dllm.DiffusionLM, list[list[int]], dict]:
    """Model, prompts and arguments of `decode` of one batch, whose parts fit each other."""
    rng = random.Random(number)
    while True:
        model = model_of(rng.choice(shipped_models()))
        decoder, kept = rng.choice(decoders()), draw_cache(rng)
        block = rng.choice([2, 4, 8])
        try:
            check_parts(model, decoder, kept)
            break
        except ValueError:
            continue
    prompts = [draw_prompt(model, rng) for _ in range(rng.randint(2, 6))]
    return (
        model,
        prompts,
        {
            "gen_len": [block * rng.randint(1, 16 // block) for _ in prompts],
            "block_len": block,
            "decoder": decoder,
            "cache": kept,
            "stop": rng.choice(parts_of("stop")),
            "seed": rng.randrange(1000),
        },
    )


def differing(numbers: Iterator[int], rows: int) -> tuple[int, list[int]]:
    """Rows compared, and the numbers of the batches with a row that is another alone."""
    compared, found = 0, []
    while compared < rows:
        number = next(numbers)
        model, prompts, parts = draw(number)
        together = decode(model, prompts, **parts)
        for prompt, gen_len, row in zip(prompts, parts["gen_len"], together, strict=True):
            compared += 1
            if decode(model, [prompt], **{**parts, "gen_len": gen_len}) != [row]:
                found.append(number)
    return compared, found


def test_some_random_rows_are_the_same_alone() -> None:
    compared, found = differing(iter(range(10**6, 2 * 10**6)), 24)
    assert compared >= 24 and not found


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_rows_are_the_same_alone(shard: int, capsys: pytest.CaptureFixture) -> None:
    compared, found = differing(iter(range(shard * ROWS, (shard + 1) * ROWS)), ROWS // SHARDS)
    with capsys.disabled():
        print(f"\nshard {shard}: {compared} rows batched against alone in float64, {len(found)} differ: {found}")
    assert not found


@pytest.mark.parametrize("block", [2, 4])
def test_a_row_whose_last_open_column_keeps_its_logits_is_the_same_alone(block: int) -> None:
    """dual_dream never computes a window's first column again, so a row that has only that one left asks for none."""
    model, parts = make_model("shifted").double(), {"gen_len": 8, "block_len": block, "decoder": Decoder(FixedK(1))}
    prompts = [[3 + row, 9, 5 + row % 3][: 3 - row % 3] for row in range(9)]
    parts |= {"cache": WindowCache(0, 0, look_back=False), "stop": Never()}
    assert decode(model, prompts, **parts) == [decode(model, [prompt], **parts)[0] for prompt in prompts]


def amplified(model: dllm.DiffusionLM, prompt: list[int], soft: SoftStep, forwards: int) -> float:
    """How many times larger than the rounding of float32, relative to their size, the logits of a later forward are
    off when all that the first one shows the second is rounded."""
    rounding = 2.0**-24

    def last_logits(off: float) -> torch.Tensor:
        seen: list[torch.Tensor] = []

        def note(state: DecodeState, view: View, update: Update) -> None:
            seen.append(view.logits.values.clone())
            if len(seen) == 1 and state.soft is not None:
                weights = state.soft.weights
                noise = torch.randn(weights.shape, generator=torch.Generator().manual_seed(0), dtype=weights.dtype)
                weights.mul_(1 + off * noise)

        parts = {"decoder": Decoder(FixedK(1), soft=soft), "cache": NO_CACHE, "stop": Never(), "on_step": note}
        decode(model, [prompt], gen_len=16, block_len=16, max_steps=forwards, **parts)
        return seen[forwards - 1][seen[forwards - 1].isfinite()]

    exact = last_logits(0.0)
    return float((last_logits(rounding) - exact).norm() / exact.norm()) / rounding


@pytest.mark.parametrize("soft", [Smoothing(), Slerp()], ids=lambda soft: type(soft).__name__)
def test_soft_steps_amplify_roundings_on_random_weights_and_hardly_on_trained_ones(soft: SoftStep) -> None:
    """What docs/architecture.md says of them; candidates nearer than that may win either way."""
    tiny = model_of("tiny")
    prompt = tiny.encode(builtin_tasks()["waiting_line/shuffle"].samples(1, 0)[0].messages)
    assert 0.1 < amplified(tiny, prompt, soft, 8) < 10
    random_weights = [make_model("full", seed).double() for seed in range(4)]
    assert max(amplified(model, [1, 2, 3], soft, 8) for model in random_weights) > 10
