"""Slots that are refilled: a row in a queue decodes as it does alone, whatever its slot held before."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import BLOCK, PAD, SPECS, make_model
from msgspec import structs
from test_loop import CACHES, DECODERS, STOPS, block_len, fits

import dllm
from decoders import (
    NO_CACHE,
    Ahead,
    Decoder,
    FixedK,
    Generation,
    Klass,
    Lookahead,
    Never,
    Oracle,
    RunningSet,
    Spread,
    StrictEos,
    Threshold,
    TokenEdit,
    Wino,
    decode,
    generate,
)
from decoders.loop import decode_queue
from decoders.state import DecodeState
from decoders.testing import HashModel
from decoders.types import DecodedRow, Turn, Update, View, in_order
from dllm.cache import BlockCache, CacheStrategy, WindowCache
from dllm.exact import Enumerated, ExactModel, Permutations
from dllm.guidance import Guided
from dllm.plan import Plan, Progress
from dllm.spec import ModelSpec
from parallelbench.records.record import SAMPLES, Record
from parallelbench.run import measure
from parallelbench.run.generator import DiffusionGenerator, Generator, Request
from parallelbench.run.job import prepare
from parallelbench.run.recorder import StepRecorder
from parallelbench.run.resume import open_job
from parallelbench.tasks import builtin_tasks

GEN = [2 * BLOCK, BLOCK, BLOCK]
WINO = Decoder(Wino(0.5, 0.6))


@pytest.fixture
def ragged() -> list[list[int]]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randint(0, PAD, (n,), generator=rng).tolist() for n in (5, 11, 3)]


def arguments(decoder: str, cache: str, stop: str) -> dict[str, Any]:
    how = WINO if decoder == "wino" else DECODERS[decoder]
    return {"decoder": how, "cache": CACHES[cache], "stop": STOPS[stop], "block_len": block_len(cache), "seed": 3}


def queued(model: Any, prompts: list[list[int]], slots: int, **parts: Any) -> list[DecodedRow]:
    return list(in_order(decode_queue(model, prompts, slots=slots, **parts)))


LEFT_BEHIND = [  # what a row could leave in its slot: memory, K/V, positions, first steps, EOS ahead, references, sight
    ("full", "strict_eos", "credit", "none"),
    ("mixed", "never", "klass", "dual"),
    ("shifted_block_causal", "block_eos", "threshold", "block_first"),
    ("full", "eotp_query", "learn2pd", "delayed"),
    ("shifted", "eotp_window", "slowfast", "interval"),
    ("block_causal", "never", "oracle", "sub_block"),
    ("full", "never", "smoothing", "greedy"),
]


@pytest.mark.parametrize(("kind", "stop", "decoder", "cache"), LEFT_BEHIND)
def test_a_slot_keeps_nothing_of_the_row_before(kind: str, stop: str, decoder: str, cache: str, ragged) -> None:
    model, parts = make_model(kind), {"gen_len": GEN, **arguments(decoder, cache, stop)}
    assert queued(model, ragged, 2, **parts) == decode(model, ragged, **parts)


@pytest.mark.parametrize(("kind", "stop", "decoder", "cache"), LEFT_BEHIND)
def test_rows_of_other_widths_may_go_apart(
    kind: str, stop: str, decoder: str, cache: str, ragged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward for each width gives what one for all rows does."""
    model, parts = make_model(kind), {"gen_len": GEN, **arguments(decoder, cache, stop)}
    together = queued(model, ragged, 2, **parts)
    monkeypatch.setattr("dllm.plan.PADDING", 0)
    assert queued(model, ragged, 2, **parts) == together


SPREADS = [
    ("full", RunningSet(), WindowCache(0, 0), Decoder(FixedK(2), temperature=1.0)),
    ("block_causal", RunningSet(None, 0.1, None), BlockCache(), Decoder(Threshold(0.3), revise=TokenEdit(0.2, 5))),
    ("mixed", RunningSet(2), NO_CACHE, Decoder(Klass(0.3, 0.5))),
    ("full", RunningSet(2), NO_CACHE, Decoder(Oracle())),
    ("full", Ahead(3), WindowCache(0, None), Decoder(FixedK(1))),
    ("shifted_block_causal", Ahead(4, plan_by="reached"), BlockCache(), Decoder(Threshold(0.4))),
    ("full", Lookahead(2), WindowCache(0, 0), Decoder(Threshold(0.6), temperature=0.5)),
    ("block_causal", Lookahead(2, RunningSet(3, 0.1)), BlockCache(), Decoder(Threshold(0.3))),
]


