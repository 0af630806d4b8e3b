"""Checkpoints in Hugging Face layout: round trip, and one clear sentence for each way they can be broken."""

import json
from pathlib import Path

import pytest
import torch
from conftest import make_model

import dllm
from dllm import ModelSpec
from dllm.load import ASSETS
from dllm.training.scratch import scratch_llama
from dllm.training.tokenizer import build_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = scratch_llama(build_tokenizer(["hello", " world"]), width=16, layers=1, heads=2, mlp_width=32)
    dllm.save(model, tmp_path / "model")
    return tmp_path / "model"


def test_saved_models_load_back_the_same(folder: Path) -> None:
    model = scratch_llama(build_tokenizer(["hello", " world"]), width=16, layers=1, heads=2, mlp_width=32)
    loaded = dllm.load(folder)
    assert loaded.spec == model.spec and loaded.spec.mix == 1
    canvas, prompt_len = torch.randint(6, 90, (2, 12)), torch.tensor([3, 5])
    assert loaded.full_logits(canvas, prompt_len).equal(model.full_logits(canvas, prompt_len))
    assert not any(path.suffix in (".bin", ".pt", ".pkl") for path in folder.iterdir())
    assert loaded.tokenizer is not None and loaded.tokenizer.decode(loaded.tokenizer("hello world!")["input_ids"]) == (
        "hello world!"
    )


def test_logits_never_offer_mask(folder: Path) -> None:
    model = dllm.load(folder)
    logits = model.full_logits(torch.randint(6, 90, (1, 9)), torch.tensor([4]))
    assert logits[..., model.spec.mask_id].isneginf().all()


def test_spec_can_be_given_or_read_from_the_tokenizer(folder: Path) -> None:
    (folder / "dllm.json").unlink()
    loaded = dllm.load(folder)
    assert (loaded.spec.mask_id, loaded.spec.eos_ids, loaded.spec.mix) == (2, (1,), 0)
    assert dllm.load(folder, spec=ModelSpec(5, (4,), 3, shift=1)).spec.shift == 1


def broken(folder: Path, name: str, content: bytes | None) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", None, "cannot load model"),
        ("model.safetensors", b"garbage", "cannot load model"),
        ("config.json", None, "cannot load model"),
        ("mix.safetensors", None, "has no mix.safetensors"),
        ("dllm.json", b"{", "is not a model spec"),
        ("dllm.json", b'{"mask_id": 2}', "is not a model spec"),
        ("dllm.json", b'{"mask_id": 999, "eos_ids": [1], "pad_id": 0}', "mask_id=999 is outside the vocabulary"),
        ("dllm.json", b'{"mask_id": 1, "eos_ids": [1], "pad_id": 0}', "mask_id=1 is also EOS or PAD"),
    ],
)
def test_broken_checkpoints_are_named(folder: Path, name: str, content: bytes | None, message: str) -> None:
    broken(folder, name, content)
    with pytest.raises(ValueError, match=message):
        dllm.load(folder)


def test_unknown_names_list_what_is_shipped() -> None:
    with pytest.raises(ValueError, match=r"cannot load model '/no/such' \(shipped models: tiny\)"):
        dllm.load("/no/such")


def test_missing_weights_are_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(ValueError, match=r"lacks 9 weights, first 'model\.layers\.1\."):
        dllm.load(folder)


def test_shipped_assets_are_small_and_safe() -> None:
    files = [path for path in ASSETS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 12 * 2**20
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".jinja", ".md"}


def test_block_causal_mix_looks_back_only() -> None:
    from dllm.model import NeighbourMix

    assert NeighbourMix(4, look_ahead=False).after is None
    assert make_model("mixed").mix.after is not None
