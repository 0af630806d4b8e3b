"""Masked LMs (BERT, RoBERTa, ModernBERT, ESM ...) as denoisers: the stock model with its own head, run on whole
canvases.

A BERT is a masked diffusion LM without a schedule: it predicts MASKs from both sides. Its K/V is not kept, so only
cache=none works (`ModelSpec.kv=False`).
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm.kv import ColumnCache
from dllm.model import DiffusionLM
from dllm.plan import Plan
from dllm.soft import SoftInput
from dllm.spec import ModelSpec


class EncoderLM(DiffusionLM):
    """Any transformers model for masked language modelling. Raises ValueError for a spec that no encoder has."""

    def _check(self, spec: ModelSpec, implementation: str | None) -> None:
        """Every implementation takes a mask over keys."""
        if spec.kv or spec.shift or spec.block or spec.mix or spec.response_position is not None:
            raise ValueError(
                f"a masked LM keeps no K/V, shifts no tokens, and has no blocks, mix or response position: {spec}"
            )

    def _max_length(self) -> int | None:
        """What its config says, also of rotary positions. RoBERTa counts positions from the padding's on."""
        limit = getattr(self.backbone.config, "max_position_embeddings", None)
        for name, module in self.backbone.named_modules():
            padding = getattr(module, "padding_idx", None)
            if limit is not None and padding is not None and name.endswith("position_embeddings"):
                limit -= padding + 1
        return limit

    def logits(
        self,
        canvas: Int[Tensor, "B T"],
        plan: Plan,
        want: Int[Tensor, "R W"],
        *,
        end: Int[Tensor, " B"],
        kv: ColumnCache | None = None,
        soft: SoftInput | None = None,
    ) -> Float[Tensor, "R W V"]:
        """One forward over all columns of the plan's rows, whatever its query. Logits for `want`, with MASK at -inf."""
        logits = self.full_logits(canvas[plan.rows], end[plan.rows], end[plan.rows], soft=soft)
        return logits.gather(1, want[..., None].expand(-1, -1, logits.shape[-1]))

    def full_logits(
        self,
        canvas: Int[Tensor, "B T"],
        prompt_len: Int[Tensor, " B"],
        end: Int[Tensor, " B"] | None = None,
        where: Bool[Tensor, "B T"] | None = None,
        soft: SoftInput | None = None,
    ) -> Float[Tensor, "... V"]:
        """As `DiffusionLM.full_logits`. Prompts are columns like others."""
        columns = torch.arange(canvas.shape[1], device=canvas.device).expand_as(canvas)
        end = torch.full_like(prompt_len, canvas.shape[1]) if end is None else end
        live = (columns < end[:, None]).long()
        # ids where possible: some encoders look at them (ESM drops MASK's embedding and rescales the others)
        if soft is not None and vars(self.backbone.config).get("token_dropout"):
            raise ValueError(f"{self.name} drops the embedding of MASK, so it takes no soft inputs")
        inputs = {"input_ids": canvas} if soft is None else {"inputs_embeds": self._embed(canvas, columns, end, soft)}
        logits = self.backbone(**inputs, attention_mask=live).logits.to(canvas.device)
        logits[..., self.spec.mask_id] = float("-inf")
        return logits if where is None else logits[where]

    def shadow_logits(self, *given: Any, **more: Any) -> Any:
        """Raises ValueError: a shadow column needs a mask of its own, and an encoder takes one for all columns."""
        raise ValueError(f"{self.name} is an encoder and takes no shadow columns; use another decoder")
