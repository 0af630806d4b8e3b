"""How decoders fare when the same questions are asked in other words."""

from collections.abc import Sequence

from parallelbench.report.markdown import table
from parallelbench.stats.wordings import Wordings

LEGEND = (
    "Score in % in each wording of the tasks, over {questions} questions that were asked in all of them, with 95 % "
    "intervals. Spread: the best wording less the worst, question by question. Decoders are ranked by {ranked}. Tau: "
    "Kendall's rank correlation of the rankings in two wordings, 1 where they are the same; its interval and the "
    "shares are of a bootstrap over questions, alike for all wordings."
)


def heads(wordings: Wordings) -> list[str]:
    return [*(f"wording {number}" for number in wordings.numbers), "spread"]


def cells(wordings: Wordings, run: int) -> list[str]:
    """A run's score in each wording, and the spread."""
    spread, high, low = wordings.spread[run]
    return [
        *(value.text(".1f") for value in wordings.score[run]),
        f"{spread.text('.1f')}" + ("" if high == low else f", {high} over {low}"),
    ]


def verdicts(wordings: Wordings) -> list[str]:
    """A sentence for each wording's best decoder and for each pair of rankings."""
    told = [
        f"Best in wording {number}: {', '.join(names)}."
        for number, names in zip(wordings.numbers, wordings.best, strict=True)
    ]
    told.append(f"One decoder is the best in all wordings in {wordings.same_best:.0%} of resamples.")
    for pair in wordings.pairs:
        tau = "all decoders tie in at least one" if pair.tau is None else f"tau {pair.tau.text('.2f')}"
        told.append(f"Wordings {pair.a} and {pair.b}: {tau}; one decoder is the best in both in {pair.same_best:.0%}.")
    return told


def wording_lines(wordings: Wordings, names: Sequence[str]) -> list[str]:
    """A section of Markdown."""
    rows = [[names[i], *cells(wordings, i)] for i in wordings.score]
    lines = ["## Wordings", "", *table(["run", *heads(wordings)], rows)]
    legend = LEGEND.format(questions=wordings.questions, ranked=wordings.ranked)
    return [*lines, "", *(f"- {told}" for told in verdicts(wordings)), "", legend, ""]
