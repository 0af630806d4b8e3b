"""Uniform-state diffusion: DiffusionGemma decoded by the one loop equals transformers' `generate`, token for token,
when both are given the same draws."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_model
from torch import Tensor
from torch.nn import functional as F
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

import dllm
from decoders import (
    NO_CACHE,
    Cooling,
    Decoder,
    EntropyBound,
    FixedK,
    Lookahead,
    Never,
    Renoise,
    RunningSet,
    SelfCondition,
    StrictEos,
    Threshold,
    Wino,
    decode,
)
from decoders.logits import inverse_cdf
from decoders.loop import DecodedRow
from decoders.noise import Noise, noise_tokens, row_seeds
from dllm.cache import WindowCache
from dllm.spec import ModelSpec
from dllm.training import UniformDiffusion
from dllm.training.objectives import collate
from dllm.training.start import check_masks, show_noise, start_from

VOCAB, CANVAS, EOS = 40, 8, 1
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "sliding_window": 7,  # shorter than prompt and canvases
    "layer_types": ["sliding_attention", "full_attention"],
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 16,
}
VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "position_embedding_size": 16,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random DiffusionGemma whose predictions are neither flat nor certain. With larger weights its
    self-conditioning would amplify rounding from step to step."""
    path = tmp_path_factory.mktemp("gemma")
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        config = DiffusionGemmaConfig(text_config=TEXT, vision_config=VISION, canvas_length=CANVAS, image_token_id=39)
        model = DiffusionGemmaForBlockDiffusion(config)
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.5 if "embed_tokens" in name else 0.1)
    model.save_pretrained(path)
    return path


def decoder(steps: int, stable: int = 1, confident: float = 0.005, bound: float = 0.1) -> Decoder:
    return Decoder(
        EntropyBound(bound),
        transforms=(Cooling(steps=steps),),
        revise=Renoise(steps, stable, confident),
        soft=SelfCondition(),
        temperature=1.0,
        confidence="entropy",
        at_least_one=False,
    )


class Draws:
    """transformers' random draws, taken from our streams: a canvas, then for each step its candidates and its noise."""

    def __init__(self, prompt: list[int]) -> None:
        self.seeds, self.forwards, self.renoised = torch.tensor(row_seeds(0, [prompt])), 0, 0

    def noise(self) -> Noise:
        return Noise(self.seeds, torch.tensor([self.forwards]))

    def multinomial(self, probs: Tensor, num_samples: int) -> Tensor:
        self.forwards += 1
        return inverse_cdf(probs, self.noise().uniform(len(probs), stream="candidate")[0])[:, None]

    def randint(self, low: int, high: int, size: tuple[int, int], **_: Any) -> Tensor:
        stream = "canvas" if self.renoised == self.forwards else "renoise"
        self.renoised = self.forwards
        return noise_tokens(self.noise(), size[1], high, stream)


@functools.cache
def stock(folder: Path) -> Any:
    return DiffusionGemmaForBlockDiffusion.from_pretrained(folder).eval()


@functools.cache
def loaded(folder: Path) -> Any:
    return dllm.load(folder)


def published(folder: Path, prompt: list[int], length: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """transformers' own loop, stopped by its own rules."""
    draws = Draws(prompt)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "multinomial", draws.multinomial)
        patch.setattr(torch, "randint", draws.randint)
        output = stock(folder).generate(
            torch.tensor([prompt]), max_new_tokens=length, eos_token_id=[EOS], pad_token_id=0, **options
        )
    return output.sequences[0, len(prompt) :].tolist(), draws.forwards


def ours(folder: Path, prompts: list[list[int]], length: int, made: Decoder, cache: Any = NO_CACHE) -> list[DecodedRow]:
    parts = {"gen_len": length, "block_len": CANVAS, "decoder": made, "cache": cache}
    return decode(loaded(folder), prompts, stop=StrictEos(), **parts)


