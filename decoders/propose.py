"""From logits to candidates: a token per position, and a confidence by which rules compare positions."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from decoders.constraints.chain import Window
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


def propose_held(view: View, window: Window, logits: Logits, temperature: float, confidence: Confidence) -> Candidates:
    """Candidates of a step whose rows keep constraints: together the likeliest accepted completion of the window, or an
    exact sample of the accepted ones. The confidence is of each token's exact probability given that the answer is
    accepted. Where nothing is to be filled it means nothing, and rows without a constraint have what `propose` gives.
    """
    shape, weighed = view.tokens.shape, window.weigh(logits)
    if temperature == 0:
        tokens = weighed.best().view(shape)
    else:
        both = view.noise.uniform(shape[1], 2, stream="completion").reshape(*window.tokens.shape, 2)
        tempered = logits if temperature == 1 else logits.each(lambda values: values / temperature)
        tokens = (weighed if temperature == 1 else window.weigh(tempered)).sample(both).view(shape)
    if confidence in ("random", "left_to_right"):
        sure = _confidence(view, logits, tokens, False, confidence)
    elif confidence == "prob":
        sure = weighed.log_prob(tokens.view(window.tokens.shape)).exp().view(shape)
    else:
        exact = weighed.marginals().reshaped(len(tokens))
        if confidence == "entropy":
            sure = -exact.entropy
        else:
            lead = exact.prob(tokens) - exact.top_prob()
            sure = torch.where(tokens == exact.top[1], exact.margin(), lead)
    if not window.mixed:
        return Candidates(tokens, sure)
    plain, lanes = propose(view, logits, temperature, confidence), len(tokens) // len(window.held)
    held = window.held[:, None].expand(-1, lanes).reshape(-1, 1)
    return Candidates(torch.where(held, tokens, plain.tokens), torch.where(held, sure, plain.confidence))


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
