"""Parts of a decoder on hand-made views: rules, confidences, credit, noise."""

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor

from decoders import Credit, Decoder, FixedK, Prefix, Schedule, Threshold
from decoders.compose import reset, surest
from decoders.logits import Logits
from decoders.noise import Noise
from decoders.propose import propose
from decoders.types import Confidence, Shape, View
from dllm import ModelSpec

SPEC = ModelSpec(mask_id=3, eos_ids=(2,), pad_id=1)


def make_view(logits: Tensor, masked: Tensor | None = None, step: int = 1, seed: int = 0) -> View:
    batch, width, _ = logits.shape
    masked = torch.ones(batch, width, dtype=torch.bool) if masked is None else masked
    steps = torch.full((batch,), step)
    noise = Noise(torch.arange(batch) + seed, steps)
    tokens = torch.zeros(batch, width, dtype=torch.long)
    return View(tokens, masked, torch.ones_like(masked), Logits(logits), steps, noise, SPEC, steps * 0)


def random_view(seed: int, shape: tuple[int, int, int] = (3, 6, 10), scale: float = 3.0, step: int = 1) -> View:
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=rng) * scale
    masked = torch.rand(shape[:2], generator=rng) < 0.7
    return make_view(logits, masked, step, seed)


def shape_of(view: View) -> Shape:
    return Shape(*view.logits.shape, view.logits.device)


def test_fixed_k_takes_the_k_surest_and_ties_go_left() -> None:
    logits = torch.zeros(1, 5, 3)
    logits[0, :, 0] = torch.tensor([1.0, 3.0, 2.0, 3.0, 1.0])
    view = make_view(logits)
    for k, expected in ((1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3, 4])):
        write = Decoder(FixedK(k)).step(view, [{}]).write
        assert write[0].nonzero()[:, 0].tolist() == expected
    assert Decoder(FixedK("all")).step(view, [{}]).write.all()


@pytest.mark.parametrize(
    ("masks", "steps", "expected"), [(8, 3, [3, 3, 2]), (8, 8, [1] * 8), (5, 2, [3, 2]), (3, 5, [1, 1, 1])]
)
def test_schedule_spreads_a_block_over_its_steps(masks: int, steps: int, expected: list[int]) -> None:
    decoder = Decoder(Schedule(steps))
    masked = torch.arange(10)[None] < masks
    memory = decoder.init(Shape(1, 10, 4, torch.device("cpu")))
    counts = []
    while masked.any():
        view = make_view(torch.randn(1, 10, 4, generator=torch.Generator().manual_seed(0)), masked, step=len(counts))
        write = decoder.step(view, memory).write
        counts.append(int(write.sum()))
        masked = masked & ~write
    assert counts == expected


def test_prefix_commits_sure_tokens_from_the_left_and_one_more() -> None:
    logits = torch.zeros(1, 6, 3)
    logits[0, :, 0] = torch.tensor([9.0, 0.0, 9.0, 0.0, 9.0, 9.0])
    masked = torch.tensor([[True, False, True, True, True, True]])  # the unsure one at 1 stands already
    write = Decoder(Prefix(0.9)).step(make_view(logits, masked), [{}]).write
    assert write[0].nonzero()[:, 0].tolist() == [0, 2, 3]
    alone = Decoder(Prefix(1.5)).step(make_view(logits, masked), [{}]).write
    assert alone[0].nonzero()[:, 0].tolist() == [0]
    assert Decoder(Prefix(1e-9)).step(make_view(logits, masked), [{}]).write.equal(masked)


def test_threshold_above_one_commits_one_per_step() -> None:
    for seed in range(20):
        view = random_view(seed)
        one = Decoder(FixedK(1)).step(view, [{}])
        never = Decoder(Threshold(1.5)).step(view, [{}])
        assert one.write.equal(never.write)
        assert (never.write.sum(1) == view.masked.any(1)).all()


def test_threshold_commits_exactly_what_reaches_it() -> None:
    view = random_view(1, scale=4.0)
    p = view.logits.values.softmax(-1).amax(-1)
    write = Decoder(Threshold(0.6)).step(view, [{}]).write
    expected = (p >= 0.6) & view.masked
    expected |= surest(p, view.masked & ~expected.any(1, keepdim=True))
    assert write.equal(expected) and expected.any()


