"""Which drafts stay: all of them up to the first that the verifier would not have written, and the verifier's own token
after those. What is written is distributed as what the verifier writes alone, whatever the drafts are."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decoders.logits import Logits, inverse_cdf
from decoders.noise import Noise
from dllm.validation import Checked, Interval, NonNegative


@dataclass(frozen=True)
class Sampling(Checked):
    """What is drawn from logits: the likeliest token (temperature 0), or a sample of the tempered distribution, of its
    fewest likeliest tokens whose probabilities reach top_p. Applied to the verifier's logits and to drafts alike."""

    temperature: NonNegative = 0.0
    top_p: Annotated[float, Interval("(0, 1]")] = 1.0

    def probs(self, logits: Float[Tensor, "B W V"]) -> Float[Tensor, "B W V"]:
        """The distribution that samples are drawn from, float64."""
        tempered = Logits(logits.double() / self.temperature)
        return (tempered if self.top_p == 1 else tempered.top_p(self.top_p)).probs()


GREEDY = Sampling()


@dataclass(frozen=True)
class Verdict:
    """accepted: how many drafts stay. token: what the verifier writes after them. tied: whether the verifier's two
    likeliest tokens after the accepted drafts are too close to tell which a forward of one column prefers; `token`
    then means nothing."""

    accepted: Int[Tensor, " B"]
    token: Int[Tensor, " B"]
    tied: Bool[Tensor, " B"]


def accept_greedy(
    logits: Float[Tensor, "B W V"],
    drafts: Int[Tensor, "B K"],
    count: Int[Tensor, " B"],
    tie: Float[Tensor, " B"],
) -> Verdict:
    """Drafts are accepted while they are the verifier's likeliest token.

    logits: for the first draft, the second, ... and the token after the last, W = K + 1. count: drafts of each row.
    tie: a difference of the two largest logits up to which they count as equal.
    """
    best, tokens = Logits(logits).values.topk(2, dim=-1)
    places = torch.arange(drafts.shape[1], device=drafts.device)
    agrees = (drafts == tokens[:, :-1, 0]) & (places < count[:, None])
    close = (best[..., 0] - best[..., 1]) <= tie[:, None]
    accepted = (agrees & ~close[:, :-1]).long().cumprod(1).sum(1)
    return Verdict(accepted, _at(tokens[..., 0], accepted), _at(close, accepted))


def accept_sampled(
    p: Float[Tensor, "B W V"],
    drafts: Int[Tensor, "B K"],
    count: Int[Tensor, " B"],
    q: Float[Tensor, "B K V"] | None,
    noise: Noise,
) -> Verdict:
    """A draft d is accepted with probability min(1, p(d) / q(d)); after the first that is not is a sample of
    max(0, p - q), normalised (Leviathan et al. 2211.17192, Chen et al. 2302.01318).

    p: the verifier's distributions, W = K + 1. q: those that the drafts were drawn from, None for drafts that were
    certain. count: drafts of each row.
    """
    width = drafts.shape[1]
    of_draft = p[:, :-1].gather(-1, drafts[..., None])[..., 0]
    drawn_with = torch.ones_like(of_draft) if q is None else q.gather(-1, drafts[..., None])[..., 0]
    keeps = noise.uniform(width, stream="accept draft") * drawn_with < of_draft
    keeps = keeps & (torch.arange(width, device=drafts.device) < count[:, None])
    accepted = keeps.long().cumprod(1).sum(1)
    target = _at(p, accepted)
    if width:
        place = accepted.clamp(max=width - 1)
        drawn = torch.zeros_like(target)
        drawn = drawn.scatter_(1, _at(drafts, place)[:, None], 1.0) if q is None else _at(q, place).to(target.dtype)
        rest = (target - drawn).clamp(min=0)
        rejected = (accepted < count)[:, None] & (rest.sum(1, keepdim=True) > 0)
        target = torch.where(rejected, rest, target)
    token = inverse_cdf(target, noise.uniform(1, stream="verified token")[:, 0])
    return Verdict(accepted, token, torch.zeros_like(accepted, dtype=torch.bool))


def _at(values: Tensor, place: Int[Tensor, " B"]) -> Tensor:
    """`values[row, place[row]]` of each row."""
    return values[torch.arange(len(place), device=place.device), place]
