"""Training of uniform-state diffusion: tokens of the response become random tokens, and the model says all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dllm.model import DiffusionLM
from dllm.soft import Soft, SoftInput
from dllm.training.masking import content_columns, mask_response
from dllm.training.objectives import Batch
from dllm.validation import Checked, Fraction


@dataclass(frozen=True)
class UniformDiffusion(Checked):
    """DiffusionGemma's fine-tuning loss (NeMo AutoModel's `DiffusionGemmaSFTRecipe`): a random share of the response's
    tokens is replaced by uniform noise, and the loss is the plain cross-entropy of all of them, noise or not.

    Deviation: k of n tokens are replaced, k uniform in 1..n and stratified over the batch as in `MaskedDiffusion`, not
    each with probability t. A response counts as one, however long it is.

    self_condition: share of rows that are told what the model predicts without it, as `decoders.SelfCondition` does. It
        costs these rows a forward without gradient.
    content_fraction: share of rows in which only tokens outside `scaffold` become noise, as in `MaskedDiffusion`.
    """

    self_condition: Fraction = 0.5
    content_fraction: Fraction = 0.0
    scaffold: Sequence[int] = ()

    def __call__(self, model: DiffusionLM, batch: Batch, rng: torch.Generator) -> Float[Tensor, ""]:
        """Mean over rows of the mean cross-entropy per token. Raises ValueError for a model of masks."""
        if not model.spec.noise:
            raise ValueError(f"model {model.name!r} shows MASK and no noise; give a uniform-state model")
        response = batch.response
        noisy, _ = mask_response(content_columns(response, batch.canvas, self.scaffold, self.content_fraction), rng)
        noise = torch.randint(model.spec.noise, batch.canvas.shape, generator=rng)
        shown = torch.where(noisy, noise, batch.canvas)
        told = (torch.rand(len(response), generator=rng) < self.self_condition).nonzero()[:, 0]
        canvas, prompt_len, end, response, shown, told = (
            t.to(model.device) for t in (batch.canvas, batch.prompt_len, batch.end, response, shown, told)
        )
        soft = _predicted(model, shown, prompt_len, end, response, told) if len(told) else None
        logits = model.full_logits(shown, prompt_len, end, response, soft)
        loss = F.cross_entropy(logits.float(), canvas[response], reduction="none")
        weight = (response / response.sum(1, keepdim=True))[response]
        return (loss * weight).sum() / len(canvas)


def _predicted(
    model: DiffusionLM,
    shown: Int[Tensor, "B T"],
    prompt_len: Int[Tensor, " B"],
    end: Int[Tensor, " B"],
    where: Bool[Tensor, "B T"],
    rows: Int[Tensor, " R"],
) -> SoftInput:
    """What the model predicts at columns of some rows."""
    weights = torch.zeros(*shown.shape, model.vocab_size, device=shown.device)
    with torch.no_grad():
        weights[rows] = model.full_logits(shown[rows], prompt_len[rows], end[rows]).float().softmax(-1)
    amount = torch.zeros(len(shown), 1, device=shown.device).index_fill(0, rows, 1.0).expand(shown.shape)
    columns = torch.arange(shown.shape[1], device=shown.device).expand_as(shown)
    return SoftInput(Soft(weights, amount), columns, where & (amount > 0))
