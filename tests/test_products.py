"""Products of a few columns: the same numbers in the other order, and only where it was measured to be faster."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import dllm
from dllm import products
from dllm.products import FEW, FewColumns, multiply_few_columns_fast_


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(n, 1) for n in range(1, FEW + 3)] + [(1, 5), (2, 3), (0, 4)])
def test_it_is_a_linear_layer(shape: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    plain, few = nn.Linear(24, 40, bias), FewColumns(24, 40, bias)
    few.load_state_dict(plain.state_dict())
    mine, theirs = (torch.randn(*shape, 24).requires_grad_() for _ in range(2))
    theirs.data.copy_(mine.data)
    torch.testing.assert_close(few(mine), plain(theirs))
    few(mine).square().sum().backward()
    plain(theirs).square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(few.weight.grad, plain.weight.grad)


def backbone(**change: Any) -> PreTrainedModel:
    sizes = {"hidden_size": 64, "intermediate_size": 2048, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes | {"vocab_size": 2048} | change))


def fast(model: nn.Module) -> set[str]:
    return {name for name, layer in model.named_modules() if type(layer) is FewColumns}


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(products, "_on_amd", lambda: True)
    monkeypatch.setattr("torch.backends.mkl.is_available", lambda: True)
    monkeypatch.setattr(products, "LARGE", 2**20)
    return monkeypatch


def test_the_wide_layers_of_a_large_model_are_fast(amd: pytest.MonkeyPatch) -> None:
    model = backbone(tie_word_embeddings=True)
    multiply_few_columns_fast_(model)
    mlp = {f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")}
    assert fast(model) == mlp | {"lm_head"}
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize(
    "otherwise",
    [
        lambda patch, model: patch.setattr(products, "_on_amd", lambda: False),
        lambda patch, model: patch.setattr("torch.backends.mkl.is_available", lambda: False),
        lambda patch, model: patch.setattr(products, "LARGE", 2**30),
        lambda patch, model: model.to(torch.bfloat16),
        lambda patch, model: model.to(torch.float64),
        lambda patch, model: model.to("meta"),
    ],
    ids=["another processor", "another library", "a small model", "bfloat16", "float64", "another device"],
)
def test_others_stay_as_they_are(amd: pytest.MonkeyPatch, otherwise: Callable[..., object]) -> None:
    model = backbone()
    otherwise(amd, model)
    multiply_few_columns_fast_(model)
    assert not fast(model)


@pytest.mark.parametrize(("info", "expected"), [("vendor_id : AuthenticAMD", True), ("GenuineIntel", False)])
def test_the_processor_is_known(info: str, expected: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(info)
    monkeypatch.setattr(products, "Path", lambda name: tmp_path / "cpuinfo")
    assert products._on_amd() is expected


@pytest.mark.parametrize(("load", "name"), [(dllm.load, "tiny"), (dllm.load_causal, "tiny-ar")])
def test_loading_makes_them(amd: pytest.MonkeyPatch, load: Callable[[str], Any], name: str) -> None:
    assert "lm_head" in fast(load(name).backbone)
