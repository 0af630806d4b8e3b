"""Checkpoints in the layouts of the published families, written here from stock models, give the stock models'
logits, and windows on their K/V give the same again."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from test_cache import progress
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    EuroBertConfig,
    EuroBertForMaskedLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import dllm
from decoders import NO_CACHE, Decoder, FixedK, generate
from dllm.cache import BlockCache, WindowCache

EOS, MASK, VOCAB, BLOCK = 36, 39, 40, 4
SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}
SHARED = {**SIZES, **HEADS, "hidden_act": "silu", "tie_word_embeddings": False, "rope_theta": 700.0}
IDS = {"mask_token_id": MASK, "eos_token_id": EOS, "pad_token_id": EOS}
Renames = dict[str, str]  # regular expression of a stock name -> published name


def write(folder: Path, stock: PreTrainedModel, config: dict[str, Any], renames: Renames | None = None) -> None:
    """The stock model's weights under published names, and the published config."""
    weights = {}
    for name, tensor in stock.state_dict().items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        for ours, theirs in (renames or {}).items():
            name = re.sub(ours, theirs, name)
        weights[name] = tensor.contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "modeling_x.XModel"}}))


def llada(folder: Path) -> PreTrainedModel:
    stock = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, rope_theta=500.0))
    config = {
        "model_type": "llada",
        "block_type": "llama",
        "vocab_size": VOCAB - 2,
        "embedding_size": VOCAB,
        "d_model": 32,
        "mlp_hidden_size": 64,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "max_sequence_length": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
    }
    renames = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ff_norm",
        r"self_attn\.o_proj": "attn_out",
        r"self_attn\.": "",
        r"mlp\.gate_proj": "ff_proj",
        r"mlp\.up_proj": "up_proj",
        r"mlp\.down_proj": "ff_out",
        r"model\.layers": "model.transformer.blocks",
        r"model\.embed_tokens": "model.transformer.wte",
        r"model\.norm": "model.transformer.ln_f",
        "lm_head": "model.transformer.ff_out",
    }
    write(folder, stock, config | IDS, renames)
    return stock


def write_experts(folder: Path, stock: PreTrainedModel, config: dict[str, Any], renames: Renames) -> None:
    """As `write`, with each expert's matrices apart, as every published checkpoint has them."""
    plain = {}
    for name, tensor in stock.state_dict().items():
        base = name.rpartition(".")[0]
        if name.endswith("experts.gate_up_proj"):
            for i, (gate, up) in enumerate(expert.chunk(2) for expert in tensor):
                plain |= {f"{base}.{i}.gate_proj.weight": gate, f"{base}.{i}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            plain |= {f"{base}.{i}.down_proj.weight": down for i, down in enumerate(tensor)}
        else:
            plain[name] = tensor

    class Apart:
        def state_dict(self) -> dict[str, Tensor]:
            return plain

    write(folder, Apart(), config, renames)  # type: ignore[arg-type]


def llada_moe(folder: Path) -> PreTrainedModel:
    experts = {"num_experts": 8, "num_experts_per_tok": 2}
    stock = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **SIZES, **HEADS, **experts, rope_theta=700.0, head_dim=8, moe_intermediate_size=24, norm_topk_prob=False
        )
    )
    published = {"model_type": "llada", "qk_layernorm": True, "moe_layer_freq": [1, 1], "norm_topk_prob": None}
    sizes = {"dense_intermediate_size": 64, "expert_intermediate_size": 24, "shared_expert_intermediate_size": None}
    write_experts(folder, stock, {**SHARED, **IDS, **experts, **sizes, **published}, {})
    return stock


