"""Metrics as text for a terminal: of one run, and of the runs of a sweep."""

from collections.abc import Mapping, Sequence
from statistics import median
from textwrap import wrap

from parallelbench.records.files import one_line
from parallelbench.records.questions import wording
from parallelbench.records.record import Run
from parallelbench.stats.curves import run_names
from parallelbench.stats.intervals import Value
from parallelbench.stats.metrics import ALL, METRICS, OF_DRAFTS, Metric, aggregate, legend
from parallelbench.stats.timing import busy

WIDTH = 100  # characters of a line
LEAST_FORWARD = 1e-7  # seconds of a forward, shared by a batch: below what a machine can do


def run_table(run: Run, brief: bool = False) -> str:
    """One run: a row per task, `all`, and all in each wording where there are several, with the device and batch size
    that the seconds belong to; without a strict score that is the score, and the latency of samples that share their
    forwards. brief: `all` alone."""
    rows = aggregate(run.records)
    columns = METRICS | {name: metric for name, metric in OF_DRAFTS.items() if name in rows[ALL]}
    silent = {"score_strict"} if all(row["score_strict"] == row["score"] for row in rows.values()) else set[str]()
    silent |= {"latency_s"} if run.config["batch_size"] > 1 else set()  # the samples of a batch share their forwards
    columns = {name: metric for name, metric in columns.items() if name not in silent}
    shown = {ALL: rows[ALL]} if brief else {_last(task, list(rows)): row for task, row in rows.items()}
    numbers = sorted({wording(record.task) for record in run.records})
    for number in numbers if len(numbers) > 1 and not brief else ():
        part = [record for record in run.records if wording(record.task) == number]
        shown[f"all in wording {number}"] = aggregate(part)[ALL]
    told = [] if brief else _told(columns, f"measured on {measured_on(run)}")
    if told and busy(run):
        told.append("Its seconds are the machine's more than its own: decode again on an idle machine to compare them.")
    return "\n".join([*_table("task", shown, columns), *told])


def sweep_table(runs: Sequence[Run]) -> str:
    """A row per run, by the decoder and the knob that it has."""
    rows = {name: aggregate(run.records)[ALL] for name, run in zip(run_names(runs), runs, strict=True)}
    columns = {name: METRICS[name] for name in ("score", "nfe", "tpf", "queried", "tokens_per_s", "speedup_nfe")}
    devices = "; ".join(dict.fromkeys(map(measured_on, runs)))
    return "\n".join([*_table("run", rows, columns), *_told(columns, f"measured on {devices}")])


def _told(columns: Mapping[str, Metric], last: str) -> list[str]:
    """What is below a table, as wide as a terminal."""
    return [line for text in (legend(columns), last) for line in wrap(text, WIDTH, break_on_hyphens=False)]


def _table(corner: str, rows: Mapping[str, Mapping[str, Value]], columns: Mapping[str, Metric]) -> list[str]:
    """Aligned, and as narrow as a terminal: only the score has its interval, and long names lose their middle."""
    cells = [[corner, "n", *(metric.heading for metric in columns.values())]]
    for name, row in rows.items():
        texts = {key: metric.show(row[key]) if key in row else "" for key, metric in columns.items()}
        short = {key: text if key == "score" else text.split(" [")[0] for key, text in texts.items()}
        cells.append([name, str(row["score"].n), *short.values()])
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    gap = "  " if sum(widths) + 2 * len(widths) - 2 <= WIDTH else " "
    room = max(WIDTH - sum(widths[1:]) - len(gap) * (len(widths) - 1), 12)
    widths[0] = min(widths[0], room)
    return [gap.join([_cut(line[0], room).ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in cells]


def _cut(name: str, room: int) -> str:
    half = (room - 2) // 2
    return name if len(name) <= room else f"{name[:half]}..{name[-half:]}"


def _last(task: str, tasks: Sequence[str]) -> str:
    """The last part of a task's name where it tells it from the others."""
    last = task.split("/")[-1]
    return last if sum(other.split("/")[-1] == last for other in tasks) == 1 else task


def measured_on(run: Run) -> str:
    """What seconds mean nothing without. Each batch was timed in its own process, slowed by those that ran with it."""
    processes = run.info.get("processes", 1)
    beside = f", {processes} processes at once" if processes > 1 else ""
    odd = ", by a clock that stood still or jumped (do not use them)" if _odd_clock(run) else ""
    crowd = f", {busy(run)}" if busy(run) else ""
    return one_line(f"{run.info['device']}, batch size {run.config['batch_size']}{beside}{crowd}{odd}")


def _odd_clock(run: Run) -> bool:
    """Whether a forward took less than any can, or one sample a thousand times as long as most and above a minute."""
    seconds = [record.share_s / record.nfe for record in run.records]
    return bool(seconds) and (min(seconds) < LEAST_FORWARD or max(seconds) > max(1000 * median(seconds), 60.0))
