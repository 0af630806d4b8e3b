"""Checkpoints in the layouts of LLaDA and Dream, written here from stock models, give the stock models' logits."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

import dllm

SIZES = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
PARTS = {  # stock name of a layer's part -> LLaDA's
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}


def llada(folder: Path) -> LlamaForCausalLM:
    stock = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, rms_norm_eps=1e-5, rope_theta=500.0)).eval()
    weights = {}
    for name, tensor in stock.state_dict().items():
        for ours, theirs in PARTS.items():
            name = name.replace(f".{ours}.", f".{theirs}.")
        name = name.replace("model.layers.", "model.transformer.blocks.")
        name = name.replace("model.embed_tokens", "model.transformer.wte").replace(
            "model.norm", "model.transformer.ln_f"
        )
        weights[name.replace("lm_head", "model.transformer.ff_out")] = tensor.contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "llada",
        "block_type": "llama",
        "vocab_size": 38,
        "embedding_size": 40,
        "d_model": 32,
        "mlp_hidden_size": 64,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "max_sequence_length": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "mask_token_id": 39,
        "eos_token_id": 36,
        "pad_token_id": 36,
        "auto_map": {"AutoModelForCausalLM": "modeling_llada.LLaDAModelLM"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return stock


def dream(folder: Path) -> Qwen2ForCausalLM:
    same = {**SIZES, **HEADS, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False}
    stock = Qwen2ForCausalLM(Qwen2Config(**same, rope_theta=700.0)).eval()
    weights = {name: tensor.contiguous() for name, tensor in stock.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    special = {"mask_token_id": 39, "eos_token_id": 36, "pad_token_id": 36, "rope_theta": 700.0}
    config = {"model_type": "Dream", **same, **special, "auto_map": {"AutoModel": "modeling_dream.DreamModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    letters = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
    (folder / "vocab.json").write_text(json.dumps(letters | {"ab": 26} | {str(i): i + 27 for i in range(9)}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    tokenizer = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "added_tokens_decoder": {
            str(36 + i): {"content": content, "special": True}
            for i, content in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"))
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return stock


@pytest.mark.parametrize(("write", "shift"), [(llada, 0), (dream, 1)])
@torch.no_grad()
def test_logits_are_the_stock_models(tmp_path: Path, write, shift: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stock = write(tmp_path)
    model = dllm.load(tmp_path)
    assert (model.spec.mask_id, model.spec.shift, model.spec.eos_ids) == (39, shift, (36,))
    ids = torch.randint(0, 30, (2, 9), generator=torch.Generator().manual_seed(1))
    everything = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    stock.config.is_causal = False
    expected = stock(input_ids=ids, attention_mask=everything, use_cache=False).logits
    if shift:
        expected = torch.cat([expected[:, :1], expected[:, :-1]], dim=1)
    got = model.full_logits(ids, torch.tensor([3, 3]))
    torch.testing.assert_close(got[..., :39], expected[..., :39])


def test_a_tokenizer_of_hub_code_is_read_by_its_stock_class(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        dream(tmp_path)
    tokenizer = dllm.load(tmp_path).tokenizer
    assert tokenizer is not None
    assert tokenizer("abc<|mask|>")["input_ids"] == [26, 2, 39]
    assert (tokenizer.mask_token_id, tokenizer.eos_token_id) == (39, 36)


def test_an_unpublished_layout_is_refused(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        llada(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"include_bias": True}))
    with pytest.raises(ValueError, match="has biases or another block type"):
        dllm.load(tmp_path)
