"""Runs of several machines and published tables as ranked tables: `python -m parallelbench leaderboard DIR ...`.

A row is a curve: one model, decoder and cache over the rule's knob. Rows stand in one table only if they were measured
on the same samples of the same task versions; published rows are next to runs of the same generation's data alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from parallelbench.records.files import write_tables
from parallelbench.records.record import Run, readable_runs
from parallelbench.report.markdown import table
from parallelbench.report.options import with_tables
from parallelbench.stats.curves import curve_names, places, run_names
from parallelbench.stats.groups import comparable, distinct, grouped, model_name, samples_name
from parallelbench.stats.intervals import Value
from parallelbench.stats.leading import crowned, marked
from parallelbench.stats.paired import marks, means, pair
from parallelbench.stats.protocol import deviations
from parallelbench.stats.published import Key, Levels, pbx_table, read_tables
from parallelbench.stats.resampling import tops
from parallelbench.stats.speed_at_quality import LEVELS as QUALITY, speed_value, speeds_at
from parallelbench.stats.sweeps import LEGEND, LEVELS, score_sweeps

LEVEL = QUALITY[0]
SPEED = f"TPF at {100 * LEVEL:g} % of the best"
NUMBERS = (SPEED, *(f"PB{x}" for x in LEVELS), "AUP", "score %")
HEADS = ("rank", "model", "decoder", *NUMBERS, "runs", "n", "device", "commit")
NOTE = f"Ranked by {SPEED} score in the table, then by PB80. PBx counts TPS, as published. {LEGEND}"


@dataclass(frozen=True)
class Row:
    """A curve. values: those of NUMBERS that it has; n is 0 where a value has no interval."""

    model: str
    decoder: str
    values: Mapping[str, Value]
    runs: int = 0
    device: str = "published"
    commit: str = ""

    @property
    def samples(self) -> int:
        """After each value, 0 for published ones."""
        return next(iter(self.values.values())).n


def main(arguments: Sequence[str]) -> str:
    """The tables; also as leaderboard.md and leaderboard.csv, if out_dir is given."""
    paths, csvs, boards, options = with_tables(arguments, "", "rank")
    found, skipped = readable_runs(paths) if paths else ([], [])
    runs, left_out = distinct(found)
    published, conflicts = _published(csvs, boards, options["generation"] or None)
    tables: dict[str, list[Row]] = {}
    apart: list[str] = []
    for group in comparable(runs, across_models=True):
        generation = group[0].facts.generation
        reasons = {run.folder: deviations(run, generation) for run in group} if generation else {}
        by_protocol = [run for run in group if reasons.get(run.folder) == []]
        others = [run for run in group if reasons.get(run.folder) != []]
        if others:
            tables[samples_name(others[0])] = _rows(others, generation or "v2")
        if by_protocol:
            name = f"{samples_name(by_protocol[0])}, as published"
            tables[name] = [*_rows(by_protocol, generation), *published.get(generation, [])]
        apart += [f"{folder} is kept apart: {'; '.join(why)}" for folder, why in reasons.items() if why]
    shown = {id(row) for rows in tables.values() for row in rows}
    for generation, rows in published.items():
        if not shown & set(map(id, rows)):
            tables[f"ParallelBench {generation}, published"] = rows
    tables = {heading: sorted(rows, key=_rank) for heading, rows in tables.items()}
    text = [line for heading, rows in tables.items() for line in _markdown(heading, rows)]
    notes = [f"Left out: {reason}." for reason in (*skipped, *left_out, *conflicts)]
    notes += [f"{reason}." for reason in apart]
    markdown = "\n".join(["# Leaderboard", "", *text, NOTE, "", *notes, ""])
    return write_tables(options["out_dir"], "leaderboard", _lines(tables), markdown)


def _rows(runs: Sequence[Run], generation: str) -> list[Row]:
    """A row per curve of runs over the same samples."""
    by_model = grouped(runs, model_name)
    runs = [run for members in by_model.values() for run in members]
    curves = [
        (model, curve) for model, members in by_model.items() for curve in curve_names(run_names(members), members)
    ]
    paired = pair(runs)
    resampled, scores, n = means(paired), [mark.score for mark in marks(paired)], len(runs[0].records)
    sweeps = score_sweeps(runs, [" ".join(curve) for curve in curves], resampled, generation)
    rows, best_of = [], crowned(runs)
    for (model, curve), at in places(curves).items():
        sweep = sweeps[f"{model} {curve}"]
        best = max(at, key=lambda i: resampled.score[0, i])
        levels = LEVEL * tops(resampled.score[:, best_of])  # of the best score of the table, in each resample
        speed = speed_value(speeds_at(resampled.tpf[:, at], resampled.score[:, at], levels), n)
        values = {f"PB{x}": value for x, value in sweep.tps.items()} | {"AUP": sweep.aup}
        values |= {"score %": scores[best]} | ({SPEED: speed} if speed else {})
        of = [runs[i] for i in at]
        devices = sorted({f"{run.info['device']}, batch size {run.config['batch_size']}" for run in of})
        commits = sorted({_commit(run) for run in of})
        rows.append(Row(model, marked(curve, of[0]), values, len(at), "; ".join(devices), " ".join(commits)))
    return rows


def _commit(run: Run) -> str:
    git = run.info.get("git") or {"commit": "unknown", "dirty": False}
    return git["commit"][:7] + "+" * git["dirty"]


def _published(
    csvs: Sequence[Path], boards: Sequence[Path], generation: str | None
) -> tuple[dict[str, list[Row]], list[str]]:
    """Rows by generation, each file or folder's own, the leaderboard's numbers before those computed from curves; and
    a sentence for every row that another file contradicts."""
    tables = [(path, read_tables([], [path], generation)) for path in boards]
    tables += [(path, read_tables([path], [], generation)) for path in csvs]
    known: dict[tuple[str, Key], tuple[Levels, Path]] = {}
    conflicts = []
    for path, read in tables:
        for key, levels in (pbx_table(read.curves, read.generation) | read.leaderboard).items():
            first, source = known.setdefault((read.generation, key), (levels, path))
            if any(abs(levels[x] - first[x]) > 0.00501 for x in LEVELS):
                conflicts.append(f"{' '.join(key)} of {path}, which says other than {source}")
    rows: dict[str, list[Row]] = {}
    for (generation, key), (levels, _) in known.items():
        values = {f"PB{x}": Value(levels[x], levels[x], levels[x], 0) for x in LEVELS}
        rows.setdefault(generation, []).append(Row(*key, values))
    return rows, conflicts


def _rank(row: Row) -> tuple[float, ...]:
    return tuple(-row.values[name].value if name in row.values else 0.0 for name in (SPEED, "PB80", "score %"))


def _markdown(heading: str, rows: Sequence[Row]) -> list[str]:
    lines = []
    for rank, row in enumerate(rows, start=1):
        without = {SPEED: "not reached" if row.runs else ""}
        cells = [row.values[name].text(".2f") if name in row.values else without.get(name, "") for name in NUMBERS]
        counts = [str(row.runs or ""), str(row.samples or "")]
        lines.append([str(rank), row.model, row.decoder, *cells, *counts, row.device, row.commit])
    return [f"## {heading}", "", *table(HEADS, lines, 3), ""]


def _lines(tables: Mapping[str, Sequence[Row]]) -> Iterator[list[object]]:
    numbers = [f"{name}{part}" for name in NUMBERS for part in ("", " low", " high")]
    yield ["table", *HEADS[:3], *numbers, *HEADS[-4:]]
    for heading, rows in tables.items():
        for rank, row in enumerate(rows, start=1):
            cells = [row.values[name].cells() if name in row.values else ["", "", ""] for name in NUMBERS]
            counts = [row.runs or "", row.samples or ""]
            yield [heading, rank, row.model, row.decoder, *chain(*cells), *counts, row.device, row.commit]
