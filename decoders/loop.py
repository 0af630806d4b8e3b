"""The one denoising loop. Every decoder, cache, stop rule and model runs through it."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from decoders.compose import Decoder
from decoders.logits import Logits
from decoders.state import NEVER, DecodeState
from decoders.stop import StopRule, is_eos
from decoders.types import Shape, Update, View
from dllm.cache import CacheStrategy, WindowCache
from dllm.model import Denoiser, DiffusionLM
from dllm.spec import ModelSpec

NO_CACHE = WindowCache(before=None, after=None)

OnStep = Callable[[DecodeState, View, Update], None]


@dataclass(frozen=True)
class DecodedRow:
    """One decoded prompt.

    token_ids: the response up to and without its first EOS. committed_at: the forward (from 0) that wrote each
    response column, -1 where none did. nfe: forwards of this row. queried: columns recomputed for it, summed over its
    forwards. stopped_by: "eos" (a stop rule ended it), "length" (its whole canvas was filled) or "max_steps".
    """

    token_ids: list[int]
    committed_at: list[int]
    nfe: int
    queried: int
    stopped_by: str

    @property
    def tokens_per_forward(self) -> float:
        """Response tokens before EOS per forward."""
        return len(self.token_ids) / self.nfe


@torch.inference_mode()
def decode(
    model: Denoiser,
    prompts: Sequence[Sequence[int]],
    *,
    gen_len: int,
    block_len: int,
    decoder: Decoder,
    cache: CacheStrategy,
    stop: StopRule,
    seed: int = 0,
    max_steps: int | None = None,
    on_step: OnStep | None = None,
    device: torch.device | str = "cpu",
) -> list[DecodedRow]:
    """Fills `gen_len` columns after each prompt (token ids), block by block.

    A row's tokens, NFE and queried columns do not depend on the other rows; its randomness comes from `seed` and its
    prompt, so equal prompts of one call get equal samples (another seed gives others). max_steps bounds the forwards of
    a row (default: `decoder.max_steps`, which a decoder that only commits never exceeds).
    Raises ValueError, before the first forward, for lengths or a cache that the model cannot use.
    """
    check_parts(model.spec, decoder, cache)
    seeds = [zlib.crc32(repr((seed, list(prompt))).encode()) for prompt in prompts]
    state = DecodeState.begin(model.spec, prompts, gen_len, block_len, seeds, torch.device(device))
    kv, memory = model.new_kv(state.prompt_len, state.canvas.shape[1]), None

    for _ in range(decoder.max_steps(gen_len) if max_steps is None else max_steps):
        progress = state.progress()
        if progress.done.all():
            break
        shadow = None
        if decoder.needs_shadow:
            logits, shadow = _forward_with_shadow(model, state)
        else:
            logits = _forward_windows(model, state, kv, list(cache.plan(progress, model.spec)))
        if memory is None:
            batch, window, vocab = logits.shape
            memory = decoder.init(Shape(batch, window, vocab, logits.device))
        view = state.view(logits, shadow)
        update = decoder.step(view, memory)
        state.apply_(view, update)
        state.end = stop(state) if update.hold is None else torch.where(update.hold, state.end, stop(state))
        state.advance_(update.hold)
        if on_step is not None:
            on_step(state, view, update)
    return _results(state, gen_len)


def check_parts(spec: ModelSpec, decoder: Decoder, cache: CacheStrategy) -> None:
    """Raises ValueError when a model cannot use a cache, or a decoder not this model or cache."""
    cache.check(spec)
    if decoder.needs_shadow and cache != NO_CACHE:
        raise ValueError("this decoder looks at its tokens in the same forward, which needs cache=none")
    if decoder.needs_shadow and spec.shift:
        raise ValueError(
            "this decoder looks at its tokens in the same forward, which needs a model without token shift"
        )


def _forward_windows(model: Denoiser, state: DecodeState, kv: Any, plans: list) -> Float[Tensor, "B W V"]:
    """Logits for every row's window (zeros in rows that are done); counts NFE and queried columns."""
    columns, soft, logits = state.columns, state.soft_input, None
    for plan in plans:
        plan = plan.to(state.canvas.device)
        extra = {} if soft is None else {"soft": soft[plan.rows]}
        part = model.logits(state.canvas, plan, columns[plan.rows], end=state.end, kv=kv, **extra)
        state.nfe[plan.rows] += 1
        state.queried[plan.rows] += plan.num_queried * getattr(model, "passes", 1)
        if plan.all_rows:
            return part
        logits = part.new_zeros((len(columns), *part.shape[1:])) if logits is None else logits
        logits[plan.rows] = part
    assert logits is not None, "a cache strategy must plan for every row that is not done"
    return logits


def _forward_with_shadow(model: Denoiser, state: DecodeState) -> tuple[Float[Tensor, "B W V"], Float[Tensor, "B W"]]:
    """One forward over the whole canvas and a shadow of the window; its columns count as queried too."""
    columns = state.columns
    logits, shadow = cast(DiffusionLM, model).shadow_logits(state.canvas, columns, state.prompt_len, state.end)
    live = ~state.done
    state.nfe += live
    state.queried += live * (state.end + state.window)
    return logits, Logits(shadow).prob(state.canvas.gather(1, columns))


def _results(state: DecodeState, gen_len: int) -> list[DecodedRow]:
    response = state.prompt_len[:, None] + torch.arange(gen_len, device=state.canvas.device)
    tokens = state.canvas.gather(1, response)
    inside = response < state.end[:, None]
    stops = is_eos(tokens, state.spec) | ~inside | (tokens == state.spec.mask_id)
    length = torch.where(stops.any(1), stops.int().argmax(1), gen_len).tolist()
    committed = torch.where(inside, state.committed_at.gather(1, response), NEVER).tolist()
    cut = (state.end - state.prompt_len < gen_len).tolist()
    rows = zip(
        tokens.tolist(),
        length,
        committed,
        state.nfe.tolist(),
        state.queried.tolist(),
        state.done.tolist(),
        cut,
        strict=True,
    )
    return [
        DecodedRow(ids[:n], at, nfe, queried, "max_steps" if not done else "eos" if early else "length")
        for ids, n, at, nfe, queried, done, early in rows
    ]