def test_a_threshold_takes_at_least_so_many() -> None:
    view = random_view(1, scale=4.0)
    for least in (1, 2, 3):
        write = Decoder(Threshold(0.9, least=least)).step(view, [{}]).write
        few = Decoder(FixedK(least)).step(view, [{}]).write
        assert write.equal(Decoder(Threshold(0.9)).step(view, [{}]).write | few)
    running = replace(view, forced=torch.tensor([True, False, False]))
    assert Decoder(Threshold(2.0, least=2)).step(running, [{}]).write.sum(1).tolist() == [2, 0, 0]


def test_confidences_have_their_definitions() -> None:
    view = random_view(2)
    p = view.logits.values.double().softmax(-1)
    top = p.topk(2, dim=-1).values
    expected = {"prob": top[..., 0], "margin": top[..., 0] - top[..., 1], "entropy": (p * p.log()).sum(-1)}
    for name, value in expected.items():
        torch.testing.assert_close(propose(view, view.logits, 0.0, name).confidence, value, rtol=1e-5, atol=1e-6)
    left = propose(view, view.logits, 0.0, "left_to_right").confidence
    assert (left.diff(dim=1) < 0).all()


def test_impossible_tokens_never_win_nor_break_confidences() -> None:
    view = random_view(3)
    view.logits.values[..., 4] = float("-inf")
    for name in get_args(Confidence):
        for temperature in (0.0, 1.0):
            candidates = propose(view, view.logits, temperature, name)
            assert not (candidates.tokens == 4).any() and not candidates.confidence.isnan().any()


def test_temperature_samples_the_tempered_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).expand(1, 4000, 4)
    tokens = propose(make_view(logits), Logits(logits), 0.5, "prob").tokens
    observed = torch.bincount(tokens[0], minlength=4) / 4000
    torch.testing.assert_close(observed, (logits[0, 0] / 0.5).softmax(-1), atol=0.03, rtol=0)


def test_noise_is_uniform_and_independent_of_the_batch() -> None:
    noise = Noise(torch.arange(8), torch.zeros(8, dtype=torch.long))
    draws = noise.uniform(500, 20, stream="test")
    assert draws.min() > 0 and draws.max() < 1
    assert abs(float(draws.mean()) - 0.5) < 0.005 and abs(float(draws.var()) - 1 / 12) < 0.002
    correlation = torch.corrcoef(draws.flatten(1))
    assert (correlation - torch.eye(8)).abs().max() < 0.05
    alone = Noise(torch.tensor([3]), torch.tensor([0])).uniform(500, 20, stream="test")
    assert alone[0].equal(draws[3])
    assert not noise.uniform(7, stream="one").equal(noise.uniform(7, stream="two"))


ORACLE = [  # logits, top-1, credit, fused probabilities for alpha .65, beta .7, gamma .2 (Eqs. 6 and 7)
    ([1.0, 0.5, 0.0], 0, [0.87280, 0, 0], [0.60677, 0.24477, 0.14846]),
    ([1.2, 1.3, 0.0], 1, [0.61096, 0.85588, 0], [0.41108, 0.49810, 0.09082]),
    ([2.0, 0.5, 0.0], 0, [1.36824, 0.59912, 0], [0.79991, 0.13828, 0.06181]),
]


@pytest.mark.parametrize("slots", [None, 2, 8])
def test_credit_follows_the_equations(slots: int | None) -> None:
    part = Credit(slots=slots)
    memory = part.init(Shape(1, 1, 3, torch.device("cpu")))
    for logits, _, _, fused in ORACLE:
        view = make_view(torch.tensor([[logits]]))
        out = part(view, view.logits, memory)
        torch.testing.assert_close(out.probs()[0, 0], torch.tensor(fused), atol=2e-5, rtol=0)
    if slots is None:
        torch.testing.assert_close(memory["credit"][0, 0], torch.tensor(ORACLE[-1][2]), atol=2e-5, rtol=0)


def test_a_full_table_drops_the_least_credited_token() -> None:
    part = Credit(slots=1)
    memory = part.init(Shape(1, 1, 3, torch.device("cpu")))
    for logits, favourite, *_ in ORACLE:
        view = make_view(torch.tensor([[logits]]))
        part(view, view.logits, memory)
        assert memory["token"].item() == favourite


