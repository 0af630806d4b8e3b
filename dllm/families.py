"""Published dLLM checkpoints as stock transformers backbones: config translation, key map and special numbers, a
table entry each.

The family is recognised from `model_type` in config.json; any other model_type is `native`, loaded as transformers
loads it. Every special vocabulary id of a published model stands in this file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import AutoTokenizer, LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen2Tokenizer

from dllm.spec import ModelSpec

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """config: config.json to the backbone's config. keys: regular expressions from its weight names to the
    backbone's. tokenizer: the stock class that reads its files where they name one of their own."""

    config: Callable[[Config], PreTrainedConfig]
    spec: Callable[[Config], ModelSpec]
    keys: Mapping[str, str] = field(default_factory=dict)
    tokenizer: type = AutoTokenizer


def _llada_config(raw: Config) -> PreTrainedConfig:
    """LLaDA is a Llama without causal mask under other names (LLaDA, arXiv 2502.09992)."""
    if raw.get("include_qkv_bias") or raw.get("include_bias") or raw.get("block_type") != "llama":
        raise ValueError(
            "this LLaDA checkpoint has biases or another block type than llama, which no published one has"
        )
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


def _dream_config(raw: Config) -> PreTrainedConfig:
    """Dream and DiffuCoder are Qwen2 (q/k/v biases) without causal mask (Dream, arXiv 2508.15487)."""
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
        "hidden_act max_position_embeddings rms_norm_eps tie_word_embeddings"
    ).split()
    rope = {"rope_type": "default", "rope_theta": raw["rope_theta"]}
    same = {name: raw[name] for name in names}
    return Qwen2Config(**same, rope_parameters=rope, bos_token_id=None, eos_token_id=raw["eos_token_id"])


def _dream_spec(raw: Config) -> ModelSpec:
    """Row i predicts token i + 1. Instruct models end a turn with <|im_end|> (151645)."""
    eos_ids = (151643, 151645) if raw["eos_token_id"] == 151643 else (raw["eos_token_id"],)
    return ModelSpec(raw["mask_token_id"], eos_ids, raw["pad_token_id"], shift=1)


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

FAMILIES: dict[str, Family] = {
    "llada": Family(
        _llada_config,
        _llada_spec,
        {
            **{
                rf"^model\.transformer\.blocks\.(\d+)\.{a}\.": rf"model.layers.\1.{b}." for a, b in _LLADA_LAYER.items()
            },
            r"^model\.transformer\.wte\.": "model.embed_tokens.",
            r"^model\.transformer\.ln_f\.": "model.norm.",
            r"^model\.transformer\.ff_out\.": "lm_head.",
        },
    ),
    "Dream": Family(_dream_config, _dream_spec, tokenizer=Qwen2Tokenizer),
}
"""By `model_type` of config.json. LLaDA-8B Base and Instruct and LLaDA-1.5 are `llada`; Dream, DiffuCoder and
Dream-Coder `Dream`."""
