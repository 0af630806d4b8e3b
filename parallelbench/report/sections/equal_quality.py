"""What a report opens with: speed at equal quality, and which run to use."""

from collections.abc import Mapping, Sequence

from parallelbench.records.record import Run
from parallelbench.report.markdown import table
from parallelbench.stats.leading import marked
from parallelbench.stats.metrics import measure
from parallelbench.stats.speed_at_quality import LEVELS, MIDDLE, EqualQuality, Speed

ABOUT = (
    "Tokens per forward that a decoder reaches over its knob while its score stays at a share of the best run's "
    "({best:.1f} %){lead}, with 95 % intervals (paired bootstrap over samples; linear between runs). A decoder with "
    "a single run contributes one point. A level counts as reached if 95 % of bootstrap resamples reach it."
)
CEILING = "a ceiling, not a method"


def to_use(equal: EqualQuality, runs: Sequence[Run], curve_of: Sequence[str]) -> int | None:
    """Place of the winner's fastest run whose score is at the middle level."""
    good = [
        i
        for i in equal.runs
        if curve_of[i] == equal.winner and measure("score", runs[i].records).value >= MIDDLE * equal.best
    ]
    return max(good, key=lambda i: measure("tpf", runs[i].records).value, default=None)


def answer(equal: EqualQuality, name: str) -> str:
    """The winner, and the run to use, in a sentence."""
    assert equal.winner is not None
    speed = equal.rows[equal.winner][MIDDLE]
    assert speed.tpf is not None
    lead = (
        ""
        if speed.lead is None or equal.winner == equal.reference
        else f", {speed.lead.text('+.2f')} over {equal.reference}"
    )
    return (
        f"At {100 * MIDDLE:g} % of the best score, {equal.winner} writes the most tokens per forward: "
        f"{speed.tpf.text('.2f')}{lead}. Its fastest run at that score: {name}."
    )


def about(equal: EqualQuality) -> str:
    never = [name for name, row in equal.rows.items() if not _reaches(row)]
    rest = f" No level is reached by {', '.join(never)}." if never else ""
    others = [row for name, row in equal.rows.items() if name != equal.reference]
    leads = any(speed.lead is not None for row in others for speed in row.values())
    lead = f", and its lead over {equal.reference}" if leads else ""
    return ABOUT.format(best=100 * equal.best, lead=lead) + rest


def heads() -> list[str]:
    return [f"TPF at {100 * level:g} % of it" for level in LEVELS]


def cell(equal: EqualQuality, curve: str, speed: Speed) -> str:
    """TPF and lead of a curve at one level."""
    if speed.tpf is None:
        return "not reached"
    lead = "" if speed.lead is None or curve == equal.reference else f" ({speed.lead.text('+.2f')})"
    return speed.tpf.text(".2f") + lead


def equal_quality_lines(
    equal: EqualQuality, runs: Sequence[Run], names: Sequence[str], curve_of: Sequence[str]
) -> list[str]:
    """A section of Markdown."""
    use = to_use(equal, runs, curve_of)
    lines = ["## Speed at equal quality", ""]
    lines += [answer(equal, marked(f"`{names[use]}`", runs[use])), ""] if use is not None else []
    rows = []
    for name, row in equal.rows.items():
        first = next(runs[i] for i in equal.runs if curve_of[i] == name)
        shown = f"*{name}* ({CEILING})" if name in equal.ceilings else marked(name, first)
        if _reaches(row):
            rows.append([shown, *(cell(equal, name, row[level]) for level in LEVELS)])
    return [*lines, about(equal), "", *table(["decoder", *heads()], rows), ""]


def _reaches(row: Mapping[float, Speed]) -> bool:
    """Whether a curve has any of the levels."""
    return any(speed.tpf is not None for speed in row.values())
