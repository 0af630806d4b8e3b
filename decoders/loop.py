"""The one denoising loop. Every `Decoder`, cache, stop rule and model runs through it.

What verifies drafts, and what looks at several states or blocks of a row, has loops of its own (`decoders.verified`,
`decoders.running`). Those of diffusion models are made of this one's parts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from decoders.compose import Decoder, check_is_decoder
from decoders.logits import Logits
from decoders.noise import row_seeds
from decoders.rules.basic import FixedK
from decoders.state import NEVER, DecodeState
from decoders.stop import StopRule, check_stop
from decoders.types import DecodedRow, Shape, Turn, Update, View, in_order, responses, without_gradients
from decoders.types import Drafted as Drafted
from dllm.cache import CacheStrategy, WindowCache
from dllm.model import DiffusionLM
from dllm.plan import Plan, Progress, pack
from dllm.protocols import Denoiser, LanguageModel, ShadowDenoiser, check_is_denoiser, usable
from dllm.validation import Count, Number, Token, check, named

NO_CACHE = WindowCache(before=None, after=None)
ONE_TOKEN = Decoder(FixedK(1))

OnStep = Callable[[DecodeState, View, Update], None]


@named
def decode(
    model: Denoiser,
    prompts: Sequence[Sequence[Token]],
    *,
    gen_len: Count | Sequence[Count] | None = None,
    templates: Sequence[Sequence[Number]] | None = None,
    block_len: Count,
    decoder: Decoder,
    cache: CacheStrategy,
    stop: StopRule,
    seed: int = 0,
    draws: Sequence[Number] | None = None,
    max_steps: Count | None = None,
    on_step: OnStep | None = None,
    reference: Sequence[Sequence[Number]] | None = None,
    device: torch.device | str = "cpu",
) -> list[DecodedRow]:
    """Fills the columns after each prompt, block by block.

    prompts: token ids.
    gen_len: columns to fill, for all rows or for each.
    templates: instead of `gen_len`, each row's response with MASK where a token is wanted. Its other ids are fixed:
        they are never masked or overwritten. No EOS before them ends the row, a given EOS behind them does.
    block_len: columns per window.
    decoder, cache, stop: what is decided, what is computed again, and where a text ends.
    seed: of the random numbers. They depend on it, the prompt and the draw alone.
    draws: which sample of its prompt each row is, from 0. None: equal prompts of the call are numbered in order.
    max_steps: forwards after which a row is given up. None: `decoder.max_steps`.
    on_step: called after each step. Its view has the logits of the whole window.
    reference: responses that the view shows beside each step. Where the decoder needs them and None is given, they are
        decoded first with one token per forward, which costs no NFE.
    device: where the canvas is.

    A row's tokens, NFE and queried columns do not depend on the other rows. Raises ValueError before the first forward:
    for lengths or a cache that the model cannot use, and for a rule or a name in place of a decoder.
    """
    parts = {"gen_len": gen_len, "templates": templates, "block_len": block_len, "decoder": decoder, "cache": cache}
    parts |= {"stop": stop, "seed": seed, "draws": draws, "max_steps": max_steps, "on_step": on_step}
    parts["reference"] = reference
    return list(in_order(decode_queue(model, prompts, slots=None, device=device, **parts)))


@named
def decode_queue(
    model: Denoiser,
    prompts: Sequence[Sequence[Token]],
    *,
    slots: Count | None,
    gen_len: Count | Sequence[Count] | None = None,
    templates: Sequence[Sequence[Number]] | None = None,
    block_len: Count,
    decoder: Decoder,
    cache: CacheStrategy,
    stop: StopRule,
    seed: int = 0,
    draws: Sequence[Number] | None = None,
    max_steps: Count | None = None,
    on_step: OnStep | None = None,
    reference: Sequence[Sequence[Number]] | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[Turn[DecodedRow]]:
    """The loop: `decode` with at most `slots` rows at once. A row that ends is handed out, and its slot takes the next
    prompt. slots: None for as many as prompts. Raises ValueError at the call.

    All slots are as wide as the widest prompt with its response, so that no K/V is ever copied into a wider one.
    """
    check_is_decoder(decoder)
    check(decode, reference=reference, on_step=on_step)
    check(decode_queue, slots=slots)
    check_parts(model, decoder, cache)
    check_stop(stop, model.spec)
    queue, wanted = begin(model, prompts, gen_len, templates, block_len, decoder, seed, draws, max_steps, "cpu")
    if reference is not None and len(reference) != len(prompts):
        raise ValueError(f"reference has {len(reference)} rows for {len(prompts)} prompts; give one for each")
    if reference is not None and not all(len(r) <= len(w) for r, w in zip(reference, wanted, strict=True)):
        raise ValueError("a row of reference is longer than its response; cut it to gen_len")
    references = None if reference is None else iter(reference)
    if decoder.needs_reference and reference is None:
        parts = {"block_len": block_len, "cache": cache, "stop": stop, "seed": seed, "device": device, "slots": slots}
        parts["draws"] = draws
        first = decode_queue(model, prompts, templates=wanted, decoder=ONE_TOKEN, max_steps=max_steps, **parts)
        references = (row.token_ids for row in in_order(first))
    device, places = usable(device, model), iter(range(len(prompts)))
    whole = decoder.needs_decided or on_step is not None

    def enter(coming: Sequence[int]) -> DecodeState:
        """The next prompts of the queue, before their first step."""
        rows = queue.take(coming, device)
        if references is not None:
            rows.expect_(list(islice(references, len(coming))))
        return rows

    def turns() -> Iterator[Turn[DecodedRow]]:
        held = np.array(list(islice(places, slots or len(prompts))))  # the prompt in each slot
        state, rows = enter(held.tolist()), torch.arange(len(held), device=device)
        kv, memory, logits = model.new_kv(state.prompt_len, state.canvas.shape[1]), None, None
        progress = state.progress()
        while not progress.done.all():
            shadow, state.eos_ahead, plans = None, None, []
            if decoder.needs_shadow:
                assert isinstance(model, ShadowDenoiser), "check_parts refuses others"
                logits, shadow = _forward_with_shadow(model, state)
            else:
                questions = ask(cache.plan(progress, model.spec), progress, whole, device)
                plans = [question.plan for question in questions]
                if all(question.kept is None for question in questions):
                    logits = None  # free the last step's before the forward
                logits = forward_windows(model, state, kv, questions, logits, stop.looks == "query")
            if memory is None:
                batch, window, vocab = logits.shape
                memory = decoder.init(Shape(batch, window, vocab, logits.device))
            partial = [plan for plan in plans if plan.only]
            view = state.view(logits, shadow, partial)
            if stop.looks is not None:
                state.expect_eos_(rows, state.columns, view.logits, view.masked)
            update = decoder.step(view, memory)
            for plan in partial if max_steps is None else ():
                state.budget[plan.rows] += 1  # this forward may have had nothing to commit
            state.apply_(view.tokens, view.live, update)
            state.cut_(stop(state), update.hold)
            state.advance_(None if update.hold is None else torch.where(update.hold, state.start, state.end))
            if on_step is not None:
                on_step(state, view, update)
            del view, update  # they hold the logits
            live, progress = np.flatnonzero(~progress.done), state.progress()
            free = live[progress.done[live]]
            ended = results(state.take(free.tolist(), device)) if len(free) else []
            yield Turn(held[live].tolist(), dict(zip(held[free].tolist(), ended, strict=True)))
            if coming := list(islice(places, len(free))):
                free = free[: len(coming)]
                held[free], entered, into = coming, enter(coming), rows[free.tolist()]
                state.put_(into, entered)
                model.renew_kv(kv, into, entered.prompt_len)
                progress = state.progress()

    return without_gradients(turns())


def begin(
    model: Denoiser,
    prompts: Sequence[Sequence[int]],
    gen_len: int | Sequence[int] | None,
    templates: Sequence[Sequence[int]] | None,
    block_len: int,
    decoder: Decoder,
    seed: int,
    draws: Sequence[int] | None,
    max_steps: int | None,
    device: torch.device | str,
) -> tuple[DecodeState, list[list[int]]]:
    """The state before the first step, and what is to be decoded after each prompt. The arguments are those of
    `decode`. Raises ValueError for prompts, lengths and templates that cannot be decoded."""
    check(decode, prompts=prompts, gen_len=gen_len, templates=templates, block_len=block_len, seed=seed)
    check(decode, draws=draws, max_steps=max_steps)
    decoder.check_window(block_len)
    if not prompts:
        raise ValueError("no prompts given; give at least one")
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {row} is empty; a canvas needs at least one prompt token")
    if draws is not None and len(draws) != len(prompts):
        raise ValueError(f"draws has {len(draws)} numbers for {len(prompts)} prompts; give one for each")
    wanted = responses(model.spec, len(prompts), gen_len, templates, block_len)
    _check_ids(model, "prompt", prompts)
    _check_ids(model, "response", wanted)
    budgets = [decoder.max_steps(len(response), block_len) if max_steps is None else max_steps for response in wanted]
    seeds, device = row_seeds(seed, prompts, draws), torch.device(device)
    return DecodeState.begin(model.spec, prompts, wanted, block_len, seeds, budgets, device), wanted


def check_parts(model: Denoiser, decoder: Decoder, cache: CacheStrategy) -> None:
    """Raises ValueError for what is no model or no cache, when the model cannot use the cache, or the decoder cannot
    use the model or the cache."""
    check_is_denoiser(model)
    check(decode, cache=cache)
    spec = model.spec
    cache.check(spec)
    for part in decoder.tree():
        part.check(spec)
    if isinstance(model, LanguageModel):
        decoder.init(Shape(1, 1, model.vocab_size, model.device))  # parts may refuse a vocabulary
    if decoder.needs_noise and not spec.noise:
        raise ValueError("renoising needs a uniform-state model (spec.noise); use one such as model=diffusion_gemma")
    if decoder.needs_shadow and cache != NO_CACHE:
        raise ValueError("this decoder looks at its tokens in the same forward, which needs cache=none")
    if decoder.needs_shadow and not (spec.kv and isinstance(model, ShadowDenoiser)):
        raise ValueError("this decoder looks at its tokens in the same forward, which this kind of model cannot do")
    if decoder.needs_shadow and spec.shift:
        raise ValueError(
            "this decoder looks at its tokens in the same forward, which needs a model without token shift"
        )


def _check_ids(model: Denoiser, what: str, rows: Sequence[Sequence[int]]) -> None:
    """Raises ValueError for a token that the model has no embedding of. Prompts of an ideal model are no tokens."""
    for row, ids in enumerate(rows):
        if isinstance(model, DiffusionLM) and max(ids) >= model.id_limit:
            raise ValueError(
                f"{what} {row} has the token {max(ids)}; give ids below the {model.vocab_size} of model {model.name!r}"
            )


@dataclass(frozen=True)
class Question:
    """What a plan's forward is asked for.

    want: columns whose logits it gives, `[R, F]`; a shorter row repeats its last one. place: where among the B * W
    positions of all windows they are. complete: they are all of these in order. kept: places that keep the logits of an
    earlier forward, or None.
    """

    plan: Plan
    want: Int[Tensor, "R F"]
    place: Int[Tensor, " N"]
    complete: bool = False
    kept: Int[Tensor, " K"] | None = None

    @classmethod
    def of(cls, plan: Plan, progress: Progress, whole: bool) -> "Question":
        """whole: asks for all of the window, also what is decided."""
        rows = np.arange(len(plan.rows)) if plan.all_rows else plan.rows.numpy()
        first = rows[:, None] * progress.window - progress.start[rows, None]  # a column's place, less the column
        if plan.only:
            assert plan.want is not None
            return cls(plan, plan.want, torch.from_numpy((first + plan.want.numpy()).ravel()))
        masked = progress.masked[rows]
        inside = np.arange(masked.shape[1]) - progress.start[rows, None]
        given = (inside >= 0) & (inside < progress.window)
        needed, kept = given & (whole | masked), None
        if plan.want is not None:
            given = np.zeros_like(needed)
            np.put_along_axis(given, plan.want.numpy(), True, 1)
            some = (left := needed & ~given).any(1)
            kept = torch.from_numpy((first[some] + pack(left[some])).ravel()) if some.any() else None
        # all that a row has left may keep its logits: it then asks for what it is given, which nobody looks at
        want = pack(np.where((asked := needed & given).any(1, keepdims=True), asked, given))
        complete = kept is None and plan.all_rows and int(needed.sum()) == len(rows) * progress.window
        return cls(plan, torch.from_numpy(want), torch.from_numpy((first + want).ravel()), complete, kept)

    def to(self, device: torch.device) -> "Question":
        if device == self.want.device:
            return self
        kept = None if self.kept is None else self.kept.to(device, non_blocking=True)
        want, place = (t.to(device, non_blocking=True) for t in (self.want, self.place))
        return replace(self, plan=self.plan.to(device), want=want, place=place, kept=kept)


def ask(plans: Iterable[Plan], progress: Progress, whole: bool, device: torch.device) -> list[Question]:
    """The questions of a step, on the device. All are made before its first forward. whole: see `Question.of`."""
    return [Question.of(plan, progress, whole).to(device) for plan in plans]


def forward_windows(
    model: Denoiser,
    state: DecodeState,
    kv: Any,
    questions: Iterable[Question],
    before: Logits | None,
    look_ahead: bool,
) -> Logits:
    """Logits of the windows where the questions ask for them. Counts NFE and queried columns.

    before: the logits of the last step. look_ahead: also asks for the logits of all queried columns and notes where
        they expect EOS.
    """
    canvas, soft, pieces = state.seen, state.soft_input, []
    state.nfe = state.nfe + state.awake  # not in place: views hold the numbers of their own forward
    for question in questions:
        plan, want = question.plan, question.want
        extra = {} if soft is None else {"soft": soft[plan.rows]}
        ahead = (plan.query + model.spec.shift).clamp(max=state.canvas.shape[1] - 1) if look_ahead else None
        wanted = want if ahead is None else torch.cat([want, ahead], 1)
        part = model.logits(canvas, plan, wanted, end=state.visible_end, kv=kv, **extra)
        if ahead is not None:
            part, beyond = part.split([want.shape[1], ahead.shape[1]], 1)
            state.expect_eos_(plan.rows, ahead, Logits(beyond), state.pending[plan.rows[:, None], ahead])
        state.queried = state.queried.index_add(0, plan.rows, plan.num_queried, alpha=model.passes)
        if question.complete:
            return Logits(part)
        pieces.append((question.place, part.flatten(0, 1)))
        if question.kept is not None:
            assert before is not None, "a row's first forward wants its whole window"
            pieces.append((question.kept, before.values.flatten(0, 1)[question.kept]))
    assert pieces, "a cache strategy must plan for every row that is not done"
    return Logits.of(len(state.canvas), state.window, pieces)


def _forward_with_shadow(model: ShadowDenoiser, state: DecodeState) -> tuple[Logits, Float[Tensor, "B W"]]:
    """One forward over the whole canvas and a shadow of the window. The shadow's columns count as queried too."""
    columns = state.columns
    logits, shadow = model.shadow_logits(state.canvas, columns, state.prompt_len, state.end)
    state.nfe = state.nfe + state.awake
    state.queried = state.queried + state.awake * (state.end + state.window) * model.passes
    return Logits(logits), Logits(shadow).prob(state.canvas.gather(1, columns))


def results(state: DecodeState) -> list[DecodedRow]:
    offsets = torch.arange(int(state.gen_len.max()), device=state.canvas.device)
    response = (state.prompt_len[:, None] + offsets).clamp(max=state.canvas.shape[1] - 1)
    tokens = state.canvas.gather(1, response)
    inside = (offsets < state.gen_len[:, None]) & (response < state.end[:, None])
    ended = state.spec.is_eos(tokens) & (response >= state.tail[:, None])
    waits = tokens == state.spec.mask_id
    stops = ended | ~inside | waits
    length = torch.where(stops.any(1), stops.int().argmax(1), state.gen_len).tolist()
    committed = torch.where(inside & ~waits, state.committed_at.gather(1, response), NEVER).tolist()
    cut = (state.end - state.prompt_len < state.gen_len).tolist()
    numbers = (state.gen_len.tolist(), state.nfe.tolist(), state.queried.tolist())
    columns = zip(tokens.tolist(), length, committed, *numbers, state.finished.tolist(), cut, strict=True)
    return [
        DecodedRow(ids[:n], at[:wanted], nfe, queried, "max_steps" if not finished else "eos" if early else "length")
        for ids, n, at, wanted, nfe, queried, finished, early in columns
    ]
