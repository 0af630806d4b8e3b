"""What a step's logits say of each window position, in numbers. Recordings store them and learned rules read them."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decoders.types import Memory, Shape, View

NUM_FEATURES = 14
_LEAST = 1e-6  # logarithms start here


@dataclass(frozen=True)
class Signals:
    """Of one step, or of N recorded ones (then B is N). All positions count, decided ones too.

    tokens: the likeliest token of each position, its candidate.
    prob, margin, entropy: of each position's distribution.
    rival: the most probability that another masked position with another candidate gives to this candidate.
    rivalled: the most probability that this position gives to the candidate of such a position.
    twin: the largest doubt 1 - p of another masked position with the same candidate.
    masked, live, step: as in `View`.
    """

    tokens: Int[Tensor, "B W"]
    prob: Float[Tensor, "B W"]
    margin: Float[Tensor, "B W"]
    entropy: Float[Tensor, "B W"]
    rival: Float[Tensor, "B W"]
    rivalled: Float[Tensor, "B W"]
    twin: Float[Tensor, "B W"]
    masked: Bool[Tensor, "B W"]
    live: Bool[Tensor, "B W"]
    step: Int[Tensor, " B"]


def signals(view: View) -> Signals:
    """Reads the model's own logits. A decoder's transforms and temperature change nothing."""
    logits, tokens = view.logits, view.logits.top[1]
    prob = logits.top_prob()
    width = tokens.shape[1]
    given = logits.probs_at(tokens[:, None].expand(-1, width, -1))  # [b, j, i]: p_j(a_i)
    same = tokens[:, :, None] == tokens[:, None, :]
    self_ = torch.eye(width, dtype=torch.bool, device=tokens.device)
    pair = view.masked[:, :, None] & view.masked[:, None, :] & ~self_
    between = given.masked_fill(~pair | same, 0)
    twin = (1 - prob)[:, :, None].expand_as(given).masked_fill(~pair | ~same, 0).amax(1)
    values = (prob, logits.margin(), logits.entropy, between.amax(1), between.amax(2), twin)
    prob, margin, entropy, rival, rivalled, twin = (value.float() for value in values)
    return Signals(tokens, prob, margin, entropy, rival, rivalled, twin, view.masked, view.live, view.step)


def feature_memory(shape: Shape) -> Memory:
    """What `features` keeps from one step of a window to the next."""
    numbers = {name: shape.zeros(shape.window) for name in ("prob", "stable")}
    return {"tokens": shape.zeros(shape.window, dtype=torch.long), **numbers}


def features(s: Signals, memory: Memory) -> Float[Tensor, "B W 14"]:
    """14 numbers per position, about -1 to 1, that mean the same in any window and for any vocabulary. Updates
    `memory`.

    Logarithms of:
        1-4    1 - p, 1 - margin, the entropy, the sum of the entropies of all surer masks (what EB-Sampler bounds)
        5-7    rival, rivalled, twin
        8      steps for which the candidate has stood
        9, 10  distance to the nearest decided position on the left and on the right, or to the window's edge
        11, 12 number of masks, and of steps so far
    As they are:
        13, 14 change of p since the step before, share of live positions that are decided
    """
    began = (s.step == 0)[:, None]
    stable = torch.where(~began & (s.tokens == memory["tokens"]), memory["stable"] + 1, 0)
    change = torch.where(began, 0, s.prob - memory["prob"])
    memory["tokens"].copy_(s.tokens)
    memory["prob"].copy_(s.prob)
    memory["stable"].copy_(stable)

    surer = s.entropy[:, :, None] < s.entropy[:, None, :]  # [b, j, i]: j is surer than i
    before = (surer * (s.entropy * s.masked)[:, :, None]).sum(1)
    doubts = torch.stack([1 - s.prob, 1 - s.margin, s.entropy, before, s.rival, s.rivalled, s.twin], dim=-1)
    masks, live = s.masked.sum(1, keepdim=True), s.live.sum(1, keepdim=True).clamp(min=1)
    counts = [stable, _distance(s.masked), _distance(s.masked.flip(1)).flip(1), masks, s.step[:, None]]
    counted = torch.stack([count.expand_as(s.prob).float().log1p() for count in counts], dim=-1)
    rest = torch.stack([change, (1 - masks / live).expand_as(change)], dim=-1)
    return torch.cat([1 + (doubts.clamp(min=0) + _LEAST).log() / 7, counted / 3, rest], dim=-1)


def _distance(masked: Bool[Tensor, "B W"]) -> Int[Tensor, "B W"]:
    """Columns to the nearest decided position at or left of each, or to the window's edge."""
    position = torch.arange(masked.shape[1], device=masked.device).expand_as(masked)
    return position - torch.where(masked, -1, position).cummax(1).values
