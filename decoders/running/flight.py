"""Decoding with several blocks of a row in flight, made of the parts of the one denoising loop.

The three published state machines are settings of one `RunningSet`: D2F (arXiv 2508.09192), d3LLM (arXiv 2601.07568)
and MultiBD (arXiv 2606.29215). A forward computes all open blocks, and with `BlockCache` the complete ones that their
K/V was not yet written of, so that no block costs a forward of its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from decoders.compose import Decoder, check_is_decoder
from decoders.logits import Logits
from decoders.loop import ONE_TOKEN, DecodedRow, OnStep, begin, check_parts, decode, results
from decoders.noise import Noise
from decoders.running.blocks import Flight, RunningSet
from decoders.state import DecodeState
from decoders.stop import StopRule, check_is_stop_rule
from decoders.types import Memory, Shape, Update, View
from dllm.cache import BlockCache, CacheStrategy, SubBlockCache, WindowCache
from dllm.plan import Progress, pack
from dllm.protocols import Denoiser, usable
from dllm.validation import check, named

Piece = tuple[Int[Tensor, " _N"], Float[Tensor, "_N V"]]


@torch.inference_mode()
@named
def decode_running(
    model: Denoiser,
    prompts: Sequence[Sequence[int]],
    *,
    running: RunningSet,
    gen_len: int | Sequence[int] | None = None,
    templates: Sequence[Sequence[int]] | None = None,
    block_len: int,
    decoder: Decoder,
    cache: CacheStrategy,
    stop: StopRule,
    seed: int = 0,
    draws: Sequence[int] | None = None,
    max_steps: int | None = None,
    on_step: OnStep | None = None,
    device: torch.device | str = "cpu",
) -> list[DecodedRow]:
    """As `decode`, with several blocks of a row in flight. With one (buffer=1) it is `decode`, forward for forward.

    running: when blocks are opened, and which must commit. block_len: columns per block. on_step: its view and update
    have all lanes of a row side by side, from the first unfinished block on. The other arguments are those of `decode`.

    A row's tokens, NFE and queried columns do not depend on the other rows. Raises ValueError for decoders, caches and
    stop rules that look at one window alone (`check_running`), and as `decode` does.
    """
    check(decode_running, running=running, on_step=on_step)
    check_is_decoder(decoder)
    check_is_stop_rule(stop)
    check_running(model, decoder, cache, stop)
    state, wanted = begin(
        model, prompts, gen_len, templates, block_len, decoder, seed, draws, max_steps, usable(device, model)
    )
    if decoder.needs_reference:
        parts = {"block_len": block_len, "cache": cache, "stop": stop, "seed": seed, "draws": draws, "device": device}
        one = decode(model, prompts, templates=wanted, decoder=ONE_TOKEN, max_steps=max_steps, **parts)
        state.expect_([row.token_ids for row in one])
    kv = model.new_kv(state.prompt_len, state.canvas.shape[1])
    flight, memory = Flight.begin(running, state), list[Memory]()
    batch, width, num_rows = len(prompts), flight.num_lanes * block_len, len(prompts) * flight.num_lanes
    whole = decoder.needs_decided or on_step is not None
    part = flight.open_part(state)

    while not (progress := replace(part.progress(), window=width)).done.all():
        pieces = forward_open(model, part, kv, cache, progress, whole)
        logits, lanes = Logits.of(num_rows, block_len, pieces), flight.lanes(part)
        memory = memory or decoder.init(Shape(num_rows, block_len, logits.shape[-1], logits.device))
        view = flight.view(lanes, logits)
        update = decoder.step(view, memory)
        flight.apply_(state, lanes, view, update, stop)
        flight.advance_(state, ~lanes.done.view(batch, -1), memory)
        if on_step is not None:
            on_step(state, *side_by_side(state, view, update, Logits.of(batch, width, pieces)))
        del pieces, logits, view, update  # they hold the logits
        flight.open_(state)
        part = flight.open_part(state)
    return results(state)


def check_running(model: Denoiser, decoder: Decoder, cache: CacheStrategy, stop: StopRule) -> None:
    """Raises ValueError unless several blocks of a row can be in flight with these parts."""
    check_parts(model, decoder, cache)
    if decoder.needs_one_block:
        raise ValueError(
            "this decoder takes one block at a time (soft step, shadow, noise, sight, moved tokens), and a running set "
            "has several; use another one, such as threshold or edit"
        )
    in_window = isinstance(cache, WindowCache) and (cache.look_back or not model.spec.shift)
    in_block = isinstance(cache, BlockCache | SubBlockCache) and not cache.first_token
    if not (in_window or in_block):
        raise ValueError(
            f"{cache} gives no logits for some columns of an open block; with a running set use cache=none, prefix, "
            "dual or block"
        )
    if stop.looks is not None:
        raise ValueError(f"{stop} looks at predictions in one window; use stop=strict_eos, block_eos or never")


def forward_open(
    model: Denoiser, part: DecodeState, kv: Any, cache: CacheStrategy, progress: Progress, whole: bool
) -> list[Piece]:
    """Logits of the masks in open blocks, by place in the windows of all lanes. whole: of all columns there. Counts NFE
    and queried columns. A row without masks there asks for what it has, which nobody looks at."""
    pieces, device, seen, end = [], part.canvas.device, part.seen, part.visible_end
    for plan in list(cache.plan(progress, model.spec)):
        rows = plan.rows.numpy()
        inside = progress.between(progress.start, progress.stop)[rows]
        asked = inside if whole else progress.masked[rows]
        columns = pack(np.where(asked.any(1, keepdims=True), asked, inside))
        place = rows[:, None] * progress.window + columns - progress.start[rows, None]
        want, place = (torch.from_numpy(t).to(device, non_blocking=True) for t in (columns, place.ravel()))
        plan = plan.to(device)
        logits = model.logits(seen, plan, want, end=end, kv=kv)
        part.nfe[plan.rows] += 1
        part.queried[plan.rows] += plan.num_queried * model.passes
        pieces.append((place, logits.flatten(0, 1)))
    return pieces


def side_by_side(state: DecodeState, view: View, update: Update, logits: Logits) -> tuple[View, Update]:
    """The view and the update of all lanes as those of the rows, for `on_step`."""
    rows = (logits.shape[0], -1)
    tokens, masked, live = (tensor.view(rows) for tensor in (view.tokens, view.masked, view.live))
    seen = View(tokens, masked, live, logits, state.step, Noise(state.seeds, state.nfe.clone()), state.spec)
    return seen, Update(update.tokens.view(rows), update.write.view(rows))
