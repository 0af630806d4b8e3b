"""Forward processes: which response tokens of a clean canvas are masked, and how much each masked token weighs."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def mask_response(
    eligible: Bool[Tensor, "B T"], rng: torch.Generator
) -> tuple[Bool[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Masks k of each row's eligible columns, k uniform in 1..n, each k-subset equally likely.

    Returns the masked columns and the weights 1 / k on them, the discrete form of the 1/t weight with lower variance
    (LLaDA, arXiv 2502.09992, eq. 14). k is stratified over the batch: row b draws from the b-th part of a random
    permutation of [0, 1).
    """
    batch = len(eligible)
    strata = (torch.randperm(batch, generator=rng) + torch.rand(batch, generator=rng)) / batch
    count = eligible.sum(1)
    k = (strata * count).floor().long() + 1
    order = torch.rand(eligible.shape, generator=rng).masked_fill(~eligible, 2.0).argsort(1).argsort(1)
    masked = (order < k[:, None]) & eligible
    return masked, masked.float() / k[:, None]


def content_columns(
    response: Bool[Tensor, "B T"], tokens: Int[Tensor, "B T"], scaffold: Sequence[int], fraction: float
) -> Bool[Tensor, "B T"]:
    """In the first `fraction` of the rows the response columns whose token is none of `scaffold` (brackets, separators,
    EOS); in the others, and where nothing is left, all response columns."""
    content = response & ~torch.isin(tokens, torch.tensor(scaffold, dtype=torch.long))
    learned = content.any(1, keepdim=True) & (torch.arange(len(response)) < round(len(response) * fraction))[:, None]
    return torch.where(learned, content, response)


def draw_groups(first: Int[Tensor, " B"], blocks: int, most: int, rng: torch.Generator) -> Int[Tensor, "B K"]:
    """Groups of 1 to `most` consecutive blocks, each size equally likely, from block `first` of each row on. Returns
    the first block of the group of each of a row's `blocks` blocks; those before `first` are groups of their own."""
    ends = torch.randint(1, most + 1, (len(first), blocks), generator=rng).cumsum(1)
    block = torch.arange(blocks).expand_as(ends)
    place = block - first[:, None]
    number = torch.searchsorted(ends, place.clamp(min=0), right=True)
    start = first[:, None] + torch.nn.functional.pad(ends, (1, 0)).gather(1, number)
    return torch.where(place < 0, block, start)


def rising(uniform: Float[Tensor, "B K"], start: Int[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """Rates of blocks from uniform numbers in [0, 1): that of a group's first block is its number, that of another one
    uniform between the rate before it and 1 (MultiBD's chain, arXiv 2606.29215). start: as `draw_groups` gives it."""
    kept = torch.log1p(-uniform).cumsum(1)
    before = torch.nn.functional.pad(kept, (1, 0)).gather(1, start)
    return 1 - (kept - before).exp()