def llada2(folder: Path) -> PreTrainedModel:
    experts = {"num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
    same = {**SIZES, **HEADS, **experts, "head_dim": 8, "moe_intermediate_size": 24, "first_k_dense_replace": 1}
    rope = {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5}
    stock = Glm4MoeForCausalLM(
        Glm4MoeConfig(
            **same, n_routed_experts=8, n_shared_experts=1, use_qk_norm=True, num_mtp_layers=0, rope_parameters=rope
        )
    )
    for name, tensor in stock.named_buffers():
        if name.endswith("e_score_correction_bias"):
            tensor.copy_(torch.randn(8) / 4)
    fused = dict(stock.state_dict())
    for layer in range(2):
        parts = [fused.pop(f"model.layers.{layer}.self_attn.{part}_proj.weight") for part in "qkv"]
        fused[f"model.layers.{layer}.attention.query_key_value.weight"] = torch.cat(parts)

    class Fused:
        def state_dict(self) -> dict[str, Tensor]:
            return fused

    renames = {
        r"self_attn\.o_proj": "attention.dense",
        r"self_attn\.q_norm": "attention.query_layernorm",
        r"self_attn\.k_norm": "attention.key_layernorm",
        "e_score_correction_bias": "expert_bias",
        r"model\.embed_tokens": "model.word_embeddings",
    }
    published = {"model_type": "llada2_moe", "num_experts": 8, "num_shared_experts": 1, "partial_rotary_factor": 0.5}
    flags = {"score_function": "sigmoid", "norm_topk_prob": True, "use_qkv_bias": False, "rope_scaling": None}
    write_experts(folder, Fused(), {**SHARED, **same, **IDS, **published, **flags}, renames)  # type: ignore[arg-type]
    return stock


def dream(folder: Path) -> PreTrainedModel:
    stock = Qwen2ForCausalLM(Qwen2Config(**SIZES, **HEADS, rope_theta=700.0))
    write(folder, stock, {**SHARED, **IDS, "model_type": "Dream", "rope_scaling": None})
    return stock


def fast_dllm_v2(folder: Path) -> PreTrainedModel:
    stock = Qwen2ForCausalLM(Qwen2Config(**SIZES, **HEADS, rope_theta=700.0))
    write(folder, stock, {**SHARED, **IDS, "model_type": "Fast_dLLM_Qwen", "bd_size": BLOCK})
    return stock


def a2d(kind: type[PreTrainedModel], config: type, model_type: str) -> Callable[[Path], PreTrainedModel]:
    def writer(folder: Path) -> PreTrainedModel:
        head = {"head_dim": 16} if config is Qwen3Config else {}
        stock = kind(config(**SIZES, **HEADS, **head, rope_theta=700.0, tie_word_embeddings=True))
        write(folder, stock, {**SHARED, **IDS, **head, "model_type": model_type, "tie_word_embeddings": True})
        return stock

    return writer


def nemotron(folder: Path) -> PreTrainedModel:
    rope = {"rope_type": "yarn", "rope_theta": 700.0, "factor": 4.0, "original_max_position_embeddings": 16}
    rope |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
    same = {**SIZES, **HEADS, "head_dim": 16, "rope_parameters": rope}
    stock = Ministral3ForCausalLM(Ministral3Config(**same))
    published = {"model_type": "nemotron_labs_diffusion", "block_size": BLOCK, "dlm_paradigm": "bidirectional"}
    renames = {r"^model\.": "encoder.", r"^lm_head\.": "diffusion_head."}
    write(folder, stock, {**same, **IDS, **published, "tie_word_embeddings": False}, renames)
    return stock


def sdar(folder: Path) -> PreTrainedModel:
    stock = Qwen3ForCausalLM(Qwen3Config(**SIZES, **HEADS, rope_theta=700.0, head_dim=16))
    write(folder, stock, {**SHARED, **IDS, "model_type": "sdar", "head_dim": 16, "block_size": BLOCK})
    return stock


def sdar_moe(folder: Path) -> PreTrainedModel:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
    stock = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **HEADS, **experts, rope_theta=700.0, head_dim=16))
    write_experts(folder, stock, {**SHARED, **IDS, **experts, "model_type": "sdar_moe", "head_dim": 16}, {})
    return stock


