"""Lossless parallel decoding of a denoiser: the states that one forward expects next are tried in one forward, and
those stay that the model itself would have reached, one token at a time (FreeDave, arXiv 2510.00294).

A forward ranks the masked columns. The states after the first, the first two, ... of them are rows of their own, which
share their prompt's K/V; a forward over all of them says what the model does in each. As long as that is the next of
the ranking, the chain goes on; where it is not, the model's own choice is written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.compose import Decoder, surest
from decoders.logits import Logits
from decoders.loop import NO_CACHE, DecodedRow, Drafted, OnStep, ask, begin, check_parts, forward_windows, results
from decoders.propose import propose
from decoders.rules.basic import FixedK
from decoders.state import DecodeState
from decoders.stop import StopRule
from decoders.types import Candidates, Update, View
from dllm.cache import BlockCache, CacheStrategy, WindowCache
from dllm.kv import ColumnCache
from dllm.protocols import Denoiser


@torch.inference_mode()
def decode_ahead(
    model: Denoiser,
    prompts: Sequence[Sequence[int]],
    *,
    states: int,
    gen_len: int | Sequence[int] | None = None,
    templates: Sequence[Sequence[int]] | None = None,
    block_len: int,
    decoder: Decoder,
    cache: CacheStrategy,
    stop: StopRule,
    seed: int = 0,
    max_steps: int | None = None,
    on_step: OnStep | None = None,
    device: torch.device | str = "cpu",
) -> list[DecodedRow]:
    """What `decode` gives with the same arguments, token for token, in fewer forwards.

    states: of a row in one forward, at least 1; all of their columns count as queried. decoder: greedy, of FixedK(1)
    alone. Raises ValueError for other decoders, for caches whose columns depend on the steps before, for stop rules
    that look at predictions, and as `decode` does.
    """
    check_ahead(model, decoder, cache, stop, states)
    state, _ = begin(model, prompts, gen_len, templates, block_len, decoder, seed, max_steps, device)
    device = state.canvas.device
    kv = model.new_kv(state.prompt_len.repeat_interleave(states), state.canvas.shape[1])
    if cache != NO_CACHE and not isinstance(kv, ColumnCache):
        raise ValueError("the K/V of this kind of model cannot be shared by several states; use cache=none")
    log: list[list[Drafted]] = [[] for _ in prompts]
    plan = _Plan.nothing(state, states - 1)

    while not state.done.all():
        branches = _branches(state, plan)
        before, entering = state.step == 0, ~state.done
        progress = branches.progress()
        questions = ask(cache.plan(progress, model.spec), progress, on_step is not None, device)
        logits = forward_windows(model, branches, kv, questions, None, look_ahead=False)
        if isinstance(kv, ColumnCache) and states > 1:
            first = (before & entering).nonzero()[:, 0] * states
            others = first[:, None] + torch.arange(1, states, device=device)
            kv.copy(first[:, None].expand_as(others).flatten(), others.flatten())
        state.nfe += ~state.done
        state.queried += branches.queried.view(-1, states).sum(1)
        view = branches.view(logits)
        candidates = propose(view, view.logits, 0.0, decoder.confidence)
        chosen = surest(candidates.confidence, view.masked)
        chain = _chain(plan, candidates, chosen, states)

        written = torch.zeros_like(chosen[::states])
        end, moving = state.end, ~state.done
        for length in range(int(chain.max()) + 1):  # one token at a time, since any may end the row
            row = torch.arange(len(prompts), device=device) * states + torch.minimum(chain, chain.new_tensor(length))
            now = moving & (length <= chain)
            update = Update(candidates.tokens[row], chosen[row] & now[:, None])
            state.apply_(state.canvas.gather(1, state.columns), view.live[row], update)
            written |= update.write
            state.cut_(stop(state))
            moving = now & (state.end == end)
        settled = written.sum(1)
        _log(log, state, plan, torch.minimum(chain, settled))
        combined = Update(state.canvas.gather(1, state.columns), written)
        last = torch.arange(len(prompts), device=device) * states + (settled - 1).clamp(min=0)
        plan = _Plan.of(candidates, view.masked & ~chosen, last, states - 1)
        state.advance_()
        plan = plan.only((state.step > 0) & (state.end == end) & ~state.done)
        if on_step is not None:
            on_step(state, _rows(view, torch.arange(len(prompts), device=device) * states), combined)
    return [replace(row, drafts=tuple(drafts)) for row, drafts in zip(results(state), log, strict=True)]


def check_ahead(model: Denoiser, decoder: Decoder, cache: CacheStrategy, stop: StopRule, states: int) -> None:
    """Raises ValueError unless one token at a time of these parts can be looked ahead of."""
    check_parts(model, decoder, cache)
    if states < 1:
        raise ValueError(f"states={states}; a forward looks at 1 or more")
    if decoder != Decoder(FixedK(1), confidence=decoder.confidence) or decoder.confidence == "random":
        raise ValueError("states are verified against greedy decoding of one token per step; use rule FixedK(1) alone")
    is_window = isinstance(cache, WindowCache) and not (
        cache.refresh_every or cache.warmup or (model.spec.shift and not cache.look_back)
    )
    if not is_window and cache != BlockCache():
        raise ValueError(f"{cache} depends on the steps before; look ahead with cache=none, prefix, dual or block")
    if stop.looks is not None:
        raise ValueError(f"{stop} looks at predictions, which drafts change; use stop=strict_eos, block_eos or never")


@dataclass(frozen=True)
class _Plan:
    """The next places of each row's window and their tokens, surest first. count: how many there are."""

    places: Int[Tensor, "B K"]
    tokens: Int[Tensor, "B K"]
    count: Int[Tensor, " B"]

    @classmethod
    def nothing(cls, state: DecodeState, width: int) -> "_Plan":
        empty = state.canvas.new_zeros(len(state.done), width)
        return cls(empty, empty, empty.new_zeros(len(empty)))

    @classmethod
    def of(cls, candidates: Candidates, masked: Bool[Tensor, "N W"], rows: Int[Tensor, " B"], width: int) -> "_Plan":
        """What a forward expects of the masks that it leaves. The last one needs no state: its token is the chain's."""
        masked = masked[rows]
        sure = candidates.confidence[rows].masked_fill(~masked, float("-inf"))
        places = sure.sort(dim=1, descending=True, stable=True).indices[:, :width]
        places = torch.nn.functional.pad(places, (0, width - places.shape[1]))
        count = (masked.sum(1) - 1).clamp(0, width)
        return cls(places, candidates.tokens[rows].gather(1, places), count)

    def only(self, rows: Bool[Tensor, " B"]) -> "_Plan":
        return replace(self, count=self.count * rows)


