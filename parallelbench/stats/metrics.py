"""Aggregates with 95 % confidence intervals over samples."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from parallelbench.records.questions import question
from parallelbench.records.record import ALL, Record
from parallelbench.stats.groups import grouped
from parallelbench.stats.intervals import MIN_BATCHES, Value, bounded, product
from parallelbench.tasks.base import first_wording

Metrics = Mapping[str, Mapping[str, dict[str, Value]]]  # of runs, by name, task and metric


@dataclass(frozen=True)
class Metric:
    """A column of every table: terminal, Markdown, CSV, page and sinks are made from `METRICS`.

    heading: above the column.
    about: what it is, for readers of a table.
    digits, scale, unit: how a number is shown.
    numerator, denominator: per sample; the value is sum / sum over samples.
    is_score: whether values lie in [0, 1].
    is_timed: samples of a batch share their forwards; n counts batches, and below five there is no interval.
    intervals: whether the interval is next to the value in text, and in the page.
    """

    heading: str
    about: str
    digits: int
    numerator: Callable[[Record], float]
    denominator: Callable[[Record], float] = lambda record: 1
    scale: int = 1
    unit: str = ""
    is_score: bool = False
    is_timed: bool = False
    intervals: tuple[bool, bool] = (False, False)

    def show(self, value: Value) -> str:
        """A cell of a text table."""
        if math.isnan(value.value):
            return "\N{EN DASH}"
        shown = f".{self.digits}f"
        text = value.text(shown, self.scale, self.unit)
        return text if self.intervals[0] else text.split(" [")[0]


METRICS = {
    "score": Metric(
        "score %", "mean score", 1, lambda r: r.scores["score"], scale=100, is_score=True, intervals=(True, True)
    ),
    "score_strict": Metric(
        "strict %",
        "mean of the strict score",
        1,
        lambda r: r.scores["score_strict"],
        scale=100,
        is_score=True,
        intervals=(True, False),
    ),
    "nfe": Metric("NFE", "forwards per sample", 1, lambda r: r.nfe),
    "tpf": Metric(
        "TPF", "tokens before EOS per forward", 2, lambda r: r.num_tokens, lambda r: r.nfe, intervals=(False, True)
    ),
    "queried": Metric("queried", "columns recomputed per sample", 0, lambda r: r.queried),
    "tokens_per_s": Metric(
        "tokens/s",
        "tokens before EOS per second of decoding, at the run's batch size",
        0,
        lambda r: r.num_tokens,
        lambda r: r.share_s,
        is_timed=True,
        intervals=(False, True),
    ),
    "latency_s": Metric("latency s", "wall seconds of a sample's forwards", 3, lambda r: r.latency_s, is_timed=True),
    "speedup_nfe": Metric(
        "speed-up",
        "gen_length / NFE; one token per step without a stop rule takes gen_length forwards",
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
    many). A task's further scores, such as `grammar`, are next to its own metrics, and what there is to tell of
    drafts."""
    tasks = grouped(records, lambda record: record.task)
    groups = {**tasks, ALL: list(records)}
    metrics = {task: {name: measure(name, group) for name in METRICS} for task, group in groups.items()}
    for task, group in groups.items():
        drafting = [record for record in group if any(drafted for _, drafted, _, _ in record.drafts)]
        metrics[task] |= {name: measure(name, drafting) for name in OF_DRAFTS if drafting}
    for task, group in tasks.items():  # what else its scorer says
        for name in sorted(group[0].scores.keys() - METRICS.keys()):
            values = np.array([record.scores[name] for record in group], dtype=float)
            metrics[task][name] = bounded(values, 0, 1)
    return metrics


def measure(metric: str, records: Sequence[Record]) -> Value:
    """One metric over at least one record. The wordings of a question share its difficulty and are one observation."""
    column = (METRICS | OF_DRAFTS)[metric]
    units = list(grouped(records, lambda record: record.batch if column.is_timed else question(record)).values())
    of = [unit[0].task if column.is_timed else f"{first_wording(unit[0].task)}/{len(unit)}" for unit in units]
    strata, size = np.array(of), max(map(len, units))
    if column.is_score:
        means = np.array([np.mean([column.numerator(record) for record in unit]) for unit in units], dtype=float)
        weights = np.array([len(unit) for unit in units]) * len(units) / len(records)
        return replace(bounded(means, 0, 1, strata, weights), n=len(records))

    def sums(units: Sequence[Sequence[Record]]) -> np.ndarray:
        parts = (column.numerator, column.denominator)
        return np.array([[sum(map(part, unit)) for unit in units] for part in parts], dtype=float)

    value = product(sums(units), (1, -1), strata, None if column.is_timed else sums([[slowest(records)] * size]).T)
    value = value if column.is_timed else replace(value, n=len(records))
    has_interval = not column.is_timed or value.n >= MIN_BATCHES
    return value if has_interval else replace(value, ci_low=value.value, ci_high=value.value)


def slowest(records: Sequence[Record]) -> Record:
    """A sample like the others that took a forward for each column of the longest: what a run may do though none of its
    samples shows it. Where all took equally many forwards it took as many, since that is a schedule's doing."""
    longest = max(records, key=lambda record: len(record.committed_at))
    most = max(record.nfe for record in records)
    varies = any(record.nfe != most for record in records)
    nfe = max(len(longest.committed_at), most) if varies else most
    per_forward = sum(record.queried for record in records) / max(sum(record.nfe for record in records), 1)
    tokens = sum(record.num_tokens for record in records) / len(records)
    return structs.replace(longest, nfe=nfe, num_tokens=round(tokens), queried=round(per_forward * nfe))
