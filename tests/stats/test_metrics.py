"""Aggregates against closed forms and scipy."""

import numpy as np
import pytest

from parallelbench.records.record import Record
from parallelbench.stats.metrics import aggregate, measure

pytestmark = pytest.mark.core


def record(i: int, task: str = "t", score: float = 1.0, tokens: int = 10, nfe: int = 5, latency: float = 0.5) -> Record:
    return Record(
        id=f"{task}/{i}",
        task=task,
        task_version="1",
        prompt="p",
        prompt_sha="0",
        data={},
        target="",
        completion="",
        token_ids=[0] * tokens,
        num_tokens=tokens,
        scores={"score": score, "score_strict": 0.0},
        nfe=nfe,
        queried=nfe * 3,
        committed_at=[0] * 32,
        stopped_by="eos",
        latency_s=latency,
        share_s=latency / 4,
        batch_size=4,
        batch=f"{task}/{i // 4}",
    )


def test_a_perfect_score_has_an_interval() -> None:
    value = measure("score", [record(i, score=float(i < 18)) for i in range(20)])
    assert (value.value, value.n) == (0.9, 20) and 0.68 < value.ci_low < 0.72 and 0.97 < value.ci_high <= 1
    perfect = measure("score", [record(i) for i in range(20)])
    assert perfect.value == 1.0 and 0.8 < perfect.ci_low < 0.9


def test_tpf_is_tokens_over_forwards_not_a_mean_of_ratios() -> None:
    records = [record(0, tokens=30, nfe=3), record(1, tokens=10, nfe=10)]
    assert measure("tpf", records).value == pytest.approx(40 / 13)
    assert measure("nfe", records).value == 6.5
    assert measure("queried", records).value == 19.5
    assert measure("speedup_nfe", records).value == pytest.approx(64 / 13)


def test_throughput_counts_each_batch_once() -> None:
    records = [record(i, tokens=10, latency=2.0) for i in range(4)]  # one batch of four in two seconds
    assert measure("tokens_per_s", records).value == pytest.approx(20.0)
    assert measure("latency_s", records).value == 2.0


def test_timings_are_observed_once_per_batch_and_five_make_an_interval() -> None:
    seconds = [1.0, 2.0, 4.0, 2.0, 3.0]
    records = [record(i, latency=seconds[i // 4]) for i in range(20)]
    value = measure("latency_s", records)
    assert value.n == 5 and value.value == pytest.approx(12 / 5)
    assert value.ci_low < 1.6 and value.ci_high > 3.6
    fewer = measure("latency_s", records[:16])
    assert fewer.n == 4 and not fewer.has_interval
    assert "[" not in fewer.text(".3f") and fewer.cells()[1:] == ["", ""]


def test_a_slow_sample_that_nobody_saw_is_allowed_for() -> None:
    records = [record(i, nfe=4 + i % 2) for i in range(50)]  # answers of 32 columns
    nfe, tpf = measure("nfe", records), measure("tpf", records)
    assert nfe.ci_high > 0.97 * 4.5 + 0.03 * 32 and nfe.ci_low > 4.3
    assert tpf.ci_low < 10 / (0.97 * 4.5 + 0.03 * 32) and tpf.ci_high < 10 / 4.2
    scheduled = measure("nfe", [record(i, nfe=4) for i in range(50)])
    assert scheduled.value == 4 and not scheduled.has_interval  # a fixed number of forwards has no slower samples


def test_differences_between_tasks_do_not_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    apart = [record(i, task, nfe=nfe + int(rng.integers(3))) for task, nfe in (("a", 10), ("b", 25)) for i in range(50)]
    pooled = [record(i, "a", nfe=r.nfe) for i, r in enumerate(apart)]
    within, one = measure("nfe", apart), measure("nfe", pooled)
    assert within.value == one.value and one.value - one.ci_low > 5 * (within.value - within.ci_low)
    score = [record(i, task, score=float(i < right)) for task, right in (("a", 2), ("b", 48)) for i in range(50)]
    lows = [
        measure("score", rows).ci_low
        for rows in (score, [record(i, score=r.scores["score"]) for i, r in enumerate(score)])
    ]
    assert lows[0] > lows[1] + 0.03


def test_every_task_and_all_are_aggregated() -> None:
    records = [record(i, task, score=float(task == "a")) for task in ("a", "b") for i in range(10)]
    metrics = aggregate(records)
    assert list(metrics) == ["a", "b", "all"]
    assert [metrics[task]["score"].value for task in metrics] == [1.0, 0.0, 0.5]
    assert metrics["all"]["score"].n == 20
    for row in metrics.values():
        for value in row.values():
            assert value.ci_low <= value.value <= value.ci_high


def test_a_task_s_further_scores_come_in_one_order() -> None:
    """Not in that of a set, which changes from process to process."""
    names = ["words", "rouge1", "inclusion", "grammar", "bleu", "alpha"]
    further = record(0)
    further.scores.update(dict.fromkeys(names, 1.0))
    assert list(aggregate([further])["t"])[-len(names) :] == sorted(names)
