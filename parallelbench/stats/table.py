"""A run's metrics as text: a row per task, a cell per metric."""

from parallelbench.records.record import Run
from parallelbench.stats.metrics import Value, aggregate

SHOWN = {  # metric: heading and format
    "score": ("score %", lambda v: f"{100 * v:.1f}"),
    "score_strict": ("strict %", lambda v: f"{100 * v:.1f}"),
    "nfe": ("NFE", lambda v: f"{v:.1f}"),
    "tpf": ("TPF", lambda v: f"{v:.2f}"),
    "queried": ("queried", lambda v: f"{v:.0f}"),
    "speedup_nfe": ("speed-up", lambda v: f"{v:.1f}x"),
    "tokens_per_s": ("tokens/s", lambda v: f"{v:.0f}"),
    "latency_s": ("latency s", lambda v: f"{v:.3f}"),
}
LEGEND = (
    "score: mean and 95 % interval (Wilson). NFE: forwards per sample. TPF: tokens before EOS per forward. queried: "
    "columns recomputed per sample. speed-up: gen_length / NFE, the forwards of one token per step without a stop rule."
)


def run_table(run: Run) -> str:
    """One run as text: a row per task and `all`, with the device and batch size that the seconds belong to."""
    table = [["task", "n", *(heading for heading, _ in SHOWN.values())]]
    for task, row in aggregate(run.records).items():
        table.append([task, str(row["score"].n), *(cell(name, row[name]) for name in SHOWN)])
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in table
    ]
    return "\n".join([*lines, f"{LEGEND}\nmeasured on {measured_on(run)}"])


def measured_on(run: Run) -> str:
    """What seconds mean nothing without. Each batch was timed in its own process, slowed by those beside it."""
    processes = run.info.get("processes", 1)
    beside = f", {processes} processes at once" if processes > 1 else ""
    return f"{run.info['device']}, batch size {run.config['batch_size']}{beside}"


def cell(metric: str, value: Value) -> str:
    show = SHOWN[metric][1]
    if metric in ("score", "score_strict"):
        return f"{show(value.value)} [{show(value.ci_low)}, {show(value.ci_high)}]"
    return show(value.value)
