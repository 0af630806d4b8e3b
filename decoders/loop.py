"""The one denoising loop. Every decoder, cache, stop rule and model runs through it."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from decoders.compose import Decoder, check_is_decoder
from decoders.logits import Logits
from decoders.rules.basic import FixedK
from decoders.state import NEVER, DecodeState, responses
from decoders.stop import StopRule, check_is_stop_rule
from decoders.types import Shape, Update, View
from dllm.cache import CacheStrategy, Plan, WindowCache
from dllm.protocols import Denoiser, ShadowDenoiser

NO_CACHE = WindowCache(before=None, after=None)
ONE_TOKEN = Decoder(FixedK(1))

OnStep = Callable[[DecodeState, View, Update], None]  # the view's logits may be overwritten by the next step


@dataclass(frozen=True)
class Drafted:
    """Drafts that one forward verified.

    forward: its number from 0. tokens: the drafts. accepted: how many of them were written, from the first. tied: the
    verifier's likeliest tokens behind those were too close to tell, so that the next forward looks at them again.
    """

    forward: int
    tokens: list[int]
    accepted: int
    tied: bool = False


@dataclass(frozen=True)
class DecodedRow:
    """One decoded prompt.

    token_ids: the response up to and without its first EOS behind its last fixed token. committed_at: the forward
    (from 0) that wrote each response column, -1 where none did. nfe: forwards of this row. queried: columns recomputed
    for it, summed over its forwards. stopped_by: "eos" (a stop rule ended it), "length" (its whole canvas was filled)
    or "max_steps". drafts: those that were verified, none for decoders that make none.
    """

    token_ids: list[int]
    committed_at: list[int]
    nfe: int
    queried: int
    stopped_by: str
    drafts: Sequence[Drafted] = ()

    @property
    def num_tokens(self) -> int:
        """Decoded tokens before EOS: those of a template that were given do not count."""
        return sum(at != NEVER for at in self.committed_at[: len(self.token_ids)])

    @property
    def tokens_per_forward(self) -> float:
        """Decoded tokens before EOS per forward."""
        return self.num_tokens / self.nfe


@torch.inference_mode()
def decode(
    model: Denoiser,
    prompts: Sequence[Sequence[int]],
    *,
    gen_len: int | Sequence[int] | None = None,
    templates: Sequence[Sequence[int]] | None = None,
    block_len: int,
    decoder: Decoder,
    cache: CacheStrategy,
    stop: StopRule,
    seed: int = 0,
    max_steps: int | None = None,
    on_step: OnStep | None = None,
    reference: Sequence[Sequence[int]] | None = None,
    device: torch.device | str = "cpu",
) -> list[DecodedRow]:
    """Fills the columns after each prompt (token ids), block by block.

    gen_len: how many, for all rows or for each. templates: instead of it, each row's response with MASK where a token
    is wanted; its other ids are fixed: never masked, never overwritten, and no EOS before them ends the row.
    A row's tokens, NFE and queried columns do not depend on the other rows; its randomness comes from `seed` and its
    prompt, so equal prompts of one call get equal samples (another seed gives others). max_steps bounds the forwards of
    a row (default: `decoder.max_steps`, which a decoder that only commits never exceeds). reference: responses that the
    view shows beside each step; a rule that asks for them (`Oracle`) and is given none gets those of one token per
    forward, whose cost is not counted.
    Raises ValueError, before the first forward, for lengths or a cache that the model cannot use, and for a rule or a
    name where a decoder belongs.
    """
    check_is_decoder(decoder)
    check_is_stop_rule(stop)
    check_parts(model, decoder, cache)
    decoder.check_window(block_len)
    if not prompts:
        raise ValueError("no prompts given; give at least one")
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {row} is empty; a canvas needs at least one prompt token")
    wanted = responses(model.spec, len(prompts), gen_len, templates, block_len)
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps={max_steps}; a row needs at least one forward")
    seeds = row_seeds(seed, prompts)
    budgets = [decoder.max_steps(len(response), block_len) if max_steps is None else max_steps for response in wanted]
    state = DecodeState.begin(model.spec, prompts, wanted, block_len, seeds, budgets, torch.device(device))
    if decoder.needs_reference and reference is None:
        parts = {"block_len": block_len, "cache": cache, "stop": stop, "seed": seed, "device": device}
        rows = decode(model, prompts, templates=wanted, decoder=ONE_TOKEN, max_steps=max_steps, **parts)
        reference = [row.token_ids for row in rows]
    if reference is not None:
        state.expect_(reference)
    kv, memory, logits = model.new_kv(state.prompt_len, state.canvas.shape[1]), None, None

    while not (progress := state.progress()).done.all():
        shadow, state.eos_ahead, plans = None, None, []
        if decoder.needs_shadow:
            assert isinstance(model, ShadowDenoiser), "check_parts refuses others"
            logits, shadow = _forward_with_shadow(model, state)
        else:
            plans = list(cache.plan(progress, model.spec))
            if all(plan.want is None for plan in plans):
                logits = None  # free the last step's before the forward
            logits = forward_windows(model, state, kv, plans, logits, stop.looks == "query")
        if memory is None:
            batch, window, vocab = logits.shape
            memory = decoder.init(Shape(batch, window, vocab, logits.device))
        partial = [plan for plan in plans if plan.only]
        view = state.view(logits, shadow, partial)
        if stop.looks is not None:
            rows = torch.arange(len(prompts), device=state.canvas.device)
            state.expect_eos_(rows, state.columns, view.logits, view.masked)
        update = decoder.step(view, memory)
        for plan in partial if max_steps is None else ():
            state.budget[plan.rows] += 1  # this forward may have had nothing to commit
        state.apply_(view, update)
        state.cut_(stop(state), update.hold)
        state.advance_(update.hold)
        if on_step is not None:
            on_step(state, view, update)
        del view, update  # they hold the logits
    return results(state)


def row_seeds(seed: int, prompts: Sequence[Sequence[int]]) -> list[int]:
    """What each row's randomness is made of."""
    return [zlib.crc32(repr((seed, list(prompt))).encode()) for prompt in prompts]