def eurobert(folder: Path) -> PreTrainedModel:
    stock = EuroBertForMaskedLM(EuroBertConfig(**SIZES, **HEADS, rope_theta=700.0, pad_token_id=EOS))
    write(folder, stock, {**SHARED, **IDS, "model_type": "eurobert", "mlp_bias": False, "attention_bias": False})
    return stock


def qwen3(folder: Path) -> PreTrainedModel:
    """Of no family: any causal LM, with the ids that only `spec=` can name."""
    stock = Qwen3ForCausalLM(Qwen3Config(**SIZES, **HEADS, rope_theta=700.0, head_dim=16))
    stock.save_pretrained(folder)
    (folder / "dllm.json").write_text(json.dumps({"mask_id": MASK, "eos_ids": [EOS], "pad_id": EOS}))
    return stock


def gpt2(folder: Path) -> PreTrainedModel:
    """Of no family, with learned positions."""
    stock = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128))
    stock.save_pretrained(folder)
    (folder / "dllm.json").write_text(json.dumps({"mask_id": MASK, "eos_ids": [EOS], "pad_id": EOS, "shift": 1}))
    return stock


FAMILIES = [  # writer, token shift, block
    (llada, 0, None),
    (llada_moe, 0, None),
    (llada2, 0, 32),
    (dream, 1, None),
    (fast_dllm_v2, 1, BLOCK),
    (sdar, 0, BLOCK),
    (sdar_moe, 0, 4),
    (eurobert, 0, None),
    (a2d(Qwen2ForCausalLM, Qwen2Config, "a2d-qwen2"), 0, None),
    (a2d(Qwen3ForCausalLM, Qwen3Config, "a2d-qwen3"), 0, None),
    (a2d(LlamaForCausalLM, LlamaConfig, "a2d-llama"), 0, None),
    (qwen3, 0, None),
    (gpt2, 1, None),
]


def make(writer: Callable[[Path], PreTrainedModel], folder: Path) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return writer(folder).eval()


def textbook(stock: PreTrainedModel, ids: Tensor, shift: int, block: int | None) -> Tensor:
    """The stock model's own forward under a hand-made mask, shifted by hand; `[B, T, V]`."""
    length = ids.shape[1]
    allowed = torch.zeros(len(ids), 1, length, length, dtype=torch.bool)
    for q in range(length):
        for k in range(length):
            allowed[:, :, q, k] = block is None or k // block <= q // block
    stock.config.is_causal = False
    logits = stock(input_ids=ids, attention_mask=allowed).logits
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if shift else logits


