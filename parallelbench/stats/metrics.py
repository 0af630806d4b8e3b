"""Aggregates with 95 % confidence intervals over samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from parallelbench.records.record import Record

CONFIDENCE = 0.95
NUM_RESAMPLES = 1000
ALL = "all"


@dataclass(frozen=True)
class Value:
    """A mean or a ratio of sums over n samples (n batches for timings) with its 95 % interval."""

    value: float
    ci_low: float
    ci_high: float
    n: int


@dataclass(frozen=True)
class Metric:
    """A column of every table: terminal, Markdown, CSV, page and sinks are made from `METRICS`.

    heading: above the column.
    about: what it is, for readers of a table.
    digits, scale, unit: how a number is shown.
    numerator, denominator: per sample; the value is sum / sum over samples.
    is_share: whether values are 0 or 1 by definition.
    is_timed: measured once per batch; n counts batches, which are what is resampled.
    intervals: whether the interval stands beside the value in text, and in the page.
    """

    heading: str
    about: str
    digits: int
    numerator: Callable[[Record], float]
    denominator: Callable[[Record], float] = lambda record: 1
    scale: int = 1
    unit: str = ""
    is_share: bool = False
    is_timed: bool = False
    intervals: tuple[bool, bool] = (False, False)

    def show(self, value: Value) -> str:
        """A cell of a text table."""
        text, low, high = (
            f"{self.scale * v:.{self.digits}f}{self.unit}" for v in (value.value, value.ci_low, value.ci_high)
        )
        return f"{text} [{low}, {high}]" if self.intervals[0] else text


METRICS = {
    "score": Metric(
        "score %", "mean score", 1, lambda r: r.scores["score"], scale=100, is_share=True, intervals=(True, True)
    ),
    "score_strict": Metric(
        "strict %",
        "mean of the strict score",
        1,
        lambda r: r.scores["score_strict"],
        scale=100,
        is_share=True,
        intervals=(True, False),
    ),
    "nfe": Metric("NFE", "forwards per sample", 1, lambda r: r.nfe),
    "tpf": Metric(
        "TPF", "tokens before EOS per forward", 2, lambda r: r.num_tokens, lambda r: r.nfe, intervals=(False, True)
    ),
    "queried": Metric("queried", "columns recomputed per sample", 0, lambda r: r.queried),
    "tokens_per_s": Metric(
        "tokens/s",
        "throughput at the run's batch size",
        0,
        lambda r: r.num_tokens,
        lambda r: r.latency_s / r.batch_size,
        is_timed=True,
        intervals=(False, True),
    ),
    "latency_s": Metric("latency s", "wall seconds of a sample's batch", 3, lambda r: r.latency_s, is_timed=True),
    "speedup_nfe": Metric(
        "speed-up",
        "gen_length / NFE, over the forwards of one token per step without a stop rule",
        1,
        lambda r: len(r.committed_at),
        lambda r: r.nfe,
        unit="x",
    ),
}
OF_DRAFTS = {  # for decoders that draft; absent where nothing was drafted
    "accepted": Metric(
        "accepted",
        "drafts that were written per forward that verified some",
        2,
        lambda r: sum(accepted for _, _, accepted, _ in r.drafts),
        lambda r: sum(drafted > 0 for _, drafted, _, _ in r.drafts),
    )
}


def legend(columns: Mapping[str, Metric]) -> str:
    """What the columns of a table are."""
    return (
        f"{'. '.join(f'{metric.heading}: {metric.about}' for metric in columns.values())}. In brackets: 95 % intervals."
    )


LEGEND = legend(METRICS)


def aggregate(records: Sequence[Record]) -> dict[str, dict[str, Value]]:
    """metrics[task][metric] for every task and for `all` (samples pooled, so tasks weigh alike when they have equally
    many). A task's further scores, such as `grammar`, stand beside its own metrics, and what there is to tell of
    drafts."""
    tasks = {task: [r for r in records if r.task == task] for task in dict.fromkeys(r.task for r in records)}
    groups = {**tasks, ALL: list(records)}
    metrics = {task: {name: measure(name, group) for name in METRICS} for task, group in groups.items()}
    for task, group in groups.items():
        drafting = [record for record in group if any(drafted for _, drafted, _, _ in record.drafts)]
        metrics[task] |= {name: measure(name, drafting) for name in OF_DRAFTS if drafting}
    for task, group in tasks.items():  # what else its scorer says
        for name in group[0].scores.keys() - METRICS.keys():
            values = np.array([record.scores[name] for record in group])
            metrics[task][name] = ratio(values, np.ones(len(group)), [task] * len(group), is_share=True)
    return metrics


def measure(metric: str, records: Sequence[Record]) -> Value:
    """One metric over at least one record."""
    column = (METRICS | OF_DRAFTS)[metric]
    top, bottom = column.numerator, column.denominator
    units = _batches(records) if column.is_timed else [[record] for record in records]
    numerator = np.array([sum(map(top, unit)) for unit in units], dtype=float)
    denominator = np.array([sum(map(bottom, unit)) for unit in units], dtype=float)
    return ratio(numerator, denominator, [unit[0].task for unit in units], is_share=column.is_share)


def _batches(records: Sequence[Record]) -> list[list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.batch, []).append(record)
    return list(groups.values())


def ratio(numerator: np.ndarray, denominator: np.ndarray, strata: Sequence[str], *, is_share: bool = False) -> Value:
    """sum / sum with a 95 % interval: Wilson's for a share of zeros and ones, else the percentile bootstrap.

    is_share: whether numbers can be nothing but zeros and ones; one forward each is no share.

    The bootstrap draws samples within each stratum: the tasks of a suite are fixed, only their samples are random.
    """
    n, value = len(numerator), float(numerator.sum() / denominator.sum())
    if is_share and (denominator == 1).all() and np.isin(numerator, (0, 1)).all():
        interval = binomtest(int(numerator.sum()), n).proportion_ci(CONFIDENCE, method="wilson")
        return Value(value, float(interval.low), float(interval.high), n)
    if n == 1 or np.ptp(numerator / denominator) == 0:
        return Value(value, value, value, n)  # nothing varies, or there is one observation and so no interval
    rng = np.random.default_rng(0)
    sums = np.zeros((2, NUM_RESAMPLES))
    for stratum in dict.fromkeys(strata):
        members = np.flatnonzero(np.array(strata) == stratum)
        drawn = rng.choice(members, (NUM_RESAMPLES, len(members)))
        sums += numerator[drawn].sum(1), denominator[drawn].sum(1)
    low, high = np.quantile(sums[0] / sums[1], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Value(value, min(float(low), value), max(float(high), value), n)


def resample_counts(strata: np.ndarray) -> np.ndarray:
    """How often each bootstrap resample draws each sample within its stratum, `[1 + NUM_RESAMPLES, samples]`; row 0 is
    the data itself."""
    rng = np.random.default_rng(0)
    counts = np.ones((1 + NUM_RESAMPLES, len(strata)))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        counts[1:, members] = rng.multinomial(len(members), np.full(len(members), 1 / len(members)), NUM_RESAMPLES)
    return counts
