"""Depth-recurrent models: what is cached equals what is not, a wavefront of one is ordinary decoding, and drafts never
change a frozen token."""

import pytest
import torch
from conftest import make_model

from decoders import NO_CACHE, StrictEos
from dllm.recurrent import DepthCache, RecurrentLM, load_recurrent, save_recurrent
from dllm.training.scratch import scratch_recurrent
from dllm.training.tokenizer import build_tokenizer
from parallelbench.methods.diffusion_forcing import DiffusionForcing

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
    cache, tokens, answer = DepthCache(), prompt, []
    with torch.inference_mode():
        while True:
            first = cache.prelude.get_seq_length()
            injected = model.inject(torch.tensor([tokens]), cache)
            state = model.noise(len(tokens), first, 0)
            for _ in range(recurrences):
                state = model.recur(state, injected, cache)
            token = int(model.read(state, cache)[0, -1].argmax())
            if token in model.eos_ids:
                return answer
            answer.append(token)
            if len(answer) == gen_len:
                return answer
            tokens = [token]


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
    assert vars(DiffusionForcing()) == released


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


def test_batched_equals_alone(model: RecurrentLM) -> None:
    sampler = DiffusionForcing(inner=2, wavefront=4)
    together = sampler.decode(model, PROMPTS, [8, 5, 8])
    alone = [sampler.decode(model, [prompt], [n])[0] for prompt, n in zip(PROMPTS, [8, 5, 8], strict=True)]
    assert together == alone


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