def test_sparse_credit_equals_dense() -> None:
    for seed in range(20):
        dense, sparse = Credit(slots=None), Credit(slots=8)
        shape = Shape(3, 6, 10, torch.device("cpu"))
        memories = dense.init(shape), sparse.init(shape)
        for step in range(8):  # at most 8 favourites, so nothing is dropped
            view = random_view(100 * seed + step, step=step)
            ours, theirs = (part(view, view.logits, m) for part, m in ((sparse, memories[1]), (dense, memories[0])))
            torch.testing.assert_close(ours.values, theirs.values, atol=1e-6, rtol=1e-6)
            torch.testing.assert_close(ours.log_norm, theirs.log_norm, atol=1e-5, rtol=1e-6)
            torch.testing.assert_close(ours.top[0], theirs.top[0], atol=1e-6, rtol=1e-6)
            assert ours.top[1].equal(theirs.top[1])
            torch.testing.assert_close(ours.prob(ours.top[1]), theirs.top_prob(), atol=1e-5, rtol=1e-5)


def test_credit_without_weight_is_the_plain_threshold() -> None:
    for slots in (None, 4):
        credit = Decoder(Threshold(0.5), transforms=(Credit(alpha=0.0, slots=slots),))
        plain = Decoder(Threshold(0.5))
        memory = credit.init(shape_of(random_view(0)))
        for seed in range(10):
            view = random_view(seed)
            ours, theirs = credit.step(view, memory), plain.step(view, [{}])
            assert ours.write.equal(theirs.write) and ours.tokens[ours.write].equal(theirs.tokens[theirs.write])


def test_stationary_credit_lowers_the_threshold_as_derived() -> None:
    # constant top probability p: credit tends to p^gamma / (1 - beta), and tau = .9 is passed from p = .781 on
    part = Credit()
    for p, passes in ((0.775, False), (0.787, True)):
        logits = torch.tensor([[[p, 1 - p]]]).log()
        memory = part.init(Shape(1, 1, 2, torch.device("cpu")))
        for _ in range(60):
            fused = part(make_view(logits), Logits(logits), memory).probs()
        assert math.isclose(float(memory["credit"].max()), p**0.2 / 0.3, rel_tol=1e-4)
        assert bool(fused.max() >= 0.9) == passes


def test_committed_positions_gain_no_credit() -> None:
    view = random_view(5)
    for slots in (None, 4):
        part = Credit(slots=slots)
        memory = part.init(shape_of(view))
        part(view, view.logits, memory)
        assert (memory["credit"].sum(-1) > 0).equal(view.masked)


def test_memory_starts_anew_in_each_block_and_row() -> None:
    credit = Decoder(Threshold(0.9), transforms=(Credit(slots=None),))
    view = random_view(7)
    memory = credit.init(shape_of(view))
    credit.step(view, memory)
    old = memory[0]["credit"].clone()
    reset(memory, torch.tensor([True, False, True]))
    assert memory[0]["credit"][[0, 2]].sum() == 0 and memory[0]["credit"][1].equal(old[1])
    fresh, again = credit.init(shape_of(view)), memory
    first = random_view(8, step=0)
    credit.step(first, fresh)
    credit.step(first, again)
    assert fresh[0]["credit"].equal(again[0]["credit"])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FixedK(0), "k=0"),
        (lambda: Threshold(0.0), "tau=0"),
        (lambda: Prefix(0.0), "tau=0"),
        (lambda: Credit(beta=1.0), "beta=1.0"),
        (lambda: Credit(alpha=-1.0), "alpha=-1.0"),
        (lambda: Credit(slots=0), "slots=0"),
        (lambda: Decoder(FixedK(), temperature=-1.0), "temperature=-1.0"),
        (lambda: Credit(gamma=-0.1), "gamma=-0.1"),
    ],
)
def test_impossible_knobs_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_tuning_free_credit_follows_the_decided_share() -> None:
    part = Credit(tuning_free=True, slots=None)
    view = random_view(3)
    view = replace(view, masked=torch.ones_like(view.masked))
    memory = part.init(shape_of(view))
    torch.testing.assert_close(part(view, view.logits, memory).values, view.logits.values)  # nothing decided: alpha 0
    half = replace(view, masked=torch.arange(6).expand(3, 6) < 3)
    memory["credit"].zero_()
    out = part(half, half.logits, memory).values - half.logits.values
    gain = 0.5 * half.logits.top_prob().float().log1p()  # alpha 1/2, gamma 1
    torch.testing.assert_close(out.amax(-1), gain * half.masked)


