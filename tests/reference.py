"""Textbook decoding as an oracle: one prompt, no cache, slices, a full forward per step. Dumber than the code it
checks."""

from collections.abc import Callable

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
