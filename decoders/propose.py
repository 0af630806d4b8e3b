"""From logits to candidates: a token per position and a confidence by which rules compare positions."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from decoders.types import Candidates, View

Confidence = Literal["prob", "margin", "entropy", "random", "left_to_right"]
CONFIDENCES: tuple[Confidence, ...] = ("prob", "margin", "entropy", "random", "left_to_right")
_GUMBEL, _ORDER = 1, 2  # noise streams


def propose(view: View, logits: Float[Tensor, "B W V"], temperature: float, confidence: Confidence) -> Candidates:
    """Candidates of a step.

    temperature 0 takes the argmax, else a Gumbel-max sample (noise in float64: in low precision it distorts the
    distribution, LLaDA, arXiv 2502.09992, appendix). Confidence is of the distribution without temperature, in
    float32: prob p(candidate); margin p1 - p2; entropy sum p log p (0 is surest); random; left_to_right (higher is
    further left).
    """
    if temperature == 0:
        tokens = logits.argmax(-1)
    else:
        gumbel = -torch.log(-torch.log(view.noise.uniform(*logits.shape[1:], stream=_GUMBEL)))
        tokens = (logits.double() / temperature + gumbel).argmax(-1)
    return Candidates(tokens, _confidence(view, logits.float(), tokens, confidence))


def _confidence(view: View, logits: Tensor, tokens: Tensor, kind: Confidence) -> Float[Tensor, "B W"]:
    width = logits.shape[1]
    if kind == "random":
        return view.noise.uniform(width, stream=_ORDER).float()
    if kind == "left_to_right":
        return -torch.arange(width, device=logits.device, dtype=torch.float32).expand(logits.shape[:2])
    norm = logits.logsumexp(-1, keepdim=True)
    if kind == "prob":
        return (logits.gather(-1, tokens[..., None]) - norm).squeeze(-1).exp()
    if kind == "margin":
        first, second = (logits.topk(2, dim=-1).values - norm).exp().unbind(-1)
        return first - second
    log_prob = logits - norm
    return torch.special.entr(log_prob.exp()).sum(-1).neg()
