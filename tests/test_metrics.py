"""Aggregates against closed forms and scipy."""

import numpy as np
import pytest
from scipy.stats import binomtest

from parallelbench.records.record import Record
from parallelbench.stats.metrics import Value, aggregate, measure, ratio


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
        batch_size=4,
        batch=f"{task}/{i // 4}",
    )


def test_shares_have_wilson_intervals() -> None:
    value = measure("score", [record(i, score=float(i < 18)) for i in range(20)])
    interval = binomtest(18, 20).proportion_ci(0.95, method="wilson")
    assert (value.value, value.n) == (0.9, 20)
    assert (value.ci_low, value.ci_high) == pytest.approx((interval.low, interval.high))
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


def test_timings_are_observed_once_per_batch() -> None:
    records = [record(i, latency=[1.0, 2.0, 4.0][i // 4]) for i in range(12)]
    value = measure("latency_s", records)
    assert value.n == 3 and value.value == pytest.approx(7 / 3)
    assert value.ci_low == 1.0 and value.ci_high == 4.0
    assert measure("latency_s", records[:4]).n == 1  # one batch: no interval


def test_bootstrap_covers_the_truth() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(100):
        value = ratio(rng.exponential(2.0, 60), np.ones(60), ["t"] * 60)
        hits += value.ci_low <= 2.0 <= value.ci_high
    assert 86 <= hits <= 99


def test_differences_between_tasks_do_not_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    values, tasks = np.concatenate([rng.normal(mean, 1, 50) for mean in (10, 100)]), ["a"] * 50 + ["b"] * 50
    within, pooled = ratio(values, np.ones(100), tasks), ratio(values, np.ones(100), ["t"] * 100)
    assert within.value == pooled.value
    width = within.ci_high - within.ci_low
    assert abs(width - 2 * 1.96 / 10) < 0.1 and pooled.ci_high - pooled.ci_low > 10 * width


def test_every_task_and_all_are_aggregated() -> None:
    records = [record(i, task, score=float(task == "a")) for task in ("a", "b") for i in range(10)]
    metrics = aggregate(records)
    assert list(metrics) == ["a", "b", "all"]
    assert [metrics[task]["score"].value for task in metrics] == [1.0, 0.0, 0.5]
    assert metrics["all"]["score"].n == 20
    for row in metrics.values():
        for value in row.values():
            assert value.ci_low <= value.value <= value.ci_high


def test_one_forward_each_is_no_share() -> None:
    """All ones are certain as a number of forwards, and 5 of 5 as a score."""
    ones = np.ones(5)
    assert ratio(ones, ones, ["t"] * 5) == Value(1.0, 1.0, 1.0, 5)
    assert ratio(ones, ones, ["t"] * 5, is_share=True).ci_low < 0.6
