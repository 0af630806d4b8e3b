"""Published dLLM checkpoints as stock transformers backbones. Each family is one entry of a table: how its config is
translated, its key map, and its special numbers.

The family is recognised from config.json. Any other model is `native` and loaded as transformers loads it. All special
vocabulary ids of published models are in this file.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

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

from dllm.converted import llada
from dllm.converted.block_routing import LLaDA2Backbone
from dllm.converted.causal_lms import a2d_config, a2d_spec, nemotron_config, nemotron_spec
from dllm.converted.ends import as_ids, block_of, pad_of, qwen_eos
from dllm.converted.fields import Fields, check_unread, check_whole_attention, of_class
from dllm.converted.shared import only, shared
from dllm.spec import ModelSpec
from dllm.vision.dimple import DimpleBackbone, DimpleConfig

Config = Mapping[str, Any]
WINDOW = "sliding_window|max_window_layers"  # of a window that `use_sliding_window` would switch on
DIMPLE_TOKENS = ("image_token_id", "vision_start_token_id", "vision_end_token_id")


@dataclass(frozen=True)
class Family:
    """config: turns config.json into the backbone's config.
    spec: turns config.json into the model's spec.
    backbone: the stock class.
    keys: regular expressions from the checkpoint's weight names to the backbone's.
    tokenizer: the stock class for its tokenizer, whose files may name a class of the hub.
    canvases: whether the backbone is an encoder and a decoder that make their own masks (`dllm.canvases`).
    harmless: a pattern of fields that say something of training alone (`dllm.converted.fields`).
    """

    config: Callable[[Config], PreTrainedConfig]
    spec: Callable[[Config], ModelSpec]
    backbone: type[PreTrainedModel]
    keys: Mapping[str, str] = field(default_factory=dict)
    tokenizer: type = AutoTokenizer
    canvases: bool = False
    harmless: str = ""

    def read(self, raw: Config) -> tuple[PreTrainedConfig, ModelSpec]:
        """The backbone's config and the model's spec. Raises ValueError for a field that is missing, and for one that
        nothing here reads and that may change what the model computes."""
        fields = Fields(raw)
        try:
            config, spec = self.config(fields), self.spec(fields)
        except KeyError as error:
            name = str(error.args[0])
            where = OF_SPEC.get(name) or f"config.{name}"
            raise ValueError(f"its config.json has no {name!r}, which its family needs; give {where}") from error
        check_unread(fields, self.harmless)
        if not self.canvases:
            check_whole_attention(config)
        return config, spec


OF_SPEC = {"mask_token_id": "spec.mask_id", "eos_token_id": "spec.eos_ids", "pad_token_id": "spec.pad_id"}


def recognise(raw: Config, name: str | None = None) -> Family | None:
    """The family of a config.json, or the one of that name. None is `native`. Raises ValueError for an unknown name."""
    if name is None:
        model_type = raw.get("model_type", "")
        # two published architectures call themselves llada; only one has experts
        name = "llada_moe" if model_type == "llada" and "num_experts" in raw else MODEL_TYPES.get(model_type, "native")
    if name != "native" and name not in FAMILIES:
        raise ValueError(f"unknown family {name!r}; use one of {', '.join([*FAMILIES, 'native'])}")
    return FAMILIES.get(name)


def _qwen2_config(raw: Config) -> Qwen2Config:
    """Dream (arXiv 2508.15487) and DiffuCoder are Qwen2 (q/k/v biases) without a causal mask. Fast-dLLM v2 (arXiv
    2509.26328) is Qwen2 with a block-causal mask."""
    only(raw, block_size=None)  # a block-diffusion model that calls itself Dream predicts without the shift
    return Qwen2Config(**shared(raw))


def _dream_spec(raw: Config) -> ModelSpec:
    """Row i predicts token i + 1. Instruct models end a turn with <|im_end|> (151645)."""
    eos_ids = qwen_eos(raw)
    return ModelSpec(raw["mask_token_id"], eos_ids, pad_of(raw, eos_ids), shift=1)


def _dimple_config(raw: Config) -> DimpleConfig:
    """Dimple (arXiv 2505.16990) is Dream with the vision half of Qwen2.5-VL, whose config says its model_type is
    another."""
    only(raw, full_attn_mask=True)
    vision = of_class(raw["vision_config"], Qwen2_5_VLVisionConfig(), "vision_config.", "in_chans|spatial_patch_size")
    vision.pop("model_type", None)
    names = [name for name in ("mrope_section", *DIMPLE_TOKENS) if name in raw]
    same = shared(raw) | {name: raw[name] for name in names}
    config = DimpleConfig(**same, vision_config=Qwen2_5_VLVisionConfig(**vision))
    for name in ("mask_token_id", "pad_token_id", "eos_token_id"):  # it has them still when it is saved
        if name in raw:
            setattr(config, name, raw[name])
    return config


def _fast_dllm_spec(raw: Config) -> ModelSpec:
    """Blocks of `bd_size` columns; row i predicts token i + 1. The authors stop at <|im_end|> (151645) alone."""
    mask_id, eos = raw.get("mask_token_id", 151665), raw.get("eos_token_id", 151645)
    return ModelSpec(mask_id, as_ids(eos), pad_of(raw, (151643,)), shift=1, block=block_of(raw, "bd_size", 32))


def _sdar_config(raw: Config) -> Qwen3Config:
    """SDAR is Qwen3 with a block-causal mask (github.com/JetAstra/SDAR)."""
    return Qwen3Config(**shared(raw, "attention_bias"))


def _sdar_moe_config(raw: Config) -> Qwen3MoeConfig:
    experts = "moe_intermediate_size num_experts num_experts_per_tok norm_topk_prob decoder_sparse_step mlp_only_layers"
    return Qwen3MoeConfig(**shared(raw, "attention_bias", *experts.split()))


def _sdar_spec(raw: Config) -> ModelSpec:
    """Row i predicts token i, as the authors' sampler reads it. The chat models were trained with blocks of 4, unless
    their name says otherwise (`spec={"block": 32}`)."""
    pad_id, block = pad_of(raw, (151643,)), block_of(raw, "block_size", 4)
    return ModelSpec(raw.get("mask_token_id") or 151669, qwen_eos(raw), pad_id, block=block)


def _llada_moe_config(raw: Config) -> Qwen3MoeConfig:
    """LLaDA-MoE (arXiv 2509.24389) has OLMoE's layers, but normalises queries and keys per head as Qwen3-MoE does.

    Whatever `norm_topk_prob` says, its code never renormalises the weights of the chosen experts.
    """
    raw.get("norm_topk_prob")
    only(raw, attention_bias=False, qk_layernorm=True, clip_qkv=None, partial_rotary_factor=1)
    only(raw, routed_scaling_factor=1, moe_router_enable_expert_bias=False, moe_router_score_function="softmax")
    only(raw, shared_expert_intermediate_size=None, router_num_group=None, router_topk_group=None)
    layers = raw.get("moe_layer_freq") or [1] * raw["num_hidden_layers"]
    dense = raw.get("dense_intermediate_size", raw.get("intermediate_size"))
    same = shared(ChainMap({"intermediate_size": dense}, cast(Any, raw)), "num_experts", "num_experts_per_tok")
    return Qwen3MoeConfig(
        **{"rms_norm_eps": 1e-5, **same},
        moe_intermediate_size=raw["expert_intermediate_size"],
        norm_topk_prob=False,
        decoder_sparse_step=1,
        mlp_only_layers=[i for i, sparse in enumerate(layers) if not sparse],
    )


def _llada2_config(raw: Config) -> Glm4MoeConfig:
    """LLaDA2 (arXiv 2512.15745) is GLM-4 MoE with query, key and value fused. Both have half-rotated heads, query and
    key norms, and a sigmoid router with groups and a bias per expert. LLaDA2.2 has block routing in place of groups."""
    only(raw, use_bias=False, use_qkv_bias=False, use_qk_norm=True, norm_topk_prob=True, score_function="sigmoid")
    only(raw, scoring_func="sigmoid", topk_method="noaux_tc", use_rmsnorm=True, moe_router_enable_expert_bias=True)
    same = shared(raw, "moe_intermediate_size", "num_experts_per_tok", "first_k_dense_replace", theta=None)
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
        eos, pad_id = raw.get("eos_token_id") or 156892, pad_of(raw, (156892,))
        delete_id, split_id = (156930, 156931) if raw.get("expert_capacity") else (None, None)
        edits: dict[str, Any] = {
            "delete_id": raw.get("delete_token_id", delete_id),
            "split_id": raw.get("split_token_id", split_id),
        }
        size = block and block_of(raw, "block_size", block)
        if block and raw.get("expert_capacity"):
            size = 64  # what public servers run LLaDA2.2 with, whatever its config says
        return ModelSpec(raw.get("mask_token_id") or 156895, as_ids(eos), pad_id, block=size, **edits)

    return spec


def _eurobert_config(raw: Config) -> LlamaConfig:
    """EuroBERT (arXiv 2503.05500) is a Llama without causal mask under its own names."""
    only(raw, mlp_bias=False)
    return LlamaConfig(**shared(raw, "attention_bias", theta=250000.0))


def _eurobert_spec(raw: Config) -> ModelSpec:
    eos_ids = as_ids(raw["eos_token_id"])
    return ModelSpec(raw.get("mask_token_id", 128002), eos_ids, pad_of(raw, eos_ids))


def _diffusion_gemma_config(raw: Config) -> PreTrainedConfig:
    """DiffusionGemma: a causal encoder and a bidirectional decoder of shared weights (transformers' own classes)."""
    undeclared = "default_output_length|final_logit_softcapping|global_head_dim|num_global_key_value_heads"
    known = of_class(raw, DiffusionGemmaConfig(), harmless=undeclared)  # which leaves out what no class declares
    return DiffusionGemmaConfig.from_dict({name: raw[name] for name in raw if name in known or "token_id" in name})


def _diffusion_gemma_spec(raw: Config) -> ModelSpec:
    """Uniform noise over the whole vocabulary, so MASK is the id after it. Canvases follow each other directly after
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

_LLADA2_LAYER = {
    r"attention\.query_key_value": "self_attn.query_key_value",
    r"attention\.dense": "self_attn.o_proj",
    r"attention\.query_layernorm": "self_attn.q_norm",
    r"attention\.key_layernorm": "self_attn.k_norm",
}

FAMILIES: dict[str, Family] = {
    "llada": Family(
        llada.llada_config,
        llada.llada_spec,
        LlamaForCausalLM,
        llada.KEYS,
        PreTrainedTokenizerFast,
        harmless=llada.HARMLESS,
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
        harmless=f"{WINDOW}|(moe_)?shared_expert_intermediate_size|rotary_dim|mtp_\\w+",
    ),
    "dream": Family(_qwen2_config, _dream_spec, Qwen2ForCausalLM, tokenizer=Qwen2Tokenizer, harmless=WINDOW),
    "fast_dllm_v2": Family(_qwen2_config, _fast_dllm_spec, Qwen2ForCausalLM, tokenizer=Qwen2Tokenizer, harmless=WINDOW),
    "dimple": Family(_dimple_config, _dream_spec, DimpleBackbone, tokenizer=Qwen2Tokenizer, harmless=WINDOW),
    "sdar": Family(_sdar_config, _sdar_spec, Qwen3ForCausalLM, tokenizer=Qwen2Tokenizer, harmless=WINDOW),
    "sdar_moe": Family(_sdar_moe_config, _sdar_spec, Qwen3MoeForCausalLM, tokenizer=Qwen2Tokenizer, harmless=WINDOW),
    # <|mask|> is the first id after the tokens of Qwen2.5 and Qwen3
    "a2d-qwen2": Family(a2d_config(Qwen2Config), a2d_spec(151665), Qwen2ForCausalLM, tokenizer=Qwen2Tokenizer),
    "a2d-qwen3": Family(a2d_config(Qwen3Config), a2d_spec(151669), Qwen3ForCausalLM, tokenizer=Qwen2Tokenizer),
    "a2d-llama": Family(a2d_config(LlamaConfig), a2d_spec(None), LlamaForCausalLM, tokenizer=PreTrainedTokenizerFast),
    "nemotron_labs_diffusion": Family(
        nemotron_config,
        nemotron_spec,
        Ministral3ForCausalLM,
        {r"^encoder\.": "model.", r"^diffusion_head\.": "lm_head."},
        PreTrainedTokenizerFast,
        harmless=r"(ar|dlm|dp)_\w+",
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
