"""The fastest configuration that loses little: `python -m parallelbench recommend DIR ... max_loss=1.0`.

A configuration's loss is the reference's score minus its own over the same samples, in points of 100. It is within the
bound if Tango's score test (`stats.loss`) rejects a loss of the bound or more. A run that differs nowhere is no proof:
below 268 samples even that leaves a loss of a point possible.

The fastest of many is a lucky one, so the test guards the choice and not each run alone: the C curves (a decoder and a
cache over the rule's knob) share the 5 %, and each is walked from its slowest run faster than the reference up to the
first that fails (fixed-sequence test; the knob's order is known beforehand). Whatever passes is within the bound, all
at once, at 95 % for each family of tasks, so it may be chosen among by any measure. The reference is the best-scoring
run (of equals the slowest): its luck adds to every loss, which errs on the safe side. What the 5 % bounds is how often
a sweep leads to a bad choice, not the share of bad ones among the choices of a sweep in which nothing is good.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from scipy.stats import norm

from parallelbench.records.files import to_json
from parallelbench.records.record import Run, readable_runs
from parallelbench.report.options import is_json, points, split_options
from parallelbench.stats.curves import curve_names, run_names, task_names
from parallelbench.stats.groups import comparable, distinct, model_name, samples_name
from parallelbench.stats.leading import crowned, marked
from parallelbench.stats.loss import ALPHA, statistic, upper_limit
from parallelbench.stats.metrics import ALL, measure
from parallelbench.stats.paired import pair
from parallelbench.stats.timing import unreliable

BOUNDS = (1.0, 2.0, 3.0, 5.0)  # points, of which a sweep takes the smallest that it can
Command = Callable[[Run], str]  # what makes a run again
LEGEND = (
    "Loss: the reference's score minus this one's on the same samples, in points. TPF: tokens before EOS per forward. "
    "At most: a simultaneous 95 % upper bound per heading over all runs called within the limit (Tango's score test; "
    "curves of runs, each walked from its slowest, share the 5 %). TPF, tokens/s: 95 % intervals."
)


@dataclass(frozen=True)
class Choice:
    """What is recommended; runs are named by their places.

    reference: the run that others are compared with.
    best: the fastest run that is certain to be within the bound. None: no faster one is.
    within: all runs that are certain to be.
    alpha: each test's share of ALPHA.
    equal: the fastest run that scores as high as the reference, which may be the reference itself.
    loss: of each question, times its weight, in [-most, most], `[runs, questions]`. most: the largest weight.
    needed: questions that would make each run certain if nothing else changed, `[runs]`; infinite where its loss is
        larger than the bound.
    """

    reference: int
    best: int | None
    within: tuple[int, ...]
    alpha: float
    equal: int
    loss: np.ndarray
    needed: np.ndarray
    most: float

    @property
    def take(self) -> int:
        """The run to take: `best`, or `equal` where no faster one is certain."""
        return self.equal if self.best is None else self.best


def choose(
    score: np.ndarray,
    speed: np.ndarray,
    curves: Sequence[str],
    max_loss: float,
    reference: int | None = None,
    weights: np.ndarray | None = None,
    level: float = ALPHA,
    may: Collection[int] | None = None,
) -> Choice:
    """The fastest run whose loss is within max_loss points. score: per cent, `[runs, questions]`; speed, curves:
    `[runs]`; weights: of each question, 1 on average; level: of the test, which the curves share; may: runs that may
    be taken for their score alone, by default all."""
    weights = np.ones(score.shape[1]) if weights is None else weights
    score, most = score * weights, float(weights.max())
    if reference is None:
        reference = best_scoring(score.mean(1), speed)
    loss = (score[reference] - score) / 100
    names = {curve for curve, fast in zip(curves, speed > speed[reference], strict=True) if fast}
    alpha = level / max(len(names), 1)
    z = float(norm.isf(alpha))
    tests = np.array([statistic(row, max_loss / 100, most) for row in loss])
    within: list[int] = []
    for name in names:
        members = [i for i in np.argsort(speed) if curves[i] == name and speed[i] > speed[reference]]
        within += takewhile(lambda i: tests[i] <= -z, map(int, members))
    with np.errstate(divide="ignore"):
        needed = np.where(tests < 0, loss.shape[1] * (z / tests) ** 2, np.inf)
    best = max(within, key=lambda i: speed[i], default=None)
    means = score.mean(1).round(9)
    equals = [i for i in range(len(means)) if means[i] == means[reference] and (may is None or i in may)]
    equal = max([reference, *equals], key=lambda i: speed[i])
    return Choice(reference, best, tuple(within), alpha, equal, loss, needed, most)


def best_scoring(means: np.ndarray, speed: np.ndarray) -> int:
    """The place of the highest mean score, of equals the slowest. means, speed: `[runs]`."""
    return int(np.lexsort((-speed, means.round(9)))[-1])


def main(arguments: Sequence[str], command: Command) -> str:
    """A section per group of comparable runs, in it a paragraph for all tasks and for each family of them."""
    paths, options = split_options(arguments, {"max_loss": "1.0", "reference": "", "format": "text"})
    wants_json = is_json(options["format"])
    max_loss = points(options["max_loss"])
    found, skipped = readable_runs(paths)
    runs, left_out = distinct(found)
    groups = [group for group in comparable(runs) if _named(group, options["reference"]) is not None]
    rest = sum(len(group) for group in comparable(runs)) - sum(map(len, groups))
    left_out += [f"{rest} runs of other models or samples than {options['reference']}"] if rest else []
    if not groups:
        names = ", ".join(run_names(runs)[:8]) or "none is finished"
        raise ValueError(f"reference={options['reference']} is none of these runs ({names}); name one or its folder")
    if wants_json:
        told = [_section(group, max_loss, options["reference"], command)[1] for group in groups]
        return to_json({"max_loss": max_loss, "groups": told, "left_out": [*skipped, *left_out]}, indent=2)
    text = [line for group in groups for line in _section(group, max_loss, options["reference"], command)[0]]
    return "\n".join([*text, LEGEND, "", *(f"Left out: {reason}." for reason in (*skipped, *left_out))])


def _section(
    group: Sequence[Run], max_loss: float, reference: str, command: Command
) -> tuple[list[str], dict[str, Any]]:
    """Lines, and the same as an object."""
    names, paired = run_names(group), pair(group)
    named = _named(group, reference)
    families = np.array([task.split("/")[0] for task in paired.tasks])
    lines = [f"# {model_name(group[0])} on {samples_name(group[0])}, {len(group)} run{'s' * (len(group) > 1)}", ""]
    told: dict[str, Any] = {"model": model_name(group[0]), "samples": samples_name(group[0]), "choices": {}}
    several = list(np.unique(families)) if len(set(families)) > 1 else []
    for family in (ALL, *several):
        of = np.full(len(families), True) if family == ALL else families == family
        part = paired.part(of)
        speed, score = part.tokens.sum(1) / part.nfe.sum(1), part.questions.mean(part.score)
        given = named if reference else _reference(group, score * part.questions.weights, speed)
        choice = choose(
            score, speed, curve_names(names, group), max_loss, given, part.questions.weights, may=crowned(group)
        )
        label = f"all tasks ({families[0]})" if family == ALL and not several else family
        told["choices"][family] = {"samples": int(of.sum()), **_object(group, names, family, choice, command)}
        lines += [
            f"## {label}: {of.sum()} samples",
            "",
            *_paragraph(group, names, family, choice, speed, max_loss, command),
            "",
        ]
    return lines, told


def _object(
    group: Sequence[Run], names: Sequence[str], family: str, choice: Choice, command: Command
) -> dict[str, Any]:
    """reference, best (null where no faster run is certain), the run to take, and all within the bound, each with its
    tokens per forward, its loss and the loss that it has at most, in points."""

    def about(i: int) -> dict[str, Any]:
        return {
            "name": names[i],
            "folder": str(group[i].folder),
            "command": command(group[i]),
            "tpf": asdict(measure("tpf", _of(group[i], family))),
            "loss": 100 * float(choice.loss[i].mean()),
            "loss_at_most": 100 * upper_limit(choice.loss[i], choice.alpha, choice.most),
        }

    return {
        "reference": about(choice.reference),
        "best": None if choice.best is None else about(choice.best),
        "take": about(choice.take),
        "within": [about(i) for i in choice.within],
    }


def _reference(group: Sequence[Run], score: np.ndarray, speed: np.ndarray) -> int:
    """The best-scoring run of those that may be called so. score: `[runs, questions]`, speed: `[runs]`."""
    may = crowned(group)
    return may[best_scoring(score[may].mean(1), speed[may])]


def advice(runs: Sequence[Run], command: Command) -> list[tuple[str, str]]:
    """What a sweep says at its end: a sentence and a command for each group of comparable runs. It takes the smallest
    of BOUNDS that a faster run is certain to keep. They share the 5 %, so that choosing among them costs nothing."""
    groups = [group for group in comparable(distinct(runs)[0]) if len(group) > 1]
    if not groups:
        return [("Nothing to choose: no two finished runs of this sweep decoded the same samples.", "")]
    before = [f"{model_name(group[0])}, {_on(group[0])}: " if len(groups) > 1 else "" for group in groups]
    return [_advice(group, which, command) for group, which in zip(groups, before, strict=True)]


def _on(run: Run) -> str:
    """The tasks of a run, as its name would say them."""
    return task_names(list(dict.fromkeys(record.task for record in run.records)))


def _advice(group: Sequence[Run], before: str, command: Command) -> tuple[str, str]:
    names, paired = run_names(group), pair(group)
    weights, score = paired.questions.weights, paired.questions.mean(paired.score)
    speed = paired.tokens.sum(1) / paired.nfe.sum(1)
    reference = _reference(group, score * weights, speed)

    def of(bound: float) -> Choice:
        level = ALPHA / len(BOUNDS)
        return choose(score, speed, curve_names(names, group), bound, reference, weights, level, crowned(group))

    bound = next((bound for bound in BOUNDS if of(bound).best is not None), BOUNDS[-1])
    choice, n = of(bound), len(paired.tasks)
    take = choice.take
    text = (
        f"{before}Take {marked(names[take], group[take])}: "
        f"{measure('tpf', group[take].records).text('.2f')} tokens per forward"
    )
    best = f"Its score, {(score[take] * weights).mean():.1f} %, is the best,"
    likely = min(map(int, np.flatnonzero(speed > speed[take])), key=lambda i: choice.needed[i], default=None)
    if choice.best is not None:
        text += (
            f", {speed[take] / speed[reference]:.2f} times those of the best score, {names[reference]}. It loses at "
            f"most {_of_points(bound)} (95 %, {n} samples)."
        )
    elif likely is None:
        text += f". {best} and no run is faster."
    else:
        text += f". {best} and {n} samples are too few to tell that a faster run loses at most {_of_points(bound)}."
        share, limit = choice.needed[likely] / len(weights), group[likely].config["limit"]
        if 1 < share < np.inf:
            limit = math.ceil(limit * share)
            text += f" {names[likely]} may, {speed[likely]:.2f} tokens per forward: try limit={limit}."
    return text, command(group[take])


def _of_points(number: float) -> str:
    return f"{number:g} point{'s' * (number != 1)}"


def _paragraph(
    group: Sequence[Run],
    names: Sequence[str],
    family: str,
    choice: Choice,
    speed: np.ndarray,
    max_loss: float,
    command: Command,
) -> list[str]:
    shown = {choice.reference, choice.equal, *choice.within}
    values = {i: [measure(name, _of(group[i], family)) for name in ("tpf", "tokens_per_s")] for i in shown}
    timed = len({(run.info["device"], run.config["batch_size"], run.info.get("processes", 1)) for run in group}) == 1
    timed = timed and not unreliable(group)

    def about(i: int) -> str:
        seconds = f", {values[i][1].text('.0f')} tokens/s" if timed else ""
        return f"{marked(names[i], group[i])}, TPF {values[i][0].text('.2f')}{seconds}"

    def lost(i: int) -> str:
        upper = upper_limit(choice.loss[i], choice.alpha, choice.most)
        return f"loses {100 * choice.loss[i].mean():.2f} points, at most {100 * upper:.2f}"

    score = 100 * np.mean([r.scores["score"] for r in _of(group[choice.reference], family)])
    lines = [f"- reference: {about(choice.reference)}, score {score:.1f} %"]
    best, bound = choice.best, _of_points(max_loss)
    if best is not None:
        lines += [f"- fastest within {bound}: {about(best)}, {lost(best)}"]
    elif speed[choice.reference] == speed.max():
        lines += ["- the reference is the fastest run"]
    else:
        why = f"- no faster configuration is certain to lose at most {bound}: "
        equal = f"take {about(choice.equal)}, whose score is the same"
        lines += [why + ("keep the reference" if choice.equal == choice.reference else equal)]
    use = choice.take
    lines += [f"      {command(group[use])}"]
    soonest = max(choice.within, key=lambda i: values[i][1].value, default=None) if timed else None
    if soonest is not None and soonest != best:
        lines += [f"- most tokens per second within them: {about(soonest)}, {lost(soonest)}"]
        lines += [f"      {command(group[soonest])}"]
    certain = speed[choice.reference if best is None else best]
    open_ones = [i for i in range(len(group)) if speed[i] > certain and i not in choice.within]
    likely = min(open_ones, key=lambda i: choice.needed[i], default=None)
    if likely is not None and np.isfinite(choice.needed[likely]):
        n, share = len(_of(group[likely], family)), choice.needed[likely] / choice.loss.shape[1]
        needed, limit = math.ceil(share * n), math.ceil(group[likely].config["limit"] * share)
        more = f"about {needed} samples would show it (limit={limit})"
        reason = more if needed > n else "a slower run of its curve is not certain"
        lines += [f"- faster but not certain: {names[likely]}, TPF {speed[likely]:.2f}, {lost(likely)}; {reason}"]
    return lines


def _of(run: Run, family: str) -> list:
    return [record for record in run.records if family in (ALL, record.task.split("/")[0])]


def _named(group: Sequence[Run], reference: str) -> int | None:
    """The place of the run with this name or folder, 0 where none is asked for, None where there is no such run."""
    folders = [{str(run.folder), run.folder.name} for run in group]
    known = [{name, *others} for name, others in zip(run_names(group), folders, strict=True)]
    return next((i for i, those in enumerate(known) if reference.rstrip("/") in those or not reference), None)
