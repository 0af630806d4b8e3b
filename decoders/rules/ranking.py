"""Masked positions in order of confidence, and back to positions, for rules that count."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decoders.types import Candidates, View


def surest_first(
    view: View, candidates: Candidates
) -> tuple[Float[Tensor, "B W"], Int[Tensor, "B W"], Bool[Tensor, "B W"]]:
    """Confidences from high to low, the positions they are of, and which of these are masked.

    Positions that are not masked come last, with -inf. Ties go to the left.
    """
    confidence = candidates.confidence.masked_fill(~view.masked, float("-inf"))
    confidence, order = confidence.sort(dim=1, descending=True, stable=True)
    return confidence, order, view.masked.gather(1, order)


def to_positions(chosen: Bool[Tensor, "B W"], order: Int[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
    """Back from sorted order to positions."""
    return torch.zeros_like(chosen).scatter_(1, order, chosen)


def lowest(values: Float[Tensor, "B W"], where: Bool[Tensor, "B W"], number: Int[Tensor, " B"]) -> Bool[Tensor, "B W"]:
    """The `number` lowest values of `where` in each row; fewer where there are fewer."""
    order = values.masked_fill(~where, float("inf")).sort(dim=1, stable=True).indices
    first = torch.arange(values.shape[1], device=values.device) < number[:, None]
    return to_positions(first, order) & where


def take(view: View, candidates: Candidates, number: Int[Tensor, " B"]) -> Bool[Tensor, "B W"]:
    """The `number` surest masked positions of each row; fewer where there are fewer."""
    _, order, valid = surest_first(view, candidates)
    rank = torch.arange(order.shape[1], device=order.device)
    return to_positions((rank < number[:, None]) & valid, order)
