"""Depth-recurrent models: what is cached equals what is not, a wavefront of one is ordinary decoding, and drafts never
change a frozen token."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_model

import dllm
from decoders import NO_CACHE, StrictEos
from dllm.recurrent import Place, RavenLM, RecurrentLM, load_recurrent, save_recurrent
from dllm.training.scratch import scratch_recurrent
from dllm.training.tokenizer import build_tokenizer
from parallelbench.methods.depth_recurrent import AdaptiveDepth, DiffusionForcing

PROMPTS = [[10, 11, 12, 13, 14], [20, 21], [30, 31, 32]]


@pytest.fixture
def model() -> RecurrentLM:
    model = scratch_recurrent(build_tokenizer(["ab"]), width=32, heads=2, mlp_width=32, recurrences=4, embed_std=1.0)
    with torch.no_grad():  # random tokens that depend on the text, and states that converge with depth
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "embed" not in name:
                torch.nn.init.normal_(weight, std=0.4)
        model.adapter.weight[:, :32] *= 0.02
    return model.eval()


def textbook(model: RecurrentLM, prompt: list[int], gen_len: int, recurrences: int) -> list[int]:
    """One token after the other; each column keeps the K/V of its last recurrence."""
    cache, tokens, answer, first = model.new_cache(1, len(prompt) + gen_len), prompt, [], 0
    with torch.inference_mode():
        while True:
            place = Place(cache, torch.arange(first, first + len(tokens))[None])
            injected = model.inject(torch.tensor([tokens]), place)
            state = model.noise(len(tokens), first, 0)[None]
            for _ in range(recurrences):
                state = model.recur(state, injected, place)
            token = int(model.read(state, place)[0, -1].argmax())
            if token in model.eos_ids:
                return answer
            answer.append(token)
            if len(answer) == gen_len:
                return answer
            first, tokens = first + len(tokens), [token]


@pytest.mark.parametrize("freeze", ["last", "prefix"])
@pytest.mark.parametrize("recurrences", [1, 3, 4])
def test_a_wavefront_of_one_is_ordinary_decoding(model: RecurrentLM, recurrences: int, freeze: str) -> None:
    sampler = DiffusionForcing(recurrences, 1, eps=0.0, eta=0.0, beta=0.0, recurrences=recurrences, freeze=freeze)
    for prompt, row in zip(PROMPTS, sampler.decode(model, PROMPTS, [9, 9, 1]), strict=True):
        gen_len = 1 if prompt == PROMPTS[2] else 9
        assert row.token_ids == textbook(model, prompt, gen_len, recurrences)
        written = len(row.token_ids) + (row.stopped_by == "eos")
        assert row.nfe == recurrences * written
        assert row.queried == recurrences * (len(prompt) + written - 1)
        assert row.committed_at[:written] == [recurrences * (i + 1) - 1 for i in range(written)]


def test_a_wide_wavefront_that_waits_for_convergence_writes_the_same(model: RecurrentLM) -> None:
    """With enough recurrences states stand still, whatever they started from and whatever they saw on the way."""
    ordinary = DiffusionForcing(inner=40, wavefront=1, eps=0.0, eta=0.0, beta=0.0, recurrences=40)
    wide = DiffusionForcing(inner=4, wavefront=6, eps=1e-5, eta=0.1, beta=0.0, recurrences=400, freeze="prefix")
    rows = zip(ordinary.decode(model, PROMPTS, [12] * 3), wide.decode(model, PROMPTS, [12] * 3), strict=True)
    assert all(a.token_ids == b.token_ids and a.stopped_by == b.stopped_by for a, b in rows)


def test_a_wavefront_needs_fewer_passes_one_after_the_other(model: RecurrentLM) -> None:
    one, wide = (DiffusionForcing(inner=2, wavefront=n, eps=0.05, eta=0.0, beta=0.0) for n in (1, 6))
    passes = [sum(row.nfe for row in sampler.decode(model, PROMPTS, [12] * 3)) for sampler in (one, wide)]
    assert passes[1] < passes[0]


def test_the_defaults_are_the_released_ones() -> None:
    released = {"inner": 4, "wavefront": 128, "eps": 0.03, "eta": 0.1, "beta": 0.5, "recurrences": 0, "freeze": "last"}
    released |= {"damped": True, "mixer": "linear", "headway": 1, "continuous": False, "prefill": True, "rounds": 4096}
    released |= {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert vars(DiffusionForcing()) == {**released, "released": False}


@pytest.mark.parametrize(
    ("settled", "last", "prefix"),
    [
        ("0000", 0, 0),
        ("1000", 0, 1),  # the token behind it is known already: it follows from what is frozen
        ("1100", 1, 2),
        ("1010", 2, 1),  # the second has not converged
        ("0010", 2, 0),
        ("1111", 3, 4),
        ("1", 1, 1),
        ("0", 0, 0),
    ],
)
def test_what_is_frozen(settled: str, last: int, prefix: int) -> None:
    """By hand; the released counts are those of recorded runs: up to the last column that stands still."""
    still, tokens = [mark == "1" for mark in settled], list(range(len(settled)))
    assert DiffusionForcing()._frozen(still, tokens, tokens) == last
    assert DiffusionForcing(freeze="prefix")._frozen(still, tokens, tokens) == prefix
    drafts = [*tokens[:1], *(token + 1 for token in tokens[1:])]
    assert DiffusionForcing(freeze="prefix")._frozen(still, tokens, drafts) == min(prefix, 1)


def test_the_released_rule_writes_the_drafts_and_comes_to_an_end(model: RecurrentLM) -> None:
    sampler = DiffusionForcing(inner=2, wavefront=6, eps=0.05)
    for row, gen_len in zip(sampler.decode(model, PROMPTS, [9, 9, 1]), [9, 9, 1], strict=True):
        assert len(row.token_ids) == gen_len or row.stopped_by == "eos"
        assert (
            row.committed_at == sorted(row.committed_at[: len(row.token_ids)]) + row.committed_at[len(row.token_ids) :]
        )


@pytest.mark.parametrize(
    "options",
    [
        {"wavefront": 4},
        {"freeze": "acceleration", "continuous": True, "released": True, "rounds": 12},
        {"freeze": "stability", "headway": 3, "temperature": 1.0, "top_k": 9, "min_p": 0.01},
        {"freeze": "fixed", "prefill": False, "wavefront": 6, "mixer": "sqrt", "damped": False, "beta": 0.1},
    ],
)
def test_batched_equals_alone(model: RecurrentLM, options: dict[str, Any]) -> None:
    sampler = DiffusionForcing(inner=2, eps=0.3, **options)
    model = model.double()  # in float32 rounding can decide what is frozen
    together = sampler.decode(model, PROMPTS, [8, 5, 8])
    alone = [sampler.decode(model, [prompt], [n])[0] for prompt, n in zip(PROMPTS, [8, 5, 8], strict=True)]
    assert together == alone
    for row, n in zip(alone, [8, 5, 8], strict=True):
        assert len(row.token_ids) == n or row.stopped_by in ("eos", "max_steps")


def test_adaptive_depth_without_exits_is_ordinary_decoding(model: RecurrentLM) -> None:
    """With the K/V of each recurrence kept, decoding on them equals whole forwards."""
    exact, early = AdaptiveDepth(3), AdaptiveDepth(40, exit="latent", threshold=1e-4)
    (row,) = exact.decode(model, PROMPTS[:1], [4])
    tokens = list(PROMPTS[0])
    with torch.inference_mode():
        for token in row.token_ids:
            injected = model.inject(torch.tensor([tokens]))
            state = model.noise(len(tokens), 0, 0)[None]
            for _ in range(3):
                state = model.recur(state, injected)
            assert int(model.read(state)[0, -1].argmax()) == token
            tokens.append(token)
    assert row.nfe == 3 * (len(row.token_ids) + (row.stopped_by == "eos"))
    (same,), (full,) = (sampler.decode(model, PROMPTS[:1], [6]) for sampler in (early, AdaptiveDepth(40)))
    assert same.token_ids == full.token_ids and same.nfe < full.nfe / 2


def test_huginns_layout_is_loaded_or_refused(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "models" / "huginn_tiny"
    model = dllm.load(golden)
    assert isinstance(model, RavenLM) and model.identity() == load_recurrent(golden).identity()
    states = model.noise(200, 0, 0)
    limit = 3 * (2 / 5) ** 0.5  # std sqrt(2 / 5n), cut at three of them, times sqrt(n)
    assert limit * 0.9 < states.abs().max() <= limit and abs(float(states.std()) / limit * 3 - 1) < 0.05
    with pytest.raises(ValueError, match="has no tokenizer"):
        model.encode("hello")
    shutil.copytree(golden, tmp_path / "other")
    config = tmp_path / "other" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"qk_bias": False}))
    with pytest.raises(ValueError, match="qk_bias=False, which no published checkpoint"):
        dllm.load(tmp_path / "other")
    with pytest.raises(ValueError, match=r"spec=.* is not for model .*depth-recurrent"):
        dllm.load(golden, spec={"mask_id": 1})
    with pytest.raises(ValueError, match=r"prefill=false and a prompt of 5 tokens, which wavefront=3 columns"):
        DiffusionForcing(prefill=False, wavefront=3).decode(model, PROMPTS, [4] * 3)


def test_written_and_read_back(model: RecurrentLM, tmp_path) -> None:
    save_recurrent(model, tmp_path / "saved")
    again = load_recurrent(tmp_path / "saved")
    tokens = torch.tensor([PROMPTS[0]])
    logits = [
        m.next_logits(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.Generator().manual_seed(1))
        for m in (model, again)
    ]
    torch.testing.assert_close(*logits)
    with pytest.raises(ValueError, match="depth-recurrent"):
        load_recurrent(tmp_path)


def test_other_models_and_settings_are_refused(model: RecurrentLM) -> None:
    with pytest.raises(ValueError, match="depth-recurrent"):
        DiffusionForcing().bind(make_model("full"), cache=NO_CACHE, stop=StrictEos(), block_len=None, seed=0)
    for wrong in ({"inner": 0}, {"wavefront": 0}, {"eta": 1.0}, {"beta": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DiffusionForcing(**wrong)
