"""Reports over many runs from disk: a page, Markdown, CSV and plots."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from parallelbench.records.files import inert, out_folder, replace_file, to_json, write_csv
from parallelbench.records.questions import wording
from parallelbench.records.record import Run
from parallelbench.report import plots
from parallelbench.report.as_json import run_rows
from parallelbench.report.drafts import draft_lines
from parallelbench.report.markdown import table
from parallelbench.report.options import is_json, split_options, suite_runs
from parallelbench.report.page import write_page
from parallelbench.report.sections.equal_quality import equal_quality_lines
from parallelbench.report.sections.rewording import wording_lines
from parallelbench.stats.curves import curve_names, model_title, run_names, shown_knobs, unsaid
from parallelbench.stats.intervals import Value
from parallelbench.stats.leading import apart_lines, leading, marked
from parallelbench.stats.metrics import ALL, METRICS, Metrics, aggregate, legend, measure
from parallelbench.stats.order import commits_by_task
from parallelbench.stats.paired import check_versions
from parallelbench.stats.speed_at_quality import equal_quality, reference_curve
from parallelbench.stats.table import measured_on
from parallelbench.stats.timing import told, unreliable, without_seconds
from parallelbench.stats.wordings import across_wordings

PER_TASK = "## Score per task, %"
MAX_BARS = 8
MAX_MODELS = 3  # that a title names
MAX_CURVES = 6  # more are drawn in a panel each
CACHE_PLOT = "![quality against columns recomputed](quality_columns.png)\n\n"
TASK_PLOTS = """![score per task](tasks.png)

