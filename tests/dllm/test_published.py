"""Every published configuration: its parameters, renamed as on loading, are the backbone's, name by name and shape by
shape, and their total is the published one; no weights needed.

`published/NAME.json` holds the facts of a config.json; `_source` says where they are from.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dllm import ModelSpec
from dllm.families import FAMILIES, recognise
from dllm.recurrent import RavenBackbone, RavenConfig, RavenLM

FOLDER = Path(__file__).parents[1] / "published"
Shapes = dict[str, tuple[int, ...]]


def llada(c: dict[str, Any]) -> Shapes:
    width, mlp, kv = c["d_model"], c["mlp_hidden_size"], c["d_model"] // c["n_heads"] * c["n_kv_heads"]
    top = {"wte": (c["embedding_size"], width), "ff_out": (c["embedding_size"], width), "ln_f": (width,)}
    layer = {
        "attn_norm": (width,),
        "ff_norm": (width,),
        "q_proj": (width, width),
        "k_proj": (kv, width),
        "v_proj": (kv, width),
        "attn_out": (width, width),
        "ff_proj": (mlp, width),
        "up_proj": (mlp, width),
        "ff_out": (width, mlp),
    }
    shapes = {f"model.transformer.{name}.weight": shape for name, shape in top.items()}
    for i in range(c["n_layers"]):
        shapes |= {f"model.transformer.blocks.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def outside(c: dict[str, Any], embedding: str = "embed_tokens") -> Shapes:
    """What is not in a layer; tied heads are not stored."""
    table = (c["vocab_size"], c["hidden_size"])
    shapes = {f"model.{embedding}.weight": table, "model.norm.weight": (c["hidden_size"],)}
    return shapes if c["tie_word_embeddings"] else shapes | {"lm_head.weight": table}


def gated(name: str, width: int, inner: int) -> Shapes:
    return {
        f"{name}.gate_proj.weight": (inner, width),
        f"{name}.up_proj.weight": (inner, width),
        f"{name}.down_proj.weight": (width, inner),
    }


def attention(c: dict[str, Any], *, bias: bool = False, head_norms: bool = False) -> Shapes:
    """The parts of a Qwen layer around its MLP."""
    width, head = c["hidden_size"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    queries, keys = head * c["num_attention_heads"], head * c["num_key_value_heads"]
    shapes = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.o_proj.weight": (width, queries),
    }
    for part, rows in (("q", queries), ("k", keys), ("v", keys)):
        shapes[f"self_attn.{part}_proj.weight"] = (rows, width)
        if bias:
            shapes[f"self_attn.{part}_proj.bias"] = (rows,)
    return shapes | ({f"self_attn.{part}_norm.weight": (head,) for part in "qk"} if head_norms else {})


def experts(c: dict[str, Any], inner: int) -> Shapes:
    width, shapes = c["hidden_size"], {"mlp.gate.weight": (c["num_experts"], c["hidden_size"])}
    for expert in range(c["num_experts"]):
        shapes |= gated(f"mlp.experts.{expert}", width, inner)
    return shapes


def in_layers(c: dict[str, Any], layer: Shapes) -> Shapes:
    return {f"model.layers.{i}.{name}": s for i in range(c["num_hidden_layers"]) for name, s in layer.items()}


def qwen2(c: dict[str, Any]) -> Shapes:
    mlp = gated("mlp", c["hidden_size"], c["intermediate_size"])
    return outside(c) | in_layers(c, attention(c, bias=True) | mlp)


def dimple(c: dict[str, Any]) -> Shapes:
    v, width = c["vision_config"], c["hidden_size"]
    seen, patch, out = (
        v["hidden_size"],
        (v["temporal_patch_size"], v["patch_size"], v["patch_size"]),
        v["out_hidden_size"],
    )
    merged = seen * v["spatial_merge_size"] ** 2
    shapes = qwen2(c) | {"visual.patch_embed.proj.weight": (seen, v["in_channels"], *patch)}
    linear = {"visual.merger.mlp.0": (merged, merged), "visual.merger.mlp.2": (out, merged)}
    linear |= {"img_projector.linear_1": (width, out), "img_projector.linear_2": (width, width)}
    shapes["visual.merger.ln_q.weight"] = (seen,)
    for i in range(v["depth"]):
        block = f"visual.blocks.{i}"
        shapes |= {f"{block}.norm{n}.weight": (seen,) for n in (1, 2)}
        linear |= {f"{block}.attn.qkv": (3 * seen, seen), f"{block}.attn.proj": (seen, seen)}
        linear |= {f"{block}.mlp.{part}_proj": (v["intermediate_size"], seen) for part in ("gate", "up")}
        linear[f"{block}.mlp.down_proj"] = (seen, v["intermediate_size"])
    shapes |= {f"{name}.weight": shape for name, shape in linear.items()}
    return shapes | {f"{name}.bias": shape[:1] for name, shape in linear.items()}


def qwen3(c: dict[str, Any]) -> Shapes:
    mlp = gated("mlp", c["hidden_size"], c["intermediate_size"])
    return outside(c) | in_layers(c, attention(c, head_norms=True) | mlp)


def qwen3_moe(c: dict[str, Any]) -> Shapes:
    return outside(c) | in_layers(c, attention(c, head_norms=True) | experts(c, c["moe_intermediate_size"]))


def llama(c: dict[str, Any]) -> Shapes:
    return outside(c) | in_layers(c, attention(c) | gated("mlp", c["hidden_size"], c["intermediate_size"]))


def nemotron(c: dict[str, Any]) -> Shapes:
    names = {"model.": "encoder.", "lm_head.": "diffusion_head."}
    plain = llama(c)
    return {re.sub(r"^(model|lm_head)\.", lambda m: names[m[0]], name): shape for name, shape in plain.items()}


def llada_moe(c: dict[str, Any]) -> Shapes:
    return outside(c) | in_layers(c, attention(c, head_norms=True) | experts(c, c["expert_intermediate_size"]))


def llada2(c: dict[str, Any]) -> Shapes:
    width, head, inner = c["hidden_size"], c["head_dim"], c["moe_intermediate_size"]
    heads = c["num_attention_heads"]
    around = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "attention.query_key_value.weight": ((heads + 2 * c["num_key_value_heads"]) * head, width),
        "attention.query_layernorm.weight": (head,),
        "attention.key_layernorm.weight": (head,),
        "attention.dense.weight": (width, heads * head),
    }
    sparse = {**around, **experts(c, inner), "mlp.gate.expert_bias": (c["num_experts"],)}
    sparse |= gated("mlp.shared_experts", width, inner * c["num_shared_experts"])
    dense = around | gated("mlp", width, c["intermediate_size"])
    shapes = outside(c, "word_embeddings")
    for i in range(c["num_hidden_layers"]):
        layer = dense if i < c["first_k_dense_replace"] else sparse
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


LLADA = ModelSpec(126336, (126081, 126348), 126081)
LING = ModelSpec(156895, (156892,), 156892)
LING_BLOCKS = ModelSpec(156895, (156892,), 156892, block=32)
LING_EDITS = ModelSpec(156895, (156892,), 156892, block=64, delete_id=156930, split_id=156931)
DREAM = ModelSpec(151666, (151643, 151645), 151643, shift=1)
FAST = ModelSpec(151665, (151645,), 151645, shift=1, block=32)
NEMOTRON = ModelSpec(100, (11,), 11, block=32, context_causal=True, prompt_grid=True)
A2D_QWEN2 = ModelSpec(151665, (151643, 151645), 151643, prompt_grid=True)
A2D_QWEN3 = ModelSpec(151669, (151643, 151645), 151643, prompt_grid=True)
EUROBERT = ModelSpec(128002, (128001,), 128001)
SDAR = ModelSpec(151669, (151643, 151645), 151643, block=4)

MODELS: dict[str, tuple[Callable[[dict[str, Any]], Shapes], ModelSpec, str]] = {
    "LLaDA-8B-Base": (llada, LLADA, "8.02"),
    "LLaDA-8B-Instruct": (llada, LLADA, "8.02"),
    "LLaDA-1.5": (llada, LLADA, "8.02"),
    "LLaDA-MoE-7B-A1B-Base": (llada_moe, LING, "7.36"),
    "LLaDA-MoE-7B-A1B-Instruct": (llada_moe, LING, "7.36"),  # 14.7 GB of bfloat16
    "LLaDA2.0-mini": (llada2, LING_BLOCKS, "16.26"),
    "LLaDA2.0-flash": (llada2, LING_BLOCKS, "102.89"),
    "LLaDA2.1-mini": (llada2, LING_BLOCKS, "16.26"),  # 32.5 GB of bfloat16
    "LLaDA2.1-flash": (llada2, LING_BLOCKS, "102.89"),  # 205,782,452,128 bytes of bfloat16
    "DMax-Math-16B": (llada2, LING_BLOCKS, "16.26"),  # LLaDA2.0-mini, trained further
    "Dream-v0-Base-7B": (qwen2, DREAM, "7.62"),
    "Dream-v0-Instruct-7B": (qwen2, DREAM, "7.62"),
    "Dream-Coder-v0-Instruct-7B": (qwen2, DREAM, "7.62"),
    "DiffuCoder-7B-Instruct": (qwen2, DREAM, "7.62"),
    "d3LLM_LLaDA": (llada, LLADA, "8.02"),
    "d3LLM_Dream": (qwen2, DREAM, "7.62"),
    "Dimple-7B": (dimple, DREAM, "8.32"),
    "EuroBERT-210m": (llama, EUROBERT, "0.31"),  # 0.21 and its head
    "Fast_dLLM_v2_1.5B": (qwen2, FAST, "1.54"),
    "Fast_dLLM_v2_7B": (qwen2, FAST, "7.62"),
    "LLaDA2.2-mini": (llada2, LING_EDITS, "16.26"),  # 30.28 GiB of bfloat16
    "LLaDA2.2-flash": (llada2, LING_EDITS, "102.89"),  # 102,889,705,216
    "Nemotron-Labs-Diffusion-3B": (nemotron, NEMOTRON, "3.83"),
    "Nemotron-Labs-Diffusion-8B": (nemotron, NEMOTRON, "8.49"),
    "Nemotron-Labs-Diffusion-14B": (nemotron, NEMOTRON, "13.51"),  # 27 GB of bfloat16 in 363 tensors
    "Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1": (qwen2, A2D_QWEN2, "0.49"),
    "Qwen3-0.6B-diffusion-bd3lm-v0.1": (qwen3, A2D_QWEN3, "0.60"),
    "OPDLM-0.6B": (qwen3, A2D_QWEN3, "0.60"),
    "SDAR-1.7B-Chat": (qwen3, SDAR, "2.03"),
    "SDAR-4B-Chat": (qwen3, SDAR, "4.41"),
    "SDAR-8B-Chat": (qwen3, SDAR, "8.19"),
    "SDAR-30B-A3B-Chat": (qwen3_moe, SDAR, "30.53"),
}
"""Layout, spec, and parameters in billions: as the models' pages state them, or more exactly (LLaDA2.0-flash: 103 B).
For SDAR 1.7B they follow from heads that are taken to be untied, as those of 4B are."""


def loaded(shapes: Shapes, renames: dict[str, str], config: dict[str, Any]) -> Shapes:
    """Published names and shapes as they are on loading: renamed, experts stacked, a fused projection split."""
    result: Shapes = {}
    for name, shape in shapes.items():
        for pattern, ours in renames.items():
            name = re.sub(pattern, ours, name)
        expert = re.fullmatch(r"(.+\.experts)\.\d+\.(gate|up|down)_proj\.weight", name)
        if expert and expert[2] != "down":  # gate above up
            result[f"{expert[1]}.gate_up_proj"] = (config["num_experts"], 2 * shape[0], shape[1])
        elif expert:
            result[f"{expert[1]}.down_proj"] = (config["num_experts"], *shape)
        elif name.endswith("query_key_value.weight"):
            heads = {"q": config["num_attention_heads"]} | dict.fromkeys("kv", config["num_key_value_heads"])
            for part, count in heads.items():
                result[name.replace("query_key_value", f"{part}_proj")] = (count * config["head_dim"], shape[1])
        else:
            result[name] = shape
    return result


def raven(c: dict[str, Any]) -> Shapes:
    """Huginn, as its checkpoint names its weights."""
    width, heads, inner = c["n_embd"], c["n_heads"], c["intermediate_size"]
    block = {f"norm_{i}.weight": (width,) for i in range(1, 5)} | {
        "attn.Wqkv.weight": (3 * width, width),
        "attn.qk_bias": (2, 1, heads, width // heads),
        "attn.proj.weight": (width, width),
        "mlp.fc.weight": (2 * inner, width),
        "mlp.proj.weight": (width, inner),
    }
    shapes: Shapes = {
        "wte.weight": (c["vocab_size"], width),
        "adapter.weight": (width, 2 * width),
        "ln_f.weight": (width,),
    }
    for part, name in (("prelude", "prelude"), ("recurrent_block", "core_block"), ("coda", "coda")):
        for i in range(c[f"n_layers_in_{part}"]):
            shapes |= {f"{name}.{i}.{weight}": shape for weight, shape in block.items()}
    return {f"transformer.{name}": shape for name, shape in shapes.items()}


def test_each_file_and_each_family_is_tested() -> None:
    files = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
    assert files.keys() == {*MODELS, "huginn-0125", "DiffusionGemma-26B-A4B-it"}
    found = [recognise(config) for config in files.values()]
    unseen = {name for name, family in FAMILIES.items() if not any(family is one for one in found)}
    docs = (FOLDER.parents[1] / "docs" / "models.md").read_text()
    assert unseen == {"a2d-llama"} and "| `a2d-llama` | no published checkpoint was looked at" in docs
    assert f"{len(files)} published configurations" in docs


def test_diffusion_gemma_has_the_published_number_of_parameters_and_tensors() -> None:
    """Of the index of its safetensors files; encoder and decoder share theirs."""
    config = json.loads((FOLDER / "DiffusionGemma-26B-A4B-it.json").read_text())
    assert config.pop("_source").startswith("from the ")
    family = recognise(config)
    assert family is not None and family.spec(config) == ModelSpec(262144, (1, 106, 50), 0, noise=262144)
    with torch.device("meta"):
        backbone = family.backbone(family.config(config))
    parameters, kept = dict(backbone.named_parameters()), backbone.state_dict().keys()
    buffers = [name for name, _ in backbone.named_buffers() if name in kept]
    assert sum(parameter.numel() for parameter in parameters.values()) == 25_823_778_864
    assert len(parameters) + len(buffers) == 1047


def test_huginns_published_parameters_are_the_backbones() -> None:
    """Its page says 3.5 B: 1.5 B that recur, 1.5 B that do not, 0.5 B of embeddings."""
    config = json.loads((FOLDER / "huginn-0125.json").read_text())
    assert config.pop("_source").startswith("from the ")
    with torch.device("meta"):
        backbone = RavenBackbone(RavenConfig.from_dict(config))
        model = RavenLM(backbone, None, "huginn")
    published = raven(config)
    assert {key: tuple(weight.shape) for key, weight in backbone.named_parameters()} == published
    assert f"{sum(math.prod(shape) for shape in published.values()) / 1e9:.2f}" == "3.56"
    assert (model.eos_ids, model.pad_id, model.max_length) == ((65504, 65505, 65508), 65509, 4096)
    assert vars(model.depth) == {"prelude": 2, "core": 4, "coda": 2, "recurrences": 32}


# sizes as of another
SAME = ("DMax-Math-16B", "LLaDA2.1-mini", "LLaDA2.1-flash", "LLaDA2.2-mini", "d3LLM_LLaDA", "d3LLM_Dream", "OPDLM-0.6B")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SAME else n for n in MODELS])
def test_published_parameters_are_the_backbones(name: str) -> None:
    layout, spec, billions = MODELS[name]
    config = json.loads((FOLDER / f"{name}.json").read_text())
    assert config.pop("_source").startswith(("from the ", "reconstructed from "))
    family = recognise(config)
    assert family is not None and family.spec(config) == spec
    with torch.device("meta"):
        backbone = family.backbone(family.config(config))
    published = layout(config)
    ours = {key: tuple(tensor.shape) for key, tensor in backbone.named_parameters()}
    kept = {key: tuple(tensor.shape) for key, tensor in backbone.named_buffers() if key in backbone.state_dict()}
    assert loaded(published, dict(family.keys), config) == ours | kept
    spec.check_vocab(backbone.config.vocab_size)
    assert f"{sum(math.prod(shape) for shape in published.values()) / 1e9:.2f}" == billions
