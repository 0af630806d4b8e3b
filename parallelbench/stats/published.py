"""ParallelBench's published results: tables of curves (CSV) and of PBx (JSON), of either generation.

Two CSV layouts are read: `model,strategy,task,tokens_per_step,score` with everything in one file, and the site's files
MODEL/STRATEGY.csv with `task,tps,accuracy`. A leaderboard file MODEL.json holds {"thresholds": [80, 75, 70],
"results": {STRATEGY: {"80": PB80, ...}}}.

v1 (the paper's) and v2 (the rewritten benchmark's) differ in data, prompts and the counting of forwards, so their
numbers are never put side by side.
"""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from parallelbench.stats.groups import grouped
from parallelbench.stats.sweeps import LEVELS, pbx

Key = tuple[str, str]  # model, strategy
Levels = dict[int, float]  # PBx by level
Curve = tuple[np.ndarray, np.ndarray]  # tokens per step and score in per cent, one point per configuration

T = TypeVar("T")
GENERATIONS = ("v1", "v2")
LONG = ("model", "strategy", "task", "tokens_per_step", "score")
SITE = ("task", "tps", "accuracy")
MEAN = "avg"  # the task of the rows that hold a configuration's mean over tasks
TOP_K = ("random", "l2r", "confidence-topk", "entropy-topk", "topk-margin")  # a fixed number of tokens per step

_MARK = "confidence-threshold"
_MARKS = {  # PB70 of _MARK, by which a table's generation is known
    "diffucoder": {"v1": 4.11, "v2": 1.83},
    "dream": {"v1": 12.0, "v2": 7.2},
    "llada10": {"v1": 8.79, "v2": 5.29},
    "llada15": {"v1": 9.12, "v2": 5.42},
}


@dataclass(frozen=True)
class Tables:
    """Published numbers of one generation: curves of the means over tasks, and the leaderboard's PBx by level."""

    generation: str
    curves: dict[Key, Curve]
    leaderboard: dict[Key, Levels]


def read_tables(csvs: Sequence[Path], leaderboards: Sequence[Path], generation: str | None = None) -> Tables:
    """Reads CSV and leaderboard files, or those below folders. Their generation is known by four models' numbers and
    checked against the one that is given.

    Raises ValueError naming file, line and fault; for tables of both generations, or of another than given; and where
    the numbers tell none and none is given.
    """
    if generation is not None and generation not in GENERATIONS:
        raise ValueError(f"generation={generation}; choose one of {', '.join(GENERATIONS)}")
    curves = [(path, _curves(path)) for path in _files(csvs, ".csv")]
    boards = [(path, _leaderboard(path)) for path in _files(leaderboards, ".json")]
    marks = [(path, key, pbx(*curve, 70)) for path, table in curves for key, curve in table.items()]
    marks += [(path, key, row[70]) for path, table in boards for key, row in table.items()]
    return Tables(_generation(marks, generation), _joined(curves), _joined(boards))


def pbx_table(curves: Mapping[Key, Curve], generation: str) -> dict[Key, Levels]:
    """PBx by level as the generation's leaderboard computes it: v1 is linear between all points, v2 takes a fixed
    number of tokens per step at its points alone."""
    return {
        key: {level: pbx(*curve, level, discrete=generation == "v2" and key[1] in TOP_K) for level in LEVELS}
        for key, curve in curves.items()
    }


def _generation(marks: Sequence[tuple[Path, Key, float]], given: str | None) -> str:
    """The generation whose PB70s are among the marks."""
    found: dict[str, str] = {}
    for path, (model, strategy), value in marks:
        for generation, known in _MARKS.get(model, {}).items() if strategy == _MARK else ():
            if abs(value - known) < 0.01:
                found.setdefault(generation, f"{path}: {model} {_MARK} has PB70 {value:.2f}")
    if len(found) > 1:
        raise ValueError(
            f"tables of v1 ({found['v1']}) and v2 ({found['v2']}) cannot stand side by side, they differ in data and "
            "in the counting of forwards; give those of one generation"
        )
    if given and found and given not in found:
        other, sign = next(iter(found.items()))
        raise ValueError(f"generation={given}, but the table is of {other} ({sign}); give generation={other}")
    if not given and not found:
        raise ValueError("the tables' numbers do not tell their generation; give generation=v1 or generation=v2")
    return given or next(iter(found))