@pytest.mark.parametrize(("kind", "spread", "cache", "decoder"), SPREADS, ids=repr)
def test_slots_are_refilled_however_rows_are_spread(
    kind: str, spread: Spread, cache: CacheStrategy, decoder: Decoder, ragged
) -> None:
    """Blocks in flight, drafts, plans and shared K/V are those of the row alone."""
    model, prompts, gen = make_model(kind, 1), [*ragged, [7], [1, 2, 3]], [*GEN, 2 * BLOCK, 3]
    parts = {
        "spread": spread,
        "cache": cache,
        "decoder": decoder,
        "block_len": BLOCK // 2,
        "stop": StrictEos(),
        "seed": 3,
    }
    alone = [decode(model, [prompt], gen_len=n, **parts)[0] for prompt, n in zip(prompts, gen, strict=True)]
    assert queued(model, prompts, 2, gen_len=gen, **parts) == alone
    assert queued(model, prompts[::-1], 1, gen_len=gen[::-1], **parts) == alone[::-1]


def test_caches_of_a_users_that_declare_it_serve_blocks_in_flight_and_states(ragged) -> None:
    class Whole(CacheStrategy):
        """Computes all columns, as no cache does, and says what follows from that."""

        def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]:
            return NO_CACHE.plan(progress, spec)

        def gives_all(self, spec: ModelSpec) -> bool:
            return True

        def stateless(self, spec: ModelSpec) -> bool:
            return True

    model, parts = make_model("full"), {"block_len": BLOCK, "decoder": Decoder(FixedK(1)), "stop": Never()}
    for spread in (RunningSet(), Ahead(3), Lookahead(2)):
        rows = decode(model, ragged, gen_len=GEN, spread=spread, cache=Whole(), **parts)
        assert rows == decode(model, ragged, gen_len=GEN, spread=spread, cache=NO_CACHE, **parts)
        texts = generate(model, ragged, gen_len=GEN, spread=spread, cache=Whole(), **parts, batch_size=2)
        assert [text.token_ids for text in texts] == [row.token_ids for row in rows]


@pytest.mark.parametrize("grid", ["prompt_block", "prompt_grid"])
def test_a_slot_takes_the_length_of_its_new_prompt(grid: str, ragged) -> None:
    """The grid of blocks depends on the prompt's end, and so does the mask."""
    model, parts = make_model("block_causal"), {"gen_len": GEN, **arguments("threshold", "block_first", "never")}
    model.spec = replace(model.spec, **{grid: True})
    parts |= {"cache": BlockCache()}
    assert queued(model, ragged, 1, **parts) == decode(model, ragged, **parts)


@pytest.mark.parametrize("cache", ["none", "prefix", "dual", "delayed", "block", "sub_block", "block_first"])
def test_blocks_that_end_with_the_prompt_decode_alike_in_a_batch(cache: str, ragged) -> None:
    model = make_model("shifted_block_causal")
    plain = decode(model, ragged, gen_len=GEN, **arguments("threshold", "none", "never"))
    model.spec = replace(model.spec, prompt_grid=True)
    parts = arguments("threshold", cache, "never")
    alone = [decode(model, [prompt], gen_len=[length], **parts)[0] for prompt, length in zip(ragged, GEN, strict=True)]
    rows = decode(model, ragged, gen_len=GEN, **parts)
    assert rows == alone and [row.token_ids for row in rows] != [row.token_ids for row in plain]
    if cache == "block":  # exact
        fresh = decode(model, ragged, gen_len=GEN, **arguments("threshold", "none", "never"))
        assert [row.token_ids for row in rows] == [row.token_ids for row in fresh]


def test_a_row_that_was_given_up_leaves_nothing_in_its_slot(ragged) -> None:
    """In the middle of a window, with fresh columns, and before its last ones were written."""
    model, parts = make_model("full"), {"gen_len": GEN[::-1], **arguments("sampled", "delayed", "never")}
    rows = decode(model, ragged, max_steps=3, **parts)
    assert queued(model, ragged, 1, max_steps=3, **parts) == rows
    assert {row.stopped_by for row in rows} == {"max_steps"}


