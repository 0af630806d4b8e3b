"""Rules with memory, and rules over runs of masks, on hand-made views."""

import pytest
import torch
from test_decoders import make_view
from torch import Tensor

from decoders import (
    AnswerGap,
    Decoder,
    DynamicThreshold,
    FixedK,
    Hierarchical,
    Horizon,
    InBlocks,
    Klass,
    Prophet,
    RunningMean,
    Schedule,
    SlowFast,
    Threshold,
    WarmThreshold,
)
from decoders.types import Shape, View


def confident(confidence: list[float], masked: list[bool] | None = None, step: int = 1) -> View:
    """A view of one row whose top probabilities are given; the rest is on one other token."""
    p = torch.tensor([confidence])
    logits = torch.stack([p, 1 - p, torch.zeros_like(p)], dim=-1).log()
    return make_view(logits, None if masked is None else torch.tensor([masked]), step)


def writes(decoder: Decoder, *views: View) -> list[list[int]]:
    """Positions that each of consecutive steps writes."""
    memory = decoder.init(Shape(*views[0].logits.shape, torch.device("cpu")))
    return [decoder.step(view, memory).write[0].nonzero()[:, 0].tolist() for view in views]


@pytest.mark.parametrize(
    ("high", "low", "expected"),
    [
        (0.92, 0.62, [0, 1, 4]),  # above high: 0 and 1; the best of the second run: 4
        (0.98, 0.62, [0, 4]),
        (0.98, 0.9, [0]),  # nothing passes; the surest of all goes
        (1.0, 0.0, [0, 4, 7]),  # the surest of each run
    ],
)
def test_hierarchical_takes_the_best_of_each_run(high: float, low: float, expected: list[int]) -> None:
    view = confident([0.97, 0.95, 0.6, 0.99, 0.8, 0.7, 0.99, 0.55], [True, True, True, False, True, True, False, True])
    assert writes(Decoder(Hierarchical(high, low)), view) == [expected]


def test_of_equals_in_a_run_hierarchical_takes_the_left_one() -> None:
    view = confident([0.7, 0.7, 0.9, 0.7, 0.7], [True, True, False, True, True])
    assert writes(Decoder(Hierarchical(0.95, 0.6)), view) == [[0, 3]]


def test_klass_waits_for_stability() -> None:
    still = [confident([0.95, 0.95, 0.6], step=step) for step in range(4)]
    assert writes(Decoder(Klass(0.9, 0.01, history=2)), *still) == [[0], [0], [0, 1], [0, 1]]
    moving = [confident([0.95 - 0.1 * (step % 2), 0.99, 0.6], step=step) for step in range(4)]
    assert writes(Decoder(Klass(0.9, 0.01, history=2)), *moving) == [[1], [1], [1], [1]]


def test_klass_memory_is_the_divergence() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    kl = float((p * (p / q).log()).sum())
    for bound, stable in ((kl * 1.001, 1), (kl * 0.999, 0)):
        part = Klass(0.1, bound, history=1)
        memory = part.init(Shape(1, 1, 3, torch.device("cpu")))
        decoder = Decoder(part)
        decoder.step(make_view(q.log()[None, None], step=0), [memory])
        decoder.step(make_view(p.log()[None, None], step=1), [memory])
        assert memory["stable"].item() == stable


def test_dynamic_threshold_falls_while_the_runner_up_is_weak_and_rises_with_change() -> None:
    rule = DynamicThreshold(0.9, fall=0.1, rise=0.0)
    memory = rule.init(Shape(1, 2, 3, torch.device("cpu")))
    decoder = Decoder(rule)
    decoder.step(confident([0.6, 0.85], step=0), [memory])
    torch.testing.assert_close(memory["shift"].float(), torch.tensor([[-0.06, -0.085]]))
    assert writes(Decoder(DynamicThreshold(0.9, fall=0.0, rise=0.0)), confident([0.91, 0.89, 0.95])) == [[0, 2]]
    rule = DynamicThreshold(0.9, fall=0.0, rise=0.5)
    memory = rule.init(Shape(1, 1, 3, torch.device("cpu")))
    first, second = make_view(torch.tensor([[[9.0, 0, 0]]]), step=0), make_view(torch.tensor([[[0, 9.0, 0]]]), step=1)
    for view in (first, second):
        Decoder(rule).step(view, [memory])
    p, q = first.logits.probs()[0, 0], second.logits.probs()[0, 0]
    torch.testing.assert_close(memory["shift"][0, 0].float(), 0.5 * (1 - torch.cosine_similarity(p, q, dim=0)))


