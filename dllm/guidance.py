"""Classifier-free guidance: a model that compares itself with and without the prompt."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dllm.cache import Plan
from dllm.kv import ColumnCache
from dllm.model import DiffusionLM
from dllm.soft import SoftInput


@dataclass
class _GuidedKV:
    """K/V with and without the prompt, and which columns are prompt (`[B]` lengths)."""

    with_prompt: ColumnCache | None
    without: ColumnCache | None
    prompt_len: Int[Tensor, " B"]


class Guided:
    """l = l_u + (scale + 1)(l_c - l_u), with l_u from a canvas whose prompt is all MASK (LLaDA, arXiv 2502.09992).

    A Denoiser like the model it wraps. One step counts as one forward of twice the columns (`passes`), as the authors
    run it as one batch of both.
    """

    passes = 2

    def __init__(self, model: DiffusionLM, scale: float) -> None:
        if scale < 0:
            raise ValueError(f"guidance scale={scale}; it is >= 0 (0: no guidance)")
        self.model, self.scale, self.spec = model, scale, model.spec

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        return self.model.tokenizer

    @property
    def name(self) -> str:
        return f"{self.model.name}, guidance {self.scale:g}"

    @property
    def device(self) -> torch.device:
        return self.model.device

    def new_kv(self, prompt_len: Int[Tensor, " B"], length: int) -> _GuidedKV:
        return _GuidedKV(self.model.new_kv(prompt_len, length), self.model.new_kv(prompt_len, length), prompt_len)

    def logits(
        self,
        canvas: Int[Tensor, "B T"],
        plan: Plan,
        want: Int[Tensor, "R W"],
        *,
        end: Int[Tensor, " B"],
        kv: _GuidedKV,
        soft: SoftInput | None = None,
    ) -> Float[Tensor, "R W V"]:
        columns = torch.arange(canvas.shape[1], device=canvas.device)
        blind = torch.where(columns < kv.prompt_len[:, None], self.spec.mask_id, canvas)
        guided = self.model.logits(canvas, plan, want, end=end, kv=kv.with_prompt, soft=soft)
        plain = self.model.logits(blind, plan, want, end=end, kv=kv.without, soft=soft)
        logits = plain + (self.scale + 1) * (guided - plain)
        logits[..., self.spec.mask_id] = float("-inf")  # -inf minus -inf is nan
        return logits
