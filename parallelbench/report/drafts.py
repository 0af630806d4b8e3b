"""How many drafts a verifier accepts, for decoders that draft."""

from collections import Counter
from collections.abc import Sequence

from parallelbench.records.record import Record, Run
from parallelbench.report.markdown import table_row
from parallelbench.stats.intervals import Value
from parallelbench.stats.metrics import ALL, OF_DRAFTS, Metrics

MAX_OFFSETS = 8  # that have a column


def draft_lines(names: Sequence[str], runs: Sequence[Run], metrics: Metrics) -> list[str]:
    """A section on drafts: a line per run and task, and for all tasks. Nothing for runs without drafts."""
    drafting = [(name, run) for name, run in zip(names, runs, strict=True) if "accepted" in metrics[name][ALL]]
    if not drafting:
        return []
    heads = ["run", "task", "verifying forwards", "drafts in one", "accepted", *map(str, range(1, MAX_OFFSETS + 1))]
    lines = [
        "## Drafts",
        "",
        f"{OF_DRAFTS['accepted'].heading}: {OF_DRAFTS['accepted'].about}, with its 95 % interval. The columns 1 to "
        f"{MAX_OFFSETS} say how many per cent of the forwards that were given so many drafts accepted as many or more. "
        "A near tie is looked at again in a forward of its own.",
        "",
        table_row([*heads, "how many were accepted, %", "near ties"]),
        table_row(["---"] * 2 + ["---:"] * (len(heads) - 2) + ["---", "---:"]),
    ]
    for name, run in drafting:
        for task in [task for task, row in metrics[name].items() if "accepted" in row]:
            records = [record for record in run.records if task in (record.task, ALL)]
            lines.append(table_row([name, task.split("/")[-1], *_cells(records, metrics[name][task]["accepted"])]))
    return [*lines, ""]


def _cells(records: Sequence[Record], mean: Value) -> list[str]:
    rounds = [draft for record in records for draft in record.drafts]
    accepted = [(drafted, kept) for _, drafted, kept, _ in rounds if drafted]
    by_offset = []
    for offset in range(1, MAX_OFFSETS + 1):
        kept = [kept >= offset for drafted, kept in accepted if drafted >= offset]
        by_offset.append(f"{100 * sum(kept) / len(kept):.0f}" if kept else "")
    counts = Counter(kept for _, kept in accepted)
    return [
        str(len(accepted)),
        f"{sum(drafted for drafted, _ in accepted) / len(accepted):.1f}",
        mean.text(".2f"),
        *by_offset,
        ", ".join(f"{kept}: {100 * count / len(accepted):.0f}" for kept, count in sorted(counts.items())),
        str(sum(tied for *_, tied in rounds)),
    ]