def combinations() -> list[Any]:
    """Every decoder with every cache; the model kind and the stop rule go round."""
    return [
        (kinds[(i + j) % len(kinds)], list(STOPS)[(i + 3 * j) % len(STOPS)], decoder, cache)
        for i, decoder in enumerate(DECODERS)
        for j, cache in enumerate(CACHES)
        if (kinds := [kind for kind in SPECS if fits(cache, kind)])
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "stop", "decoder", "cache"), [*combinations(), ("full", "never", "wino", "none")])
def test_any_order_in_any_number_of_slots_decodes_alike(kind: str, stop: str, decoder: str, cache: str) -> None:
    """In float64: in float32 the padding of a batch may decide between signals that are equal but for round-off."""
    rng = random.Random(f"{decoder} {cache}")
    prompts = [[rng.randrange(PAD) for _ in range(rng.randint(1, 20))] for _ in range(6)]
    gen, model, parts = [BLOCK * rng.randint(1, 3) for _ in prompts], make_model(kind), arguments(decoder, cache, stop)
    model.backbone.double()
    alone = [decode(model, [prompt], gen_len=n, **parts)[0] for prompt, n in zip(prompts, gen, strict=True)]
    for slots in (1, 2, 4):
        order = rng.sample(range(6), 6)
        rows = queued(model, [prompts[i] for i in order], slots, gen_len=[gen[i] for i in order], **parts)
        assert rows == [alone[i] for i in order]


def test_models_of_other_kinds_drop_what_they_keep_of_a_row() -> None:
    prompts, parts = [[1, 2], [3], [0, 4, 1, 2]], {"block_len": 4, "decoder": Decoder(Threshold(0.5)), "stop": Never()}
    guided, exact = Guided(make_model("mixed"), 1.5), ExactModel(Permutations(8))
    for model, cache in ((guided, WindowCache(0, 0)), (exact, NO_CACHE)):
        assert queued(model, prompts, 1, gen_len=8, cache=cache, **parts) == decode(
            model, prompts, gen_len=8, cache=cache, **parts
        )


def test_slots_are_full_while_prompts_wait() -> None:
    """With forwards that differ between rows the queue takes hardly more turns than rows' forwards over slots."""
    prompts = [[i % 30, i % 7] for i in range(120)]
    parts = {"gen_len": 12, "block_len": 12, "decoder": Decoder(Threshold(0.3)), "cache": NO_CACHE, "stop": Never()}
    turns = list(decode_queue(HashModel(), prompts, slots=8, **parts))
    rows = [row for turn in turns for row in turn.ended.values()]
    forwards, ended = sum(row.nfe for row in rows), 0
    assert len(rows) == 120 and len({row.nfe for row in rows}) > 3
    assert sum(len(turn.live) for turn in turns) == forwards and len(turns) <= 1.1 * forwards / 8
    for turn in turns:
        assert len(turn.live) == min(8, 120 - ended) and turn.ended.keys() <= set(turn.live)
        ended += len(turn.ended)


def test_a_queue_is_checked_at_the_call() -> None:
    parts = {"gen_len": 8, "block_len": 4, "decoder": Decoder(Threshold()), "cache": NO_CACHE, "stop": Never()}
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        decode_queue(HashModel(), [[1], []], slots=1, **parts)
    with pytest.raises(ValueError, match="slots=0 of decode"):
        decode_queue(HashModel(), [[1]], slots=0, **parts)


def test_references_are_decoded_as_their_turn_nears() -> None:
    """What a killed run loses is what was in flight, also where each row is decoded twice."""
    given = []

    class Counting(HashModel):
        def logits(self, canvas, plan, want, **rest):
            given.append(len(plan.rows))
            return super().logits(canvas, plan, want, **rest)

    parts = {"gen_len": 4, "block_len": 4, "decoder": Decoder(Oracle()), "cache": NO_CACHE, "stop": Never()}
    first = next(turn for turn in decode_queue(Counting(), [[i] for i in range(20)], slots=2, **parts) if turn.ended)
    assert first.ended and sum(given) < 20


def test_steps_are_told_with_the_prompt_they_belong_to() -> None:
    prompts, seen = [[1, 2], [3], [4, 5, 6], [7]], []

    def note(state: DecodeState, view: View, update: Update) -> None:
        seen.extend(zip(state.request.tolist(), state.nfe.tolist(), state.prompt_len.tolist(), strict=True))

    parts = {"gen_len": [4, 8, 4, 8], "block_len": 4, "decoder": Decoder(Threshold(0.3)), "on_step": note}
    rows = queued(HashModel(), prompts, 2, cache=NO_CACHE, stop=Never(), **parts)
    for place, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        mine = {(nfe, length) for request, nfe, length in seen if request == place}
        assert mine == {(n + 1, len(prompt)) for n in range(row.nfe)}


def test_recorded_steps_of_a_queue_are_those_of_each_request_alone() -> None:
    """Also where each response is one block, so that those of one length share a queue."""
    generator = DiffusionGenerator(dllm.load("tiny"), Decoder(Threshold(0.9)), NO_CACHE, StrictEos(), None)
    prompts, gen_lens = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [14]], [4, 8, 4, 8]
    recorder = StepRecorder(4)
    rows = list(in_order(generator.turns(prompts, gen_lens, 1, recorder=recorder)))
    for i, row in enumerate(rows):
        alone = StepRecorder(1)
        (same,) = in_order(generator.turns([prompts[i]], [gen_lens[i]], 1, recorder=alone))
        assert same == row and len(recorder.rows[i]) == row.nfe
        assert alone.rows[0] == recorder.rows[i]


