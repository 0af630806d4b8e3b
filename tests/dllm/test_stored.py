"""What strangers' checkpoints say of themselves is read, or refused by name: fields of configs, ids, how weights are
stored, and sizes that no model has."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_adapter import write_adapter
from test_families import EOS, IDS, MASK, a2d, dream, eurobert, llada, llada2, llada_moe, make, nemotron, sdar, sdar_moe
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import dllm
from dllm.adapter import attach
from dllm.families import recognise
from dllm.recurrent import load_recurrent
from dllm.recurrent.raven import RavenConfig
from dllm.shipped import ASSETS

FAMILIES = (llada, llada_moe, llada2, dream, sdar, sdar_moe, eurobert, nemotron)
REMARKS = {  # what published configs and trainers leave behind
    "_name_or_path": "a/b",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.3",
    "use_cache": False,
    "initializer_range": 0.02,
    "attention_dropout": 0.1,
    "bos_token_id": 1,
    "mask_token": "<mask>",
    "id2label": {"0": "x"},
    "temperature": 0.7,
    "do_sample": True,
    "architectures": ["X"],
    "init_device": "meta",
    "precision": "amp_bf16",
    "router_aux_loss_coef": 0.001,
    "unsloth_version": "2025.1",
    "fuse_cross_entropy": True,
    "flash_attention": True,
    "ep_size": 1,
    "pretraining_tp": 1,
    "note": "mine",
    "made_from": "owner/name",
    "logit_soft_cap": None,
    "attention_sinks": False,
}
PUBLISHED_LLADA = {  # beside what tests/published names
    "activation_type": "silu",
    "alibi": False,
    "alibi_bias_max": 8.0,
    "attention_layer_norm": False,
    "attention_layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "embedding_dropout": 0.0,
    "init_cutoff_factor": None,
    "init_fn": "mitchell",
    "init_std": 0.02,
    "input_emb_norm": False,
    "layer_norm_with_affine": True,
    "mlp_ratio": 4,
    "multi_query_attention": None,
    "residual_dropout": 0.0,
    "rope_full_precision": True,
    "scale_logits": False,
}


def change(folder: Path, **fields: object) -> None:
    """Other fields in config.json. None takes one out."""
    raw = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({name: value for name, value in raw.items() if value is not None}))


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model.full_logits(torch.arange(12)[None], torch.tensor([4]))[..., :MASK]


@pytest.mark.parametrize("writer", FAMILIES)
def test_remarks_load_and_other_fields_are_refused(tmp_path: Path, writer: Callable[[Path], Any]) -> None:
    make(writer, tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    family = recognise(raw)
    assert family is not None and family.read(raw)[1] == family.read({**raw, **REMARKS})[1]
    for name, value in {
        "scale_logits": True,
        "logit_softcapping": 30.0,
        "embedding_multiplier": 12.0,
        "position_embedding": "alibi",
        "layer_types": ["sliding_attention", "full_attention"],
        "clip_qkv": 8.0,
        "made_up": [1, 2],
    }.items():
        with pytest.raises(ValueError, match=f"{name}=|local attention"):
            family.read({**raw, name: value})
    for rope in ({"type": "dynamic", "factor": 2.0}, {"rope_type": "longrope"}):
        with pytest.raises(ValueError, match="rope"):
            family.read({**raw, "rope_scaling": rope})
        with pytest.raises(ValueError, match="rope"):
            family.read({**raw, "rope_parameters": rope})


def test_parts_of_a_config_are_read_alike() -> None:
    raw = json.loads((Path(__file__).parents[1] / "published/Dimple-7B.json").read_text())
    family = recognise(raw)
    assert family is not None
    family.read(raw)
    with pytest.raises(ValueError, match=r"vision_config\.qk_scale=2\.0"):
        family.read({**raw, "vision_config": {**raw["vision_config"], "qk_scale": 2.0}})
    raven = json.loads((Path(__file__).parents[1] / "published/huginn-0125.json").read_text())
    RavenConfig.check_fields(raven)
    with pytest.raises(ValueError, match=r"test_time_noise=0\.5"):
        RavenConfig.check_fields({**raven, "test_time_noise": 0.5})


def test_fields_of_llada_are_computed(tmp_path: Path) -> None:
    stock = make(llada, tmp_path)
    plain = logits(dllm.load(tmp_path))
    change(tmp_path, **PUBLISHED_LLADA)
    assert logits(dllm.load(tmp_path)).equal(plain)
    linear = {"rope_type": "linear", "factor": 4.0}
    for fields, ours in (
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, {"rope_parameters": {**linear, "rope_theta": 500.0}}),
        ({"rope_parameters": linear}, {"rope_parameters": {**linear, "rope_theta": 500.0}}),
        ({"activation_type": "gelu"}, {"hidden_act": "gelu"}),
        ({"rope_theta": None}, {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    ):
        change(tmp_path, rope_theta=500.0, rope_scaling=None, rope_parameters=None, activation_type=None)
        change(tmp_path, **fields)
        told = {name: value for name, value in stock.config.to_dict().items() if name != "model_type"}
        by_hand = LlamaForCausalLM(LlamaConfig(**{**told, **ours})).eval()
        by_hand.load_state_dict(stock.state_dict())
        every = torch.ones(1, 1, 12, 12, dtype=torch.bool)
        expected = by_hand(input_ids=torch.arange(12)[None], attention_mask=every, use_cache=False).logits
        torch.testing.assert_close(logits(dllm.load(tmp_path)), expected[..., :MASK], rtol=1e-5, atol=1e-5)
        assert not logits(dllm.load(tmp_path)).equal(plain)


@pytest.mark.parametrize("writer", [*FAMILIES, a2d(LlamaForCausalLM, LlamaConfig, "a2d-llama")])
def test_a_spec_gives_the_ids_that_a_config_lacks(tmp_path: Path, writer: Callable[[Path], Any]) -> None:
    make(writer, tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    family = recognise(raw)
    assert family is not None and family.read({**raw, "eos_token_id": [EOS, 35]})[1].eos_ids == (EOS, 35)
    (tmp_path / "config.json").write_text(json.dumps({name: raw[name] for name in raw if name not in IDS}))
    ids = {"mask_id": MASK, "eos_ids": [EOS], "pad_id": EOS}
    assert dllm.load(tmp_path, spec=ids).spec.mask_id == MASK
    for stated in (ids, {"mask_id": MASK, "eos_ids": [EOS]}):
        (tmp_path / "dllm.json").write_text(json.dumps(stated))
        assert dllm.load(tmp_path).spec.eos_ids == (EOS,)


def test_a_config_can_be_completed(tmp_path: Path) -> None:
    make(llada2, tmp_path)
    change(tmp_path, rope_theta=None, made_up=3)
    with pytest.raises(ValueError, match=r"no 'rope_theta', which its family needs; give config\.rope_theta"):
        dllm.load(tmp_path, config={"made_up": None})
    with pytest.raises(ValueError, match=r"made_up=3, .* leave it out with config\.made_up=null"):
        dllm.load(tmp_path, config={"rope_theta": 700.0})
    dllm.load(tmp_path, config={"rope_theta": 700.0, "made_up": None})


@pytest.mark.parametrize(
    "fields",
    [
        {"init_lora_weights": "pissa_niter_4"},
        {"init_lora_weights": "olora"},
        {"init_lora_weights": "lora_ga"},
        {"init_lora_weights": "loftq"},
        {"alora_invocation_tokens": [7, 8]},
        {"use_qalora": True},
        {"layer_replication": [[0, 2], [1, 2]]},
        {"arrow_config": {"top_k": 3}},
        {"lora_bias": True},
        {"use_dora": True},
        {"modules_to_save": ["lm_head"]},
        {"bias": "all"},
        {"target_parameters": ["experts.down_proj"]},
        {"peft_type": "IA3"},
        {"a_field_of_tomorrow": {"x": 1}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_adapters_that_are_more_are_refused_by_name(tmp_path: Path, fields: dict[str, Any]) -> None:
    make(llada, tmp_path)
    model, (name, value) = dllm.load(tmp_path), next(iter(fields.items()))
    harmless = {"auto_mapping": {"a": "b"}, "task_type": "CAUSAL_LM", "peft_version": "0.21", "megatron_core": "m.core"}
    write_adapter(tmp_path / "adapter", **harmless, init_lora_weights="gaussian", loftq_config={}, bias="none")
    attach(dllm.load(tmp_path), tmp_path / "adapter")
    write_adapter(tmp_path / "adapter", **fields)
    with pytest.raises(ValueError) as error:
        attach(model, tmp_path / "adapter")
    assert f"{name}={value!r}" in str(error.value) and "not LORA" not in str(error.value)


def rewrite(folder: Path, form: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    tensors = {
        name: tensor.clone().contiguous() for name, tensor in form(load_file(folder / "model.safetensors")).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base_model.model.", "backbone.", "module._orig_mod."])
@pytest.mark.parametrize("writer", [llada, dream])
def test_wrapped_weights_are_read(tmp_path: Path, writer: Callable[[Path], Any], prefix: str) -> None:
    make(writer, tmp_path)
    plain = logits(dllm.load(tmp_path))
    rewrite(tmp_path, lambda weights: {prefix + name: tensor for name, tensor in weights.items()})
    assert logits(dllm.load(tmp_path)).equal(plain)


@pytest.mark.parametrize("writer", [llada_moe, llada2, sdar_moe])
def test_stacked_experts_are_read(tmp_path: Path, writer: Callable[[Path], Any]) -> None:
    make(writer, tmp_path)
    plain = logits(dllm.load(tmp_path))

    def stack(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        first = [name for name in weights if ".experts.0." in name]
        apart = {name: [weights.pop(name.replace(".experts.0.", f".experts.{i}.")) for i in range(8)] for name in first}
        return weights | {
            name.replace(".experts.0.", ".experts.").removesuffix(".weight"): torch.stack(each)
            for name, each in apart.items()
        }

    rewrite(tmp_path, stack)
    assert logits(dllm.load(tmp_path)).equal(plain)
    rewrite(tmp_path, lambda weights: {n: t.transpose(1, 2) if t.ndim == 3 else t for n, t in weights.items()})
    with pytest.raises(ValueError, match=r"experts\.down_proj' of shape .*, and its config\.json means"):
        dllm.load(tmp_path)


KEY = "model.transformer.blocks.0.q_proj"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda w: {n: t.to(torch.int8) if "proj" in n else t for n, t in w.items()}, "quantised .* of type I8"),
        (lambda w: {n: t.to(torch.float8_e4m3fn) if KEY in n else t for n, t in w.items()}, "of type F8_E4M3"),
        (lambda w: w | {f"{KEY}.weight_scale_inv": torch.ones(1)}, "quantised .*weight_scale_inv"),
        (lambda w: w | {f"{KEY}.weight.absmax": torch.ones(1)}, "quantised .*absmax"),
        (lambda w: w | {f"{KEY}.lora_A.default.weight": torch.ones(2, 32)}, "an adapter that was not merged"),
        (lambda w: w | {f"{KEY}.weight": torch.ones(48, 32)}, r"q_proj\.weight' of shape \(48, 32\)"),
        (lambda w: {n.replace("blocks", "layer"): t for n, t in w.items()}, "lacks 18 weights, .* of another layout"),
    ],
)
def test_other_forms_of_weights_are_named(tmp_path: Path, form: Any, message: str) -> None:
    make(llada, tmp_path)
    rewrite(tmp_path, form)
    with pytest.raises(ValueError, match=message) as error:
        dllm.load(tmp_path)
    assert "report" not in str(error.value)


def test_configs_that_call_weights_quantised_are_refused(tmp_path: Path) -> None:
    make(llada, tmp_path)
    for fields, message in (
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantization_config: 'awq', 4 bits"),
        (
            {"quantization_config": {"load_in_8bit": True, "quant_method": "bitsandbytes"}},
            "quantization_config: 'bitsandbytes', 8 bits",
        ),
        ({"quantization_config": None, "quantization": {"bits": 4}}, "quantization: 'mlx', 4 bits"),
    ):
        change(tmp_path, **fields)
        with pytest.raises(ValueError, match=rf"its weights are quantised \({message}"):
            dllm.load(tmp_path)
    change(tmp_path, quantization=None, n_kv_heads=4)
    with pytest.raises(ValueError, match=r"k_proj\.weight' of shape \(16, 32\), and its config\.json means \(32, 32\)"):
        dllm.load(tmp_path)
    change(tmp_path, n_layers=10**9)
    with pytest.raises(ValueError, match=r"n_layers=1000000000 of its config\.json is more than 1000"):
        dllm.load(tmp_path)
    for file in ("model.safetensors", "config.json"):
        (tmp_path / file).unlink()
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"in GGUF \(x\.gguf\); only safetensors are read"):
        dllm.load(tmp_path)


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("name", [f"{KEY}.weight", "model.transformer.wte.weight", "model.transformer.ln_f.weight"])
def test_weights_that_are_no_numbers_are_named(tmp_path: Path, name: str, number: float) -> None:
    make(llada, tmp_path)
    rewrite(tmp_path, lambda w: w | {name: w[name].index_fill(0, torch.tensor([3]), number)})
    with pytest.raises(ValueError, match=r"its 'model\..*weight' holds NaN or infinity; mend the checkpoint"):
        dllm.load(tmp_path)


@pytest.mark.parametrize(
    ("writer", "fields", "message"),
    [
        (llada, {"rope_theta": 0}, "gives logits that are NaN; mend its weights or its config.json"),
        (dream, {"rope_theta": -5}, "gives logits that are NaN"),
        (llada, {"rope_scaling": {"rope_type": "linear", "factor": 0}}, "gives logits that are NaN"),
        (sdar_moe, {"num_experts_per_tok": 9}, "fails in its first forward .*; mend its config.json"),
        (dream, {"rope_parameters": {"full_attention": {"rope_theta": 3.0}}}, "rotary positions of one kind are read"),
        (sdar, {"block_size": 0}, "block=0"),
    ],
)
def test_configs_that_compute_nothing_are_refused(tmp_path: Path, writer: Any, fields: dict, message: str) -> None:
    make(writer, tmp_path)
    change(tmp_path, **fields)
    with pytest.raises(ValueError, match=message) as error:
        dllm.load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("writer", "name"), [(sdar, "block_size"), (nemotron, "block_size")])
def test_a_block_of_null_is_the_usual_one(tmp_path: Path, writer: Any, name: str) -> None:
    make(writer, tmp_path)
    change(tmp_path, **{name: None})
    assert dllm.load(tmp_path).spec.block in (4, 32)


@pytest.mark.parametrize("writer", [nemotron, a2d(LlamaForCausalLM, LlamaConfig, "a2d-llama")])
def test_how_a_config_wants_its_results_changes_nothing(tmp_path: Path, writer: Any) -> None:
    make(writer, tmp_path)
    plain = logits(dllm.load(tmp_path))
    change(tmp_path, return_dict=False, output_hidden_states=True)
    assert logits(dllm.load(tmp_path)).equal(plain)


def test_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    make(llada, tmp_path)
    for kind in (torch.int64, torch.bool):
        rewrite(tmp_path, lambda w, kind=kind: {n: t.to(kind) if KEY in n else t for n, t in w.items()})
        with pytest.raises(ValueError, match=f"quantised .*{KEY}"):
            dllm.load(tmp_path)
        make(llada, tmp_path)


def test_a_spec_is_an_object(tmp_path: Path) -> None:
    make(llada, tmp_path)
    for text in ('[["mask_id", 39]]', "[" * 100_000):
        (tmp_path / "dllm.json").write_text(text)
        with pytest.raises(ValueError, match="is not a model spec"):
            dllm.load(tmp_path)


A = "base_model.model.model.transformer.blocks.0.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda t: {n: x * math.nan for n, x in t.items()}, "gives logits that are NaN"),
        (lambda t: {n: x.to(torch.int8) for n, x in t.items()}, r"of type torch\.int8; save it in float32"),
        (lambda t: {n: x.to(torch.float8_e4m3fn) for n, x in t.items()}, r"of type torch\.float8_e4m3fn"),
        (lambda t: {n: x.to(torch.complex64) for n, x in t.items()}, r"of type torch\.complex64"),
        (lambda t: t | {A.replace("lora_A", "lora_A.default"): t[A] * 2}, "two factors A of 'model.layers.0"),
        (lambda t: t | {A.removeprefix("base_model.model."): t[A] * 2}, "two factors A of 'model.layers.0"),
        (
            lambda t: t | {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": t[A]},
            "two factors A of 'model.layers.0",
        ),
    ],
)
def test_factors_that_are_none_are_refused(tmp_path: Path, form: Any, message: str) -> None:
    make(llada, tmp_path)
    write_adapter(tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_model.safetensors"
    save_file({name: tensor.clone() for name, tensor in form(load_file(file)).items()}, file)
    with pytest.raises(ValueError, match=message):
        dllm.load(tmp_path, adapter=tmp_path / "adapter")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"peft_type": "LORA", "r": 3, "lora_alpha": 1' + "0" * 400 + "}", "lora_alpha=.* is no number"),
        (
            '{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "mask_id": 7}',
            "trained with mask_id=7, and .* has 39; give spec.mask_id",
        ),
        ("[" * 100_000, "cannot read adapter"),
    ],
)
def test_configs_of_adapters_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    make(llada, tmp_path)
    write_adapter(tmp_path / "adapter")
    (tmp_path / "adapter/adapter_config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        dllm.load(tmp_path, adapter=tmp_path / "adapter")


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("recurrent.json", lambda data: b"[1]"),
        ("recurrent.json", lambda data: b"[" * 100_000),
        ("recurrent.json", lambda data: b"{}"),
        ("recurrent.json", lambda data: data.replace(b'"hidden_size": 128', b'"hidden_size": "x"')),
        ("recurrent.json", lambda data: data.replace(b'"depth": {', b'"depth": {"evil": 1, ')),
        ("model.safetensors", lambda data: b"garbage"),
        ("model.safetensors", lambda data: data[:-10]),
        ("model.safetensors", None),
        ("tokenizer.json", lambda data: b"{"),
        ("tokenizer.json", None),
    ],
)
def test_broken_recurrent_models_are_one_sentence(tmp_path: Path, file: str, damage: Any) -> None:
    folder = Path(shutil.copytree(ASSETS / "tiny-recurrent", tmp_path / "m"))
    if damage is None:
        (folder / file).unlink()
    else:
        before = (folder / file).read_bytes()
        assert damage(before) != before
        (folder / file).write_bytes(damage(before))
    with pytest.raises(ValueError, match="cannot load model") as error:
        load_recurrent(folder)
    assert "\n" not in str(error.value)


def test_a_recurrent_model_brings_no_code(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ASSETS / "tiny-recurrent", tmp_path / "m"))
    about = json.loads((folder / "tokenizer_config.json").read_text())
    about |= {"auto_map": {"AutoTokenizer": ["tok.T", None]}, "tokenizer_class": "T"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "tok.py").write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')")
    try:
        load_recurrent(folder)  # by the tokenizer's stock class
    except ValueError as error:
        assert "\n" not in str(error)
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize("part", [{"model": {"vocab": {}}}, {"normalizer": "(a+)+$"}, {"pre_tokenizer": "(l+)+x"}])
def test_a_tokenizer_that_fails_on_a_text_is_one_sentence(tmp_path: Path, part: dict[str, Any]) -> None:
    folder = Path(shutil.copytree(ASSETS / "tiny", tmp_path / "m"))
    raw = json.loads((folder / "tokenizer.json").read_text())
    ((name, how),) = part.items()
    if name == "model":
        how = raw["model"] | how
    elif name == "normalizer":
        how = {"type": "Replace", "pattern": {"Regex": how}, "content": ""}
    else:
        how = {"type": "Split", "pattern": {"Regex": how}, "behavior": "Isolated", "invert": False}
    (folder / "tokenizer.json").write_text(json.dumps({**raw, name: how}))
    with pytest.raises(ValueError) as error:
        dllm.load(folder).encode("a" * 40 + "l" * 40 + "!")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("shard", "message"),
    [("b.safetensors", "it has no file b.safetensors"), ("../x.safetensors", "which is no file of its folder")],
)
def test_an_index_names_files_of_its_folder(tmp_path: Path, shard: str, message: str) -> None:
    make(llada, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    index = {"weight_map": {"model.transformer.wte.weight": shard}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=f"^cannot load model '{tmp_path}': ValueError: .*{message}"):
        dllm.load(tmp_path)


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Prepend", "prepend": "x" * 10**6},
        {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40},
    ],
)
def test_a_tokenizer_that_blows_texts_up_is_refused(tmp_path: Path, normalizer: dict[str, Any]) -> None:
    shutil.copytree(ASSETS / "tiny", tmp_path / "m")
    raw = json.loads((tmp_path / "m/tokenizer.json").read_text())
    (tmp_path / "m/tokenizer.json").write_text(json.dumps({**raw, "normalizer": normalizer}))
    with pytest.raises(ValueError, match="makes a text more than 50 times as long"):
        dllm.load(tmp_path / "m")


@pytest.mark.parametrize("name", ["nofolder", "./nope", "runs/nope", "/no/such", "a/b/c", "x" * 5000, "~/x"])
def test_a_mistyped_folder_is_not_looked_for_on_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*args: object, **kwargs: object) -> None:
        raise AssertionError("the hub was asked")

    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dllm.checkpoint.cached_file", ask)
    for load in (dllm.load, dllm.load_causal):
        with pytest.raises(
            ValueError, match="there is no such folder; give a folder, OWNER/NAME on the hub, or a shipped model"
        ):
            load(name)
