"""Schedules in time and space, filters, rescoring and guidance."""

import math

import pytest
import torch
from conftest import BLOCK, MASK, make_model
from safetensors.torch import save_file
from test_decoders import make_view, random_view
from test_remask import decode_hash

import dllm
from decoders import (
    NO_CACHE,
    BanEos,
    Credit,
    Decoder,
    DensityPrior,
    Dilated,
    Dimple,
    DreamOrigin,
    DreamSchedule,
    EosLast,
    Eotp,
    FixedK,
    Never,
    OrderNoise,
    OriginalProb,
    PositionPrior,
    Schedule,
    StrictEos,
    Temperature,
    Threshold,
    ThresholdOrSchedule,
    TopK,
    TopP,
    decode,
    generate,
)
from decoders.logits import Logits
from decoders.types import Candidates, Shape
from dllm.cache import WindowCache
from dllm.guidance import Guided


@pytest.mark.parametrize(
    ("masks", "steps", "counts"),
    [(8, 8, [0, 1, 1, 1, 1, 1, 1, 2]), (32, 4, [7, 8, 8, 9]), (16, 1, [16]), (6, 3, [1, 2, 3])],
)
def test_dreams_schedule_rounds_down_and_ends_with_all(masks: int, steps: int, counts: list[int]) -> None:
    row, seen = decode_hash(Decoder(DreamSchedule(steps)), masks, masks)
    assert [int(update.write.sum()) for _, update in seen] == counts
    assert row.nfe == steps and row.stopped_by == "length"


@pytest.mark.parametrize(
    ("masks", "steps", "counts"),
    [(16, 14, [*[1] * 11, 2, 1, 2]), (8, 14, [1] * 8), (16, 4, [4] * 4), (10, 4, [2, 3, 2, 3])],
)
def test_a_rounded_schedule_takes_its_share_of_the_steps_left(masks: int, steps: int, counts: list[int]) -> None:
    _, seen = decode_hash(Decoder(Schedule(steps, spread="rounded")), masks, masks)
    assert [int(update.write.sum()) for _, update in seen] == counts