def test_seconds_are_those_of_the_turns_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])

    def turns() -> Iterator[Turn[str]]:
        for took, live, ended in ((2, [0, 1], {}), (4, [0, 1], {1: "b"}), (6, [0, 2], {0: "a", 2: "c"})):
            clock[0] += took
            yield Turn(live, ended)

    def begin() -> Iterator[Turn[str]]:
        clock[0] += 3  # before the first turn
        return turns()

    found = {}
    for ended in measure.timed(begin, 3):
        found |= {one.place: (one.result, one.latency_s, one.share_s) for one in ended}
        clock[0] += 100  # the caller's own
    assert found == {1: ("b", 6, 4), 0: ("a", 12, 7), 2: ("c", 6, 4)}
    assert sum(share for _, _, share in found.values()) == 3 + 2 + 4 + 6


@dataclass(frozen=True)
class Watched(DiffusionGenerator):
    """Notes how many requests it is given, and dies after some turns."""

    turns_left: int = 10**6
    given: list[int] = field(default_factory=list)

    def stream(self, requests: Sequence[Request], slots: int, *limits: Any, **more: Any) -> Iterator[Turn[Generation]]:
        is_warm_up = bool(more)
        turns = super().stream(requests, slots, *limits, **more)
        self.given.extend([] if is_warm_up else [len(requests)])
        yield from turns if is_warm_up else itertools.islice(turns, self.turns_left)
        if self.turns_left < 10**6 and not is_warm_up:
            raise KeyboardInterrupt


def decoded_run(folder: Path, batch_size: int, turns_left: int = 10**6) -> tuple[list[Record], list[int]]:
    answers = torch.randint(0, 6, (20, 6), generator=torch.Generator().manual_seed(0))
    model = ExactModel(Enumerated(answers, torch.full((20,), 0.05, dtype=torch.float64)))
    sampled = Decoder(Threshold(0.5), temperature=1.0)  # prompts that take different numbers of forwards
    generator = Watched(model, sampled, NO_CACHE, Never(), 6, turns_left=turns_left)
    tasks = [builtin_tasks()[f"waiting_line/{name}"] for name in ("copy", "shuffle")]
    folder.mkdir(exist_ok=True)
    config = {"decoder": {}, "suite": {}, "batch_size": 4, "out_dir": str(folder)}
    job = prepare(generator, tasks, limit=5, seed=0, batch_size=batch_size, gen_len=6, config=config, choices={})
    with open_job(job) as run:
        return run.decode(lambda *_: None).records, generator.given


def test_a_killed_run_keeps_what_had_ended_and_decodes_only_the_rest(tmp_path: Path) -> None:
    (whole, _), (slower, _) = decoded_run(tmp_path / "whole", 4), decoded_run(tmp_path / "one", 1)
    with pytest.raises(KeyboardInterrupt):
        decoded_run(tmp_path / "killed", 4, turns_left=3)
    kept = len(SAMPLES.read(tmp_path / "killed")[0])
    resumed, given = decoded_run(tmp_path / "killed", 4)
    assert 0 < kept < 10 and kept % 4 and given == [10 - kept] and len(whole) == 10
    timeless = {"latency_s": 1.0, "share_s": 1.0, "cpu_s": 1.0}
    assert [structs.replace(r, **timeless) for r in resumed] == [structs.replace(r, **timeless) for r in whole]
    alone = {"batch": "", "batch_size": 1, **timeless}
    assert [structs.replace(r, **alone) for r in slower] == [structs.replace(r, **alone) for r in whole]
    total, share = (sum(value(r) for r in whole) for value in (lambda r: r.latency_s, lambda r: r.share_s))
    assert 0 < share < total


def test_a_method_with_its_own_loop_is_timed_by_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])

    def call(batch: Sequence[Request]) -> list[int]:
        clock[0] += 3 * len(batch)
        return [request.gen_len for request in batch]

    def warm_up(batch: Sequence[Request]) -> None:
        clock[0] += 50

    generator = Mock(spec=Generator, side_effect=call, warm_up=warm_up)
    batches = [[Request([], 1), Request([], 2)], [Request([], 3)]]
    ended = list(measure.timed_requests(generator, batches, 2))
    found = [[(one.result, one.latency_s) for one in batch] for batch in ended]
    assert found == [[(1, 6), (2, 6)], [(3, 3)]]
    assert all(one.share_s == pytest.approx(3) for batch in ended for one in batch)
