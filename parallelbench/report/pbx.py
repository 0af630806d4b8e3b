"""PBx of published tables and of one's own sweeps, with AUP and the Pareto front."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from parallelbench.records.files import out_folder, write_csv, write_text
from parallelbench.records.record import Run
from parallelbench.report import plots
from parallelbench.report.markdown import table
from parallelbench.report.options import suite_runs, with_tables
from parallelbench.stats.curves import curve_names, places, run_names
from parallelbench.stats.intervals import Value
from parallelbench.stats.paired import Marks, Means, marks, means, pair
from parallelbench.stats.protocol import stand_apart
from parallelbench.stats.published import Curve, Key, Levels, pbx_table, read_tables
from parallelbench.stats.sweeps import LEGEND, LEVELS, Sweep, pareto, score_sweeps

NOT_COMPARABLE = "Not comparable with published numbers: {}."


def main(arguments: Sequence[str]) -> str:
    """Writes pbx.csv and pbx.md and, for what is given, published.png and runs.csv and runs.png."""
    paths, csvs, boards, options = with_tables(arguments, "results/pbx", "score", figures="png")
    kinds = plots.figure_formats(options["figures"])
    runs = suite_runs(paths) if paths else []
    alone = bool(runs) and not (csvs or boards)
    given = options["generation"] or (runs[0].facts.generation or "v2" if alone else None)
    published = read_tables(csvs, boards, given)
    generation, curves, official = published.generation, published.curves, published.leaderboard
    paired = pair(runs) if runs else None
    resampled = means(paired) if paired else None
    out_dir = out_folder(options["out_dir"])

    computed = pbx_table(curves, generation)
    rows = official | computed
    strategies = curve_names(run_names(runs), runs) if runs else []
    sweeps = score_sweeps(runs, strategies, resampled, generation) if resampled else {}
    model = runs[0].info["model"] if runs else ""
    apart = stand_apart(runs, strategies, generation)
    beside = {name: sweep for name, sweep in sweeps.items() if name not in apart}
    own = {(model, name): {x: sweep.tps[x].value for x in LEVELS} for name, sweep in (beside or sweeps).items()}
    listed = rows | own if beside else rows or own
    levels = [[*key, *(row[level] for level in LEVELS)] for key, row in listed.items()]
    write_csv(out_dir / "pbx.csv", [["model", "strategy", *LEVELS], *levels])

    text = []
    if rows:
        yours = {(f"{model} (your runs)", name): sweep.tps for name, sweep in beside.items()}
        text += _published_section(rows, yours, generation, _differences(computed, official))
        if curves:
            drawn = {" ".join(key): curve for key, curve in curves.items()}
            if resampled:
                at = {name: at for name, at in places(strategies).items() if name in beside}
                drawn |= {f"{model} {name}": (resampled.tps[0, i], resampled.score[0, i]) for name, i in at.items()}
            figure = plots.tradeoff({"tokens per step": drawn}, f"ParallelBench {generation}: mean score against speed")
            plots.save(figure, out_dir / "published", kinds)
            text += ["![published curves](published.png)", ""]
    if paired and resampled:
        panels = {
            "response columns per forward (TPS)": _curves(strategies, resampled.tps, resampled.score),
            "tokens before EOS per forward (TPF)": _curves(strategies, resampled.tpf, resampled.score),
        }
        plots.save(plots.tradeoff(panels, f"{model}: mean score over tasks against speed"), out_dir / "runs", kinds)
        write_csv(out_dir / "runs.csv", _lines(model, runs[0].info["choices"]["suite"], sweeps))
        text += _own_section(runs, sweeps, resampled, marks(paired), apart, generation)
    markdown = "\n".join(["# Scores of sweeps", "", *text, LEGEND, ""])
    return write_text(out_dir / "pbx.md", markdown)


def _curves(strategies: Sequence[str], speed: np.ndarray, score: np.ndarray) -> dict[str, Curve]:
    return {name: (speed[0, at], score[0, at]) for name, at in places(strategies).items()}


def _differences(computed: Mapping[Key, Levels], official: Mapping[Key, Levels]) -> str:
    """How the curves' PBx agree with the leaderboard's where both are given."""
    shared = [(key, level) for key in computed if key in official for level in LEVELS]
    off = [(key, level) for key, level in shared if abs(computed[key][level] - official[key][level]) > 0.00501]
    listed = "; ".join(
        f"{' '.join(key)} PB{level} {computed[key][level]:.2f}, leaderboard {official[key][level]:.2f}"
        for key, level in off
    )
    if not shared:
        return ""
    return f"{len(shared) - len(off)} of {len(shared)} entries equal the leaderboard's{': ' if off else '.'}{listed}"


def _published_section(
    rows: Mapping[Key, Levels],
    own: Mapping[Key, dict[int, Value]],
    generation: str,
    differences: str,
) -> list[str]:
    cells = [[*key, *(f"{row[x]:.3f}" for x in LEVELS)] for key, row in sorted(rows.items())]
    cells += [[*key, *(row[x].text(".3f") for x in LEVELS)] for key, row in own.items()]
    lines = table(["model", "strategy", *(f"PB{x}" for x in LEVELS)], cells, 2)
    return [f"## Published, {generation}", "", *lines, "", *([differences, ""] if differences else [])]


def _own_section(
    runs: Sequence[Run],
    sweeps: Mapping[str, Sweep],
    resampled: Means,
    means_of: Sequence[Marks],
    apart: Mapping[str, Sequence[str]],
    generation: str,
) -> list[str]:
    suite = runs[0].info["choices"]["suite"]
    num_tasks, n = len({record.task for record in runs[0].records}), len(runs[0].records)
    lines = [f"## {runs[0].info['model']} on suite={suite}: {num_tasks} tasks, {n} samples", ""]
    alike = len({tuple(reasons) for reasons in apart.values()}) == 1 and apart.keys() == sweeps.keys()
    for name, reasons in list(apart.items())[: 1 if alike else None]:
        lines += [NOT_COMPARABLE.format(("" if alike else f"{name}: ") + "; ".join(reasons)), ""]
    if generation == "v2":
        lines += ["A fixed number of tokens per step counts at its points alone, as on the v2 leaderboard.", ""]
    heads = [f"PB{x} {speed}" for speed in ("TPS", "TPF") for x in LEVELS]
    cells = []
    for name, sweep in sorted(sweeps.items(), key=lambda item: -item[1].tpf[LEVELS[0]].value):
        speeds = [values[x].text(".2f") for values in (sweep.tps, sweep.tpf) for x in LEVELS]
        cells.append([name, str(sweep.points), *speeds, sweep.aup.text(".0f")])
    lines += table(["decoder", "runs", *heads, "AUP"], cells)
    names, score, tpf = run_names(runs), resampled.score, resampled.tpf
    on = np.zeros(len(runs))
    for row in zip(tpf[1:], score[1:], strict=True):
        on[pareto(*row)] += 1 / (len(tpf) - 1)
    front = []
    for i in pareto(tpf[0], score[0]):
        cells = [v.text(".2f") for v in (means_of[i].score, means_of[i].tpf, means_of[i].tps)]
        front.append([names[i], *cells, f"{on[i]:.0%} of resamples"])
    lines += ["", "### Pareto front of score against TPF", ""]
    lines += table(["run", "score %", "TPF", "TPS", "on it"], front)
    return [*lines, "", "![score against speed](runs.png)", ""]


def _lines(model: str, suite: str, sweeps: Mapping[str, Sweep]) -> Iterator[list[object]]:
    yield ["model", "strategy", "suite", "score", "value", "ci_low", "ci_high", "n"]
    for name, sweep in sweeps.items():
        scores = {f"pb{x}_{speed}": v[x] for speed, v in (("tps", sweep.tps), ("tpf", sweep.tpf)) for x in LEVELS}
        for score, value in (scores | {"aup_tpf": sweep.aup}).items():
            yield [model, name, suite, score, *value.cells(), value.n]