def _branches(state: DecodeState, plan: _Plan) -> DecodeState:
    """Rows b * K + k: row b with the first k places of its plan filled. Those without such a place are done."""
    states = plan.places.shape[1] + 1
    repeated = {name: value.repeat_interleave(states, 0) for name, value in state.by_row()}
    branch = torch.arange(states, device=state.canvas.device)
    columns = state.columns[:, :1] + plan.places
    filled = state.canvas[:, None].repeat(1, states, 1)
    for k in range(1, states):
        filled[:, k:].scatter_(2, columns[:, None, k - 1 : k].expand(-1, states - k, -1), _column(plan, k, states))
    repeated["canvas"] = filled.flatten(0, 1)
    repeated["done"] = (state.done[:, None] | (branch > plan.count[:, None])).flatten()
    repeated["queried"] = torch.zeros_like(repeated["queried"])
    return replace(state, **repeated)


def _column(plan: _Plan, k: int, states: int) -> Int[Tensor, "B K 1"]:
    return plan.tokens[:, None, k - 1 : k].expand(-1, states - k, -1)


def _chain(plan: _Plan, candidates: Candidates, chosen: Bool[Tensor, "N W"], states: int) -> Int[Tensor, " B"]:
    """How many places of a plan the model fills itself, one after the other, as planned."""
    place = chosen.int().argmax(1).view(-1, states)[:, :-1]
    token = candidates.tokens.gather(1, chosen.int().argmax(1, keepdim=True)).view(-1, states)[:, :-1]
    as_planned = (place == plan.places) & (token == plan.tokens)
    as_planned &= torch.arange(states - 1, device=place.device) < plan.count[:, None]
    return as_planned.long().cumprod(1).sum(1)


def _rows(view: View, rows: Int[Tensor, " B"]) -> View:
    noise = replace(view.noise, seeds=view.noise.seeds[rows], step=view.noise.step[rows])
    tokens, masked, live, step = (tensor[rows] for tensor in (view.tokens, view.masked, view.live, view.step))
    return View(tokens, masked, live, Logits(view.logits.values[rows]), step, noise, view.spec)


def _log(log: list[list[Drafted]], state: DecodeState, plan: _Plan, kept: Int[Tensor, " B"]) -> None:
    numbers = torch.stack([state.nfe - 1, plan.count, kept], 1).tolist()
    for row, ((forward, count, accepted), tokens) in enumerate(zip(numbers, plan.tokens.tolist(), strict=True)):
        if count:
            log[row].append(Drafted(forward, tokens[:count], accepted))
