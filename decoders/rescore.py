"""Rescoring: gives candidates another confidence, by which rules compare positions."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from decoders.types import Candidates, Confidence, Memory, Rescore, Shape, View
from dllm.validation import NonNegative, Positive, Scale


@dataclass(frozen=True)
class OriginalProb(Rescore):
    """The candidate's probability before any temperature, sampling filter or credit (Dimple, arXiv 2505.16990)."""

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Candidates:
        return replace(candidates, confidence=view.logits.prob(candidates.tokens))


@dataclass(frozen=True)
class EosLast(Rescore):
    """EOS candidates come last (LLaDA's confidence_eos_eot_inf): their confidence is 0, and that of others is
    renormalised without EOS.

    At temperature 0, as in the authors' code. LLaDA's EVAL.md explains the flood of EOS.
    """

    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Candidates:
        eos = torch.stack([torch.full_like(candidates.tokens, token) for token in view.spec.eos_ids], -1)
        mass = view.logits.probs_at(eos).sum(-1)
        confidence = candidates.confidence / (1 - mass).clamp(min=1e-12)
        return replace(candidates, confidence=torch.where(view.spec.is_eos(candidates.tokens), 0, confidence))


@dataclass(frozen=True)
class OrderNoise(Rescore):
    """Draws positions without replacement from softmax(confidence / temperature), where a rule would rank them.

    This is Dream's alg_temp (arXiv 2508.15487), by the Gumbel top-k trick. For rules that count positions.
    """

    temperature: Scale = 0.1
    orders: ClassVar[bool] = True

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Candidates:
        gumbel = -(-view.noise.uniform(candidates.tokens.shape[1], stream="order noise").log()).log()
        return replace(candidates, confidence=candidates.confidence / self.temperature + gumbel)


@dataclass(frozen=True)
class PositionPrior(Rescore):
    """PC-Sampler (arXiv 2508.13021): position i of the window gets exp(-decay * i) * min(-c_i log f(v_i), limit).

    c_i is the candidate's probability and f its frequency in some corpus. It changes the order of commits and not their
    number: use it with a rule that counts.

    decay: per column.
    limit: of the second factor. Without frequencies it is not applied: it would make all c_i above 0.85 equal among
        10^5 tokens.
    frequencies: a safetensors file with a tensor `counts` `[V]`. None: all tokens are alike.
    """

    decay: NonNegative = 0.25
    limit: Positive = 10.0
    frequencies: str | None = None
    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)
    orders: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frequencies is not None and not Path(self.frequencies).is_file():
            raise ValueError(f"frequencies={self.frequencies!r} is not a file; give a safetensors file with `counts`")

    def init(self, shape: Shape) -> Memory:
        _surprise(self.frequencies, shape.vocab, shape.device)  # refuses another vocabulary
        return {}

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Candidates:
        surprise = _surprise(self.frequencies, view.logits.shape[-1], candidates.tokens.device)[candidates.tokens]
        position = torch.arange(candidates.tokens.shape[1], device=surprise.device)
        score = view.logits.prob(candidates.tokens) * surprise
        if self.frequencies is not None:
            score = score.clamp(max=self.limit)
        return replace(candidates, confidence=score * (-self.decay * position).exp())


@lru_cache(maxsize=8)
def _surprise(file: str | None, vocab: int, device: torch.device) -> Float[Tensor, " V"]:
    """-log(frequency + 1e-9) of each token, as in the authors' code."""
    try:
        counts = torch.ones(vocab) if file is None else load_file(file)["counts"].float()
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"frequencies={file!r} cannot be read; give a safetensors file with `counts`") from error
    if len(counts) != vocab:
        raise ValueError(f"frequencies={file!r} counts {len(counts)} tokens, the model has {vocab}; use its tokenizer")
    return -(counts / counts.sum() + 1e-9).log().to(device)


@dataclass(frozen=True)
class DensityPrior(Rescore):
    """Certainty prior (d2Cache, arXiv 2509.23094): confidence times the Gaussian-weighted share of decided neighbours.

    Everything left of the response counts as decided, and nothing right of the window.

    sigma: width of the Gaussian in columns.
    """

    sigma: Scale = 10.0
    scale: ClassVar[tuple[Confidence, ...]] = ("prob", "margin", "random")  # at least 0: a product keeps their order

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Candidates:
        width = view.masked.shape[1]
        offset = torch.arange(-width, 2 * width, device=view.masked.device)
        position = offset[width : 2 * width]
        weight = (-((position[:, None] - offset) ** 2) / (2 * self.sigma**2)).exp()  # [W, 3W]
        decided = torch.nn.functional.pad((~view.masked & view.live).float(), (width, width))
        decided[:, :width] = 1
        density = (decided @ weight.T) / weight.sum(-1)
        return replace(candidates, confidence=candidates.confidence * density)
