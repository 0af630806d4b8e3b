"""The same questions in several wordings: each decoder's score in every one, how far they lie apart, and whether the
ranking of decoders is the same in all of them.

Wordings are compared question by question, and resamples draw questions, alike for all wordings and runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float

from parallelbench.records.questions import question, wording
from parallelbench.records.record import Run
from parallelbench.stats.agreement import agreement
from parallelbench.stats.curves import places
from parallelbench.stats.intervals import Value, bounded
from parallelbench.stats.leading import leading
from parallelbench.stats.resampling import resampled
from parallelbench.stats.speed_at_quality import MIDDLE, speeds_at

Scores = Float[np.ndarray, "m d"]  # of each decoder in each resample


@dataclass(frozen=True)
class Agreement:
    """Rankings in two wordings. tau: Kendall's, tau-b where decoders tie; None where all tie. same_best: share of
    resamples in which one decoder is the best in both."""

    a: int
    b: int
    tau: Value | None
    same_best: float


@dataclass(frozen=True)
class Wordings:
    """What runs did in several wordings of the same tasks.

    numbers: of the wordings. questions: asked in each of them.
    score: of each run (by its place) in each wording. spread: the largest difference between two wordings of a run,
        in points, and between which two.
    ranked: what decoders are ranked by. best: the best decoder in each wording, several where they tie.
    same_best: share of resamples in which one decoder is the best in all wordings.
    """

    numbers: tuple[int, ...]
    questions: int
    score: Mapping[int, Sequence[Value]]
    spread: Mapping[int, tuple[Value, int, int]]
    ranked: str
    best: Sequence[Sequence[str]]
    pairs: Sequence[Agreement]
    same_best: float


def across_wordings(runs: Sequence[Run], curve_of: Sequence[str]) -> Wordings | None:
    """Over the questions that the leading runs were asked in all of their wordings; runs in one wording are left out,
    and None where no two are left. Ceilings are not ranked."""
    asked_of = {i: {(question(r), wording(r.task)): r for r in runs[i].records} for i in leading(runs)}
    found = {i: asked for i, asked in asked_of.items() if len({number for _, number in asked}) > 1}
    if len(found) < 2:
        return None
    both = set.intersection(*({number for _, number in asked} for asked in found.values()))
    everywhere = set.intersection(*map(set, found.values()))
    numbers = tuple(sorted(both))
    shared = sorted(key for key in {key for key, _ in everywhere} if all((key, n) in everywhere for n in numbers))
    if len(numbers) < 2 or not shared:
        return None
    chosen = list(found)
    columns = np.array(
        [
            [[[number_of(found[i][key, number]) for key in shared] for number in numbers] for i in chosen]
            for number_of in (lambda r: 100 * r.scores["score"], lambda r: r.num_tokens, lambda r: r.nfe)
        ],
        dtype=float,
    )  # [3, runs, wordings, questions]
    tasks = np.array([task for task, _ in shared])
    score = {i: [bounded(row, 0, 100, tasks) for row in columns[0, at]] for at, i in enumerate(chosen)}
    spread = {i: _spread(columns[0, at], numbers, tasks) for at, i in enumerate(chosen)}
    ranking = [at for at, i in enumerate(chosen) if not runs[i].facts.is_ceiling]
    ranked, names, values = _values(columns[:, ranking], tasks, [curve_of[chosen[at]] for at in ranking])
    is_best = [np.isclose(one, one.max(1, keepdims=True), atol=1e-9) for one in values]
    best = [[name for name, on in zip(names, one[0], strict=True) if on] for one in is_best]
    pairs = [
        Agreement(numbers[a], numbers[b], agreement(values[a], values[b], len(shared)), _share(is_best[a] & is_best[b]))
        for a, b in combinations(range(len(numbers)), 2)
    ]
    same_best = _share(np.logical_and.reduce(is_best))
    return Wordings(numbers, len(shared), score, spread, ranked, best, pairs, same_best)


def _spread(score: np.ndarray, numbers: Sequence[int], tasks: np.ndarray) -> tuple[Value, int, int]:
    """The wording with the largest mean less that with the smallest, question by question."""
    means = score.mean(1)
    high, low = int(means.argmax()), int(means.argmin())
    return bounded(score[high] - score[low], -100, 100, tasks), numbers[high], numbers[low]


def _values(columns: np.ndarray, tasks: np.ndarray, curve_of: Sequence[str]) -> tuple[str, list[str], list[Scores]]:
    """By what decoders are ranked, their names, and the values of each wording. Curves of several runs are ranked by
    their speed at equal quality, 0 where they do not come to it; single runs by their scores."""
    groups = places(curve_of)
    means = columns.mean(3).reshape(3, -1)
    _, runs, wordings, n = columns.shape
    flat = resampled(columns.reshape(3, runs * wordings, n), tasks, means, means)
    score, tokens, nfe = (one.reshape(-1, runs, wordings) for one in flat)
    if sum(len(at) > 1 for at in groups.values()) < 2:
        by_curve = [
            score[:, [max(at, key=lambda i: score[0, i].mean()) for at in groups.values()], w] for w in range(wordings)
        ]
        return "score", list(groups), by_curve
    values = []
    for w in range(wordings):
        tpf, levels = tokens[:, :, w] / nfe[:, :, w], MIDDLE * score[:, :, w].max(1)
        reached = [speeds_at(tpf[:, at], score[:, at, w], levels) for at in groups.values()]
        values.append(np.nan_to_num(np.stack(reached, 1)))
    return f"TPF at {100 * MIDDLE:g} % of the best score", list(groups), values


def _share(same: Bool[np.ndarray, "m d"]) -> float:
    """Of resamples in which at least one decoder is it."""
    return float(same[1:].any(1).mean())
