"""On-policy distillation of a causal LM into a denoiser (OPDLM, arXiv 2606.06712): the denoiser learns in the states
that its own decoding goes through, from what the causal LM says after the same text.

The canvases are the model's own decodes (`parallelbench.training.trajectories`), with the forward that wrote each
column. Deviations: a row learns in one block and one state of it, the paper's in one state of each block; the decodes
are made before the training and not anew for each step, so several rounds take the place of a running one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dllm.causal import CausalLM
from dllm.model import DiffusionLM
from dllm.training.certainty import row_means
from dllm.training.objectives import Batch, active_block


@dataclass(frozen=True)
class OnPolicy:
    """Mean over rows of KL(teacher || model) at the MASKs of one state of one block.

    teacher: the causal LM; its distribution of a column is the one after all tokens before it.
    block_len: columns of a block, None for the whole response as one.

    The state is that before the forward which wrote a column of the block, drawn uniformly: what it and later forwards
    wrote is masked, and all later blocks. The EOS that ends the text is learned, the padding after it is not.
    """

    teacher: CausalLM
    block_len: int | None = 32
    scaffold: Sequence[int] = ()  # what every objective is given; not used

    def __call__(self, model: DiffusionLM, batch: Batch, rng: torch.Generator) -> Float[Tensor, ""]:
        """Raises ValueError for data that was not decoded, and for a teacher of another vocabulary."""
        if batch.order is None:
            raise ValueError("on-policy distillation learns from the model's own decodes; use scripts/distill.py")
        if self.teacher.vocab_size != model.vocab_size:
            raise ValueError(
                f"teacher {self.teacher.name!r} has {self.teacher.vocab_size} tokens, {model.name!r} has "
                f"{model.vocab_size}; give the causal LM that the model came from"
            )
        active, later = active_block(model.spec, batch, self.block_len, rng, "text")
        learned = active & batch.text
        drawn = torch.rand(learned.shape, generator=rng).masked_fill(~learned, -1.0).argmax(1, keepdim=True)
        masked = active & (batch.order >= batch.order.gather(1, drawn))
        where = masked & learned
        where[:, 0] = False  # nothing comes before it
        device, mask_id = model.device, model.spec.mask_id
        canvas, prompt_len, end, masked, where = (
            t.to(device) for t in (batch.canvas, batch.prompt_len, batch.end, masked | later, where)
        )
        with torch.no_grad():
            target = self.teacher.next_logits(canvas[:, :-1], where[:, 1:], rng).float()
            target[:, mask_id] = float("-inf")  # none of the candidates
            log_p = target.log_softmax(-1)
        log_q = model.full_logits(canvas.masked_fill(masked, mask_id), prompt_len, end, where).float().log_softmax(-1)
        gap = (log_p.exp() * (log_p - log_q)).nan_to_num().sum(-1)  # 0 * inf at MASK
        return row_means(gap, where).mean()
