"""LLaDA (arXiv 2502.09992): a Llama without causal mask, under the names of OLMo."""

from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig

from dllm.converted.ends import as_ids, pad_of
from dllm.converted.rotary import rope_of
from dllm.converted.shared import only
from dllm.spec import ModelSpec
from dllm.validation import shown

Config = Mapping[str, Any]
ACTIVATIONS = ("silu", "gelu", "relu")  # its fourth, swiglu, has another shape
HARMLESS = "vocab_size|mlp_ratio|alibi_bias_max|rope_full_precision|attention_layer_norm_with_affine"
"""Fields of a part that does not exist, and those that the shapes of its weights repeat."""

_LAYER = {
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
KEYS = {
    **{rf"^model\.transformer\.blocks\.(\d+)\.{a}\.": rf"model.layers.\1.{b}." for a, b in _LAYER.items()},
    r"^model\.transformer\.wte\.": "model.embed_tokens.",
    r"^model\.transformer\.ln_f\.": "model.norm.",
    r"^model\.transformer\.ff_out\.": "lm_head.",
}


def llada_config(raw: Config) -> LlamaConfig:
    """LLaDA is a Llama without causal mask under other names (LLaDA, arXiv 2502.09992)."""
    only(raw, include_qkv_bias=False, include_bias=False, block_type="llama", rope=True, layer_norm_type="rms")
    only(raw, layer_norm_with_affine=True, bias_for_layer_norm=False, attention_layer_norm=False, alibi=False)
    only(raw, clip_qkv=None, input_emb_norm=False, scale_logits=False, block_group_size=1)
    act = raw.get("activation_type", "silu")
    if act not in ACTIVATIONS:
        raise ValueError(f"activation_type={shown(act)}; {', '.join(ACTIVATIONS)} are read")
    one_head = 1 if raw.get("multi_query_attention") else raw["n_heads"]
    return LlamaConfig(
        vocab_size=raw.get("embedding_size") or raw["vocab_size"],
        hidden_size=raw["d_model"],
        intermediate_size=raw.get("mlp_hidden_size") or raw["mlp_ratio"] * raw["d_model"],
        num_hidden_layers=raw["n_layers"],
        num_attention_heads=raw["n_heads"],
        num_key_value_heads=raw.get("n_kv_heads") or one_head,
        max_position_embeddings=raw["max_sequence_length"],
        rms_norm_eps=raw["rms_norm_eps"],
        rope_parameters=rope_of(raw, 10000.0),
        hidden_act=act,
        tie_word_embeddings=raw.get("weight_tying", False),
        bos_token_id=None,
        eos_token_id=None,
    )


def llada_spec(raw: Config) -> ModelSpec:
    """Instruct models end a turn with <|eot_id|> (126348) and a text with <|endoftext|> (126081, also their pad)."""
    eos_ids = as_ids(raw["eos_token_id"])
    eos_ids = (126081, 126348) if set(eos_ids) <= {126081, 126348} else eos_ids
    return ModelSpec(raw["mask_token_id"], eos_ids, pad_of(raw, eos_ids))