def check_parts(model: Denoiser, decoder: Decoder, cache: CacheStrategy) -> None:
    """Raises ValueError when a model cannot use a cache, or a decoder not this model or cache."""
    spec = model.spec
    cache.check(spec)
    if decoder.needs_shadow and cache != NO_CACHE:
        raise ValueError("this decoder looks at its tokens in the same forward, which needs cache=none")
    if decoder.needs_shadow and not (spec.kv and isinstance(model, ShadowDenoiser)):
        raise ValueError("this decoder looks at its tokens in the same forward, which this kind of model cannot do")
    if decoder.needs_shadow and spec.shift:
        raise ValueError(
            "this decoder looks at its tokens in the same forward, which needs a model without token shift"
        )


def forward_windows(
    model: Denoiser, state: DecodeState, kv: Any, plans: Iterable[Plan], before: Tensor | None, look_ahead: bool
) -> Float[Tensor, "B W V"]:
    """Logits for every row's window; counts NFE and queried columns. Columns that no plan wants keep their logits in
    `before`, which is overwritten; those of rows that are done mean nothing. look_ahead: asks for the logits of all
    queried columns too and notes where they expect EOS."""
    columns, soft, logits = state.columns, state.soft_input, before
    for plan in [plan.to(state.canvas.device) for plan in plans]:  # all before the first forward, not behind it
        extra = {} if soft is None else {"soft": soft[plan.rows]}
        want = columns[plan.rows] if plan.want is None else plan.want
        ahead = (plan.query + model.spec.shift).clamp(max=state.canvas.shape[1] - 1) if look_ahead else want[:, :0]
        part = model.logits(state.canvas, plan, torch.cat([want, ahead], 1), end=state.visible_end, kv=kv, **extra)
        part, beyond = part.split([want.shape[1], ahead.shape[1]], 1)
        if look_ahead:
            pending = state.pending[plan.rows[:, None], ahead]
            state.expect_eos_(plan.rows, ahead, Logits(beyond), pending)
        state.nfe[plan.rows] += 1
        state.queried[plan.rows] += plan.num_queried * model.passes
        if plan.want is None and plan.all_rows:
            return part
        if logits is None:
            assert plan.want is None or plan.only, "a row's first forward wants its whole window"
            logits = part.new_zeros((*columns.shape, part.shape[-1]))
        logits[plan.rows[:, None], want - columns[plan.rows, :1]] = part
    assert logits is not None, "a cache strategy must plan for every row that is not done"
    return logits


def _forward_with_shadow(
    model: ShadowDenoiser, state: DecodeState
) -> tuple[Float[Tensor, "B W V"], Float[Tensor, "B W"]]:
    """One forward over the whole canvas and a shadow of the window; its columns count as queried too."""
    columns = state.columns
    logits, shadow = model.shadow_logits(state.canvas, columns, state.prompt_len, state.end)
    live = ~state.done
    state.nfe += live
    state.queried += live * (state.end + state.window) * model.passes
    return logits, Logits(shadow).prob(state.canvas.gather(1, columns))


def results(state: DecodeState) -> list[DecodedRow]:
    offsets = torch.arange(int(state.gen_len.max()), device=state.canvas.device)
    response = (state.prompt_len[:, None] + offsets).clamp(max=state.canvas.shape[1] - 1)
    tokens = state.canvas.gather(1, response)
    inside = (offsets < state.gen_len[:, None]) & (response < state.end[:, None])
    ended = state.spec.is_eos(tokens) & (response >= state.tail[:, None])
    stops = ended | ~inside | (tokens == state.spec.mask_id)
    length = torch.where(stops.any(1), stops.int().argmax(1), state.gen_len).tolist()
    committed = torch.where(inside, state.committed_at.gather(1, response), NEVER).tolist()
    cut = (state.end - state.prompt_len < state.gen_len).tolist()
    columns = zip(
        tokens.tolist(),
        length,
        committed,
        state.gen_len.tolist(),
        state.nfe.tolist(),
        state.queried.tolist(),
        state.finished.tolist(),
        cut,
        strict=True,
    )
    return [
        DecodedRow(ids[:n], at[:wanted], nfe, queried, "max_steps" if not finished else "eos" if early else "length")
        for ids, n, at, wanted, nfe, queried, finished, early in columns
    ]
