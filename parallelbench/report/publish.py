"""What a finished run, and a sweep, send to sinks. `sent.json` next to a run names the sinks that have it, and the same
command sends it to those that have not."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from parallelbench.records.files import parse_json, read_bytes, replace_file, to_json
from parallelbench.records.record import Run, config_hash, read_run
from parallelbench.records.typed import typed
from parallelbench.report import plots
from parallelbench.report.sinks import Log, Logs, Sinks
from parallelbench.stats.curves import curve_names, run_names
from parallelbench.stats.groups import grouped
from parallelbench.stats.intervals import Value
from parallelbench.stats.metrics import ALL, METRICS, aggregate
from parallelbench.stats.order import commits_by_task

SENT = "sent.json"
SAMPLES_SHOWN = 20  # of each task


def publish(run: Run, sinks: Sinks) -> None:
    """Sends a finished run to the sinks that do not have it yet: config, metrics, a table of its tasks, one of its
    first samples, and plots."""
    metrics = aggregate(run.records)
    shown = [r for records in grouped(run.records, lambda r: r.task).values() for r in records[:SAMPLES_SHOWN]]

    def fill(log: Log) -> None:
        log.log(0, {f"{task}/{name}": v.value for task, row in metrics.items() for name, v in row.items()})
        rows = [[task, row["score"].n, *_numbers(row)] for task, row in metrics.items()]
        log.table("tasks", ["task", "n", *NUMBERS], rows)
        samples = [
            (r.task, r.id, r.prompt, r.target, r.completion, r.scores["score"], r.nfe, r.num_tokens) for r in shown
        ]
        log.table("samples", ["task", "id", "prompt", "target", "completion", "score", "nfe", "tokens"], samples)
        (run_name,) = run_names([run])
        bars = {run_name: {task: row["score"] for task, row in metrics.items()}}
        _plot(log, "tasks", plots.task_bars(bars, [run_name], "score per task, 95 % intervals"))
        _plot(log, "commit_order", plots.commit_order(commits_by_task(run.records), f"commits, {run_name}"))

    described = {key: value for key, value in run.info.items() if key not in ("metrics", "schema", "status")}
    _send(run.folder, sinks, _word(run), {**run.config, "run": described}, fill)


def publish_sweep(folders: Sequence[Path], sinks: Sinks) -> None:
    """Sends the summary of a sweep: a row and a point per run."""
    runs = sorted((read_run(folder) for folder in folders), key=lambda run: str(run.folder))
    names, measured = run_names(runs), [aggregate(run.records)[ALL] for run in runs]
    name = f"sweep-{config_hash({'runs': [run.info['config_hash'] for run in runs]})}"
    curves: dict[str, list[tuple[str, Value, Value]]] = {}
    for curve, label, row in zip(curve_names(names, runs), names, measured, strict=True):
        knobs = " ".join(part for part in label.split() if part not in curve.split())
        curves.setdefault(curve, []).append((knobs, row["tpf"], row["score"]))

    def fill(log: Log) -> None:
        rows = [
            [label, str(run.folder), run.info["device"], run.config["batch_size"], row["score"].n, *_numbers(row)]
            for label, run, row in zip(names, runs, measured, strict=True)
        ]
        log.table("runs", ["run", "folder", "device", "batch size", "n", *NUMBERS], rows)
        best = max(row["score"].value for row in measured)
        log.log(
            0, {"runs": float(len(runs)), "best score": best, "most TPF": max(row["tpf"].value for row in measured)}
        )
        _plot(log, "quality_tpf", plots.quality_against_tpf(curves, f"{name}: quality against TPF"))

    _send(runs[0].folder, sinks, name, {"runs": [str(run.folder) for run in runs]}, fill)


def _plot(log: Log, name: str, figure: plots.Figure) -> None:
    with TemporaryDirectory() as folder:
        plots.save(figure, Path(folder) / name)
        log.plot(name, Path(folder) / f"{name}.png")


def _word(run: Run) -> str:
    """The folder's name with the run's hash, which it mostly has."""
    name, identity = run.folder.resolve().name, run.info["config_hash"]
    return re.sub(r"[^\w.-]", "-", name if name.endswith(identity) else f"{name}-{identity}")


NUMBERS = [f"{name}{part}" for name in METRICS for part in ("", " low", " high")]


def _numbers(row: Mapping[str, Value]) -> list[float | None]:
    return [None if cell == "" else float(cell) for name in METRICS for cell in row[name].cells()]


def _send(folder: Path, sinks: Sinks, name: str, config: Mapping[str, Any], fill: Callable[[Log], None]) -> None:
    """Fills a Log of every sink that `sent.json` does not name for this, and names there those that did not fail."""
    path = folder / SENT
    try:
        sent = typed(parse_json(read_bytes(path)) if path.exists() else [], list[str], SENT)
    except ValueError as error:
        print(f"{path} does not name the sinks that have {name} ({error}); delete it to send again", file=sys.stderr)
        return
    for key, sink in sinks.items():
        what = f"{name} in {key} ({sink})"
        if what in sent:
            continue
        logs = Logs({key: sink}, name, config)
        logs.attempt(key, lambda logs=logs: fill(logs))
        logs.close()
        if not logs.failed:
            sent.append(what)
            replace_file(path, to_json(sent, indent=2) + "\n")
