"""Cache strategies as column plans, and the K/V store underneath."""

import pytest
import torch
from conftest import BLOCK, make_model

from dllm import ModelSpec
from dllm.cache import BlockCache, Plan, Progress, WindowCache

SPEC = ModelSpec(mask_id=9, eos_ids=(8,), pad_id=7)
SHIFTED = ModelSpec(mask_id=9, eos_ids=(8,), pad_id=7, shift=1)
CAUSAL = ModelSpec(mask_id=9, eos_ids=(8,), pad_id=7, block=4)


def progress(start: list[int], end: list[int], step: list[int], done: list[bool] | None = None) -> Progress:
    first = torch.tensor([s == 0 for s in step])
    return Progress(*map(torch.tensor, (start, end, step)), first, torch.tensor(done or [False] * len(start)), window=4)


def spans(plans: list[Plan]) -> dict[int, tuple[int, int]]:
    """First and last queried column per row; checks that repeats only repeat the last column."""
    found = {}
    for plan in plans:
        for row, query, count in zip(plan.rows.tolist(), plan.query.tolist(), plan.num_queried.tolist(), strict=True):
            assert query[:count] == list(range(query[0], query[0] + count))
            assert set(query[count:]) <= {query[count - 1]}
            found[row] = (query[0], query[count - 1])
    return found


@pytest.mark.parametrize(
    ("cache", "spec", "expected"),
    [
        (WindowCache(None, None), SPEC, {0: (0, 17), 1: (0, 13), 2: (0, 13)}),
        (WindowCache(0, None), SPEC, {0: (0, 17), 1: (10, 13), 2: (6, 13)}),
        (WindowCache(0, 0), SPEC, {0: (0, 17), 1: (10, 13), 2: (6, 9)}),
        (WindowCache(0, 0), SHIFTED, {0: (0, 17), 1: (9, 13), 2: (5, 9)}),
        (WindowCache(2, 1), SPEC, {0: (0, 17), 1: (8, 13), 2: (4, 10)}),
        (WindowCache(0, 0, refresh_every=3), SPEC, {0: (0, 17), 1: (0, 13), 2: (6, 9)}),
        (WindowCache(None, None), CAUSAL, {0: (0, 9), 1: (0, 13), 2: (0, 9)}),
        (BlockCache(), CAUSAL, {0: (0, 9), 1: (10, 13), 2: (6, 9)}),
    ],
)
def test_plans(cache, spec: ModelSpec, expected: dict) -> None:
    state = progress(start=[6, 10, 6], end=[18, 14, 14], step=[0, 3, 2])
    plans = list(cache.plan(state, spec))
    assert len(plans) <= 2 and spans(plans) == expected


def test_rows_that_are_done_are_not_queried() -> None:
    state = progress([6, 10, 6], [18, 14, 14], [0, 3, 2], done=[True, False, False])
    for cache in (WindowCache(None, None), WindowCache(0, 0), BlockCache()):
        assert set(spans(list(cache.plan(state, CAUSAL)))) == {1, 2}


def test_block_cache_recomputes_the_finished_block_on_entry() -> None:
    state = Progress(*map(torch.tensor, ([8], [16], [0])), torch.tensor([False]), torch.tensor([False]), window=4)
    assert spans(list(BlockCache().plan(state, CAUSAL))) == {0: (4, 11)}


def test_columns_beyond_the_end_are_neither_attended_nor_mixed_in() -> None:
    for kind in ("full", "shifted", "mixed"):
        model = make_model(kind)
        canvas = torch.randint(0, 40, (1, 20))
        other = canvas.clone()
        other[0, 15:] = 5
        prompt_len, end = torch.tensor([6]), torch.tensor([15])
        a, b = (model.full_logits(c, prompt_len, end)[0, :15] for c in (canvas, other))
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_windowed_forward_equals_full_forward() -> None:
    for kind in ("full", "shifted", "block_causal", "shifted_block_causal", "mixed"):
        model = make_model(kind)
        rng = torch.Generator().manual_seed(0)
        canvas = torch.randint(0, 40, (3, 32), generator=rng)
        prompt_len, end = torch.tensor([6, 8, 11]), torch.tensor([30, 32, 28])
        start = torch.tensor([8, 16, 16])
        want = start[:, None] + torch.arange(BLOCK)
        kv = model.new_kv(prompt_len, 32)
        state = Progress(
            start, end, torch.zeros(3, dtype=torch.long), torch.ones(3).bool(), torch.zeros(3).bool(), BLOCK
        )
        whole = model.full_logits(canvas, prompt_len, end).gather(1, want[..., None].expand(-1, -1, 48))
        with torch.no_grad():
            for plan in WindowCache(None, None).plan(state, model.spec):
                got = model.logits(canvas, plan, want, end=end, kv=kv)
            torch.testing.assert_close(got, whole, rtol=1e-5, atol=1e-5)
            state = Progress(start, end, torch.ones(3, dtype=torch.long), torch.zeros(3).bool(), state.done, BLOCK)
            for rows in ([0, 1, 2], [2], [0, 2]):  # the window alone, on the K/V just written, for any rows
                done = torch.tensor([r not in rows for r in range(3)])
                state = Progress(start, end, state.step, state.first, done, BLOCK)
                (plan,) = WindowCache(0, 0).plan(state, model.spec)
                got = model.logits(canvas, plan, want[rows], end=end, kv=kv)
                torch.testing.assert_close(got, whole[rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kwargs", [{"before": -1}, {"after": -2}, {"refresh_every": 0}])
def test_impossible_windows_are_refused(kwargs: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        WindowCache(**kwargs)


def test_a_warm_up_refreshes_in_the_first_window_only() -> None:
    cache, spec = WindowCache(2, 2, warmup=3), ModelSpec(47, (46,), 45)
    for step, first, wide in ((0, True, True), (2, True, True), (3, True, False), (2, False, False), (0, False, True)):
        progress = Progress(
            start=torch.tensor([16]),
            end=torch.tensor([40]),
            step=torch.tensor([step]),
            first=torch.tensor([first]),
            done=torch.tensor([False]),
            window=8,
        )
        (plan,) = cache.plan(progress, spec)
        assert plan.num_queried.item() == (40 if wide else 12)
