"""Published dLLM checkpoints as stock transformers backbones. Each family is one entry of a table: how its config is
translated, its key map, and its special numbers.

The family is recognised from config.json. Any other model is `native` and loaded as transformers loads it. All special
vocabulary ids of published models are in this file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import (
    AutoTokenizer,
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    Glm4MoeConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3ForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.core_model_loading import Split, WeightConverter
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig

from dllm.converted.block_routing import LLaDA2Backbone
from dllm.converted.causal_lms import a2d_config, a2d_spec, nemotron_config, nemotron_spec
from dllm.converted.ends import as_ids, qwen_eos
from dllm.spec import ModelSpec
from dllm.vision.dimple import DimpleBackbone, DimpleConfig

Config = Mapping[str, Any]
DIMPLE_TOKENS = ("image_token_id", "vision_start_token_id", "vision_end_token_id")


@dataclass(frozen=True)
class Family:
    """config: turns config.json into the backbone's config.
    spec: turns config.json into the model's spec.
    backbone: the stock class.
    keys: regular expressions from the checkpoint's weight names to the backbone's.
    tokenizer: the stock class for its tokenizer, whose files may name a class of the hub.
    canvases: whether the backbone is an encoder and a decoder that make their own masks (`dllm.canvases`).
    """

    config: Callable[[Config], PreTrainedConfig]
    spec: Callable[[Config], ModelSpec]
    backbone: type[PreTrainedModel]
    keys: Mapping[str, str] = field(default_factory=dict)
    tokenizer: type = AutoTokenizer
    canvases: bool = False


def recognise(raw: Config, name: str | None = None) -> Family | None:
    """The family of a config.json, or the one of that name. None is `native`. Raises ValueError for an unknown name."""
    if name is None:
        model_type = raw.get("model_type", "")
        # two published architectures call themselves llada; only one has experts
        name = "llada_moe" if model_type == "llada" and "num_experts" in raw else MODEL_TYPES.get(model_type, "native")
    if name != "native" and name not in FAMILIES:
        raise ValueError(f"unknown family {name!r}; use one of {', '.join([*FAMILIES, 'native'])}")
    return FAMILIES.get(name)


def _only(raw: Config, **published: object) -> None:
    """Raises ValueError for a field with a value that no published checkpoint of the family has."""
    for name, value in published.items():
        if raw.get(name, value) not in (value, None):
            raise ValueError(f"{name}={raw[name]!r}, which no published checkpoint of this family has ({value!r})")


def _llada_config(raw: Config) -> LlamaConfig:
    """LLaDA is a Llama without causal mask under other names (LLaDA, arXiv 2502.09992)."""
    _only(raw, include_qkv_bias=False, include_bias=False, block_type="llama", rope=True, layer_norm_type="rms")
    return LlamaConfig(
        vocab_size=raw.get("embedding_size") or raw["vocab_size"],
        hidden_size=raw["d_model"],
        intermediate_size=raw["mlp_hidden_size"],
        num_hidden_layers=raw["n_layers"],
        num_attention_heads=raw["n_heads"],
        num_key_value_heads=raw.get("n_kv_heads") or raw["n_heads"],
        max_position_embeddings=raw["max_sequence_length"],
        rms_norm_eps=raw["rms_norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": raw["rope_theta"]},
        tie_word_embeddings=raw.get("weight_tying", False),
        bos_token_id=None,
        eos_token_id=raw["eos_token_id"],
    )


def _llada_spec(raw: Config) -> ModelSpec:
    """Instruct models end a turn with <|eot_id|> (126348) and a text with <|endoftext|> (126081, also their pad)."""
    eos_ids = (126081, 126348) if raw["eos_token_id"] == 126081 else (raw["eos_token_id"],)
    return ModelSpec(raw["mask_token_id"], eos_ids, raw["pad_token_id"])


def _shared(raw: Config, *more: str) -> dict[str, Any]:
    """The fields that have the same names everywhere. Those for which transformers has a default may be left out."""
    needed = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads".split()
    optional = ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", *more)
    _only(raw, rope_scaling=None, use_sliding_window=False, hidden_act="silu")
    rope = raw.get("rope_parameters") or {"rope_type": "default", "rope_theta": raw["rope_theta"]}
    same = {name: raw[name] for name in needed} | {name: raw[name] for name in optional if name in raw}
    tied = raw.get("tie_word_embeddings", False)
    return same | {"rope_parameters": rope, "tie_word_embeddings": tied, "bos_token_id": None, "eos_token_id": None}


def _qwen2_config(raw: Config) -> Qwen2Config:
    """Dream (arXiv 2508.15487) and DiffuCoder are Qwen2 (q/k/v biases) without a causal mask. Fast-dLLM v2 (arXiv
    2509.26328) is Qwen2 with a block-causal mask."""
    _only(raw, block_size=None)  # a block-diffusion model that calls itself Dream predicts without the shift
    return Qwen2Config(**_shared(raw))


def _dream_spec(raw: Config) -> ModelSpec:
    """Row i predicts token i + 1. Instruct models end a turn with <|im_end|> (151645)."""
    return ModelSpec(raw["mask_token_id"], qwen_eos(raw), raw["pad_token_id"], shift=1)


def _dimple_config(raw: Config) -> DimpleConfig:
    """Dimple (arXiv 2505.16990) is Dream with the vision half of Qwen2.5-VL, whose config says its model_type is
    another."""
    _only(raw, full_attn_mask=True)
    vision = {name: value for name, value in raw["vision_config"].items() if name != "model_type"}
    names = [name for name in ("mrope_section", *DIMPLE_TOKENS) if name in raw]
    same = _shared(raw) | {name: raw[name] for name in names}
    config = DimpleConfig(**same, vision_config=Qwen2_5_VLVisionConfig(**vision))
    for name in ("mask_token_id", "pad_token_id", "eos_token_id"):  # it has them still when it is saved
        if name in raw:
            setattr(config, name, raw[name])
    return config


def _fast_dllm_spec(raw: Config) -> ModelSpec:
    """Blocks of `bd_size` columns; row i predicts token i + 1. The authors stop at <|im_end|> (151645) alone."""
    mask_id, eos = raw.get("mask_token_id", 151665), raw.get("eos_token_id", 151645)
    return ModelSpec(mask_id, as_ids(eos), raw.get("pad_token_id") or 151643, shift=1, block=raw.get("bd_size") or 32)


def _sdar_config(raw: Config) -> Qwen3Config:
    """SDAR is Qwen3 with a block-causal mask (github.com/JetAstra/SDAR)."""
    return Qwen3Config(**_shared(raw, "head_dim", "attention_bias"))


def _sdar_moe_config(raw: Config) -> Qwen3MoeConfig:
    experts = "moe_intermediate_size num_experts num_experts_per_tok norm_topk_prob decoder_sparse_step mlp_only_layers"
    return Qwen3MoeConfig(**_shared(raw, "head_dim", "attention_bias", *experts.split()))


def _sdar_spec(raw: Config) -> ModelSpec:
    """Row i predicts token i, as the authors' sampler reads it. The chat models were trained with blocks of 4, unless
    their name says otherwise (`spec={"block": 32}`)."""
    pad_id, block = raw.get("pad_token_id") or 151643, raw.get("block_size") or 4
    return ModelSpec(raw.get("mask_token_id") or 151669, qwen_eos(raw), pad_id, block=block)


def _llada_moe_config(raw: Config) -> Qwen3MoeConfig:
    """LLaDA-MoE (arXiv 2509.24389) has OLMoE's layers, but normalises queries and keys per head as Qwen3-MoE does.

    Whatever its config says, its code never renormalises the weights of the chosen experts.
    """
    _only(raw, attention_bias=False, qk_layernorm=True, clip_qkv=None, partial_rotary_factor=1)
    _only(raw, routed_scaling_factor=1, moe_router_enable_expert_bias=False, moe_router_score_function="softmax")
    _only(raw, shared_expert_intermediate_size=None, router_num_group=None, router_topk_group=None)
    layers = raw.get("moe_layer_freq") or [1] * raw["num_hidden_layers"]
    fields = {"rms_norm_eps": 1e-5, **raw, "intermediate_size": raw.get("dense_intermediate_size")}
    return Qwen3MoeConfig(
        **_shared(fields, "num_experts", "num_experts_per_tok"),
        moe_intermediate_size=raw["expert_intermediate_size"],
        norm_topk_prob=False,
        decoder_sparse_step=1,
        mlp_only_layers=[i for i, sparse in enumerate(layers) if not sparse],
    )


def _llada2_config(raw: Config) -> Glm4MoeConfig:
    """LLaDA2 (arXiv 2512.15745) is GLM-4 MoE with query, key and value fused. Both have half-rotated heads, query and
    key norms, and a sigmoid router with groups and a bias per expert. LLaDA2.2 has block routing in place of groups."""
    _only(raw, use_bias=False, use_qkv_bias=False, use_qk_norm=True, norm_topk_prob=True, score_function="sigmoid")
    same = _shared(raw, "head_dim", "moe_intermediate_size", "num_experts_per_tok", "first_k_dense_replace")
    same["rope_parameters"] = {
        "partial_rotary_factor": raw.get("partial_rotary_factor", 0.5),
        **same["rope_parameters"],
    }
    by_block: dict[str, Any] = {"expert_capacity": raw.get("expert_capacity")}
    return Glm4MoeConfig(
        **same,
        **by_block,
        n_routed_experts=raw["num_experts"],
        n_shared_experts=raw["num_shared_experts"],
        n_group=raw["n_group"],
        topk_group=raw["topk_group"],
        routed_scaling_factor=raw["routed_scaling_factor"],
        norm_topk_prob=True,
        use_qk_norm=True,
        num_mtp_layers=0,
    )


def _ling_spec(block: int | None) -> Callable[[Config], ModelSpec]:
    """LLaDA-MoE and LLaDA2 share a vocabulary: <|mask|> is 156895, <|endoftext|> 156892, also their pad. LLaDA2.2 (told
    by its block routing) has tokens for edits: 156930 and 156931, where its config names no others."""

    def spec(raw: Config) -> ModelSpec:
        eos, pad_id = raw.get("eos_token_id") or 156892, raw.get("pad_token_id") or 156892
        delete_id, split_id = (156930, 156931) if raw.get("expert_capacity") else (None, None)
        edits: dict[str, Any] = {
            "delete_id": raw.get("delete_token_id", delete_id),
            "split_id": raw.get("split_token_id", split_id),
        }
        size = 64 if raw.get("expert_capacity") else block  # what public servers run LLaDA2.2 with
        return ModelSpec(raw.get("mask_token_id") or 156895, as_ids(eos), pad_id, block=size, **edits)

    return spec


def _eurobert_config(raw: Config) -> LlamaConfig:
    """EuroBERT (arXiv 2503.05500) is a Llama without causal mask under its own names."""
    _only(raw, mlp_bias=False)
    return LlamaConfig(**_shared(raw, "head_dim", "attention_bias"))


def _eurobert_spec(raw: Config) -> ModelSpec:
    return ModelSpec(raw.get("mask_token_id", 128002), as_ids(raw["eos_token_id"]), raw["pad_token_id"])


def _diffusion_gemma_config(raw: Config) -> PreTrainedConfig:
    """DiffusionGemma: a causal encoder and a bidirectional decoder of shared weights (transformers' own classes)."""
    return DiffusionGemmaConfig.from_dict(dict(raw))


def _diffusion_gemma_spec(raw: Config) -> ModelSpec:
    """Uniform noise over the whole vocabulary, so MASK is the id behind it. Canvases follow each other directly behind
    the prompt, on no grid."""
    text = raw["text_config"]
    eos_ids = as_ids(raw.get("eos_token_id") or text.get("eos_token_id") or 1)
    pad_id = raw.get("pad_token_id") or text.get("pad_token_id") or 0
    return ModelSpec(text["vocab_size"], eos_ids, pad_id, noise=text["vocab_size"])


register_checkpoint_conversion_mapping(
    LLaDA2Backbone.__name__,
    [
        *(get_checkpoint_conversion_mapping("glm4_moe") or []),
        WeightConverter(
            "self_attn.query_key_value.weight",
            ["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"],
            [Split(dim=0)],
        ),
    ],
    overwrite=True,
)

_LLADA_LAYER = {
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
_LLADA2_LAYER = {
    r"attention\.query_key_value": "self_attn.query_key_value",
    r"attention\.dense": "self_attn.o_proj",
    r"attention\.query_layernorm": "self_attn.q_norm",
    r"attention\.key_layernorm": "self_attn.k_norm",
}

FAMILIES: dict[str, Family] = {
    "llada": Family(
        _llada_config,
        _llada_spec,
        LlamaForCausalLM,
        {
            **{
                rf"^model\.transformer\.blocks\.(\d+)\.{a}\.": rf"model.layers.\1.{b}." for a, b in _LLADA_LAYER.items()
            },
            r"^model\.transformer\.wte\.": "model.embed_tokens.",
            r"^model\.transformer\.ln_f\.": "model.norm.",
            r"^model\.transformer\.ff_out\.": "lm_head.",
        },
        PreTrainedTokenizerFast,
    ),
    "llada_moe": Family(_llada_moe_config, _ling_spec(None), Qwen3MoeForCausalLM, tokenizer=PreTrainedTokenizerFast),
    "llada2": Family(
        _llada2_config,
        _ling_spec(32),
        LLaDA2Backbone,
        {
            **{rf"^model\.layers\.(\d+)\.{a}\.": rf"model.layers.\1.{b}." for a, b in _LLADA2_LAYER.items()},
            r"\.mlp\.gate\.expert_bias$": ".mlp.gate.e_score_correction_bias",
            r"^model\.word_embeddings\.": "model.embed_tokens.",
        },
        PreTrainedTokenizerFast,
    ),
    "dream": Family(_qwen2_config, _dream_spec, Qwen2ForCausalLM, tokenizer=Qwen2Tokenizer),
    "fast_dllm_v2": Family(_qwen2_config, _fast_dllm_spec, Qwen2ForCausalLM, tokenizer=Qwen2Tokenizer),
    "dimple": Family(_dimple_config, _dream_spec, DimpleBackbone, tokenizer=Qwen2Tokenizer),
    "sdar": Family(_sdar_config, _sdar_spec, Qwen3ForCausalLM, tokenizer=Qwen2Tokenizer),
    "sdar_moe": Family(_sdar_moe_config, _sdar_spec, Qwen3MoeForCausalLM, tokenizer=Qwen2Tokenizer),
    # <|mask|> is the first id behind the tokens of Qwen2.5 and Qwen3
    "a2d-qwen2": Family(a2d_config(Qwen2Config), a2d_spec(151665), Qwen2ForCausalLM, tokenizer=Qwen2Tokenizer),
    "a2d-qwen3": Family(a2d_config(Qwen3Config), a2d_spec(151669), Qwen3ForCausalLM, tokenizer=Qwen2Tokenizer),
    "a2d-llama": Family(a2d_config(LlamaConfig), a2d_spec(None), LlamaForCausalLM, tokenizer=PreTrainedTokenizerFast),
    "nemotron_labs_diffusion": Family(
        nemotron_config,
        nemotron_spec,
        Ministral3ForCausalLM,
        {r"^encoder\.": "model.", r"^diffusion_head\.": "lm_head."},
        PreTrainedTokenizerFast,
    ),
    "diffusion_gemma": Family(
        _diffusion_gemma_config, _diffusion_gemma_spec, DiffusionGemmaForBlockDiffusion, canvases=True
    ),
    "eurobert": Family(_eurobert_config, _eurobert_spec, LlamaForCausalLM, tokenizer=PreTrainedTokenizerFast),
}
"""LLaDA-8B Base and Instruct and LLaDA-1.5 are `llada`; Dream, DiffuCoder and Dream-Coder `dream`; LLaDA2.x mini and
flash `llada2`; SDAR and TraDo `sdar`; Tiny-A2D and OPDLM `a2d-qwen2` and `a2d-qwen3`."""

MODEL_TYPES = {
    "llada": "llada",
    "lladamoe": "llada_moe",
    "llada2_moe": "llada2",
    "llada2_moe_veomni": "llada2",  # DMax before the last step of its recipe, with separate experts too
    "Dream": "dream",
    "Fast_dLLM_Qwen": "fast_dllm_v2",
    **{name: name for name in ("a2d-qwen2", "a2d-qwen3", "a2d-llama", "diffusion_gemma", "dimple", "eurobert")},
    **{name: name for name in ("nemotron_labs_diffusion", "sdar", "sdar_moe")},
}
"""`model_type` of config.json to family."""
