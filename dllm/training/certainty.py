"""Certainty-forcing distillation (dParallel, arXiv 2509.26488): a model learns to be sure, all at once, of the tokens
that it would commit one after another.

The canvases are the model's own decodes (`parallelbench.training.trajectories`). Deviations from the authors'
code: every row draws a mask of its own (theirs reuses the first row's, so they train on single rows), and MASK is no
candidate. Options that are ours: `blocks="text"`, and `mask_ratio="uniform"`, which a net that decodes short blocks
from all MASK needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from dllm.model import DiffusionLM
from dllm.training.objectives import Batch, active_block
from dllm.validation import Checked, Count, Interval, NonNegative, Positive


@dataclass(frozen=True)
class CertaintyForcing(Checked):
    """L = consistency * CE + certainty * H, summed over two complementary views of one block (section 3.3).

    CE: cross-entropy to the trajectory's tokens, mean over the masked columns of the active block.
    H: entropy of softmax(logits / temperature), mean over those of them that the model predicts correctly (0 where
        there is none); whether a prediction is correct passes no gradient.
    block_len: columns of a block, None for the whole response as one.
    mask_ratio: share of the active block masked in the first view, the rest in the second; "uniform" draws it per row
        from (0, 1).
    blocks: which of a response's blocks may be the active one: all of its padded "canvas" alike, or those that hold
        "text"; the last of these then takes all the padding.

    Published: LLaDA certainty 2, block_len 32; Dream certainty 1, block_len None; both consistency 1, temperature 0.5,
    mask_ratio 0.5, blocks of the canvas.
    """

    consistency: NonNegative = 1.0
    certainty: NonNegative = 2.0
    temperature: Positive = 0.5
    block_len: Count | None = 32
    mask_ratio: Annotated[float, Interval("(0, 1)")] | Literal["uniform"] = 0.5
    blocks: Literal["canvas", "text"] = "canvas"
    scaffold: Sequence[int] = ()  # what every objective is given; not used

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consistency + self.certainty == 0:
            raise ValueError("consistency=0 and certainty=0 of CertaintyForcing; give weights that are not both 0")

    def __call__(self, model: DiffusionLM, batch: Batch, rng: torch.Generator) -> Float[Tensor, ""]:
        """Mean over rows of the sum of both views. Draws on the CPU; the model may be elsewhere."""
        active, later = active_block(model.spec, batch, self.block_len, rng, self.blocks)
        uniform = torch.rand(len(active), 1, generator=rng)
        ratio = uniform if self.mask_ratio == "uniform" else torch.full_like(uniform, self.mask_ratio)
        first = (torch.rand(active.shape, generator=rng) < ratio) & active
        masked, later = torch.cat([first, active & ~first]), torch.cat([later, later])  # both views in one forward
        device = model.device
        canvas, prompt_len, end = (torch.cat([t, t]).to(device) for t in (batch.canvas, batch.prompt_len, batch.end))
        noisy = canvas.masked_fill((masked | later).to(device), model.spec.mask_id)
        masked = masked.to(device)
        logits, target = model.full_logits(noisy, prompt_len, end, masked).float(), canvas[masked]
        losses = self.consistency * row_means(F.cross_entropy(logits, target, reduction="none"), masked)
        if self.certainty:
            correct = logits.argmax(-1) == target
            among = torch.zeros_like(masked).masked_scatter(masked, correct)
            losses = losses + self.certainty * row_means(entropy(logits[correct] / self.temperature), among)
        return losses.sum() / len(batch.canvas)


def row_means(values: Float[Tensor, " N"], where: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Mean per row of values that belong to the marked columns in reading order; 0 for a row without any."""
    row = torch.arange(len(where), device=where.device)[:, None].expand_as(where)[where]
    sums = values.new_zeros(len(where)).index_add(0, row, values)
    return sums / where.sum(1).clamp(min=1)


def entropy(logits: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """Nats; a logit of -inf (MASK is none of the candidates) adds nothing, nor does its gradient."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p.masked_fill(log_p.isinf(), 0.0)).sum(-1)