![quality against tokens per forward by task](tasks_tpf.png)
"""


def main(arguments: Sequence[str], command: Callable[[Run], str]) -> str:
    """Reports all runs at or below the folders; names what it skips on stderr. Returns how the report begins."""
    paths, options = split_options(arguments, {"out_dir": "results/report", "figures": "png", "format": "text"})
    wants_json = is_json(options["format"])
    kinds = plots.figure_formats(options["figures"])
    runs = suite_runs(paths)
    out_dir = Path(options["out_dir"])
    text = write_report(runs, out_dir, command, kinds).partition(PER_TASK)[0]
    if wants_json:
        finished = [run for run in runs if run.info["status"] == "done"]
        return to_json({"page": str(out_dir / "report.html"), "runs": run_rows(finished, command)}, indent=2)
    return f"{text}scores per task, plots and samples: open\n{out_dir / 'report.html'}"


def write_report(
    runs: Sequence[Run], out_dir: Path, command: Callable[[Run], str], kinds: Sequence[str] = ("png",)
) -> str:
    """Writes report.html, report.md, summary.csv, tasks.csv and plots into `out_dir`; returns the Markdown. command:
    what makes a run again. kinds: formats of the plots.

    Unfinished runs lack whole tasks, so next to finished ones they are only named; alone they are reported as they are.
    Raises ValueError for runs without samples, or runs that cannot be compared because their tasks' versions differ.
    """
    finished = [run for run in runs if run.info["status"] == "done"]
    unfinished = [str(run.folder) for run in runs if run.info["status"] != "done"]
    runs = finished or runs
    for run in runs:
        run.check_filled()
    check_versions(runs)
    out_folder(out_dir)
    runs = _in_order(runs)
    names = run_names(runs)
    hidden = unreliable(runs)
    metrics: Metrics = {name: aggregate(run.records) for name, run in zip(names, runs, strict=True)}
    metrics = without_seconds(metrics, hidden)
    _write_summary(out_dir / "summary.csv", runs, metrics)
    _write_tasks(out_dir / "tasks.csv", metrics)

    model = _models(runs)
    title = f"{model}: quality against tokens per forward, 95 % intervals"
    curves = _curves(names, runs, metrics)
    curve_of = dict(zip(names, curve_names(names, runs), strict=True))
    equal = equal_quality(runs, list(curve_of.values()))
    wordings = across_wordings(runs, list(curve_of.values()))
    many, caches = len(curves) > MAX_CURVES, _by_cache(names, runs, metrics)
    led = leading(runs)
    single = many and 2 * sum(len(points) == 1 for points in curves.values()) > len(curves)
    bar = tqdm(desc="report", total=4 + 2 * (not many) + bool(caches), unit="file", leave=False, disable=None)

    def save(figure: Any, name: str) -> None:
        plots.save(figure, out_dir / name, kinds)
        bar.update()

    if single:
        figure = plots.quality_against_tpf(curves, title, named=True)
    elif many:
        distinct = list(dict.fromkeys(curve_of.values()))
        figure = plots.quality_against_reference(curves, distinct.index(reference_curve(distinct)), title)
    else:
        figure = plots.quality_against_tpf(curves, title)
        tasks = list(dict.fromkeys(task for rows in metrics.values() for task in rows if task != ALL))
        tasks = [task for task in tasks if not wording(task)] or tasks  # one panel for all wordings of a task
        panels = {task: _curves(names, runs, metrics, task) for task in tasks}
        by_task = plots.quality_per_task(panels, f"{model}: quality against tokens per forward by task")
        save(by_task, "tasks_tpf")
        chosen = _shown_as_bars(names, runs, metrics)
        bars = {name: {t: row["score"] for t, row in metrics[name].items()} for name in chosen}
        bar_plot = plots.task_bars(bars, [curve_of[name] for name in bars], "score per task, 95 % intervals")
        save(bar_plot, "tasks")
    save(figure, "quality_tpf")
    if caches:
        figure = plots.quality_against_columns(caches, f"{model}: quality against columns recomputed, 95 % intervals")
        save(figure, "quality_columns")
    by_name = {names[i]: runs[i] for i in led}
    slowest = max(by_name, key=lambda name: metrics[name][ALL]["nfe"].value)
    methods = [name for name, run in by_name.items() if not run.facts.is_ceiling] or list(by_name)
    for file, name in {"commit_order_slowest": slowest, "commit_order_fast": _fastest_good(methods, metrics)}.items():
        orders = commits_by_task(by_name[name].records)
        save(plots.commit_order(orders, f"order of commits, {name}"), file)

    text = _markdown(
        names,
        runs,
        metrics,
        unfinished,
        "" if many else TASK_PLOTS,
        CACHE_PLOT if caches else "",
        [] if wordings is None else wording_lines(wordings, names),
        [] if equal is None else equal_quality_lines(equal, runs, names, list(curve_of.values())),
        told(runs, names, hidden) if hidden else "",
    )
    replace_file(out_dir / "report.md", inert(text))
    write_page(runs, metrics, out_dir, command, equal, wordings)
    bar.close()
    return text


def _models(runs: Sequence[Run]) -> str:
    """Each model once, in the order of the runs; of many their number."""
    names = list(dict.fromkeys(map(model_title, runs)))
    if len(names) > MAX_MODELS:
        return f"{len(names)} models"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _in_order(runs: Sequence[Run]) -> list[Run]:
    """By curve as they came first, then by tokens per forward."""
    curves = curve_names(run_names(runs), runs)
    tpf = {id(run): measure("tpf", run.records).value for run in runs}
    pairs = sorted(zip(curves, runs, strict=True), key=lambda pair: (curves.index(pair[0]), tpf[id(pair[1])]))
    return [run for _, run in pairs]


def _curves(names: Sequence[str], runs: Sequence[Run], metrics: Metrics, task: str = ALL) -> plots.Curves:
    """Points (knobs, TPF, score) of every curve for one task; runs without the task are left out."""
    curves: dict[str, list[tuple[str, Value, Value]]] = {}
    for name, curve, run in zip(names, curve_names(names, runs), runs, strict=True):
        if task in metrics[name]:
            settings = shown_knobs(run, runs)
            label, row = ", ".join(map(str, settings.values())), metrics[name][task]
            curve = f"{curve} ({', '.join(settings)})" if settings else curve
            curve = f"{curve} (a ceiling)" if run.facts.is_ceiling else curve
            curves.setdefault(curve, []).append((label, row["tpf"], row["score"]))
    return curves


def _by_cache(names: Sequence[str], runs: Sequence[Run], metrics: Metrics) -> plots.Curves:
    """Points (cache, queried columns, score) of every run that differs from others in its cache alone; none where no
    cache is compared."""
    series: dict[str, list[tuple[str, Value, Value]]] = {}
    for name, run in zip(names, runs, strict=True):
        cache, row = run.info["choices"]["cache"], metrics[name][ALL]
        rest = " ".join(part for part in name.split() if part != f"cache={cache}")
        series.setdefault(rest, []).append((cache, row["queried"], row["score"]))
    return {name: points for name, points in series.items() if len(points) > 1}


def _shown_as_bars(names: Sequence[str], runs: Sequence[Run], metrics: Metrics) -> list[str]:
    """All runs if they are few; else of each curve the slowest, the middle and the fastest."""
    if len(runs) <= MAX_BARS:
        return list(names)
    chosen = []
    curves = curve_names(names, runs)
    for curve in dict.fromkeys(curves):
        members = [name for name, other in zip(names, curves, strict=True) if other == curve]
        members.sort(key=lambda name: metrics[name][ALL]["tpf"].value)
        chosen += [members[i] for i in sorted({0, len(members) // 2, len(members) - 1})]
    return chosen


def _fastest_good(names: Sequence[str], metrics: Metrics) -> str:
    """The run with the most tokens per forward among those within two points of the best score."""
    best = max(metrics[name][ALL]["score"].value for name in names)
    good = [name for name in names if metrics[name][ALL]["score"].value >= best - 0.02]
    return max(good, key=lambda name: metrics[name][ALL]["tpf"].value)


def _markdown(
    names: Sequence[str],
    runs: Sequence[Run],
    metrics: Metrics,
    unfinished: Sequence[str],
    task_plots: str,
    cache_plot: str,
    wordings: Sequence[str],
    answer: Sequence[str],
    no_seconds: str,
) -> str:
    devices = sorted({measured_on(run) for run in runs})
    measured = [_measured_speedup(run, runs) for run in runs]
    has_baseline = any(speedup is not None for speedup in measured)
    said = " ".join(f"{group}={value}" for group, value in unsaid(runs).items())
    lines = [
        f"# {_models(runs)}: {len(runs)} run{'s' * (len(runs) > 1)}",
        "",
        *([f"Where a name does not say it: {said}.", ""] if said else []),
        *answer,
        *[line for sentence in apart_lines(runs, names) for line in (sentence, "")],
        "![quality against tokens per forward](quality_tpf.png)",
        "",
        cache_plot,
        *(["## Runs", ""] if answer else []),
    ]
    columns = {
        key: metric
        for key, metric in METRICS.items()
        if not all(math.isnan(row[ALL][key].value) for row in metrics.values())
    }
    heads = [metric.heading for metric in columns.values()] + ["NFE speed-up over k=1"] * has_baseline
    rows = []
    for name, run, speedup in zip(names, runs, measured, strict=True):
        row = metrics[name][ALL]
        cells = [metric.show(row[key]) for key, metric in columns.items()]
        cells += ["" if speedup is None else f"{speedup:.2f}x"] * has_baseline
        rows.append([marked(name, run), str(row["score"].n), *cells])
    lines += [*table(["run", "n", *heads], rows), "", legend(columns), ""]
    if has_baseline:
        lines += [
            "NFE speed-up over k=1: forwards of the measured one-token-per-step run over this run's, on the same "
            "samples with the same stop rule, model and cache.",
            "",
        ]
    lines += [f"Measured on: {'; '.join(devices)}.", "", *([no_seconds, ""] if no_seconds else [])]
    if unfinished:
        kept = "left out" if any(run.info["status"] == "done" for run in runs) else "shown as they are"
        again = "its command to finish it" if len(unfinished) == 1 else "their commands to finish them"
        lines += [f"Not finished, {kept}: {', '.join(unfinished)}; repeat {again}.", ""]
    lines += wordings
    tasks = list(dict.fromkeys(task for rows in metrics.values() for task in rows if task != ALL))
    by_task = [
        [name, *(METRICS["score"].show(metrics[name][t]["score"]) if t in metrics[name] else "" for t in tasks)]
        for name in names
    ]
    lines += [PER_TASK, "", *table(["run", *(task.split("/")[-1] for task in tasks)], by_task)]
    lines += ["", *draft_lines(names, runs, metrics), task_plots]
    lines += ["## Order of commits", "", "The slowest run, and the fastest within two points of the best score.", ""]
    lines += ["![order of commits, slowest run](commit_order_slowest.png)", ""]
    lines += ["![order of commits, fastest good run](commit_order_fast.png)", ""]
    return "\n".join(lines)


def _measured_speedup(run: Run, runs: Sequence[Run]) -> float | None:
    """NFE of the baseline over NFE of the run, on the samples that both have. The baseline is the one-token-per-step
    run by confidence, or the autoregressive one, with this run's model, cache, stop rule and lengths."""
    same = ("model", "cache", "stop", "gen_length", "block_length")
    slowest = (other for other in runs if other.facts.is_baseline)
    alike = (other.records for other in slowest if all(other.config[key] == run.config[key] for key in same))
    baseline = next(alike, [])
    slow = {(record.id, record.prompt_sha): record.nfe for record in baseline}
    shared = [(slow[key], record.nfe) for record in run.records if (key := (record.id, record.prompt_sha)) in slow]
    return sum(nfe for nfe, _ in shared) / sum(nfe for _, nfe in shared) if shared else None


