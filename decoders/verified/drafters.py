"""Where drafts come from: the model's own MASKs in the forwards that verify, the text so far, or another model."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm.causal import CausalStream
from dllm.model import DiffusionLM
from dllm.plan import Plan
from dllm.validation import Checked, Count

Ahead = Literal["none", "last", "all"]


@dataclass(frozen=True)
class Text:
    """Settled tokens of some rows: those up to column `last`; what a canvas holds after them means nothing. end: the
    column after a row's response."""

    canvas: Int[Tensor, "R T"]
    prompt_len: Int[Tensor, " R"]
    last: Int[Tensor, " R"]
    end: Int[Tensor, " R"]


@dataclass(frozen=True)
class Proposal:
    """Drafts for the columns after the last settled one of each row.

    tokens: None where they are to be drawn from `logits`. count: drafts of each row. queried: columns that another
    model computed for them in one forward, 0 without one.
    """

    tokens: Int[Tensor, "R K"] | None
    logits: Float[Tensor, "R K V"] | None
    count: Int[Tensor, " R"]
    queried: Int[Tensor, " R"]


class Drafter(Checked, ABC):
    """Guesses the next tokens of a text. Whatever it guesses, verified text is the verifier's own."""

    @property
    def ahead(self) -> Ahead | None:
        """What the verifier's forwards draft for the next one (see `MaskDrafts`); None where others draft."""
        return None

    @abstractmethod
    def size(self, stream: CausalStream) -> int:
        """Drafts of a row at most. Raises ValueError for a verifier that it cannot draft for."""

    @abstractmethod
    def propose(self, text: Text) -> Proposal | None:
        """Drafts of each row; None where the verifier's forwards draft."""


@dataclass(frozen=True)
class MaskDrafts(Drafter):
    """The model's MASKs draft, in groups after settled columns of its own forwards.

    next: what a forward that verifies drafts for the next one. "none": nothing, another forward drafts (linear
        self-speculation of Nemotron-Labs-Diffusion, 2607.05722). "last": what follows if all its drafts are accepted
        (I-DLM, 2604.11035). "all": what follows each possible number of accepted drafts (TiDAR, 2511.08923).
    masks: MASKs of a group, None for as many as the model's block has.
    """

    next: Ahead = "all"
    masks: Count | None = None

    @property
    def ahead(self) -> Ahead:
        return self.next

    def size(self, stream: CausalStream) -> int:
        if not stream.group:
            raise ValueError(
                f"model {stream.model.name!r} has no MASKs to draft with; use decoder=prompt_lookup, model=tiny_draft, "
                "or another model with spec.context_causal=true"
            )
        masks = stream.group if self.masks is None else self.masks
        if masks - 1 + stream.shift < 1:
            raise ValueError(f"masks={masks} draft nothing where MASKs stand for their own column; give at least 2")
        return masks - 1 + stream.shift

    def propose(self, text: Text) -> None:
        return None


@dataclass(frozen=True)
class LookupDrafts(Drafter):
    """The up to `num_tokens` tokens after the first earlier place of the longest n-gram, of at most `max_ngram`, that
    the text now ends with."""

    num_tokens: Count = 10
    max_ngram: Count = 2

    def size(self, stream: CausalStream) -> int:
        return self.num_tokens

    def propose(self, text: Text) -> Proposal:
        canvas, last = text.canvas, text.last
        columns = torch.arange(canvas.shape[1], device=canvas.device)
        begin = torch.zeros_like(last)  # of what is copied; no n-gram ends before column 1
        for length in range(1, self.max_ngram + 1):
            same = columns + length <= last[:, None]  # whether an n-gram begins here that the text ends with
            for place in range(length):
                tail = canvas.gather(1, (last - place).clamp(min=0)[:, None])
                same &= canvas.roll(place - length + 1, 1) == tail
            begin = torch.where(same.any(1), same.int().argmax(1) + length, begin)
        copied = begin[:, None] + torch.arange(self.num_tokens, device=canvas.device)
        count = torch.where(begin > 0, (last + 1 - begin).clamp(max=self.num_tokens), 0)
        tokens = canvas.gather(1, copied.clamp(max=canvas.shape[1] - 1))
        return Proposal(tokens, None, count, torch.zeros_like(last))


@dataclass(frozen=True)
class ModelDrafts(Drafter):
    """Another model drafts `num_tokens` tokens, in one denoising forward over the text and MASKs up to the response's
    end."""

    model: DiffusionLM
    num_tokens: Count = 8

    def size(self, stream: CausalStream) -> int:
        names = [model.tokenizer and model.tokenizer.get_vocab() for model in (self.model, stream.model)]
        if names[0] != names[1] or self.model.vocab_size != stream.model.vocab_size:
            raise ValueError(
                f"model {self.model.name!r} drafts in another vocabulary than that of {stream.model.name!r}; use two "
                "models with one tokenizer"
            )
        return self.num_tokens

    def propose(self, text: Text) -> Proposal:
        columns = torch.arange(text.canvas.shape[1], device=text.canvas.device).expand_as(text.canvas)
        end, last = text.end[:, None], text.last[:, None]
        canvas = text.canvas.masked_fill((columns > last) & (columns < end), self.model.spec.mask_id)
        rows, query = torch.arange(len(canvas), device=canvas.device), torch.minimum(columns, end - 1)
        plan = Plan(rows, query, text.end, all_rows=True, keep=False)
        want = torch.minimum(last + 1 + torch.arange(self.num_tokens, device=canvas.device), end - 1)
        kv = self.model.new_kv(text.prompt_len, canvas.shape[1])
        logits = self.model.logits(canvas, plan, want, end=text.end, kv=kv)
        count = torch.full_like(text.last, self.num_tokens)
        return Proposal(None, logits, count, text.end * self.model.passes)
