"""Dimple's backbone (arXiv 2505.16990): stock Qwen2 next to the stock vision half of Qwen2.5-VL, and two linear layers
from one to the other."""

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.activations import ACT2FN
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel


class DimpleConfig(Qwen2Config):
    """Qwen2's, with the vision half's. mrope_section: how many rotary frequencies turn with time, height and width."""

    model_type = "dimple"
    sub_configs: ClassVar = {"vision_config": Qwen2_5_VLVisionConfig}  # type: ignore

    vision_config: Any = None
    mrope_section: Any = (16, 24, 24)
    image_token_id: int = 151655
    vision_start_token_id: int = 151652
    vision_end_token_id: int = 151653


class SectionedRotaryEmbedding(Qwen2RotaryEmbedding):
    """Qwen2's, whose frequencies turn with one of three positions each."""

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Int[Tensor, "3 R Q"]) -> tuple[Tensor, Tensor]:
        freqs = position_ids[..., None].float() * self.inv_freq.to(device=x.device, dtype=torch.float)
        parts = freqs.split(list(self.config.mrope_section), -1)
        angles = torch.cat([part[axis] for axis, part in enumerate(parts)], -1).repeat(1, 1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Projector(nn.Module):
    """From features of the vision half to embeddings."""

    def __init__(self, width: int, config: DimpleConfig) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(width, config.hidden_size)
        self.act = ACT2FN[config.hidden_act]
        self.linear_2 = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Float[Tensor, "N W"]) -> Float[Tensor, "N D"]:
        return self.linear_2(self.act(self.linear_1(x)))


class DimpleBackbone(Qwen2ForCausalLM):
    """A language model whose rotary positions are `[3, R, Q]`, and whose `features` are embeddings of a picture."""

    config_class = DimpleConfig
    _no_split_modules: ClassVar = ["Qwen2DecoderLayer", "Qwen2_5_VLVisionBlock"]

    def __init__(self, config: DimpleConfig) -> None:
        super().__init__(config)
        self.model.rotary_emb = SectionedRotaryEmbedding(config)
        self.visual = Qwen2_5_VisionTransformerPretrainedModel._from_config(config.vision_config)
        self.img_projector = Projector(config.vision_config.out_hidden_size, config)
        self.post_init()

    def features(self, patches: Float[Tensor, "P X"], sides: Int[Tensor, "N 2"]) -> Float[Tensor, "F D"]:
        """Embeddings of the columns of N pictures, one picture after another. sides: rows and columns of each."""
        device = self.visual.patch_embed.proj.weight.device
        grid = nn.functional.pad(sides * self.config.vision_config.spatial_merge_size, (1, 0), value=1)
        seen = self.visual(patches.to(device, self.dtype), grid_thw=grid.to(device)).pooler_output
        return self.img_projector(seen)