def _joined(tables: Sequence[tuple[Path, Mapping[Key, T]]]) -> dict[Key, T]:
    joined: dict[Key, T] = {}
    for path, table in tables:
        for key in table:
            if key in joined:
                raise ValueError(f"{path} is the second file that holds {' '.join(key)}; give one of them")
        joined |= table
    return joined


def _files(paths: Sequence[Path], suffix: str) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        found = sorted(path.rglob(f"*{suffix}")) if path.is_dir() else [path]
        if not found or not found[0].exists():
            raise ValueError(f"{path} holds no {suffix} file" if path.is_dir() else f"there is no file {path}")
        files += [file for file in found if file not in files]
    return files


def _curves(path: Path) -> dict[Key, Curve]:
    """The curves of means. Rows per task cannot stand in for them: each task has an order of speeds of its own."""
    curves = {}
    for key, rows in grouped(_rows(path), lambda row: row[0]).items():
        points = [(speed, score) for _, task, speed, score in rows if task == MEAN]
        if not points:
            raise ValueError(f"{path} has no {MEAN!r} rows for {' '.join(key)}; PBx is of means over tasks")
        speeds, scores = np.array(points).T
        curves[key] = (speeds, scores)
    return curves


def _leaderboard(path: Path) -> dict[Key, Levels]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error})") from error
    results = content.get("results") if isinstance(content, dict) else None
    if not isinstance(results, dict) or content.get("thresholds") != list(LEVELS):
        raise ValueError(f'{path} is no leaderboard file: it needs "thresholds": {list(LEVELS)} and "results"')
    table: dict[Key, Levels] = {}
    for strategy, row in results.items():
        if not isinstance(row, dict) or set(row) != set(map(str, LEVELS)):
            raise ValueError(f"{path}: {strategy} does not have one number for each of {', '.join(map(str, LEVELS))}")
        table[path.stem, strategy] = {level: _number(row[str(level)], f"{path}: {strategy}") for level in LEVELS}
    return table


def _rows(path: Path) -> list[tuple[Key, str, float, float]]:
    """Key, task, tokens per step and score of every row."""
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines(), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a CSV file ({error})") from error
    header = [name.strip() for name in lines[0]] if lines else []
    names = SITE if set(SITE) <= set(header) else LONG
    missing = [name for name in names if name not in header]
    if missing:
        raise ValueError(f"{path} has no column {', '.join(missing)}; it needs {','.join(LONG)} or {','.join(SITE)}")
    if len(lines) == 1:
        raise ValueError(f"{path} has no rows below its header")
    rows = []
    for number, cells in enumerate(lines[1:], start=2):
        where = f"line {number} of {path}"
        if not cells:
            continue
        if len(cells) != len(header):
            raise ValueError(f"{where} has {len(cells)} cells, the header {len(header)}")
        row = dict(zip(header, map(str.strip, cells), strict=True))
        key = (row["model"], row["strategy"]) if names is LONG else (path.parent.resolve().name, path.stem)
        task, speed, score = (row[name] for name in names[-3:])
        if not all((*key, task)):
            raise ValueError(f"{where} has an empty name of a model, strategy or task")
        tps, percent = _number(speed, f"{where}: {names[-2]}"), _number(score, f"{where}: {names[-1]}")
        if tps == 0 or percent > 100:
            raise ValueError(f"{where} has {tps:g} tokens per step and score {percent:g}; tokens > 0, score up to 100")
        rows.append((key, task, tps, percent))
    return rows


def _number(value: object, where: str) -> float:
    """A finite number of at least 0."""
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{where} is {value!r}, not a number of at least 0")
    return number