def _write_summary(path: Path, runs: Sequence[Run], metrics: Metrics) -> None:
    """A line per run: its curve and knobs, every metric with its interval, and what it was measured on."""
    lines = []
    for (name, rows), method, run in zip(metrics.items(), curve_names(list(metrics), runs), runs, strict=True):
        knob = " ".join(f"{key}={value}" for key, value in shown_knobs(run, runs).items())
        line = {"run": name, "model": run.info["model"], "method": method, "knob": knob, "n": rows[ALL]["score"].n}
        for metric, measured in rows[ALL].items():
            for suffix, cell in zip(("", "_low", "_high"), measured.cells(), strict=True):
                line[f"{metric}{suffix}"] = _six(cell)
        about = {"device": run.info["device"], "batch_size": run.config["batch_size"]}
        about |= {"processes": run.info.get("processes", 1), "config_hash": run.info["config_hash"]}
        lines.append(line | about)
    _write_csv(path, lines)


def _write_tasks(path: Path, metrics: Metrics) -> None:
    """A line per run, task and metric."""
    lines = []
    for name, rows in metrics.items():
        for task, row in rows.items():
            for metric, measured in row.items():
                numbers = zip(("value", "ci_low", "ci_high"), map(_six, measured.cells()), strict=True)
                lines.append({"run": name, "task": task, "metric": metric, **dict(numbers), "n": measured.n})
    _write_csv(path, lines)


def _six(cell: float | str) -> str:
    """A number to six digits."""
    return cell if isinstance(cell, str) else "" if math.isnan(cell) else f"{cell:.6g}"


def _write_csv(path: Path, lines: Sequence[Mapping[str, object]]) -> None:
    heads = list(dict.fromkeys(key for line in lines for key in line))
    write_csv(path, [heads, *([line.get(key, "") for key in heads] for line in lines)])
