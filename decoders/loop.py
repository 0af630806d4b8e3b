"""The one denoising loop. Every `Decoder`, cache, stop rule, model and `Spread` runs through it.

What verifies drafts of a causal model has a loop of its own (`decoders.verified.rounds`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import torch

from decoders.compose import Decoder
from decoders.decode_job import DecodeJob, takes
from decoders.forward import forward_windows, forward_with_shadow, requests_of
from decoders.rules.basic import FixedK
from decoders.spread import ONE_WINDOW, Forward, Rows, count_
from decoders.state import NEVER, DecodeState
from decoders.types import DecodedRow, Shape, Turn, in_order, without_gradients
from dllm.plan import Progress
from dllm.protocols import Denoiser, ShadowDenoiser, usable

ONE_TOKEN = Decoder(FixedK(1))


@takes(DecodeJob)
def decode(model: Denoiser, job: DecodeJob) -> list[DecodedRow]:
    """Fills the columns after each prompt, block by block. The arguments are the fields of `DecodeJob`.

    A row's tokens, NFE and queried columns do not depend on the other rows. Raises ValueError before the first forward:
    for lengths or a cache that the model cannot use, and for a rule or a name in place of a decoder.
    """
    return list(in_order(denoise(model, job)))


@takes(DecodeJob)
def decode_queue(model: Denoiser, job: DecodeJob) -> Iterator[Turn[DecodedRow]]:
    """`decode`, which hands out each row as soon as it ends. Raises ValueError at the call."""
    return denoise(model, job)


def denoise(model: Denoiser, job: DecodeJob) -> Iterator[Turn[DecodedRow]]:
    """The loop, with at most `job.slots` rows at once. A row that ends is handed out, and its slot takes the next
    prompt. Raises ValueError at the call.

    All slots are as wide as the widest prompt with its response, so that no K/V is ever copied into a wider one.
    """
    queue, wanted = job.begin(model)
    decoder, cache, stop, spec = job.decoder, job.cache, job.stop, model.spec
    device, places = usable(job.device, model), iter(range(len(job.prompts)))
    references = None if job.reference is None else iter(job.reference)
    if decoder.needs_reference and references is None:
        one = {"decoder": ONE_TOKEN, "gen_len": None, "templates": wanted, "spread": ONE_WINDOW, "on_step": None}
        references = (row.token_ids for row in in_order(denoise(model, replace(job, **one))))
    whole = decoder.needs_decided or job.on_step is not None

    def enter(coming: Sequence[int]) -> DecodeState:
        """The next prompts of the queue, before their first step."""
        rows = queue.take(coming, device)
        if references is not None:
            rows.expect_(list(islice(references, len(coming))))
        return rows

    def turns() -> Iterator[Turn[DecodedRow]]:
        held = np.array(list(islice(places, job.slots or len(job.prompts))))  # the prompt in each slot
        state, slots = enter(held.tolist()), torch.arange(len(held), device=device)
        work, memory, logits = job.spread.begin(decoder, stop, queue, state), None, None
        states, each = work.states, torch.arange(work.states, device=device)
        kv = model.new_kv(state.prompt_len.repeat_interleave(states), state.canvas.shape[1])
        if queue.constraints is not None:
            queue.constraints.admit_(held.tolist(), device)
        rows, progress = _next(work, state)
        while not progress.done.all():
            state.eos_ahead = None
            if decoder.needs_shadow:
                assert isinstance(model, ShadowDenoiser), "check_parts refuses others"
                found = Forward(*forward_with_shadow(model, rows))
            else:
                requests = requests_of(cache.plan(progress, spec), progress, whole, device)
                if all(request.kept is None for request in requests):
                    logits = None  # free the last step's before the forward
                logits = forward_windows(model, rows, work.width, kv, requests, logits, stop.looks == "query")
                found = Forward(logits, None, [request.plan for request in requests if request.plan.only])
            entering = np.flatnonzero(((progress.step == 0) & ~progress.done)[::states]) * states
            count_(state, rows, states, entering.tolist(), kv)
            if len(entering) and state.entry is not None:
                state.settle_(progress, states)
                rows.entry = state.entry.repeat_interleave(states, output_size=len(rows.done))
            view = work.view(state, rows, found)
            if memory is None:
                batch, window, vocab = view.logits.shape
                memory = decoder.init(Shape(batch, window, vocab, view.logits.device))
            update = decoder.step(view, memory)
            for plan in found.partial if job.max_steps is None else ():
                state.budget[plan.rows] += 1  # this forward may have had nothing to commit
            shown = None if job.on_step is None else work.shown(state, view)
            update = work.merge_(state, view, update, memory)
            if job.on_step is not None and shown is not None:
                job.on_step(state, shown, update)
            del found, view, update, shown  # they hold the logits
            live = np.flatnonzero(~progress.done[::states])
            rows, progress = _next(work, state)
            free = live[progress.done[::states][live]]
            ended = work.ended(free.tolist(), results(state.take(free.tolist(), device))) if len(free) else []
            yield Turn(held[live].tolist(), dict(zip(held[free].tolist(), ended, strict=True)))
            if coming := list(islice(places, len(free))):
                free = free[: len(coming)]
                held[free], entered, into = coming, enter(coming), slots[free.tolist()]
                state.put_(into, entered)
                work.enter_(into, entered)
                if queue.constraints is not None:
                    queue.constraints.admit_(held.tolist(), device)
                into = (into[:, None] * states + each).flatten()
                model.renew_kv(kv, into, entered.prompt_len.repeat_interleave(states))
                rows, progress = _next(work, state)

    return without_gradients(turns())


def _next(work: Rows, state: DecodeState) -> tuple[DecodeState, Progress]:
    """The rows of the next forward, and where they stand."""
    rows = work.of(state)
    return rows, rows.progress(work.width)


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