def test_spread_credit_gives_every_token_its_power() -> None:
    part = Credit(spread=True, slots=None)
    view = random_view(4)
    memory = part.init(shape_of(view))
    p = view.logits.probs()
    part(view, view.logits, memory)
    torch.testing.assert_close(memory["credit"], p**0.2 * view.masked[..., None])
    part(view, view.logits, memory)
    torch.testing.assert_close(memory["credit"], 1.7 * p**0.2 * view.masked[..., None])
    with pytest.raises(ValueError, match="slots=8 with spread"):
        Credit(spread=True)


def test_sparse_bonuses_correct_every_statistic() -> None:
    rng = torch.Generator().manual_seed(0)
    base = Logits(torch.randn(2, 3, 12, generator=rng) * 4)
    tokens = torch.rand(2, 3, 12, generator=rng).argsort(-1)[..., :5]
    bonus = torch.rand(2, 3, 5, generator=rng) * 3
    tokens[..., 4], bonus[..., 4] = tokens[..., 0], 0  # an empty slot may repeat a token
    sparse = base.boosted(tokens, bonus)
    dense = Logits(base.values.scatter_add(-1, tokens, bonus))
    for name in ("values", "log_norm", "entropy"):
        torch.testing.assert_close(getattr(sparse, name), getattr(dense, name))
    assert sparse.top[1].equal(dense.top[1])
    torch.testing.assert_close(sparse.top[0], dense.top[0])
    torch.testing.assert_close(sparse.margin(), dense.margin())
    torch.testing.assert_close(sparse.probs(), dense.values.softmax(-1))
    again = sparse.boosted(tokens, bonus)
    torch.testing.assert_close(again.log_norm, Logits(dense.values.scatter_add(-1, tokens, bonus)).log_norm)


def test_entropy_and_margin_survive_impossible_tokens() -> None:
    logits = torch.tensor([[[0.0, 0.0, float("-inf"), float("-inf")]]])
    assert math.isclose(float(Logits(logits).entropy), math.log(2), rel_tol=1e-6)
    assert float(Logits(logits).margin()) == 0


STEPS = {  # constant top probability -> steps until the fused confidence reaches tau .8, .85, .9, .95 (None: never)
    "paper": {
        0.60: (None, None, None, None),
        0.70: (2, 8, None, None),
        0.75: (1, 3, None, None),
        0.80: (1, 1, 5, None),
        0.85: (1, 1, 2, None),
        0.88: (1, 1, 1, None),
    },
    "dinfer": {
        0.60: (6, None, None, None),
        0.70: (2, 4, None, None),
        0.75: (1, 2, 8, None),
        0.80: (1, 1, 3, None),
        0.85: (1, 1, 1, 15),
        0.88: (1, 1, 1, 5),
    },
}


@pytest.mark.parametrize("slots", [None, 8])
@pytest.mark.parametrize("kind", STEPS)
def test_credit_passes_thresholds_after_the_derived_number_of_steps(kind: str, slots: int | None) -> None:
    credit = Credit(slots=slots) if kind == "paper" else Credit(0.7, 0.8, 0.2, slots=slots)
    for p, expected in STEPS[kind].items():
        logits = torch.tensor([[[p, 1 - p]]]).log()
        memory = credit.init(Shape(1, 1, 2, torch.device("cpu")))
        fused = [float(credit(make_view(logits), Logits(logits), memory).top_prob()) for _ in range(60)]
        for tau, steps in zip((0.8, 0.85, 0.9, 0.95), expected, strict=True):
            first = next((i + 1 for i, confidence in enumerate(fused) if confidence >= tau), None)
            assert first == steps, (p, tau)


def test_credit_without_exponent_counts_and_without_decay_factor_forgets() -> None:
    logits = torch.tensor([[[0.6, 0.4]]]).log()
    counting, forgetting = Credit(gamma=0.0, beta=0.5, slots=None), Credit(beta=0.0, slots=None)
    memories = [part.init(Shape(1, 1, 2, torch.device("cpu"))) for part in (counting, forgetting)]
    for step in range(4):
        for part, memory in zip((counting, forgetting), memories, strict=True):
            part(make_view(logits), Logits(logits), memory)
        assert float(memories[0]["credit"][0, 0, 0]) == sum(0.5**i for i in range(step + 1))
        assert math.isclose(float(memories[1]["credit"][0, 0, 0]), 0.6**0.2, rel_tol=1e-6)


def test_a_threshold_near_zero_fills_the_window() -> None:
    view = random_view(11)
    assert Decoder(Threshold(1e-9)).step(view, [{}]).write.equal(view.masked)
