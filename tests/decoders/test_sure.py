"""Very sure models, whose confidences a float32 softmax rounds to 1, against a float64 softmax of the same logits."""

from collections.abc import Callable

import pytest
import torch
from test_decoders import make_view, shape_of
from torch import Tensor

import dllm
from decoders import (
    Decoder,
    EntropyBound,
    EntropyThreshold,
    Factor,
    FixedK,
    Never,
    Schedule,
    Threshold,
    generate,
)
from decoders.logits import Logits
from parallelbench.tasks import builtin_tasks

VOCAB = 50


def sure_logits(seed: int, rows: int = 64, width: int = 12) -> Tensor:
    """Logits `[B, W, V]` whose likeliest tokens leave the others about e^-6 to e^-28 together, and MASK nothing."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, VOCAB, generator=rng) * 4
    gap = torch.rand(rows, width, 1, generator=rng) * 22 + 6
    best = torch.randint(0, VOCAB - 1, (rows, width, 1), generator=rng)
    logits.scatter_(-1, best, logits.amax(-1, keepdim=True) + gap)
    logits[..., -1] = float("-inf")
    return logits


def doubts(logits: Tensor) -> dict[str, Tensor]:
    """1 - p, 1 - margin and the entropy, each by its formula in float64 and without a difference of near equals."""
    p = logits.double().softmax(-1)
    (_, second), places = p.topk(2, -1).values.unbind(-1), p.argmax(-1, keepdim=True)
    others = p.scatter(-1, places, 0).sum(-1)
    entropy = -torch.special.xlogy(p.scatter(-1, places, 0), p).sum(-1) - (1 - others) * (-others).log1p()
    return {"prob": others, "margin": others + second, "entropy": entropy}


def test_what_is_left_to_the_other_tokens_keeps_its_precision() -> None:
    logits = sure_logits(0)
    ours, expected = Logits(logits), doubts(logits)
    measured = {"prob": 1 - ours.top_prob(), "margin": 1 - ours.margin(), "entropy": ours.entropy}
    assert (logits.softmax(-1).amax(-1) == 1).float().mean() > 0.5  # in float32 most would be equal
    for name, value in measured.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-15, msg=name)
    tokens = torch.arange(VOCAB).expand(logits.shape)
    torch.testing.assert_close(ours.probs_at(tokens), logits.double().softmax(-1), rtol=1e-4, atol=0)
    assert ours.probs_at(tokens).gather(-1, ours.top[1][..., None])[..., 0].equal(ours.top_prob())


def test_a_large_vocabulary_does_not_hide_its_rest() -> None:
    logits = torch.full((1, 1, 126_464), -14.0 - torch.tensor(126_463.0).log().item())
    logits[..., 7] = 0
    rest = torch.tensor(-14.0, dtype=torch.float64).exp()
    assert float(1 - Logits(logits).top_prob()) == pytest.approx(float(rest / (1 + rest)), rel=1e-5)


def test_a_bonus_leaves_the_rest_exact() -> None:
    logits, rng = sure_logits(1), torch.Generator().manual_seed(1)
    tokens = torch.stack([torch.randperm(VOCAB - 1, generator=rng)[:4] for _ in range(64 * 12)]).view(64, 12, 4)
    bonus = torch.rand(tokens.shape, generator=rng) * 30 * (torch.rand(tokens.shape, generator=rng) < 0.5)
    boosted, expected = Logits(logits).boosted(tokens, bonus), logits.double().scatter_add(-1, tokens, bonus.double())
    assert (boosted.top[1] != Logits(logits).top[1]).any() and boosted.top[1].equal(expected.argmax(-1))
    measured = {"prob": 1 - boosted.top_prob(), "margin": 1 - boosted.margin(), "entropy": boosted.entropy}
    for name, value in measured.items():
        torch.testing.assert_close(value, doubts(expected)[name], rtol=1e-3, atol=1e-15, msg=name)


def surest(score: Tensor, number: int) -> set[int]:
    return set(sorted(range(len(score)), key=lambda i: (-float(score[i]), i))[:number])


def bounded(entropy: Tensor, gamma: float) -> set[int]:
    order, chosen, total = sorted(range(len(entropy)), key=lambda i: (float(entropy[i]), i)), set[int](), 0.0
    for place in order:
        if total > gamma:
            break
        chosen.add(place)
        total += float(entropy[place])
    return chosen


def factored(rest: Tensor, factor: float) -> set[int]:
    order, chosen = sorted(range(len(rest)), key=lambda i: (float(rest[i]), i)), set[int]()
    for n, place in enumerate(order, 1):
        if (n + 1) * float(rest[place]) >= factor:
            break
        chosen.add(place)
    return chosen or {order[0]}


def above(rest: Tensor, least: float) -> set[int]:
    """Places whose 1 - rest, rounded to float64, is at least that; the surest where there is none."""
    return {i for i, value in enumerate((1 - rest).tolist()) if value >= least} or surest(-rest, 1)


RULES: dict[str, tuple[Decoder, Callable[[dict[str, Tensor]], set[int]]]] = {
    "threshold 1.0": (Decoder(Threshold(1.0)), lambda d: above(d["prob"], 1.0)),
    "threshold 1 - 1e-9": (Decoder(Threshold(1 - 1e-9)), lambda d: above(d["prob"], 1 - 1e-9)),
    "threshold 0.9999": (Decoder(Threshold(0.9999)), lambda d: above(d["prob"], 0.9999)),
    "threshold above 1": (Decoder(Threshold(2.0)), lambda d: surest(-d["prob"], 1)),
    "margin": (Decoder(Threshold(1 - 1e-9), confidence="margin"), lambda d: above(d["margin"], 1 - 1e-9)),
    "fixed": (Decoder(FixedK(1)), lambda d: surest(-d["prob"], 1)),
    "fixed 4": (Decoder(FixedK(4)), lambda d: surest(-d["prob"], 4)),
    "fixed, margin": (Decoder(FixedK(2), confidence="margin"), lambda d: surest(-d["margin"], 2)),
    "fixed, entropy": (Decoder(FixedK(2), confidence="entropy"), lambda d: surest(-d["entropy"], 2)),
    "schedule": (Decoder(Schedule(4)), lambda d: surest(-d["prob"], 3)),
    "factor": (Decoder(Factor(1e-8)), lambda d: factored(d["prob"], 1e-8)),
    "eb": (Decoder(EntropyBound(1e-7), confidence="entropy"), lambda d: bounded(d["entropy"], 1e-7)),
    "entropy": (
        Decoder(EntropyThreshold(1e-8), confidence="entropy"),
        lambda d: {i for i, e in enumerate(d["entropy"].tolist()) if e <= 1e-8} or surest(-d["entropy"], 1),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_decide_as_with_a_float64_softmax(name: str) -> None:
    decoder, oracle = RULES[name]
    logits = sure_logits(2)
    view = make_view(logits, step=0)
    written = decoder.step(view, decoder.init(shape_of(view))).write
    expected = doubts(logits)
    for row, chosen in enumerate(written):
        assert set(chosen.nonzero()[:, 0].tolist()) == oracle({k: v[row] for k, v in expected.items()}), row


def test_a_threshold_of_one_takes_one_token_per_step_of_a_trained_model() -> None:
    """Its tokens are often so sure that float32 has no number between their probability and 1."""
    samples = [task.samples(1, seed=4)[0] for task in builtin_tasks().values()][:2]
    settings: dict = {"decoder": Decoder(Threshold(1.0)), "stop": Never()}
    outputs = generate(dllm.load("tiny"), [sample.messages for sample in samples], **settings)
    assert [output.nfe for output in outputs] == [32] * 2
