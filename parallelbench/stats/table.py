"""A run's metrics as text."""

from parallelbench.records.record import Run
from parallelbench.stats.metrics import ALL, METRICS, OF_DRAFTS, aggregate, legend


def run_table(run: Run) -> str:
    """One run as text: a row per task and `all`, with the device and batch size that the seconds belong to."""
    rows = aggregate(run.records)
    columns = METRICS | {name: metric for name, metric in OF_DRAFTS.items() if name in rows[ALL]}
    table = [["task", "n", *(metric.heading for metric in columns.values())]]
    for task, row in rows.items():
        cells = [metric.show(row[name]) if name in row else "" for name, metric in columns.items()]
        table.append([task, str(row["score"].n), *cells])
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in table
    ]
    return "\n".join([*lines, f"{legend(columns)}\nmeasured on {measured_on(run)}"])


def measured_on(run: Run) -> str:
    """What seconds mean nothing without. Each batch was timed in its own process, slowed by those beside it."""
    processes = run.info.get("processes", 1)
    beside = f", {processes} processes at once" if processes > 1 else ""
    return f"{run.info['device']}, batch size {run.config['batch_size']}{beside}"