def test_horizon_decodes_the_span_once_its_horizon_is_steady() -> None:
    sure = [0.9, 0.9, 0.9, 0.9, 0.55, 0.55]  # sees up to position 3
    masked = torch.ones(1, 6, dtype=torch.bool)
    decoder = Decoder(Horizon(tau=0.85, see=0.6, patience=8))
    memory = decoder.init(Shape(1, 6, 3, torch.device("cpu")))
    counts = []
    for step in range(4):
        logits = torch.tensor([sure]).logit()[..., None] * torch.tensor([1.0, 0, -9])
        write = decoder.step(make_view(logits, masked.clone(), step), memory).write
        counts.append(write[0].nonzero()[:, 0].tolist())
        masked &= ~write
    assert counts == [[0], [1], [2, 3], [4]]


def phases(decoder: Decoder, *confidences: list[float]) -> list[tuple[list[int], int | None, bool]]:
    """Of consecutive steps: positions written, columns that the next forward sees (None: all), and whether it waits."""
    width = len(confidences[0])
    masked, memory = torch.ones(1, width, dtype=torch.bool), decoder.init(Shape(1, width, 3, torch.device("cpu")))
    made = []
    for step, sure in enumerate(confidences):
        update = decoder.step(confident(sure, masked[0].tolist(), step), memory)
        masked &= ~update.write
        sight = int(update.sight[0])
        made.append((update.write[0].nonzero()[:, 0].tolist(), sight if sight <= width else None, bool(update.hold[0])))
    return made


def test_slowfast_explores_then_decodes_the_span_without_what_is_behind_it() -> None:
    sure = [0.6, 0.95, 0.6, 0.6, 0.52, 0.52]  # far up to position 3
    decoder = Decoder(FixedK("all"), revise=SlowFast(tau=0.9, see=0.55, explore=2))
    assert phases(decoder, *[sure] * 4) == [
        ([1], None, False),  # one is above tau: the surest alone
        ([0], None, False),
        ([2], 4, False),  # the span of four: the first forward of it saw all columns
        ([3], None, False),
    ]


def test_slowfast_makes_all_exploring_forwards_also_when_nothing_is_left() -> None:
    decoder = Decoder(FixedK("all"), revise=SlowFast(tau=0.9, see=0.55, explore=3))
    assert phases(decoder, *[[0.95, 0.95]] * 3) == [([0, 1], None, True), ([], None, True), ([], None, False)]


def test_klass_counts_what_a_block_did_before_its_turn() -> None:
    """Two blocks of two; nothing moves, so the second one is taken at once as soon as the first is full."""
    sure = [0.9, 0.6, 0.9, 0.9]
    for block, expected in ((2, [[0], [1], [2, 3]]), (None, [[0], [2, 3], [1]])):
        decoder = Decoder(Klass(0.8, 0.1, history=1, block=block))
        memory, masked = decoder.init(Shape(1, 4, 3, torch.device("cpu"))), torch.ones(1, 4, dtype=torch.bool)
        taken = []
        for step in range(3):
            write = decoder.step(confident(sure, masked[0].tolist(), step), memory).write
            taken.append(write[0].nonzero()[:, 0].tolist())
            masked &= ~write
        assert taken == expected


def test_klass_takes_one_where_it_is_told_to() -> None:
    for take, expected in (("all", [0, 1, 2]), ("max_conf", [1]), ("min_kl", [2])):
        decoder = Decoder(Klass(0.5, 1.0, history=1, take=take))
        assert writes(decoder, confident([0.7, 0.8, 0.7], step=0), confident([0.8, 0.9, 0.71], step=1))[1] == expected


def test_prophet_commits_all_when_the_gap_is_wide() -> None:
    def view(gap: float, masked: list[bool]) -> View:
        return make_view(torch.tensor([0.0, gap, -20.0]).expand(1, 6, 3), torch.tensor([masked]))

    decoder = Decoder(Prophet((6.0, 4.0, 2.0)))
    assert writes(decoder, view(6.5, [True] * 6)) == [[0, 1, 2, 3, 4, 5]]
    assert writes(decoder, view(5.5, [True] * 6)) == [[0]]
    assert writes(decoder, view(5.5, [False] * 2 + [True] * 4)) == [[2, 3, 4, 5]]
    assert writes(decoder, view(3.0, [False] * 2 + [True] * 4)) == [[2]]
    assert writes(decoder, view(3.0, [False] * 4 + [True] * 2)) == [[4, 5]]


