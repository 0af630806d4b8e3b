"""Small LMs with random weights on stock backbones, to be trained from scratch: diffusion, autoregressive, recurrent,
and one that sees pictures."""

from typing import Any, cast

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedTokenizerBase,
    Qwen2VLImageProcessorPil,
)
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig

from dllm.causal import CausalLM
from dllm.model import DiffusionLM
from dllm.recurrent import Depth, LlamaRecurrentLM
from dllm.spec import ModelSpec
from dllm.vision.dimple import DimpleBackbone, DimpleConfig
from dllm.vision.seeing import VisionLM


def scratch_llama(
    tokenizer: PreTrainedTokenizerBase,
    *,
    response_position: int | None = 64,
    embed_std: float = 0.3,
    seed: int = 0,
    name: str = "scratch",
    **sizes: Any,
) -> DiffusionLM:
    """A bidirectional model with a neighbour mix, its sizes as in `_config`; the tokenizer must name mask, EOS and
    PAD."""
    backbone = _llama(tokenizer, seed, **sizes)
    model = DiffusionLM(backbone, _spec(tokenizer, response_position=response_position, mix=1), tokenizer, name)
    assert model.mix is not None
    rng = torch.Generator().manual_seed(seed)
    model.mix.reset_(0.8, rng)
    _reset_embeddings(backbone, embed_std, rng)
    return model


def scratch_causal(
    tokenizer: PreTrainedTokenizerBase, *, embed_std: float = 0.3, seed: int = 0, name: str = "scratch", **sizes: Any
) -> CausalLM:
    """The same transformer as a causal LM, without the mix: instead one head starts out looking at the token before."""
    backbone = _llama(tokenizer, seed, bias=True, **sizes)
    _reset_embeddings(backbone, embed_std, torch.Generator().manual_seed(seed))
    _look_back(backbone.model)
    return CausalLM(backbone, tokenizer, name)


def scratch_recurrent(
    tokenizer: PreTrainedTokenizerBase,
    *,
    prelude: int = 1,
    core: int = 2,
    coda: int = 1,
    recurrences: int = 8,
    embed_std: float = 0.3,
    seed: int = 0,
    name: str = "scratch",
    **sizes: Any,
) -> LlamaRecurrentLM:
    """A depth-recurrent LM on the same layers, one head of its prelude looking at the token before."""
    config = _config(tokenizer, bias=True, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaRecurrentLM(config, Depth(prelude, core, coda, recurrences), tokenizer, name)
    torch.nn.init.normal_(model.embed.weight, std=embed_std, generator=torch.Generator().manual_seed(seed))
    torch.nn.init.constant_(model.coda.norm.weight, embed_std)
    _look_back(model.prelude)
    return model


def scratch_vision(
    tokenizer: PreTrainedTokenizerBase,
    *,
    side: int = 48,
    patch: int = 16,
    embed_std: float = 0.3,
    seed: int = 0,
    name: str = "scratch",
    width: int = 64,
    layers: int = 3,
    heads: int = 4,
    mlp_width: int = 128,
    rope_theta: float = 3.0,
) -> VisionLM:
    """A bidirectional model of Dimple's layout that sees pictures, for which its tokenizer gets three tokens more.

    side: pixels of a square picture; others are scaled to as many.
    patch: pixels of a column's side.
    width, heads, mlp_width: of both halves.
    """
    spec = _spec(tokenizer)
    around = ["<picture>", "</picture>", "<pixels>"]
    tokenizer.add_special_tokens({"additional_special_tokens": cast(Any, around)})
    start_id, end_id, image_id = cast(list[int], tokenizer.convert_tokens_to_ids(around))
    vision = Qwen2_5_VLVisionConfig(
        depth=1,
        hidden_size=width,
        intermediate_size=mlp_width,
        num_heads=heads,
        patch_size=patch,
        temporal_patch_size=1,
        spatial_merge_size=1,
        initializer_range=0.1,
        out_hidden_size=width,
        fullatt_block_indexes=[0],
    )
    angles = width // heads // 2
    config = DimpleConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=mlp_width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        mrope_section=[angles - 2 * (3 * angles // 8), 3 * angles // 8, 3 * angles // 8],  # in Qwen2.5-VL's shares
        vision_config=vision,
        initializer_range=0.1,
        image_token_id=image_id,
        vision_start_token_id=start_id,
        vision_end_token_id=end_id,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=spec.eos_ids[0],
        pad_token_id=spec.pad_id,
    )
    config.mask_token_id = spec.mask_id
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = DimpleBackbone(config)
    _reset_embeddings(backbone, embed_std, torch.Generator().manual_seed(seed))
    size = {"shortest_edge": side * side, "longest_edge": side * side}
    # white is 0: what all columns share would drown the rest
    light: dict[str, Any] = {"image_mean": [1.0] * 3, "image_std": [0.5] * 3}
    processor = Qwen2VLImageProcessorPil(patch_size=patch, temporal_patch_size=1, merge_size=1, size=size, **light)
    return VisionLM(backbone, spec, processor, tokenizer, name)


def _spec(tokenizer: PreTrainedTokenizerBase, **more: Any) -> ModelSpec:
    mask_id, eos_id, pad_id = tokenizer.mask_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    assert isinstance(mask_id, int) and isinstance(eos_id, int) and isinstance(pad_id, int)
    return ModelSpec(mask_id, (eos_id,), pad_id, **more)


def _config(
    tokenizer: PreTrainedTokenizerBase,
    *,
    width: int = 128,
    layers: int = 5,
    heads: int = 4,
    mlp_width: int = 384,
    rope_theta: float = 1000.0,
    bias: bool = False,
) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=mlp_width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        tie_word_embeddings=True,
        attention_bias=bias,
        bos_token_id=None,
        eos_token_id=cast(int, tokenizer.eos_token_id),
    )


def _llama(tokenizer: PreTrainedTokenizerBase, seed: int, **settings: Any) -> LlamaForCausalLM:
    with torch.random.fork_rng():  # transformers initialises from the global generator
        torch.manual_seed(seed)
        return LlamaForCausalLM(_config(tokenizer, **settings))


def _reset_embeddings(backbone: LlamaForCausalLM | DimpleBackbone, std: float, rng: torch.Generator) -> None:
    """The usual 0.02 lets tied embeddings grow one common direction first; the final norm keeps the logits near unit
    scale."""
    torch.nn.init.normal_(backbone.model.embed_tokens.weight, std=std, generator=rng)
    torch.nn.init.constant_(backbone.model.norm.weight, std)


def _look_back(stack: LlamaModel) -> None:
    """Sets the first head's query and key biases so that it attends to the column before, whatever the tokens.

    Under RoPE, q = a at angle 0 and k = a at angle w in a pair of frequency w give a^2 cos(w (i - j - 1)), largest at
    j = i - 1. With it "the last name that follows this first name" takes one more attention step to learn.
    """
    config, attention = stack.config, cast(Any, stack.layers[0]).self_attn
    pairs, amplitude = 4, 6.0
    half = config.hidden_size // config.num_attention_heads // 2
    theta = cast(dict[str, Any], config.rope_parameters)["rope_theta"]
    frequency = theta ** (-torch.arange(pairs) / half)
    with torch.no_grad():
        for bias, angle in ((attention.q_proj.bias, 0 * frequency), (attention.k_proj.bias, frequency)):
            bias[:pairs] = amplitude * angle.cos()
            bias[half : half + pairs] = amplitude * angle.sin()
