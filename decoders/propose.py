"""From logits to candidates: a token per position, and a confidence by which rules compare positions."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from decoders.logits import Logits
from decoders.noise import Noise
from decoders.types import Candidates, Confidence, View


def propose(view: View, logits: Logits, temperature: float, confidence: Confidence) -> Candidates:
    """Candidates of a step. temperature: 0 takes the likeliest token; above, a token is drawn.

    The confidence is float64, and always of the distribution without temperature:

        prob            p(candidate)
        margin          p1 - p2, of the two likeliest tokens
        entropy         sum p log p in nats; 0 is surest
        random          a random number
        left_to_right   higher is further left
    """
    tokens = logits.top[1] if temperature == 0 else draw(logits, view.noise, temperature)
    return Candidates(tokens, _confidence(view, logits, tokens, temperature == 0, confidence))


def draw(logits: Logits, noise: Noise, temperature: float) -> Int[Tensor, "B W"]:
    return logits.sample(noise.uniform(logits.shape[1], stream="candidate"), temperature)


def _confidence(view: View, logits: Logits, tokens: Tensor, greedy: bool, kind: Confidence) -> Float[Tensor, "B W"]:
    width = logits.shape[1]
    if kind == "random":
        return view.noise.uniform(width, stream="order")
    if kind == "left_to_right":
        return -torch.arange(width, device=logits.device, dtype=torch.float64).expand(logits.shape[:2])
    if kind == "prob":
        return logits.top_prob() if greedy else logits.prob(tokens)
    return logits.margin() if kind == "margin" else -logits.entropy