def test_an_answer_region_counts_its_decided_columns_and_fills_everything() -> None:
    rule = AnswerGap(Prophet((6.0, 4.0, 2.0), InBlocks(FixedK(1), 3)), at=4, columns=2, steps=6)
    logits = torch.zeros(1, 6, 3)
    logits[..., 1], logits[..., 2] = torch.tensor([9.0, 9.0, 9.0, 9.0, 5.0, 4.0]), -20.0
    masked = torch.tensor([[True] * 5 + [False]])  # a gap of 4.5 in the region, whose second column is decided
    for step, expected in ((0, [0]), (1, [0, 1, 2, 3, 4])):  # the first third of 6 steps ends with the second one
        assert writes(Decoder(rule), make_view(logits, masked, step=step)) == [expected]


def test_blocks_inside_a_window_take_their_turn() -> None:
    """A schedule starts anew in each block; a clock of the window runs on."""
    view = [confident([0.6, 0.7, 0.9, 0.82], step=0)]
    view += [confident([0.6, 0.7, 0.9, 0.82], [True, False, True, True], 1)]
    view += [confident([0.6, 0.7, 0.9, 0.82], [False, False, True, True], 2)]
    assert writes(Decoder(InBlocks(Schedule(2), 2)), *view) == [[1], [0], [2]]
    falling = Decoder(InBlocks(WarmThreshold(0.5, 0.1), 2, "window"))  # at least 1, 0.9, 0.8
    assert writes(falling, *view) == [[1], [0], [2, 3]]
    assert writes(Decoder(InBlocks(WarmThreshold(0.5, 0.1), 2)), *view) == [[1], [0], [2]]


def test_running_mean_follows_its_commits() -> None:
    decoder = Decoder(RunningMean())
    first = confident([0.9, 0.8, 0.7, 0.95], step=0)
    second = confident([0.96, 0.99, 0.7, 0.5], [True, True, True, False])
    third = confident([0.5, 0.5, 0.971, 0.5], [False, False, True, False])
    assert writes(decoder, first, second, third) == [[3], [0, 1], [2]]
    memory = decoder.init(Shape(1, 4, 3, torch.device("cpu")))
    for view in (first, second):
        decoder.step(view, memory)
    mean = memory[0]["sum"] / memory[0]["number"]
    torch.testing.assert_close(mean.float(), torch.tensor([(0.95 + 0.96 + 0.99) / 3]))


def test_a_warm_threshold_ends_as_the_plain_one() -> None:
    for step, tau in ((0, 1.0), (2, 0.96), (5, 0.9), (50, 0.9)):
        view = confident([0.91, 0.97, 0.3, 0.95], step=step)
        assert writes(Decoder(WarmThreshold(0.9, 0.02)), view) == writes(Decoder(Threshold(tau)), view)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Hierarchical(0.5, 0.6), "low=0.6, high=0.5"),
        (lambda: Klass(kl=0.0), "kl=0.0"),
        (lambda: Klass(history=0), "history=0"),
        (lambda: Klass(block=0), "block=0"),
        (lambda: Horizon(tau=0.0), "tau=0.0"),
        (lambda: SlowFast(tau=0.0), "tau=0.0"),
        (lambda: SlowFast(explore=0), "explore=0"),
        (lambda: Prophet((1.0, 2.0)), "three logit gaps"),
        (lambda: DynamicThreshold(fall=-1.0), "fall=-1.0"),
        (lambda: WarmThreshold(rate=-0.1), "rate=-0.1"),
    ],
)
def test_impossible_knobs_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_every_rule_is_one_token_per_step_at_its_slow_end() -> None:
    slow = (Hierarchical(2.0, 1.5), Klass(tau=2.0), Horizon(tau=2.0, see=0.99, patience=99), Prophet((99.0,) * 3))
    rng = torch.Generator().manual_seed(0)
    logits: Tensor = torch.randn(2, 8, 5, generator=rng)
    for rule in slow:
        for step in range(3):
            view = make_view(logits, step=step)
            ours = Decoder(rule).step(view, Decoder(rule).init(Shape(2, 8, 5, torch.device("cpu")))).write
            assert ours.equal(Decoder(FixedK(1)).step(view, [{}]).write), rule
