"""Cache strategies as column plans, and the K/V store underneath."""

from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from conftest import BLOCK, SPECS, make_model

from dllm import ModelSpec
from dllm.cache import BlockCache, DelayedCache, SubBlockCache, WindowCache
from dllm.layers import sources
from dllm.plan import Plan, Progress, alike, padding_on

SPEC = ModelSpec(mask_id=9, eos_ids=(8,), pad_id=7)
SHIFTED = ModelSpec(mask_id=9, eos_ids=(8,), pad_id=7, shift=1)
CAUSAL = ModelSpec(mask_id=9, eos_ids=(8,), pad_id=7, block=4)


def progress(
    start: list[int],
    end: list[int],
    step: list[int],
    done: list[bool] | None = None,
    first: list[bool] | None = None,
    window: int = 4,
    prompt_len: int = 3,
) -> Progress:
    """Rows that have filled what is before their window, and half of it."""
    starts, ends, columns = np.array(start), np.array(end), np.arange(max(end) + window)
    firsts = np.array(first if first else [s == 0 for s in step])
    masked = (columns >= starts[:, None] + window // 2) & (columns < ends[:, None])
    fresh = columns == starts[:, None] + 1
    previous = np.where(firsts, 0, starts - window)
    dones = np.array(done or [False] * len(start))
    prompt_lens = np.full_like(starts, prompt_len)
    steps = np.array(step)
    return Progress(prompt_lens, starts, ends, steps, firsts, previous, dones, masked, fresh, window)


def columns(plans: list[Plan]) -> dict[int, list[int]]:
    """Queried columns per row; checks that they ascend, that repeats only repeat the last one, and that the plan says
    where all rows compute the same ones with no gap."""
    found = {}
    for plan in plans:
        one, width = plan.query[0].tolist(), plan.query.shape[1]
        alike = plan.query.tolist() == [list(range(one[0], one[0] + width))] * len(plan.rows)
        assert plan.first == (one[0] if alike else None)
        for row, query, count in zip(plan.rows.tolist(), plan.query.tolist(), plan.num_queried.tolist(), strict=True):
            assert query[:count] == sorted(set(query[:count])) and set(query[count:]) <= {query[count - 1]}
            found[row] = query[:count]
    return found


def spans(plans: list[Plan]) -> dict[int, tuple[int, int]]:
    """First and last queried column per row, nothing missing between them."""
    found = columns(plans)
    assert all(query == list(range(query[0], query[-1] + 1)) for query in found.values())
    return {row: (query[0], query[-1]) for row, query in found.items()}


@pytest.mark.parametrize(
    ("cache", "spec", "expected"),
    [
        (WindowCache(None, None), SPEC, {0: (0, 17), 1: (0, 13), 2: (0, 13)}),
        (WindowCache(0, None), SPEC, {0: (0, 17), 1: (10, 13), 2: (6, 13)}),
        (WindowCache(0, 0), SPEC, {0: (0, 17), 1: (10, 13), 2: (6, 9)}),
        (WindowCache(0, 0), SHIFTED, {0: (0, 17), 1: (9, 13), 2: (5, 9)}),
        (WindowCache(2, 1), SPEC, {0: (0, 17), 1: (8, 13), 2: (4, 10)}),
        (WindowCache(0, 0, refresh_every=3), SPEC, {0: (0, 17), 1: (0, 13), 2: (6, 9)}),
        (WindowCache(None, None, freeze_prompt=True), SPEC, {0: (0, 17), 1: (3, 13), 2: (3, 13)}),
        (WindowCache(None, None, freeze_prompt=True), SHIFTED, {0: (0, 17), 1: (2, 13), 2: (2, 13)}),
        (WindowCache(0, 0, refresh_every=3, freeze_prompt=True), SPEC, {0: (0, 17), 1: (3, 13), 2: (6, 9)}),
        (WindowCache(None, None), CAUSAL, {0: (0, 11), 1: (0, 13), 2: (0, 11)}),
        (BlockCache(), CAUSAL, {0: (0, 11), 1: (8, 13), 2: (4, 11)}),
        (SubBlockCache(), CAUSAL, {0: (0, 11), 1: (10, 13), 2: (6, 9)}),
    ],
)
def test_plans(cache, spec: ModelSpec, expected: dict) -> None:
    state = progress(start=[6, 10, 6], end=[18, 14, 14], step=[0, 3, 2])
    plans = list(cache.plan(state, spec))
    assert len(plans) <= 2 and spans(plans) == expected


def test_rows_are_padded_to_one_width_while_that_costs_little() -> None:
    assert [group.tolist() for group in alike(np.array([9, 40, 9, 300, 9]), 128)] == [[0, 1, 2, 4], [3]]
    assert [group.tolist() for group in alike(np.array([9, 40, 9, 300, 9]), None)] == [[0, 1, 2, 3, 4]]
    assert alike(np.array([], dtype=int), 128) == []
    rng = np.random.default_rng(0)
    for _ in range(200):
        widths = rng.choice([9, 17, 60, 200, 500], size=rng.integers(1, 17)) + rng.integers(0, 40)
        groups = [group.tolist() for group in alike(widths, 128)]
        assert sorted(chain(*groups)) == list(range(len(widths))) and all(group == sorted(group) for group in groups)
        for group in groups:  # no cut of a group saves more
            apart = sorted(widths[group].tolist())
            assert all(k * (apart[-1] - apart[k - 1]) <= 128 for k in range(1, len(apart)))
        ranges = sorted((widths[group].min(), widths[group].max()) for group in groups)
        assert all(low[1] <= high[0] for low, high in pairwise(ranges))


@pytest.mark.parametrize("cache", [BlockCache(), BlockCache(first_token=True), WindowCache(0, 0)])
def test_a_long_prompt_enters_apart_from_short_rows(cache) -> None:
    spec = replace(CAUSAL, shift=1) if isinstance(cache, BlockCache) else SPEC
    state = progress(start=[8, 400, 12], end=[12, 404, 16], step=[0, 0, 0])
    state = replace(state, prompt_len=state.start)
    assert sorted(row for plan in cache.plan(state, spec) for row in plan.rows.tolist()) == [0, 1, 2]
    assert any({0, 1, 2} == set(plan.rows.tolist()) for plan in cache.plan(state, spec))  # not on a GPU
    state = replace(state, padding=padding_on(torch.device("cpu")))
    plans = list(cache.plan(state, spec))
    assert sorted(plan.rows.tolist() for plan in plans) == [[0, 2], [1]] and not any(plan.all_rows for plan in plans)
    assert columns(plans) == {row: columns([plan])[row] for plan in plans for row in plan.rows.tolist()}
    assert max(plan.query.shape[1] for plan in plans if 0 in plan.rows) <= 16


@pytest.mark.parametrize(
    ("cache", "spec", "expected", "want"),
    [
        (DelayedCache(None), SPEC, [7, 8, 9, 10, 11, 12, 13], [7, 8, 9]),
        (DelayedCache(None), SHIFTED, [6, 7, 8, 9, 10, 11, 12, 13], [7, 8, 9]),
        (DelayedCache(None, near=0), SPEC, [7, 8, 9], [7, 8, 9]),
        (DelayedCache(None, near=3), SPEC, [4, 5, 6, 7, 8, 9, 10], [7, 8, 9]),
        (DelayedCache(None, near=6, freeze_prompt=True), SPEC, list(range(3, 14)), [7, 8, 9]),
        (DelayedCache(3), SPEC, [7, 8, 9, 10, 11, 12, 13], [7, 8, 9]),
        (DelayedCache(2), SPEC, list(range(14)), None),
        (DelayedCache(2, freeze_prompt=True), SPEC, list(range(3, 14)), None),
        (DelayedCache(None, entry=2), SPEC, [7, 8, 9, 10, 11, 12, 13], [7, 8, 9]),
        (DelayedCache(None, entry=3), SPEC, list(range(14)), None),
    ],
)
def test_delayed_plans(cache, spec: ModelSpec, expected: list[int], want: list[int] | None) -> None:
    (plan,) = cache.plan(progress([6], [14], [2]), spec)  # window 6..9: 6 settled, 7 written last, the rest masked
    assert columns([plan]) == {0: expected}
    assert (plan.want if plan.want is None else plan.want[0].tolist()) == want


def test_a_delayed_cache_recomputes_a_settled_window_that_waits() -> None:
    state = progress([6], [10], [2])
    settled = replace(state, masked=np.zeros_like(state.masked), fresh=np.zeros_like(state.fresh))
    (plan,) = DelayedCache(None).plan(settled, SPEC)
    assert columns([plan]) == {0: [6, 7, 8, 9]}


@pytest.mark.parametrize(
    ("step", "first", "expected"),
    [
        (0, False, {0: ((4, 7), [8]), 1: ((8, 11), None)}),  # the block before, asked for column 8; a later sub-block
        (1, False, {0: ((8, 11), None), 1: ((10, 11), None)}),
        (2, False, {0: ((8, 9), None), 1: ((10, 11), None)}),
        (0, True, {0: ((0, 7), [8]), 1: ((0, 7), [])}),  # the prompt's blocks; row 1 begins within one
    ],
)
def test_finished_blocks_have_a_forward_of_their_own(step: int, first: bool, expected: dict) -> None:
    state = progress([8, 10], [20, 20], [step] * 2, window=2, first=[first] * 2)
    state = replace(state, previous=np.array([6, 8]) * (not first), masked=np.zeros_like(state.masked))
    made = {}
    for plan in SubBlockCache(first_token=True).plan(state, CAUSAL):
        assert plan.only == (plan.want is not None)
        for i, row in enumerate(plan.rows.tolist()):
            want = None if plan.want is None else plan.want[i].tolist()
            made[row] = ((int(plan.query[i, 0]), int(plan.query[i, -1])), want)
    assert made == expected


def test_a_window_without_its_look_back_keeps_the_logits_of_its_first_column() -> None:
    (plan,) = WindowCache(0, 0, look_back=False).plan(progress([6], [14], [2]), SHIFTED)
    assert plan.query[0].tolist() == [6, 7, 8, 9] and plan.want is not None and plan.want[0].tolist() == [7, 8, 9]


def test_a_sub_block_sees_its_whole_block_until_its_first_token_stands() -> None:
    state = progress([8], [20], [2], window=2, first=[False])
    assert spans(list(SubBlockCache().plan(state, CAUSAL))) == {0: (8, 9)}
    leading = replace(state, masked=state.masked | (np.arange(state.masked.shape[1]) == 8))
    assert spans(list(SubBlockCache().plan(leading, CAUSAL))) == {0: (8, 11)}


def test_rows_that_are_done_are_not_queried() -> None:
    state = progress([6, 10, 6], [18, 14, 14], [0, 3, 2], done=[True, False, False])
    for cache in (WindowCache(None, None), WindowCache(0, 0), BlockCache(), SubBlockCache(), DelayedCache()):
        assert set(spans(list(cache.plan(state, CAUSAL)))) == {1, 2}


def test_block_cache_recomputes_the_finished_block_on_entry() -> None:
    state = progress([8], [16], [0], first=[False])
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


@pytest.mark.parametrize("kind", ["full", "shifted_block_causal"])
def test_columns_that_no_row_of_a_plan_sees_are_not_read(kind: str) -> None:
    """A slot is as wide as the widest prompt, and a short row's forward should not pay for that."""
    model = make_model(kind)
    canvas, end = torch.randint(0, 40, (2, 64)), torch.tensor([24, 22])
    kv, start = model.new_kv(torch.tensor([6, 6]), 64), torch.tensor([8, 8])
    want = start[:, None] + torch.arange(BLOCK)
    with torch.no_grad():
        for step in (0, 1):
            (plan,) = WindowCache(0, 0).plan(progress([8, 8], [24, 22], [step] * 2, window=BLOCK), model.spec)
            assert plan.seen == 24
            clean = model.logits(canvas, plan, want, end=end, kv=kv)
            for store in kv._stores():
                store[:, :, 24:] = float("nan")
            assert model.logits(canvas, plan, want, end=end, kv=kv).equal(clean)


def test_windowed_forward_equals_full_forward() -> None:
    for kind in ("full", "shifted", "block_causal", "shifted_block_causal", "mixed"):
        model = make_model(kind)
        rng = torch.Generator().manual_seed(0)
        canvas = torch.randint(0, 40, (3, 32), generator=rng)
        prompt_len, end = torch.tensor([6, 8, 11]), torch.tensor([30, 32, 28])
        start = torch.tensor([8, 16, 16])
        want = start[:, None] + torch.arange(BLOCK)
        kv = model.new_kv(prompt_len, 32)
        whole = model.full_logits(canvas, prompt_len, end).gather(1, want[..., None].expand(-1, -1, 48))
        with torch.no_grad():
            state = progress(start.tolist(), end.tolist(), [0, 0, 0], window=BLOCK)
            for cache in (WindowCache(None, None), WindowCache(0, 0)):  # the first keeps nothing, the second all
                (plan,) = cache.plan(state, model.spec)
                got = model.logits(canvas, plan, want, end=end, kv=kv)
                torch.testing.assert_close(got, whole, rtol=1e-5, atol=1e-5)
                assert all(layer.is_initialized == plan.keep == (cache.before == 0) for layer in kv.layers)
            for rows in ([0, 1, 2], [2], [0, 2]):  # the window alone, on the K/V just written, for any rows
                done = [r not in rows for r in range(3)]
                state = progress(start.tolist(), end.tolist(), [1, 1, 1], done, window=BLOCK)
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
        state = progress([16], [40], [step], first=[first], window=8)
        (plan,) = cache.plan(state, spec)
        assert plan.num_queried.item() == (40 if wide else 12)


@pytest.mark.parametrize("kind", SPECS)
def test_a_run_of_columns_is_computed_as_a_list_of_them(kind: str) -> None:
    """Of all columns and of a window, with and without K/V, for one row and several."""
    model, length = make_model(kind), 2 * BLOCK
    for rows in (1, 3):
        canvas = torch.randint(0, 20, (rows, length), generator=torch.Generator().manual_seed(rows))
        prompt_len = torch.full((rows,), 2)
        for begin, keep in ((0, False), (0, True), (BLOCK, True)):
            asked = np.tile(np.arange(length) >= begin, (rows, 1))
            plan = Plan.of(np.arange(rows), asked, True, keep=keep)
            assert plan.first == begin
            want = plan.query[:, model.spec.shift : model.spec.shift + 3]
            found = []
            for one in (plan, replace(plan, first=None)):
                kv = model.new_kv(prompt_len, length)
                found.append(model.logits(canvas, one, want, end=torch.full((rows,), length), kv=kv))
            assert torch.equal(*found)


def test_a_column_that_is_not_queried_counts_as_the_first_of_its_row() -> None:
    want = torch.tensor([[0, 5, 6, 9, 11]])
    for rows in (1, 3):
        plan = Plan.of(np.arange(rows), np.tile((np.arange(12) >= 4) & (np.arange(12) < 9), (rows, 1)), True)
        expected = [[begin, begin + 1, begin + 2, begin, begin] for begin in range(0, 5 * rows, 5)]
        for one in (plan, replace(plan, first=None)):
            assert sources(one, want.repeat(rows, 1), 0, 12).tolist() == expected
            assert sources(one, want.repeat(rows, 1) + 1, 1, 12).tolist() == expected


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_columns_that_see_each_other_need_no_mask(attention: str) -> None:
    """So that kernels apply which take none. It must not make a stock decoder causal. A compiled one keeps the mask."""
    cases = (("full", (6,), False, False), ("full", (6,), True, True), ("full", (6, 4), False, True))
    for spec, lens, compiled, expected in (*cases, ("block_causal", (6,), False, True)):
        model, seen = make_model(spec), list[bool]()
        model.backbone.set_attn_implementation(attention)
        model.kv_samples = [(torch.zeros(0, 2, 0, 8), torch.zeros(0, 2, 0, 8))] * 2 * compiled
        decoder = model.backbone.get_decoder()
        decoder.register_forward_pre_hook(
            lambda _module, _args, given, seen=seen: seen.append(given["attention_mask"] is not None), with_kwargs=True
        )
        canvas, end = torch.arange(2 * 6).view(2, 6)[: len(lens)], torch.tensor(lens)
        first = 0 if len(set(lens)) == 1 else None
        query = torch.minimum(torch.arange(6), end[:, None] - 1)
        plan = Plan(torch.arange(len(lens)), query, end, all_rows=True, keep=False, first=first)
        logits = model.logits(canvas, plan, query, end=end, kv=model.new_kv(torch.ones_like(end), 6))
        assert seen == [expected]
        torch.testing.assert_close(logits[0], model.full_logits(canvas, torch.ones_like(end), end)[0])
