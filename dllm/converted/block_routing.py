"""Block routing (LLaDA2.2): tokens choose among the experts that were chosen for their block.

Of each expert the highest score that any token of a block gives it counts; the `expert_capacity` highest are the
block's. Each token takes its best ones of these, without the groups of experts that LLaDA2.0 has.

The authors' code runs whole blocks. Here a block's tokens are those that a forward computes and that are alive: with
no cache and `cache=block` all of them. A window that is a part of a block chooses experts of its own.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers.models.glm4_moe.configuration_glm4_moe import Glm4MoeConfig
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeForCausalLM, Glm4MoeMoE, Glm4MoeTopkRouter

from dllm.model import DiffusionLM
from dllm.soft import SoftInput
from dllm.spec import ModelSpec


@dataclass
class Blocks:
    """The block of each column of the next forward, for the routers of all layers. of: numbers from 0 on, below
    `count`."""

    of: Int[Tensor, " N"] | None = None
    count: int = 0


class BlockRouter(Glm4MoeTopkRouter):
    """GLM-4 MoE's, with experts chosen per block in place of groups of them."""

    def __init__(self, config: Glm4MoeConfig, blocks: Blocks) -> None:
        super().__init__(config)
        self.capacity, self.blocks = vars(config)["expert_capacity"], blocks

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits `[N, E]` of tokens, and weights and numbers `[N, K]` of the experts of each."""
        of = self.blocks.of
        assert of is not None, "BlockRoutedLM says it before each forward"
        of = of.to(hidden_states.device)[:, None]
        logits = F.linear(hidden_states.view(-1, self.hidden_dim).float(), self.weight.float())
        scores = logits.sigmoid()
        wanted = scores + self.e_score_correction_bias
        best = wanted.new_full((self.blocks.count, self.num_experts), float("-inf"))
        best = best.scatter_reduce(0, of.expand_as(wanted), wanted, "amax")
        allowed = torch.zeros_like(best, dtype=torch.bool).scatter(1, best.topk(self.capacity, dim=1).indices, True)
        chosen = wanted.masked_fill(~allowed[of[:, 0]], float("-inf")).topk(self.top_k, sorted=False).indices
        weights = scores.gather(1, chosen)
        return logits, weights / (weights.sum(1, keepdim=True) + 1e-20) * self.routed_scaling_factor, chosen


class LLaDA2Backbone(Glm4MoeForCausalLM):
    """GLM-4 MoE under its own name, so that query_key_value of its checkpoints is split on loading."""

    def __init__(self, config: Glm4MoeConfig) -> None:
        super().__init__(config)
        self.blocks = Blocks()
        if vars(config).get("expert_capacity"):
            for layer in self.model.layers:
                if isinstance(layer.mlp, Glm4MoeMoE):
                    layer.mlp.gate = BlockRouter(config, self.blocks)


class BlockRoutedLM(DiffusionLM):
    """A DiffusionLM that tells its routers which block each column is in."""

    backbone: LLaDA2Backbone

    def _check(self, spec: ModelSpec, implementation: str | None) -> None:
        super()._check(spec, implementation)
        if spec.prompt_block or spec.prompt_grid:
            raise ValueError(
                "this model routes by blocks from column 0 on; leave prompt_block and prompt_grid out of its spec"
            )

    def _embed(
        self, tokens: Tensor, query: Tensor, end: Tensor, soft: SoftInput | None = None, whole: bool = False
    ) -> Float[Tensor, "R Q D"]:
        assert self.spec.block is not None
        count = -(-tokens.shape[1] // self.spec.block) + 1  # of a row; dead columns are one of their own
        block = (query // self.spec.block).where(query < end[:, None], count - 1)
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        self.backbone.blocks.of, self.backbone.blocks.count = (rows * count + block).flatten(), len(tokens) * count
        return super()._embed(tokens, query, end, soft, whole)

    def two_stream_logits(self, *given: Any, **more: Any) -> Any:
        raise ValueError(f"model {self.name!r} routes by block, which no training here does")

    def shadow_logits(self, *given: Any, **more: Any) -> Any:
        raise ValueError(f"model {self.name!r} routes by block, and a shadow column is in none; use another decoder")