@pytest.mark.parametrize(("writer", "shift", "block"), FAMILIES)
@torch.no_grad()
def test_logits_are_the_stock_models(tmp_path: Path, writer, shift: int, block: int | None) -> None:
    stock = make(writer, tmp_path)
    model = dllm.load(tmp_path)
    spec = model.spec
    assert (spec.mask_id, spec.eos_ids, spec.pad_id, spec.shift, spec.block) == (MASK, (EOS,), EOS, shift, block)
    length = 12 if block != 32 else 40
    ids = torch.randint(0, 30, (2, length), generator=torch.Generator().manual_seed(1))
    expected = textbook(stock, ids, shift, block)
    got = model.full_logits(ids, torch.tensor([3, 3]))
    torch.testing.assert_close(got[..., :MASK], expected[..., :MASK], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_nemotron_looks_back_in_its_context_and_around_in_its_drafts(tmp_path: Path) -> None:
    stock = make(nemotron, tmp_path)
    model = dllm.load(tmp_path)
    assert model.spec == dllm.ModelSpec(MASK, (EOS,), EOS, block=BLOCK, context_causal=True, prompt_grid=True)
    length, first = 20, 17  # the first MASK; some columns are beyond the original positions
    ids = torch.randint(0, 30, (1, length), generator=torch.Generator().manual_seed(1))
    ids[:, first:] = MASK
    q, k = torch.arange(length)[:, None], torch.arange(length)
    grid = 3 % BLOCK  # a block ends with the prompt of 3
    allowed = torch.where(q < first, k <= q, (k - grid) // BLOCK <= (q - grid) // BLOCK)[None, None]
    stock.config.is_causal = False
    expected = stock(input_ids=ids, attention_mask=allowed).logits
    got = model.full_logits(ids, torch.tensor([3]))
    torch.testing.assert_close(got[..., :MASK], expected[..., :MASK], rtol=1e-5, atol=1e-5)


def route_by_hand(stock: Any, capacity: int, block: int) -> None:
    """Makes the stock model's routers choose as LLaDA2.2's do: each block's experts, then each token's among them."""

    def routed(gate: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = torch.sigmoid(hidden.float() @ gate.weight.T)
        weights = torch.zeros((*scores.shape[:2], 2))
        chosen = torch.zeros_like(weights, dtype=torch.long)
        for row in range(len(scores)):
            for start in range(0, scores.shape[1], block):
                own = scores[row, start : start + block] + gate.e_score_correction_bias
                pool = sorted(range(8), key=lambda e, own=own: -float(own[:, e].max()))[:capacity]
                for t in range(len(own)):
                    two = sorted(pool, key=lambda e, own=own, t=t: -float(own[t, e]))[:2]
                    mine = scores[row, start + t, two]
                    chosen[row, start + t], weights[row, start + t] = torch.tensor(two), mine / mine.sum() * 2.5
        return scores, weights.flatten(0, 1), chosen.flatten(0, 1)

    for layer in stock.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.forward = functools.partial(routed, layer.mlp.gate)


@torch.no_grad()
def test_llada22_chooses_experts_by_block(tmp_path: Path) -> None:
    stock = make(llada2, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    plain = dllm.load(tmp_path)
    own = {"expert_capacity": 3, "delete_token_id": 30, "split_token_id": 31}
    (tmp_path / "config.json").write_text(json.dumps(config | own))
    model = dllm.load(tmp_path)
    assert isinstance(plain, dllm.DiffusionLM) and isinstance(model, dllm.DiffusionLM)
    assert (model.spec.delete_id, model.spec.split_id, plain.spec.delete_id) == (30, 31, None)
    ids, prompt_len = torch.randint(0, 30, (2, 70), generator=torch.Generator().manual_seed(1)), torch.tensor([3, 3])
    route_by_hand(stock, 3, 64)
    got, expected = model.full_logits(ids, prompt_len), textbook(stock, ids, 0, 64)
    torch.testing.assert_close(got[..., :MASK], expected[..., :MASK], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(plain.full_logits(ids, prompt_len)[..., :MASK], got[..., :MASK], atol=1e-2)
    ragged = model.full_logits(ids, prompt_len, torch.tensor([40, 70]))[0, :40]
    alone = model.full_logits(ids[:1, :40], prompt_len[:1])[0]
    torch.testing.assert_close(ragged[:, :MASK], alone[:, :MASK], rtol=1e-5, atol=1e-5)
    rows = [
        generate(model, ids[:, :5].tolist(), cache=cache, gen_len=64, block_len=64, decoder=Decoder(FixedK(8)))
        for cache in (NO_CACHE, BlockCache())
    ]
    assert [row.token_ids for row in rows[0]] == [row.token_ids for row in rows[1]]
    for refused in (lambda: dllm.save(model, tmp_path / "again"), lambda: model.two_stream_logits(ids)):
        with pytest.raises(ValueError, match="routes by block"):
            refused()


@pytest.mark.parametrize(("writer", "shift", "block"), FAMILIES)
@torch.no_grad()
def test_a_window_on_kept_kv_equals_the_full_forward(tmp_path: Path, writer, shift: int, block: int | None) -> None:
    stock = make(writer, tmp_path)
    model = dllm.load(tmp_path)
    width = block or BLOCK
    ids = torch.randint(0, 30, (2, 3 * width), generator=torch.Generator().manual_seed(2))
    expected = textbook(stock, ids, shift, block)
    columns = torch.arange(width, 2 * width).expand(2, -1)
    expected = expected.gather(1, columns[..., None].expand(-1, -1, VOCAB))[..., :MASK]
    end, kv = torch.tensor([3 * width] * 2), model.new_kv(torch.tensor([width] * 2), 3 * width)
    cache = WindowCache(0, 0)
    for step in (0, 1):
        state = progress([width] * 2, end.tolist(), [step] * 2, window=width, prompt_len=width)
        (plan,) = cache.plan(state, model.spec)
        got = model.logits(ids, plan, columns, end=end, kv=kv)[..., :MASK]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert plan.query.shape[1] == width + shift


@pytest.mark.parametrize("writer", [llada, llada2])
def test_a_loaded_family_is_saved_as_its_stock_backbone(tmp_path: Path, writer) -> None:
    make(writer, tmp_path)
    model = dllm.load(tmp_path)
    dllm.save(model, tmp_path / "again")
    again = dllm.load(tmp_path / "again")
    ids = torch.randint(0, 30, (1, 9), generator=torch.Generator().manual_seed(1))
    assert again.spec == model.spec
    assert again.full_logits(ids, torch.tensor([3])).equal(model.full_logits(ids, torch.tensor([3])))


def test_a_tokenizer_of_hub_code_is_read_by_its_stock_class(tmp_path: Path) -> None:
    make(dream, tmp_path)
    letters = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
    (tmp_path / "vocab.json").write_text(json.dumps(letters | {"ab": 26} | {str(i): i + 27 for i in range(9)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
    config = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "added_tokens_decoder": {str(36 + i): {"content": text, "special": True} for i, text in enumerate(special)},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = dllm.load(tmp_path).tokenizer
    assert tokenizer is not None
    assert tokenizer("abc<|mask|>")["input_ids"] == [26, 2, 39]
    assert (tokenizer.mask_token_id, tokenizer.eos_token_id) == (39, 36)


@pytest.mark.parametrize("writer", [llada, llada_moe, llada2, eurobert])
def test_a_tokenizer_file_is_read_as_it_is(tmp_path: Path, writer) -> None:
    make(writer, tmp_path)
    vocab = {f"w{i}": i for i in range(36)} | {"<eos>": EOS, "<mask>": MASK}
    written = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocab, unk_token="w0")), eos_token="<eos>", mask_token="<mask>"
    )
    written.save_pretrained(tmp_path)
    tokenizer = dllm.load(tmp_path).tokenizer
    assert tokenizer is not None and tokenizer("w7")["input_ids"] == [7]
    assert (tokenizer.mask_token_id, tokenizer.eos_token_id) == (MASK, EOS)


@pytest.mark.parametrize(
    ("writer", "field", "value"),
    [
        (llada, "include_bias", True),
        (llada, "block_type", "sequential"),
        (llada_moe, "clip_qkv", 8.0),
        (llada_moe, "shared_expert_intermediate_size", 16),
        (llada2, "use_qkv_bias", True),
        (dream, "rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        (dream, "block_size", 32),
        (sdar, "use_sliding_window", True),
        (eurobert, "mlp_bias", True),
    ],
)
def test_an_unpublished_layout_is_refused(tmp_path: Path, writer, field: str, value: object) -> None:
    make(writer, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(ValueError, match=f"{field}=.*, which no published checkpoint of this family has"):
        dllm.load(tmp_path)


def test_the_family_can_be_named(tmp_path: Path) -> None:
    make(dream, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "my_dream"}))
    assert dllm.load(tmp_path, family="dream").spec.shift == 1
    with pytest.raises(ValueError, match=r"unknown family 'Dreams'; use one of llada, .*, native"):
        dllm.load(tmp_path, family="Dreams")


def test_a_family_that_the_config_does_not_fit_is_refused(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        llada(tmp_path)
    with pytest.raises(ValueError, match=r"its config\.json has no 'hidden_size', which its family needs"):
        dllm.load(tmp_path, family="dream")
