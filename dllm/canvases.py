"""Uniform-state models that write canvases one after another: DiffusionGemma, on transformers' own classes.

A causal encoder keeps the K/V of all tokens before the canvas; a bidirectional decoder of the same weights reads it and
the canvas. So the window is the canvas, and the columns before it are exact once computed.
"""

from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase

from dllm.kv import ColumnCache
from dllm.layers import as_taken
from dllm.plan import Plan
from dllm.soft import SoftInput
from dllm.spec import ModelSpec
from dllm.text import BackboneLM


class CanvasLM(BackboneLM):
    """A DiffusionGemma with its tokenizer. The encoder's K/V of all columns are kept, in sliding layers too.

    Raises ValueError for a spec without noise.
    """

    passes = 1

    def __init__(
        self, backbone: PreTrainedModel, spec: ModelSpec, tokenizer: PreTrainedTokenizerBase | None, name: str
    ) -> None:
        super().__init__(backbone, tokenizer, name)
        if not spec.noise:
            raise ValueError(f"model {name!r} shows noise where a column is undecided; leave spec.noise as it is")
        self.spec, self.text_config = spec, cast(Any, backbone.config).text_config
        self.max_length: int | None = None

    def identity(self) -> str:
        return repr((self.spec, self.spec.noise, self.tokenizer and self.tokenizer.chat_template))

    def new_kv(self, prompt_len: Int[Tensor, " B"], length: int) -> ColumnCache:
        """Of the encoder, for the columns before each row's canvas."""
        positions = torch.arange(length, device=prompt_len.device).repeat(len(prompt_len), 1)
        return ColumnCache(self.text_config.num_hidden_layers, positions)

    def renew_kv(self, kv: ColumnCache, rows: Int[Tensor, " N"], prompt_len: Int[Tensor, " N"]) -> None:
        kv.drop(rows, kv.positions[rows], prompt_len)

    def logits(
        self,
        canvas: Int[Tensor, "B T"],
        plan: Plan,
        want: Int[Tensor, "R W"],
        *,
        end: Int[Tensor, " B"],
        kv: ColumnCache,
        soft: SoftInput | None = None,
    ) -> Float[Tensor, "R W V"]:
        """Logits for the columns `want` of each row's canvas. The encoder runs where the plan asks for columns before
        the canvas. soft: for the plan's rows; its columns are the canvas."""
        assert soft is not None, "a model with noise is always told its window"
        columns = soft.columns
        begin, live = columns[:, 0], columns < end[plan.rows][:, None]
        ends = torch.stack([begin, plan.query[:, 0]], 1).tolist()  # the one wait for the device
        longest = max(1, *(prefix for prefix, _ in ends))  # an empty prompt: one column, to which nothing attends
        stale = [row for row, (prefix, first) in enumerate(ends) if first < prefix]
        if stale:
            self._encode(canvas, plan.rows[stale], longest, kv)
        shown = canvas[plan.rows[:, None], columns.clamp(max=canvas.shape[1] - 1)]
        found = self._denoise(shown, live, soft, longest, kv.prefix(plan.rows, longest))
        place = torch.minimum(want - begin[:, None], live.sum(1, keepdim=True) - 1)
        return found.gather(1, place[..., None].expand(-1, -1, found.shape[-1]))

    def _masks(self, attended: dict[str, Bool[Tensor, "R 1 Q K"]]) -> dict[str, Tensor]:
        return {kind: as_taken(mask, self.backbone, self.dtype) for kind, mask in attended.items()}

    def _encode(self, canvas: Int[Tensor, "B T"], rows: Int[Tensor, " N"], length: int, kv: ColumnCache) -> None:
        """Keeps K/V of these rows' first columns. Those after a shorter row's prefix mean nothing: its columns do not
        look ahead, and its canvas does not look at them."""
        keys = torch.arange(canvas.shape[1], device=canvas.device)
        query = keys[:length].repeat(len(rows), 1)
        behind = query[..., None] - keys
        causal = (behind >= 0)[:, None]
        masks = {
            "full_attention": causal,
            "sliding_attention": causal & (behind < self.text_config.sliding_window)[:, None],
        }
        cast(Any, self.backbone).model.encoder.language_model(
            input_ids=canvas[rows, :length],
            attention_mask=self._masks(masks),
            position_ids=query,
            past_key_values=kv.at(rows, query),
        )

    def _denoise(
        self, shown: Int[Tensor, "R C"], live: Bool[Tensor, "R C"], soft: SoftInput, length: int, before: Cache
    ) -> Float[Tensor, "R C V"]:
        """Logits of canvases on the encoder's K/V, which the decoder leaves as it is. Its sliding layers see the
        window's last columns before the canvas, and all of the canvas."""
        begin, told, mixture = soft.columns[:, :1], None, None
        if soft.soft is not None:
            assert soft.soft.tokens is None, "self-conditioning takes the whole distribution"
            told = soft.where.any(1)
            given = soft.soft.weights.where((told[:, None] & live)[..., None], 1.0)  # others are not told, but no NaN
            mixture = given.log().to(self.dtype)
        columns = torch.arange(length, device=shown.device)
        masks = {}
        for kind, first in (("full_attention", 0), ("sliding_attention", begin - self.text_config.sliding_window + 1)):
            attended = torch.cat([(columns < begin) & (columns >= first), live], 1)
            masks[kind] = attended[:, None, None].expand(-1, -1, shown.shape[1], -1)
        output = cast(Any, self.backbone)(
            decoder_input_ids=shown,
            past_key_values=before,
            self_conditioning_logits=mixture,
            self_conditioning_mask=told,
            decoder_attention_mask=self._masks(masks),
            decoder_position_ids=soft.columns,
        )
        return output.logits
