"""Uniform-state models that write canvases one after another: DiffusionGemma, on transformers' own classes.

A causal encoder keeps the K/V of all tokens before the canvas; a bidirectional decoder of the same weights reads it and
the canvas. So the window is the canvas, and the columns before it are exact once computed.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from dllm.cache import Plan
from dllm.protocols import Text
from dllm.soft import SoftInput
from dllm.spec import ModelSpec
from dllm.text import decode_text, encode_text


class CanvasLM(nn.Module):
    """A DiffusionGemma with its tokenizer. Rows of a batch are computed one after the other.

    Raises ValueError for a spec without noise.
    """

    passes = 1

    def __init__(
        self, backbone: PreTrainedModel, spec: ModelSpec, tokenizer: PreTrainedTokenizerBase | None, name: str
    ) -> None:
        super().__init__()
        if not spec.noise:
            raise ValueError(f"model {name!r} shows noise where a column is undecided; leave spec.noise as it is")
        self.backbone, self.spec, self.tokenizer, self.name = backbone, spec, tokenizer, name
        self.text_config = cast(Any, backbone.config).text_config
        self.vocab_size: int = self.text_config.vocab_size
        self.max_length: int | None = None

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.dtype

    def encode(self, text: Text) -> list[int]:
        return encode_text(self.tokenizer, self.name, text)

    def decode(self, ids: Sequence[int]) -> str:
        return decode_text(self.tokenizer, ids)

    def identity(self) -> str:
        """What the weights do not say."""
        return repr((self.spec, self.spec.noise, self.tokenizer and self.tokenizer.chat_template))

    def new_kv(self, prompt_len: Int[Tensor, " B"], length: int) -> list[DynamicCache | None]:
        """Of each row the encoder's K/V of the columns before its canvas."""
        return [None] * len(prompt_len)

    def renew_kv(self, kv: list[DynamicCache | None], rows: Int[Tensor, " N"], prompt_len: Int[Tensor, " N"]) -> None:
        for row in rows.tolist():
            kv[row] = None

    def logits(
        self,
        canvas: Int[Tensor, "B T"],
        plan: Plan,
        want: Int[Tensor, "R W"],
        *,
        end: Int[Tensor, " B"],
        kv: list[DynamicCache | None],
        soft: SoftInput | None = None,
    ) -> Float[Tensor, "R W V"]:
        """Logits for the columns `want` of each row's canvas. The encoder runs where the plan asks for columns before
        the canvas. soft: for the plan's rows; its columns are the canvas."""
        assert soft is not None, "a model with noise is always told its window"
        logits = []
        for place, row in enumerate(plan.rows.tolist()):
            begin, columns = int(soft.columns[place, 0]), soft.columns[place]
            before = kv[row]
            if before is None or int(plan.query[place, 0]) < begin:
                before = kv[row] = self._encode(canvas[row, :begin])
            found = self._denoise(canvas[row, columns[columns < end[row]]], soft, place, begin, before)
            logits.append(found[(want[place] - begin).clamp(max=len(found) - 1)])
        return torch.stack(logits)

    def _encode(self, tokens: Int[Tensor, " N"]) -> DynamicCache:
        cache = DynamicCache(config=self.text_config)
        encoder = cast(Any, self.backbone).model.encoder
        encoder(input_ids=tokens[None], past_key_values=cache)
        return cache

    def _denoise(
        self, shown: Int[Tensor, " C"], soft: SoftInput, place: int, begin: int, before: DynamicCache
    ) -> Float[Tensor, "C V"]:
        """Logits of a canvas on the encoder's K/V, which the decoder leaves as it is."""
        mixture = None
        if soft.soft is not None and bool(soft.where[place].any()):
            assert soft.soft.tokens is None, "self-conditioning takes the whole distribution"
            mixture = soft.soft.weights[place, : len(shown)].log()[None].to(self.dtype)
        positions = torch.arange(begin, begin + len(shown), device=shown.device)[None]
        output = cast(Any, self.backbone)(
            decoder_input_ids=shown[None],
            past_key_values=before,
            self_conditioning_logits=mixture,
            decoder_position_ids=positions,
        )
        return output.logits[0]