@pytest.mark.parametrize(("masks", "per_step"), [(32, 2), (32, 1), (32, 8), (21, 4), (8, 32)])
def test_tokens_per_step_are_as_many_steps_of_dreams_schedule(masks: int, per_step: int) -> None:
    by_steps, by_tokens = (
        decode_hash(Decoder(rule, at_least_one=False), masks, masks)[1]
        for rule in (DreamSchedule(-(-masks // per_step)), DreamSchedule(per_step=per_step))
    )
    counts = [[int(update.write.sum()) for _, update in steps] for steps in (by_steps, by_tokens)]
    assert counts[0] == counts[1] and sum(counts[1]) == masks


def test_origin_follows_the_times_in_the_mean_and_ends_in_time() -> None:
    left = torch.zeros(6)
    for seed in range(80):
        row, seen = decode_hash(Decoder(DreamOrigin(6)), 32, 32, seed=seed)
        assert row.nfe <= 6 and row.stopped_by == "length"
        left[: len(seen)] += torch.tensor([float(view.masked.sum()) for view, _ in seen])
    torch.testing.assert_close(left / 80 / 32, torch.linspace(1, 1e-3, 7)[:6], atol=0.03, rtol=0)


def test_threshold_or_schedule_takes_the_larger() -> None:
    p = torch.tensor([[0.99, 0.97, 0.96, 0.6, 0.5, 0.4, 0.3, 0.2]])
    logits = torch.stack([p.log(), *[((1 - p) / 3).log()] * 3], dim=-1)
    for steps, expected in ((8, [0, 1, 2]), (4, [0, 1, 2]), (2, [0, 1, 2, 3])):
        decoder = Decoder(ThresholdOrSchedule(steps=steps, tau=0.95))
        memory = [{"masks": torch.zeros(1, dtype=torch.long)}]
        write = decoder.step(make_view(logits, step=0), memory).write
        assert write[0].nonzero()[:, 0].tolist() == expected
        row, _ = decode_hash(decoder)
        assert row.nfe <= steps


def test_dimple_falls_back_to_the_first_time_that_yields_a_token() -> None:
    flat = torch.zeros(1, 32, 4)
    times = torch.linspace(1, 1e-3, 9).tolist()
    for masks, step in ((32, 0), (32, 3), (20, 1), (20, 5), (3, 1), (1, 1), (4, 1), (20, 7), (20, 9)):
        view = make_view(flat, torch.arange(32)[None] < masks, step)
        ahead = (s for s in times[step + 1 : -1] if s < masks / 32)
        due = next((number for s in ahead if (number := int(masks * (1 - s / (masks / 32))))), masks)  # none does: all
        assert Decoder(Dimple(0.95, steps=8)).step(view, [{}]).write.sum() == due
    sure = torch.tensor([9.0, 0, 0, 0]).expand(1, 32, 4) * (torch.arange(32) % 3 == 0)[None, :, None]
    assert Decoder(Dimple(0.95, steps=8)).step(make_view(sure), [{}]).write.sum() == 11
    assert Decoder(Dimple(0.95, steps=2)).step(make_view(sure), [{}]).write.all()  # the last forward


def test_dimple_has_the_authors_other_fallbacks() -> None:
    """With 32 of 32 columns masked r is 1, so the first time with a token is the next one."""
    times = torch.linspace(1, 1e-3, 9)
    for step in (0, 3, 6):
        view = make_view(torch.zeros(64, 32, 4), step=step)
        assert (Decoder(Dimple(0.95, 8, fallback="one")).step(view, [{}]).write.sum(1) == 1).all()
        share = Decoder(Dimple(0.95, 8, fallback="each")).step(view, [{}]).write.float().mean()
        assert abs(share - (1 - times[step + 1])) < 4 * 0.5 / (64 * 32) ** 0.5
    calm = Decoder(Dimple(0.95, 8, above="confidence"), confidence="entropy")  # -H is never above
    assert calm.step(make_view(torch.tensor([9.0, 0, 0, 0]).expand(1, 32, 4), step=0), [{}]).write.sum() == int(
        32 * (1 - times[1])
    )


@pytest.mark.parametrize(("masks", "steps"), [(3, 2), (32, 1), (32, 4), (16, 8), (32, 16), (8, 32)])
def test_dimple_keeps_its_number_of_forwards(masks: int, steps: int) -> None:
    for gamma in (0.3, 0.999999):
        row, _ = decode_hash(Decoder(Dimple(gamma, steps)), masks, masks)
        assert row.nfe <= steps and row.stopped_by == "length"


def test_dilated_groups_halve_their_spacing() -> None:
    row, seen = decode_hash(Decoder(Dilated(2)), 32, 32)
    positions = [update.write[0].nonzero()[:, 0].tolist() for _, update in seen]
    assert positions == [[0, 16], [8, 24], [4, 12, 20, 28], list(range(2, 32, 4)), list(range(1, 32, 2))]
    assert row.nfe == int(math.log2(32))


def test_filters_keep_what_they_say() -> None:
    logits = torch.tensor([[[0.5, 0.3, 0.15, 0.05]]]).log()
    view = make_view(logits)

    def kept(part) -> list[float]:
        return [round(p, 4) for p in part(view, view.logits, {}).probs()[0, 0].tolist()]

    assert kept(TopP(0.8)) == [0.625, 0.375, 0, 0]
    assert kept(TopP(0.81)) == [0.5263, 0.3158, 0.1579, 0]
    assert kept(TopP(0.01)) == [1, 0, 0, 0]
    assert kept(TopP(1.0)) == [0.5, 0.3, 0.15, 0.05]
    assert kept(TopK(1)) == [1, 0, 0, 0] and kept(TopK(9)) == [0.5, 0.3, 0.15, 0.05]
    assert kept(Temperature(0.5)) == [0.6849, 0.2466, 0.0616, 0.0068]
    assert kept(BanEos()) == [0.5882, 0.3529, 0, 0.0588]  # EOS is 2
    assert kept(BanEos((0, 1))) == [0, 0, 0.75, 0.25]
    dream = Decoder(FixedK(2), transforms=(Temperature(0.5), TopP(0.9)), temperature=1.0)
    tokens = dream.step(make_view(logits.expand(1, 3000, 4)), [{}, {}, {}]).tokens
    share = torch.bincount(tokens[0], minlength=4) / 3000
    torch.testing.assert_close(share, torch.tensor([0.7353, 0.2647, 0, 0]), atol=0.03, rtol=0)


def test_the_original_probability_ignores_transforms() -> None:
    view = random_view(1)
    boosted = Credit(alpha=5.0, slots=None)
    memory = boosted.init(Shape(*view.logits.shape, torch.device("cpu")))
    tokens = boosted(view, view.logits, memory).top[1]
    out = OriginalProb()(view, Candidates(tokens, torch.zeros(3, 6)), {})
    torch.testing.assert_close(out.confidence.float(), view.logits.probs().gather(-1, tokens[..., None])[..., 0])


def test_eos_candidates_come_last_and_others_are_renormalised() -> None:
    p = torch.tensor([[[0.1, 0.1, 0.7, 0.1], [0.4, 0.2, 0.3, 0.1]]])  # EOS is 2
    view = make_view(p.log())
    out = Decoder(FixedK(1), rescore=(EosLast(),)).step(view, [{}, {}])
    assert out.write.tolist() == [[False, True]]
    rescored = EosLast()(view, Candidates(view.logits.top[1], view.logits.top_prob()), {}).confidence
    torch.testing.assert_close(rescored.float(), torch.tensor([[0.0, 0.4 / 0.7]]))


def test_order_noise_draws_positions_by_their_softmax() -> None:
    confidence = torch.tensor([[0.9, 0.6, 0.3]])
    counts = torch.zeros(3)
    for seed in range(2000):
        view = make_view(torch.zeros(1, 3, 4), seed=seed)
        out = OrderNoise(0.3)(view, Candidates(view.tokens, confidence), {})
        counts[out.confidence.argmax()] += 1
    torch.testing.assert_close(counts / 2000, (confidence[0] / 0.3).softmax(0), atol=0.03, rtol=0)


def test_pc_samplers_score(tmp_path) -> None:
    counts = torch.tensor([96.0, 2.0, 0.0, 0.0])
    save_file({"counts": counts}, tmp_path / "counts.safetensors")
    p = torch.tensor([[[0.8, 0.1, 0.1, 0.0], [0.2, 0.7, 0.1, 0.0]]])
    view = make_view(p.log())
    candidates = Candidates(view.logits.top[1], view.logits.top_prob())
    out = PositionPrior(0.25, 10.0, str(tmp_path / "counts.safetensors"))(view, candidates, {}).confidence
    f = counts / counts.sum() + 1e-9
    expected = [0.8 * -math.log(f[0]), 0.7 * -math.log(f[1]) * math.exp(-0.25)]
    torch.testing.assert_close(out.float(), torch.tensor([expected]))
    assert out[0, 1] > out[0, 0]  # the rarer token wins though it is less likely
    plain = PositionPrior(0.0, 10.0)(view, candidates, {}).confidence
    torch.testing.assert_close(plain, candidates.confidence * math.log(4))
    wide = make_view(torch.nn.functional.pad(torch.tensor([[[14.0], [16.0]]]), (0, 29999)))  # log V exceeds the limit
    sure = Candidates(wide.logits.top[1], wide.logits.top_prob())
    assert PositionPrior(0.0, 10.0)(wide, sure, {}).confidence[0].diff() > 0
    with pytest.raises(ValueError, match="counts 4 tokens, the model has 5"):
        PositionPrior(0.25, 10.0, str(tmp_path / "counts.safetensors")).init(Shape(1, 2, 5, torch.device("cpu")))


def test_density_prefers_decided_neighbourhoods() -> None:
    masked = torch.tensor([[True, True, True, True, False, True, True, True]])
    view = make_view(torch.zeros(1, 8, 4), masked)
    out = DensityPrior(1.0)(view, Candidates(view.tokens, torch.ones(1, 8)), {}).confidence[0]
    assert out[3] > out[2] and out[5] > out[6] and out[0] > out[1]  # left of the response counts as decided
    assert (out > 0).all() and (out < 1).all()
    all_left = DensityPrior(2.0)(make_view(torch.zeros(1, 8, 4)), Candidates(view.tokens, torch.ones(1, 8)), {})
    assert (all_left.confidence[0].diff() < 0).all()


def test_eotp_cuts_behind_the_first_eos_and_still_fills_before_it(prompts) -> None:
    model = make_model("full", seed=4)
    options = {"gen_len": 16, "block_len": BLOCK, "decoder": Decoder(FixedK(2)), "cache": NO_CACHE}
    cut, strict, never = (
        decode(model, prompts, stop=stop, **options) for stop in (Eotp("committed"), StrictEos(), Never())
    )
    assert any(row.stopped_by == "eos" for row in cut)
    for row, other, full in zip(cut, strict, never, strict=True):
        assert row.nfe <= other.nfe <= full.nfe
        if row.stopped_by == "eos":
            assert MASK not in row.token_ids and row.committed_at[len(row.token_ids)] >= 0


@pytest.mark.parametrize("kind", ["full", "shifted", "mixed"])
@pytest.mark.parametrize("cache", [NO_CACHE, WindowCache(0, 0)])
def test_guidance(kind: str, cache: WindowCache, prompts) -> None:
    model = make_model(kind)
    options = {"gen_len": 16, "block_len": BLOCK, "decoder": Decoder(Threshold(0.6)), "cache": cache, "stop": Never()}
    plain, none = decode(model, prompts, **options), decode(Guided(model, 0.0), prompts, **options)
    assert [(r.token_ids, r.nfe) for r in plain] == [(r.token_ids, r.nfe) for r in none]
    assert [2 * r.queried for r in plain] == [r.queried for r in none]
    guided = decode(Guided(model, 1.0), prompts, **options)
    assert guided != none
    assert guided == [decode(Guided(model, 1.0), [prompt], **options)[0] for prompt in prompts]


def test_guidance_works_from_the_library() -> None:
    model = dllm.load("tiny")
    prompt = [[{"role": "user", "content": '["Ada Bach", "Ben Cole", "Eva Frost"]\nReverse.'}]]
    outputs = [generate(m, prompt, gen_len=32)[0] for m in (model, Guided(model, 0.0))]
    assert outputs[0].text == outputs[1].text


@torch.no_grad()
def test_guidance_moves_away_from_the_blind_logits(prompts) -> None:
    model = make_model("full")
    first: list[Logits] = []
    decode(
        Guided(model, 0.7),
        prompts[:1],
        gen_len=BLOCK,
        block_len=BLOCK,
        decoder=Decoder(FixedK("all")),
        cache=NO_CACHE,
        stop=Never(),
        on_step=lambda state, view, update: first.append(view.logits),
    )
    length = len(prompts[0])
    canvas, blind = ([*start, *[MASK] * BLOCK] for start in (prompts[0], [MASK] * length))
    c, u = (
        model.full_logits(torch.tensor([ids]), torch.tensor([length]))[0, length:, :MASK] for ids in (canvas, blind)
    )
    torch.testing.assert_close(first[0].values[0, :, :MASK], u + 1.7 * (c - u))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Schedule(0), "steps=0"),
        (lambda: Schedule(4, spread="last"), "spread='last'"),
        (lambda: Schedule(4, per="block", spread="rounded"), "leave one out"),
        (lambda: DreamSchedule(0), "steps=0"),
        (lambda: DreamSchedule(4, 1.0), "eps=1.0"),
        (lambda: ThresholdOrSchedule(tau=0.0), "tau=0.0"),
        (lambda: Dimple(gamma=0.0), "gamma=0.0"),
        (lambda: Dilated(1), "base=1"),
        (lambda: Temperature(0.0), "t=0.0"),
        (lambda: TopK(0), "k=0"),
        (lambda: TopP(0.0), "p=0.0"),
        (lambda: OrderNoise(0.0), "temperature=0.0"),
        (lambda: PositionPrior(-1.0), "decay=-1.0"),
        (lambda: PositionPrior(frequencies="/no/such"), "'/no/such' is not a file"),
        (lambda: DensityPrior(0.0), "sigma=0.0"),
        (lambda: Guided(make_model("full"), -0.5), "scale=-0.5"),
    ],
)
def test_impossible_knobs_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
