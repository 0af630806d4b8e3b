"""The loops on a device that is not the CPU (`device.DEVICE`): nothing is mixed, the rows are those of the CPU, and a
step of the one loop waits for the device once, or ten times where rows end."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from conftest import BLOCK, PAD, SPECS, make_model
from device import DEVICE, other_device
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

import dllm
from decoders.spread import ONE_WINDOW
from decoders.types import DecodedRow, Turn
from parallelbench.methods.autoregressive import CausalGenerator
from parallelbench.run.generator import DiffusionGenerator, Generator, make_generator
from parallelbench.wiring.catalogue import CONF
from parallelbench.wiring.conf import make_part

PROMPTS = [[1, 2, 3, 4, 5], [6, 7, 8, 6, 7, 8, 6], [9, 10, 11]]
SLOTS = 2
GEN = [2 * BLOCK, BLOCK, BLOCK]
MORE = {"editing": {"delete_id": PAD - 1, "split_id": PAD - 2}, "noisy": {"noise": PAD}}
KINDS = (*SPECS, *MORE, "tiny-ar", "tiny-recurrent")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in CONF.glob(f"{group}/*.yaml"))


DECODERS, CACHES, STOPS = options("decoder"), options("cache"), options("stop")


@cache
def config(group: str, option: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base=None):
        return compose("run", [f"{group}={option}"])[group]


@cache
@torch.inference_mode()
def model_on(device: torch.device | str, kind: str) -> Any:
    if kind not in (*SPECS, *MORE):
        return dllm.load(kind).requires_grad_(False).double().to(device)
    model = make_model(kind if kind in SPECS else "full")
    model.spec = replace(model.spec, **MORE.get(kind, {}))
    return model.requires_grad_(False).double().to(device)


def generator(device: torch.device | str, kind: str, decoder: str, kept: str, stop: str) -> Generator:
    how, caching, stopping = (
        make_part(config(*chosen)) for chosen in (("decoder", decoder), ("cache", kept), ("stop", stop))
    )
    return make_generator(model_on(device, kind), how, cache=caching, stop=stopping, block_len=BLOCK, seed=3)


def turns(generator: Generator) -> Iterator[Turn[DecodedRow]]:
    """Three prompts in two slots, where the loop has slots."""
    if isinstance(generator, DiffusionGenerator):
        yield from generator.turns(PROMPTS, GEN, SLOTS)
    else:
        assert isinstance(generator, CausalGenerator)
        yield from generator.turns(PROMPTS, GEN, SLOTS)


def fits(kind: str, decoder: str, kept: str, stop: str) -> bool:
    try:
        generator("cpu", kind, decoder, kept, stop)
    except ValueError:
        return False
    return True


def check_alike(kind: str, decoder: str, kept: str, stop: str) -> tuple[int, int]:
    """Decodes here and there. Returns the forwards of all rows there, and how often the host waited."""
    here: dict[int, DecodedRow] = {}
    there: dict[int, DecodedRow] = {}
    for turn in turns(generator("cpu", kind, decoder, kept, stop)):
        here |= turn.ended
    with other_device() as device:
        made, waits, plain = generator(DEVICE, kind, decoder, kept, stop), 0, False
        refills = isinstance(made, DiffusionGenerator) and made.spread == ONE_WINDOW
        device.syncs.clear()
        device.uploads.clear()
        for turn in turns(made):
            there |= turn.ended
            if refills and plain:
                assert device.syncs.total() == 1 + (9 if turn.ended else 0)
                assert device.uploads.total() == (0 < len(turn.ended) < SLOTS)  # which rows are handed out, unless all
            plain, waits = not turn.ended, waits + device.syncs.total()
            device.syncs.clear()
            device.uploads.clear()
    assert there == here
    return sum(row.nfe for row in there.values()), waits


@pytest.mark.parametrize(
    ("kind", "decoder", "kept", "stop"),
    [
        ("full", "threshold", "none", "strict_eos"),
        ("mixed", "learn2pd", "dual", "eotp"),
    ],
)
def test_rows_are_those_of_the_cpu(kind: str, decoder: str, kept: str, stop: str) -> None:
    check_alike(kind, decoder, kept, stop)


def combination(number: int) -> tuple[str, str, str, str]:
    """A decoder, with a model, a cache and a stop rule that go round among those that it takes."""
    decoder = DECODERS[number]
    return next(
        (kind, decoder, kept, stop)
        for kept in [*CACHES[number % len(CACHES) :], "none"]
        for stop in [STOPS[number % len(STOPS)], "strict_eos"]
        for kind in [*KINDS[number % len(KINDS) :], *KINDS]
        if fits(kind, decoder, kept, stop)
    )


def fits_threshold(number: int, stop: str) -> tuple[str, str, str, str]:
    """A cache and a stop rule, with a model that takes both."""
    kinds, kept = [*KINDS[number % len(KINDS) :], *KINDS], CACHES[number]
    return next((kind, "threshold", kept, stop) for kind in kinds if fits(kind, "threshold", kept, stop))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(DECODERS)), ids=DECODERS)
def test_every_decoder(number: int, capsys: pytest.CaptureFixture) -> None:
    kind, decoder, kept, stop = combination(number)
    forwards, waits = check_alike(kind, decoder, kept, stop)
    with capsys.disabled():
        print(f"\n{decoder}, {kind}, cache={kept}, stop={stop}: {waits} waits in {forwards} rows' forwards")


@pytest.mark.slow
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("number", range(len(CACHES)), ids=CACHES)
def test_every_cache_with_every_stop_rule(number: int, stop: str) -> None:
    check_alike(*fits_threshold(number, stop))


def test_the_device_mixes_with_nothing_and_counts() -> None:
    with other_device() as device:
        here, there = torch.arange(4), torch.arange(4, device=DEVICE)
        for mixed in (
            lambda: here + there,
            lambda: there.gather(0, here),
            lambda: torch.where(there > 1, there, here),
            lambda: torch.cat([here, there]),
            lambda: there.scatter_(0, there, here),
            lambda: here.index_copy_(0, there, there),
        ):
            with pytest.raises(RuntimeError, match="mixes tensors of the device"):
                mixed()
        assert (there + torch.tensor(1)).device == DEVICE  # a number on the host is an operand
        assert not device.syncs and not device.uploads
        waiting = (
            lambda: there.sum().item(),
            lambda: bool(there.any()),
            lambda: int(there[1]),
            lambda: there.tolist(),
            lambda: there.cpu(),
            lambda: there.nonzero(),
            lambda: there[there > 1],
            lambda: there.masked_select(there > 1),
            lambda: there.equal(there),
            lambda: here.copy_(there),
        )
        for number, wait in enumerate(waiting, start=1):
            with torch.inference_mode(number % 2 == 0):
                wait()
            assert device.syncs.total() == number
        arriving = (
            lambda: here.to(DEVICE),
            lambda: torch.tensor([1, 2], device=DEVICE),
            lambda: there[[0, 2]],
            lambda: there.copy_(here),
        )
        for number, arrive in enumerate(arriving, start=1):
            arrive()
            assert device.uploads.total() == number
        here.to(DEVICE, non_blocking=True)
        assert device.uploads.total() == len(arriving) and device.syncs.total() == len(waiting)
        with pytest.raises(RuntimeError, match="not supported"):
            there.numpy()
