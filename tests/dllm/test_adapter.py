"""LoRA adapters: what attaching adds is scaling * B @ A, merging keeps the logits, detaching restores them, and what
does not fit is named."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from test_families import dream, llada, make, qwen3

import dllm
from dllm import DiffusionLM
from dllm.adapter import attach, detach, is_attached, merge

RANK, ALPHA = 3, 6.0
MODULES = {  # published name -> (backbone's name, in, out)
    "model.transformer.blocks.0.q_proj": ("model.layers.0.self_attn.q_proj", 32, 32),
    "model.transformer.blocks.1.attn_out": ("model.layers.1.self_attn.o_proj", 32, 32),
    "model.transformer.blocks.1.ff_out": ("model.layers.1.mlp.down_proj", 64, 32),
    "model.transformer.blocks.1.ff_proj": ("model.layers.1.mlp.gate_proj", 32, 64),
    "model.transformer.ff_out": ("lm_head", 32, 40),
}


def write_adapter(folder: Path, **config: object) -> dict[str, torch.Tensor]:
    """An adapter trained on LLaDA's own layout."""
    rng = torch.Generator().manual_seed(4)
    tensors = {}
    for name, (_, width, out) in MODULES.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, width, generator=rng) / 4
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(out, RANK, generator=rng) / 4
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = ["q_proj", "attn_out", "ff_out", "ff_proj"]
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.1, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(about | config))
    return tensors


