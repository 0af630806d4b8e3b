"""Textbook decoding as an oracle: one prompt, slices, a full forward per step, or K/V kept column by column with
attention by hand. Dumber than the code it checks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dllm import DiffusionLM


def full_logits(model: DiffusionLM, canvas: list[int]) -> Tensor:
    """Logits `[T, V]` for each column by the plain transformers forward: 4-D mask, shift and MASK done by hand."""
    spec, length = model.spec, len(canvas)
    assert spec.mix == 0 and spec.response_position is None
    allowed = torch.ones(length, length, dtype=torch.bool)
    if spec.block is not None:
        blocks = torch.arange(length) // spec.block
        allowed = blocks[None, :] <= blocks[:, None]
    ids = torch.tensor([canvas])
    with torch.no_grad():
        logits = model.backbone(input_ids=ids, attention_mask=allowed[None, None], use_cache=False).logits[0]
    if spec.shift:
        logits = torch.cat([logits[:1], logits[:-1]])
    logits[:, spec.mask_id] = float("-inf")
    return logits


def textbook_decode(
    model: DiffusionLM,
    prompt: list[int],
    gen_len: int,
    block_len: int,
    choose: Callable[[Tensor, list[int]], list[int]],
) -> tuple[list[int], int]:
    """Response ids and NFE. `choose(probabilities [T, V], masked columns of the block)` names the columns to commit."""
    mask = model.spec.mask_id
    canvas = [*prompt, *[mask] * gen_len]
    first = len(prompt) if model.spec.block is None else len(prompt) // block_len * block_len
    nfe = 0
    for start in range(first, len(canvas), block_len):
        block = range(start, min(start + block_len, len(canvas)))
        while masked := [c for c in block if canvas[c] == mask]:
            logits = full_logits(model, canvas)
            nfe += 1
            chosen = choose(logits.softmax(-1), masked)
            for column in chosen:
                canvas[column] = int(logits[column].argmax())
    return canvas[len(prompt) :], nfe


def top_k(k: int) -> Callable[[Tensor, list[int]], list[int]]:
    """The k columns with the highest top probability."""
    return lambda p, masked: sorted(masked, key=lambda c: -float(p[c].max()))[:k]


def threshold(tau: float) -> Callable[[Tensor, list[int]], list[int]]:
    """Columns at or above tau, and always the surest."""

    def choose(p: Tensor, masked: list[int]) -> list[int]:
        best = max(masked, key=lambda c: float(p[c].max()))
        return sorted({best, *(c for c in masked if float(p[c].max()) >= tau)})

    return choose


@dataclass
class Moment:
    """What the definition of a cache may look at before a forward: columns of the canvas as sets, numbers as ints."""

    prompt_len: int
    start: int  # of the window
    stop: int
    end: int  # of what the window can see
    step: int  # forwards made in this window
    number: int  # forwards made at all
    shift: int
    block: int | None
    entered_from: int  # start of the window before
    masked: set[int]
    fresh: set[int]  # written by the last forward

    def columns(self, low: int, high: int) -> set[int]:
        """With the column before, off which a shifted model reads the first."""
        return set(range(max(low - self.shift, 0), min(high, self.end)))

    @property
    def window(self) -> set[int]:
        return self.columns(self.start, self.stop)


def everything(now: Moment) -> set[int]:
    return now.columns(0, now.end)


def from_the_window_on(now: Moment) -> set[int]:
    return now.columns(now.start, now.end)


def but_the_prompt(now: Moment) -> set[int]:
    return everything(now) if now.number == 0 else now.columns(now.prompt_len, now.end)


def after_entering(inside: Callable, every: int | None = None, wide: Callable = everything, entry: int = 1) -> Callable:
    """`wide` in the first forwards of a window (and in every so-manieth), `inside` in the others."""
    return lambda now: wide(now) if now.step < entry or (every and now.step % every == 0) else inside(now)


def vicinity(now: Moment) -> set[int]:
    return now.columns(now.start - 2, now.stop + 3)


def with_those_before(now: Moment, columns: set[int]) -> set[int]:
    return columns | {c - now.shift for c in columns if now.start <= c < now.stop and c >= now.shift}


def masked_or_fresh(now: Moment) -> set[int]:
    return with_those_before(now, (now.masked | now.fresh) & everything(now))


def greedy(now: Moment) -> set[int]:
    near = {c for f in now.fresh for c in range(f - 2, f + 3)}
    asked = with_those_before(now, (now.masked | now.fresh) & set(range(now.start, now.stop)))
    return (asked | near) & but_the_prompt(now)


def this_block(now: Moment) -> set[int]:
    return now.columns(now.start // now.block * now.block, now.end)


def last_block_and_this(now: Moment) -> set[int]:
    return set(range(now.entered_from // now.block * now.block, now.end))


def sub_block(now: Moment) -> set[int]:
    if now.step == 0:
        return last_block_and_this(now)
    return this_block(now) if now.start in now.masked else now.window


RECOMPUTED: dict[str, Callable[[Moment], set[int]]] = {  # a cache is: which columns' K/V a forward computes
    "none": everything,
    "prefix": after_entering(from_the_window_on),
    "dual": after_entering(lambda now: now.window),
    "vicinity": after_entering(vicinity),
    "interval": after_entering(lambda now: now.window, every=2),
    "prefill": but_the_prompt,
    "delayed": after_entering(masked_or_fresh, every=4),
    "delayed_llada": after_entering(masked_or_fresh, every=4, entry=2),
    "greedy": after_entering(greedy, every=4, wide=but_the_prompt),
    "block": after_entering(this_block, wide=last_block_and_this),
    "sub_block": sub_block,
}


def cached_decode(
    model: DiffusionLM,
    prompt: list[int],
    gen_len: int,
    block_len: int,
    choose: Callable[[Tensor, list[int]], list[int]],
    recomputed: Callable[[Moment], set[int]],
) -> tuple[list[int], int, int]:
    """Response ids, NFE and queried columns where each forward computes only the K/V that a cache's definition names,
    and reads the others as an earlier forward left them."""
    spec = model.spec
    canvas, length = [*prompt, *[spec.mask_id] * gen_len], len(prompt) + gen_len
    first = len(prompt) if spec.block is None else len(prompt) // block_len * block_len
    store: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in model.backbone.model.layers]
    nfe, queried, fresh, previous = 0, 0, set(), 0
    for start in range(first, length, block_len):
        stop, step = start + block_len, 0
        end = length if spec.block is None else min(length, (stop + spec.block - 1) // spec.block * spec.block)
        while True:
            waiting = [c for c in range(start, min(stop, length)) if canvas[c] == spec.mask_id and c >= len(prompt)]
            if not waiting:
                break
            masked = {c for c in range(len(prompt), length) if canvas[c] == spec.mask_id}
            moment = Moment(len(prompt), start, stop, end, step, nfe, spec.shift, spec.block, previous, masked, fresh)
            columns = sorted(recomputed(moment))
            logits = columns_by_hand(model, canvas, columns, store, end)
            nfe, step, queried = nfe + 1, step + 1, queried + len(columns)
            probabilities = torch.zeros(length, logits.shape[-1])
            for column in waiting:
                probabilities[column] = logits[columns.index(max(column - spec.shift, 0))].softmax(-1)
            fresh = set(choose(probabilities, waiting))
            for column in fresh:
                canvas[column] = int(probabilities[column].argmax())
        previous = start
    return canvas[len(prompt) :], nfe, queried


@torch.no_grad()
def columns_by_hand(model: DiffusionLM, canvas: list[int], query: list[int], store: list[dict], end: int) -> Tensor:
    """Logits `[Q, V]` of the hidden states at the query's columns; their keys and values go to `store`."""
    body, config = model.backbone.model, model.backbone.config
    heads, groups = config.num_attention_heads, config.num_attention_heads // config.num_key_value_heads
    size = config.hidden_size // heads
    hidden = body.embed_tokens(torch.tensor([canvas[c] for c in query]))
    for layer, kept in zip(body.layers, store, strict=True):
        attention, x = layer.self_attn, layer.input_layernorm(hidden)
        q, k, v = (part(x).unflatten(-1, (-1, size)) for part in (attention.q_proj, attention.k_proj, attention.v_proj))
        for i, column in enumerate(query):
            kept[column] = (rotated(k[i], column, config.rope_parameters["rope_theta"]), v[i])
        outputs = []
        for i, column in enumerate(query):
            block = model.spec.block
            seen = [c for c in sorted(kept) if c < end and (block is None or c // block <= column // block)]
            keys, values = (torch.stack([kept[c][j] for c in seen], 1) for j in (0, 1))
            turned = rotated(q[i], column, config.rope_parameters["rope_theta"])
            weights = turned[:, None] @ keys.repeat_interleave(groups, 0).mT / size**0.5
            outputs.append((weights.softmax(-1) @ values.repeat_interleave(groups, 0)).flatten())
        hidden = hidden + attention.o_proj(torch.stack(outputs))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    logits = model.backbone.lm_head(body.norm(hidden))
    logits[:, model.spec.mask_id] = float("-inf")
    return logits


def rotated(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of `[heads, D]`: pairs (d, d + D/2) turned by position / theta^(2d/D)."""
    half = x.shape[-1] // 2
    angle = position * theta ** (-torch.arange(half) / half)
    a, b = x[:, :half], x[:, half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
