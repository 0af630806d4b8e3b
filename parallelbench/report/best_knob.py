"""The oracle of a sweep: what a decoder would reach that knew the right knob for each sample (ParallelBench, Figure 7).

For each sample it takes the run with the fewest forwards among those that reach the sample's best score. No decoder can
do this, so it bounds what an adaptive choice of the knob could gain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parallelbench.records.files import out_folder, write_csv, write_text
from parallelbench.records.record import Run
from parallelbench.report import plots
from parallelbench.report.markdown import table
from parallelbench.report.options import split_options, suite_runs
from parallelbench.stats.curves import curve_names, places, run_names, shown_knobs
from parallelbench.stats.metrics import ALL
from parallelbench.stats.paired import Marks, Paired, marks, pair
from parallelbench.stats.sweeps import oracle

ORACLE = "oracle"
LEGEND = (
    "oracle: per sample the run with the fewest forwards among those that reach the sample's best score. taken: share "
    "of samples for which the oracle takes the run (of equal ones the first). TPS: response columns per forward; TPF: "
    "tokens before EOS per forward. 95 % intervals."
)


@dataclass(frozen=True)
class Row(Marks):
    """One run of a sweep, or its oracle. taken: the share of samples that take it."""

    knob: str
    taken: float


def main(arguments: Sequence[str]) -> str:
    """Writes oracle.csv, oracle.md and oracle.png."""
    paths, options = split_options(arguments, {"out_dir": "results/oracle", "figures": "png"})
    kinds = plots.figure_formats(options["figures"])
    runs = suite_runs(paths)
    paired = pair(runs)
    strategies = curve_names(run_names(runs), runs)
    sweeps = {name: at for name, at in places(strategies).items() if len(at) > 1}
    if not sweeps:
        raise ValueError("an oracle chooses among the runs of one sweep; give at least two that differ in a knob only")
    knobs = [", ".join(f"{key}={value}" for key, value in shown_knobs(run, runs).items()) for run in runs]
    tables = {
        name: oracle_rows(paired.taking(np.array(at)[:, None]), [knobs[i] for i in at]) for name, at in sweeps.items()
    }

    out_dir = out_folder(options["out_dir"])
    curves = {}
    for name, by_task in tables.items():
        for label, rows in ((name, by_task[ALL][:-1]), (f"{ORACLE} of {name}", by_task[ALL][-1:])):
            curves[label] = (np.array([row.tpf.value for row in rows]), np.array([row.score.value for row in rows]))
    title = f"{runs[0].info['model']}: one knob for all samples, and the best for each"
    plots.save(plots.tradeoff({"tokens before EOS per forward (TPF)": curves}, title), out_dir / "oracle", kinds)
    write_csv(out_dir / "oracle.csv", _lines(tables))
    return write_text(out_dir / "oracle.md", _markdown(runs, tables))


def oracle_rows(paired: Paired, knobs: Sequence[str]) -> dict[str, list[Row]]:
    """For each task and over all: a row per run, by falling NFE, and the oracle's last."""
    chosen = oracle(paired.score, paired.nfe)
    extended = paired.taking(np.vstack([np.indices(paired.score.shape)[0], chosen]))
    tables = {}
    for task, of in paired.by_task():
        rows = []
        for i, (knob, mark) in enumerate(zip((*knobs, ORACLE), marks(extended.part(of)), strict=True)):
            taken = 1.0 if knob == ORACLE else float((chosen[of] == i).mean())
            rows.append(Row(**vars(mark), knob=knob, taken=taken))
        tables[task] = [*sorted(rows[:-1], key=lambda row: -row.nfe.value), rows[-1]]
    return tables


def _markdown(runs: Sequence[Run], tables: dict[str, dict[str, list[Row]]]) -> str:
    suite, n = runs[0].info["choices"]["suite"], len(runs[0].records)
    lines = [f"# {runs[0].info['model']} on suite={suite}, {n} samples: the best knob for each", ""]
    for name, by_task in tables.items():
        knobs = [
            [row.knob, row.score.text(".1f"), *(v.text(".2f") for v in (row.nfe, row.tps, row.tpf)), f"{row.taken:.0%}"]
            for row in by_task[ALL]
        ]
        lines += [f"## {name}", "", *table(["knob", "score %", "NFE", "TPS", "TPF", "taken"], knobs), ""]
        tasks = []
        for task, (*singles, best) in by_task.items():
            single = max(singles, key=lambda row: (row.score.value, -row.nfe.value))
            cells = [text for row in (best, single) for text in (row.score.text(".1f"), row.nfe.text(".2f"))]
            tasks.append([task, *cells, single.knob])
        lines += [*table(["task", "oracle %", "NFE", "best single run %", "NFE", "its knob"], tasks), ""]
    return "\n".join([*lines, "![score against speed](oracle.png)", "", LEGEND, ""])


def _lines(tables: dict[str, dict[str, list[Row]]]) -> Iterator[list[object]]:
    yield ["decoder", "task", "knob", "taken", "metric", "value", "ci_low", "ci_high", "n"]
    for name, by_task in tables.items():
        for task, row in ((task, row) for task, rows in by_task.items() for row in rows):
            for metric, v in (("score", row.score), ("nfe", row.nfe), ("tps", row.tps), ("tpf", row.tpf)):
                yield [name, task, row.knob, row.taken, metric, *v.cells(), v.n]
