"""Slots that are refilled: a row in a queue decodes as it does alone, whatever its slot held before."""

import random
from typing import Any

import pytest
import torch
from conftest import BLOCK, PAD, SPECS, make_model
from test_loop import CACHES, DECODERS, STOPS, block_len, fits

from decoders import NO_CACHE, Decoder, Never, StrictEos, Threshold, Wino, decode
from decoders.loop import decode_queue
from decoders.state import DecodeState
from decoders.testing import HashModel
from decoders.types import DecodedRow, Turn, Update, View, in_order
from dllm.exact import ExactModel, Permutations
from dllm.guidance import Guided

GEN = [2 * BLOCK, BLOCK, BLOCK]
WINO = Decoder(Threshold(0.5), revise=Wino(0.6))


@pytest.fixture
def ragged() -> list[list[int]]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randint(0, PAD, (n,), generator=rng).tolist() for n in (5, 11, 3)]


def arguments(decoder: str, cache: str, stop: str) -> dict[str, Any]:
    how = WINO if decoder == "wino" else DECODERS[decoder]
    return {"decoder": how, "cache": CACHES[cache], "stop": STOPS[stop], "block_len": block_len(cache), "seed": 3}


def queued(model: Any, prompts: list[list[int]], slots: int, **parts: Any) -> list[DecodedRow]:
    return list(in_order(decode_queue(model, prompts, slots=slots, **parts)))


LEFT_BEHIND = [  # what a row could leave in its slot: memory, K/V, positions, first steps, EOS ahead, references, sight
    ("full", "strict_eos", "credit", "none"),
    ("mixed", "never", "klass", "dual"),
    ("shifted_block_causal", "block_eos", "threshold", "block_first"),
    ("full", "eotp_query", "learn2pd", "delayed"),
    ("shifted", "eotp_window", "slowfast", "interval"),
    ("block_causal", "never", "oracle", "sub_block"),
    ("full", "never", "smoothing", "greedy"),
]


@pytest.mark.parametrize(("kind", "stop", "decoder", "cache"), LEFT_BEHIND)
def test_a_slot_keeps_nothing_of_the_row_before(kind: str, stop: str, decoder: str, cache: str, ragged) -> None:
    model, parts = make_model(kind), {"gen_len": GEN, **arguments(decoder, cache, stop)}
    assert queued(model, ragged, 2, **parts) == decode(model, ragged, **parts)
