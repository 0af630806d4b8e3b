"""Fast products: the same numbers in another form, and only where it was measured to be faster."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import dllm
from dllm import layers
from dllm.layers import FEW, FastLinear, use_fast_products_


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(n, 1) for n in range(1, FEW + 3)] + [(1, 5), (2, 3), (3, 5), (0, 4)])
def test_it_is_a_linear_layer(
    shape: tuple[int, int], bias: bool, gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "TOKENS", 40)  # a head
    torch.manual_seed(0)
    plain, few = nn.Linear(24, 40, bias), FastLinear(24, 40, bias)
    few.load_state_dict(plain.state_dict())
    x = torch.randn(*shape, 24)
    if not gradients:
        with torch.inference_mode():
            torch.testing.assert_close(few(x), plain(x))
        return
    mine, theirs = (x.clone().requires_grad_() for _ in range(2))
    torch.testing.assert_close(few(mine), plain(theirs))
    few(mine).square().sum().backward()
    plain(theirs).square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(few.weight.grad, plain.weight.grad)


@pytest.mark.parametrize(
    ("columns", "of_head", "of_layer"), [(1, ["mm"], ["mm"]), (FEW, ["mm"], ["mm"]), (FEW + 1, ["onednn"], ["mm"])]
)
def test_more_columns_of_a_head_go_to_onednn(
    columns: int, of_head: list[str], of_layer: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "TOKENS", 40)
    kinds = {"aten.mm.default": "mm", "mkldnn._linear_pointwise.default": "onednn"}

    class Called(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.extend([kinds[str(func)]] if str(func) in kinds else [])
            return func(*args, **kwargs or {})

    for width, expected in ((40, of_head), (39, of_layer)):
        called: list[str] = []
        with torch.no_grad(), Called():
            FastLinear(24, width, bias=False)(torch.randn(columns, 24))
        assert called == expected
    monkeypatch.setattr(layers, "_has_onednn", lambda: False)
    called = []
    with torch.no_grad(), Called():
        FastLinear(24, 40, bias=False)(torch.randn(columns, 24))
    assert called == ["mm"]


@pytest.mark.parametrize("columns", [3, FEW + 1])
def test_other_numbers_are_those_of_a_linear_layer(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may be moved after it was loaded, and trained under autocast."""
    monkeypatch.setattr(layers, "TOKENS", 40)
    plain, few = nn.Linear(24, 40), FastLinear(24, 40)
    few.load_state_dict(plain.state_dict())
    x = torch.randn(columns, 24)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert few(x).equal(plain(x)) and few(x.bfloat16()).equal(plain(x.bfloat16()))
    for dtype in (torch.float64, torch.bfloat16):
        with torch.no_grad():
            assert few.to(dtype)(x.to(dtype)).equal(plain.to(dtype)(x.to(dtype)))


def backbone(**change: Any) -> PreTrainedModel:
    sizes = {"hidden_size": 64, "intermediate_size": 2048, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes | {"vocab_size": 2048} | change))


def fast(model: nn.Module) -> set[str]:
    return {name for name, layer in model.named_modules() if type(layer) is FastLinear}


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(layers, "_on_amd", lambda: True)
    monkeypatch.setattr("torch.backends.mkl.is_available", lambda: True)
    monkeypatch.setattr(layers, "LARGE", 2**20)
    return monkeypatch


def test_the_wide_layers_of_a_large_model_are_fast(amd: pytest.MonkeyPatch) -> None:
    model = backbone(tie_word_embeddings=True)
    use_fast_products_(model)
    mlp = {f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")}
    assert fast(model) == mlp | {"lm_head"}
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize(
    "otherwise",
    [
        lambda patch, model: patch.setattr(layers, "_on_amd", lambda: False),
        lambda patch, model: patch.setattr("torch.backends.mkl.is_available", lambda: False),
        lambda patch, model: patch.setattr(layers, "LARGE", 2**30),
        lambda patch, model: model.to(torch.bfloat16),
        lambda patch, model: model.to(torch.float64),
        lambda patch, model: model.to("meta"),
    ],
    ids=["another processor", "another library", "a small model", "bfloat16", "float64", "another device"],
)
def test_others_stay_as_they_are(amd: pytest.MonkeyPatch, otherwise: Callable[..., object]) -> None:
    model = backbone()
    otherwise(amd, model)
    use_fast_products_(model)
    assert not fast(model)


@pytest.mark.parametrize(("info", "expected"), [("vendor_id : AuthenticAMD", True), ("GenuineIntel", False)])
def test_the_processor_is_known(info: str, expected: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(info)
    monkeypatch.setattr(layers, "Path", lambda name: tmp_path / "cpuinfo")
    assert layers._on_amd() is expected


@pytest.mark.parametrize(("load", "name"), [(dllm.load, "tiny"), (dllm.load_causal, "tiny-ar")])
def test_loading_makes_them(amd: pytest.MonkeyPatch, load: Callable[[str], Any], name: str) -> None:
    assert "lm_head" in fast(load(name).backbone)