PROMPTS = [[5, 9, 30, 7, 22, 11, 3, 17, 28], [12, 4], [8, 8, 31, 2, 6]]
CASES = [
    pytest.param({"steps": 6}, marks=pytest.mark.slow),
    {"steps": 12, "stable": 0, "confident": 2.0, "bound": 2.0},
    pytest.param({"steps": 12, "stable": 2, "confident": 3.0, "bound": 30.0}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_transformers(folder: Path, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = decoder(**case)
    rows = ours(folder, PROMPTS, 3 * CANVAS, made)
    stopped_early = False
    for prompt, row in zip(PROMPTS, rows, strict=True):
        theirs, forwards = published(
            folder,
            prompt,
            3 * CANVAS,
            monkeypatch,
            max_denoising_steps=case["steps"],
            sampler_config=EntropyBoundSamplerConfig(entropy_bound=case.get("bound", 0.1)),
            stability_threshold=case.get("stable", 1),
            confidence_threshold=case.get("confident", 0.005),
        )
        assert row.token_ids == (theirs[: theirs.index(EOS)] if EOS in theirs else theirs)
        assert row.nfe == forwards
        stopped_early |= bool(forwards % case["steps"])
    assert stopped_early == ("confident" in case), "the adaptive stop must matter where it can"


def test_kept_columns_and_neighbours_change_nothing(folder: Path) -> None:
    made = decoder(4)
    rows = ours(folder, PROMPTS[1:], 2 * CANVAS, made)
    kept = ours(folder, PROMPTS[1:], 2 * CANVAS, made, WindowCache(0, 0))
    (alone,) = ours(folder, PROMPTS[2:], 2 * CANVAS, made)
    assert [row.token_ids for row in kept] == [row.token_ids for row in rows]
    assert rows[1] == alone and sum(row.queried for row in kept) < sum(row.queried for row in rows)


def test_a_decoder_for_masks_shows_new_noise_where_it_has_not_decided(folder: Path) -> None:
    (row,) = ours(folder, PROMPTS[:1], CANVAS, Decoder(Threshold(0.9)))
    assert row.nfe <= CANVAS and all(token < VOCAB for token in row.token_ids)


def test_a_transformer_of_masks_can_be_shown_noise() -> None:
    """Any `DiffusionLM` may be of uniform state: its undecided columns show tokens."""
    model = make_model("full")
    model.spec = replace(model.spec, noise=model.spec.mask_id)
    made = replace(decoder(3, confident=100.0, bound=5.0), soft=None)
    (row,) = decode(model, [[5, 6, 7]], gen_len=8, block_len=4, decoder=made, cache=NO_CACHE, stop=StrictEos())
    assert row.nfe <= 6 and model.spec.mask_id not in row.token_ids


def uniform_model(kind: str) -> dllm.DiffusionLM:
    model = make_model(kind)
    model.spec = replace(model.spec, noise=model.spec.mask_id)
    return model


@pytest.mark.parametrize("several", [False, True])
def test_the_model_never_sees_mask(several: bool) -> None:
    """Neither in the window nor behind it, nor as the neighbour that a learned mix looks at."""
    model, seen = uniform_model("mixed"), []
    embedding = model.backbone.get_input_embeddings()
    embedding.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    parts = {"gen_len": 8, "block_len": 4, "cache": WindowCache(0, 0), "stop": Never()}
    prompts, kept = [[5, 6, 7], [8, 9]], Decoder(FixedK(1))
    if several:
        decode(model, prompts, spread=RunningSet(), decoder=kept, **parts)
    else:
        decode(model, prompts, decoder=replace(decoder(3), soft=SelfCondition()), **parts)
        decode(model, prompts, decoder=kept, **parts)
    assert seen and not any((tokens == model.spec.mask_id).any() for tokens in seen)


def recorded(model: dllm.DiffusionLM, objective: UniformDiffusion, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The batch, the arguments and results of the model's forwards, and the loss."""
    batch = collate([[5, 6, 7], [8, 9]], [[10, 11, 12], [13]], [6, 4], 45, 46)
    calls, forward = [], model.full_logits

    def noted(*given: Any) -> Tensor:
        calls.append((given, forward(*given)))
        return calls[-1][1]

    monkeypatch.setattr(model, "full_logits", noted)
    return batch, calls, objective(model, batch, torch.Generator().manual_seed(1))


def test_the_loss_is_that_of_every_token_of_a_response_with_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    model = uniform_model("full")
    batch, calls, loss = recorded(model, UniformDiffusion(self_condition=0.0), monkeypatch)
    (((shown, prompt_len, end, where, soft), logits),) = calls
    changed = shown != batch.canvas
    assert soft is None and changed.any(1).all() and not changed[~batch.response].any()
    assert prompt_len.equal(batch.prompt_len) and end.equal(batch.end) and (shown < model.spec.noise).all()
    of_row = logits.split(where.sum(1).tolist())
    assert where.equal(batch.response)
    rows = [F.cross_entropy(of_row[i], batch.canvas[i][at]) for i, at in enumerate(where)]
    torch.testing.assert_close(loss, sum(rows) / 2)
    with pytest.raises(ValueError, match="shows MASK and no noise; give a uniform-state model"):
        UniformDiffusion()(make_model("full"), batch, torch.Generator())


def test_rows_are_told_what_the_model_predicts_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model = uniform_model("mixed")
    batch, calls, _ = recorded(model, UniformDiffusion(self_condition=1.0), monkeypatch)
    ((first, _, _), alone), ((shown, _, _, where, soft), told) = calls
    assert first.equal(shown) and not alone.requires_grad and told.requires_grad and not alone[where].equal(told)
    assert soft.where.equal(batch.response) and soft.soft.amount.eq(1).all()
    torch.testing.assert_close(soft.soft.weights, alone.softmax(-1))
    table = model.backbone.get_input_embeddings().weight
    embedded = soft.soft.embed(model.backbone.get_input_embeddings(), table[shown])
    torch.testing.assert_close(embedded, table[shown] + soft.soft.weights @ table)


def test_a_model_of_masks_becomes_one_of_noise() -> None:
    model = start_from("tiny", spec=None, causal=False)
    assert isinstance(model, dllm.DiffusionLM) and model.tokenizer is not None
    count = model.vocab_size
    check_masks(model)
    show_noise(model)
    spec = model.spec
    assert (spec.noise, spec.mask_id, model.vocab_size) == (count, count, count + 1)
    show_noise(model)  # it is one already
    assert model.spec == spec and model.tokenizer.mask_token_id == count
    with pytest.raises(
        ValueError, match="'tiny' is of uniform state and never sees MASK; train it with objective=unif"
    ):
        check_masks(model)


def test_what_does_not_fit_is_refused(folder: Path) -> None:
    model, parts = uniform_model("full"), {"gen_len": 8, "block_len": 4, "cache": NO_CACHE, "stop": StrictEos()}
    with pytest.raises(ValueError, match="shows MASK next to its tokens, which a uniform-state model never saw"):
        decode(model, [[5, 6, 7]], decoder=Decoder(Wino()), **parts)
    with pytest.raises(ValueError, match="its states cannot be tried ahead"):
        decode(model, [[5, 6, 7]], spread=Lookahead(1), decoder=Decoder(FixedK(1)), **parts)
    with pytest.raises(ValueError, match="context_causal=true looks for MASK"):
        ModelSpec(40, (1,), 0, noise=40, block=4, context_causal=True)
    with pytest.raises(ValueError, match=r"renoising needs a uniform-state model \(spec.noise\)"):
        parts = {"gen_len": 8, "block_len": 4, "cache": NO_CACHE, "stop": StrictEos()}
        decode(make_model("full"), [[5, 6, 7]], decoder=decoder(3), **parts)
    with pytest.raises(ValueError, match="mask_id=3 is among the 40 ids of noise"):
        ModelSpec(3, (1,), 0, noise=40)
    with pytest.raises(ValueError, match="compile is not for model"):
        dllm.load(folder, compile=True)
    with pytest.raises(ValueError, match=r"shows noise where a column is undecided; leave spec\.noise as it is"):
        dllm.load(folder, spec={"noise": 0})