def logits(model: DiffusionLM) -> torch.Tensor:
    ids = torch.randint(0, 30, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.full_logits(ids, torch.tensor([3, 3]))


def by_hand(folder: Path, tensors: dict[str, torch.Tensor], scaling: float) -> torch.Tensor:
    """Logits with every covered matrix replaced by W + scaling * B @ A."""
    model = dllm.load(folder)
    for name, (ours, _, _) in MODULES.items():
        a, b = (tensors[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
        with torch.no_grad():
            model.backbone.get_parameter(f"{ours}.weight").add_(scaling * b @ a)
    return logits(model)


@pytest.mark.parametrize(("rslora", "scaling"), [(False, ALPHA / RANK), (True, ALPHA / math.sqrt(RANK))])
def test_attach_merge_and_detach(tmp_path: Path, rslora: bool, scaling: float) -> None:
    make(llada, tmp_path)
    tensors = write_adapter(tmp_path / "adapter", use_rslora=rslora)
    expected, original = by_hand(tmp_path, tensors, scaling), logits(dllm.load(tmp_path))
    assert (expected - original)[..., :39].abs().max() > 0.1

    loaded = dllm.load(tmp_path, adapter=tmp_path / "adapter")
    assert not is_attached(loaded)  # a forward costs nothing more
    torch.testing.assert_close(logits(loaded), expected, rtol=1e-5, atol=1e-5)

    model = dllm.load(tmp_path)
    attach(model, tmp_path / "adapter")
    torch.testing.assert_close(logits(model), expected, rtol=1e-5, atol=1e-5)
    assert is_attached(model) and not any(p.requires_grad for n, p in model.named_parameters() if "lora_" in n)

    assert repr(scaling) in model.identity()
    detach(model)
    assert not is_attached(model) and logits(model).equal(original)
    assert model.identity() == dllm.load(tmp_path).identity()
    names = set(model.state_dict())

    attach(model, tmp_path / "adapter")
    with pytest.raises(ValueError, match="already has an adapter"):
        attach(model, tmp_path / "adapter")
    with pytest.raises(ValueError, match="merge or detach it before saving"):
        dllm.save(model, tmp_path / "merged")
    merge(model)
    assert not is_attached(model) and set(model.state_dict()) == names
    torch.testing.assert_close(logits(model), expected, rtol=1e-5, atol=1e-5)
    dllm.save(model, tmp_path / "merged")
    assert logits(dllm.load(tmp_path / "merged")).equal(logits(model))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT's wrapper, not our code
def test_what_peft_saves_is_read(tmp_path: Path) -> None:
    """An adapter made and saved by PEFT itself, on a stock model."""
    stock = make(qwen3, tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = LoraConfig(r=2, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
        tuned = get_peft_model(stock, config)
    tuned.save_pretrained(str(tmp_path / "adapter"))
    model = dllm.load(tmp_path, adapter=tmp_path / "adapter")
    ids = torch.randint(0, 30, (2, 9), generator=torch.Generator().manual_seed(1))
    everything = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    stock.config.is_causal = False
    with torch.no_grad():
        expected = tuned(input_ids=ids, attention_mask=everything, use_cache=False).logits
    torch.testing.assert_close(logits(model)[..., :39], expected[..., :39], rtol=1e-5, atol=1e-5)


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


def test_an_adapter_that_does_not_fit_is_named(tmp_path: Path) -> None:
    make(llada, tmp_path)
    folder = tmp_path / "adapter"
    model = dllm.load(tmp_path)
    before = logits(model)
    key = "base_model.model.model.transformer.blocks.0.q_proj.lora_A.weight"

    def refuses(message: str) -> None:
        with pytest.raises(ValueError, match=message):
            attach(model, folder)
        assert not is_attached(model) and logits(model).equal(before)

    refuses("has no adapter_config.json")
    write_adapter(folder)
    edit(folder, lambda t: t.update({name.replace("blocks.0", "blocks.7"): t.pop(name) for name in list(t)}))
    refuses("is for 'model.layers.7.self_attn.q_proj', which is no linear layer")
    write_adapter(folder)
    edit(folder, lambda t: t.update({key: torch.ones(RANK, 31)}))
    refuses(r"factors of shapes .*\(3, 31\).* for 'model.layers.0.self_attn.q_proj'")
    write_adapter(folder)
    edit(folder, lambda t: t.update({"base_model.model.model.transformer.wte.weight": torch.ones(40, 32)}))
    refuses("which is no LoRA factor of a linear layer")
    write_adapter(folder, r=RANK + 1)
    refuses(rf"factors of shapes .*; its adapter_config.json says r={RANK + 1}")
    write_adapter(folder)
    edit(folder, lambda t: [t.pop(name) for name in list(t)] and None)
    refuses("is empty")
    for config, message in (
        ({"peft_type": "IA3"}, "only plain LoRA is supported"),
        ({"use_dora": True}, "only plain LoRA is supported"),
        ({"rank_pattern": {"q_proj": 2}}, "that differ between modules"),
        ({"r": "x"}, "cannot read adapter .*: r='x'; a rank is an integer of at least 1"),
        ({"r": 0}, "r=0; a rank is"),
        ({"r": True}, "r=True; a rank is"),
        ({"lora_alpha": None}, "lora_alpha=None is no number"),
        ({"lora_alpha": "6"}, "lora_alpha='6' is no number"),
        ({"lora_alpha": math.nan}, "lora_alpha=nan is no number"),
        ({"use_rslora": "no"}, "use_rslora='no' is neither true nor false"),
    ):
        write_adapter(folder, **config)
        refuses(message)
    for content, message in (("[1]", "holds a list where an object belongs"), ("{", "cannot read adapter")):
        (folder / "adapter_config.json").write_text(content)
        refuses(message)
    write_adapter(folder)
    (folder / "adapter_model.safetensors").write_bytes(b"garbage")
    refuses("cannot read adapter")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    refuses(r"has no adapter_model.safetensors; give a folder that PEFT has saved")


def test_an_adapter_of_another_family_is_refused(tmp_path: Path) -> None:
    make(dream, tmp_path)
    write_adapter(tmp_path / "adapter")
    with pytest.raises(ValueError, match=r"is for 'model.transformer.blocks.0.q_proj', which is no linear layer of"):
        dllm.load(tmp_path, adapter=tmp_path / "adapter")


def test_an_offloaded_layer_takes_no_adapter(tmp_path: Path) -> None:
    make(llada, tmp_path)
    write_adapter(tmp_path / "adapter")
    places = {f"model.{part}": "cpu" for part in ("embed_tokens", "rotary_emb", "norm", "layers.0")}
    places |= {"lm_head": "cpu", "model.layers.1": "disk"}
    model = dllm.load(tmp_path, device_map=places, offload_folder=str(tmp_path / "offload"))
    with pytest.raises(ValueError, match=r"'model\.layers\.1\..*' of .* is offloaded"):
        attach(model, tmp_path / "adapter")
    assert not is_attached(model)
