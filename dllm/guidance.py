"""Classifier-free guidance: a model that compares itself with and without the prompt."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm.plan import Plan
from dllm.protocols import DenoisingLM, Text
from dllm.soft import SoftInput
from dllm.text import Tokenized
from dllm.validation import NonNegative, check


@dataclass
class _GuidedKV:
    """The K/V of two forwards, with and without the prompt, and how many columns are prompt."""

    with_prompt: Any
    without: Any
    prompt_len: Int[Tensor, " B"]


class Guided:
    """l = l_u + (scale + 1)(l_c - l_u), with l_u from a canvas whose prompt is all MASK (LLaDA, arXiv 2502.09992).

    A Denoiser like the model it wraps. One step counts as one forward of twice the columns (`passes`), because the
    authors run both as one batch.
    """

    def __init__(self, model: DenoisingLM, scale: NonNegative) -> None:
        check(Guided.__init__, scale=scale)
        self.model, self.scale, self.spec = model, scale, model.spec

    @property
    def passes(self) -> int:
        return 2 * self.model.passes

    @property
    def name(self) -> str:
        return f"{self.model.name}, guidance {self.scale:g}"

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def max_length(self) -> int | None:
        return self.model.max_length

    def identity(self) -> str:
        return f"{self.model.identity()} guidance {self.scale}"

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        return self.model.named_parameters()

    @property
    def tokenizer(self) -> Any:
        return self.model.tokenizer if isinstance(self.model, Tokenized) else None

    def encode(self, text: Text) -> list[int]:
        return self.model.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self.model.decode(ids)

    def new_kv(self, prompt_len: Int[Tensor, " B"], length: int) -> _GuidedKV:
        return _GuidedKV(self.model.new_kv(prompt_len, length), self.model.new_kv(prompt_len, length), prompt_len)

    def renew_kv(self, kv: _GuidedKV, rows: Int[Tensor, " N"], prompt_len: Int[Tensor, " N"]) -> None:
        for part in (kv.with_prompt, kv.without):
            self.model.renew_kv(part, rows, prompt_len)
        kv.prompt_len = kv.prompt_len.index_copy(0, rows, prompt_len)

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
