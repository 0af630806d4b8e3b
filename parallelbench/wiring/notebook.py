"""Comparisons from Python, as in a notebook: decoders over tasks as a table and a plot. The runs are those of the
command line, in the same folders, so they are kept and resumed."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig

from parallelbench.records.facts import hydra_value, knobs_of, short_names
from parallelbench.records.record import Run, read_run
from parallelbench.report.compare import compare as compared
from parallelbench.stats.curves import curve_names, knobs, run_names
from parallelbench.stats.groups import grouped
from parallelbench.stats.intervals import Value
from parallelbench.stats.metrics import ALL, aggregate, measure
from parallelbench.stats.paired import side_by_side
from parallelbench.wiring.arms import alone
from parallelbench.wiring.ask import bracketed
from parallelbench.wiring.catalogue import CONF, GROUPS, RUN, settings
from parallelbench.wiring.conf import in_one_sentence, resolved
from parallelbench.wiring.config import decode_config
from parallelbench.wiring.overrides import check_overrides

if TYPE_CHECKING:
    from pandas import DataFrame

    from parallelbench.report.plots import Plot

SHOWN = ("score", "tpf", "nfe", "queried", "tokens_per_s")


def compare(
    model: str,
    decoders: Sequence[str],
    tasks: Sequence[str] | None = None,
    *,
    by_task: bool = False,
    **given: Any,
) -> "DataFrame":
    """Decodes what is missing of a run for each decoder, and returns a row for each. For example
    `compare("tiny", ["fixed k=1", "threshold tau=0.9", "eb gamma=0.1 cache=dual"], ["copy", "shuffle"], limit=20)`.

    model, decoders: names as on the command line, with settings after them: `local model.name_or_path=FOLDER`. Knobs of
        a decoder may have their short names.
    tasks: names or their last parts; by default those of the suite.
    by_task: a row for each task of each run instead.
    given: plain settings of a run, such as limit, seed, gen_length or out_dir, and choices such as cache or suite.

    Columns: metrics with their 95 % limits, such as score, score_low and score_high, NaN where there are none: score in
    per cent, tpf (tokens per forward), nfe (forwards per sample), queried (columns per sample), tokens_per_s;
    difference: points of score above the first run on the same samples, with limits; n: samples; folder: of the run.
    Raises ValueError where the command line refuses.
    """
    import pandas as pd

    if isinstance(decoders, str) or not decoders:
        raise ValueError(f'decoders={decoders!r}; give a list of at least one, such as ["threshold tau=0.9", "eb"]')
    if isinstance(tasks, str):
        raise ValueError(f'tasks={tasks!r}; give a list, such as ["{tasks}"]')
    runs = [_decoded(words) for words in _words(model, decoders, tasks, given)]
    frame = pd.DataFrame([row for rows in _rows(runs) for row in rows])
    frame = frame[(frame["task"] == ALL) != by_task]
    return frame.set_index(["run", "task"]) if by_task else frame.drop(columns="task").set_index("run")


def plot(frame: "DataFrame") -> "Plot":
    """Score against tokens per forward, with intervals: the runs of a frame of `compare`, joined where they differ in a
    knob alone."""
    from parallelbench.report.plots import Plot, quality_against_tpf

    runs = [read_run(Path(folder)) for folder in dict.fromkeys(frame["folder"])]
    names = run_names(runs)
    curves: dict[str, list[tuple[str, Value, Value]]] = {}
    for curve, members in grouped(zip(curve_names(names, runs), runs, strict=True), lambda pair: pair[0]).items():
        points = [(run, measure("tpf", run.records)) for _, run in members]
        curves[curve] = [
            (", ".join(knobs(run).values()), tpf, _in_per_cent(measure("score", run.records)))
            for run, tpf in sorted(points, key=lambda point: point[1].value)
        ]
    return Plot(quality_against_tpf(curves, f"{runs[0].info['model']}: quality against tokens per forward"))


def _words(
    model: str, decoders: Sequence[str], tasks: Sequence[str] | None, given: dict[str, Any]
) -> Iterator[list[str]]:
    """The settings of each run, checked before the first is decoded."""
    name, *more = model.split()
    shared = [f"model={name}", *more, *(f"{key}={hydra_value(value)}" for key, value in given.items())]
    shared += [bracketed(f"suite.tasks={','.join(tasks)}")] if tasks else []
    found = []
    for decoder in decoders:
        name, *own = decoder.split()
        found.append([*shared, f"decoder={name}", *_whole_names(name, own)])
        check_overrides(found[-1], sweeps=False)
    yield from found


def _whole_names(decoder: str, words: Sequence[str]) -> list[str]:
    """Settings of a decoder, with the knobs that have short names under their own."""
    check_overrides([f"decoder={decoder}"], sweeps=False)
    with in_one_sentence(), hydra.initialize_config_dir(str(CONF), version_base=None):
        config = resolved(hydra.compose(RUN, [f"decoder={decoder}"]), missing_ok=True)
    names = {short: key for key, short in short_names(knobs_of(config)).items()}
    pairs = [word.partition("=") for word in words]
    return [f"{names.get(key, key) if key not in (*GROUPS, *settings()) else key}={value}" for key, _, value in pairs]


def _decoded(words: Sequence[str]) -> Run:
    with in_one_sentence(), hydra.initialize_config_dir(str(CONF), version_base=None):
        config: DictConfig = hydra.compose(RUN, ["hydra.mode=MULTIRUN", *words], return_hydra_config=True)
        return read_run(decode_config(alone(config)).done)


def _rows(runs: Sequence[Run]) -> Iterator[list[dict[str, Any]]]:
    """Of each run a row for all tasks and for each."""
    for name, run in zip(run_names(runs), runs, strict=True):
        better, rows = compared(side_by_side([runs[0], run])), []
        for task, values in aggregate(run.records).items():
            row = {"run": name, "task": task, "n": values["score"].n}
            for metric in SHOWN:
                row |= _limits(metric, _in_per_cent(values[metric]) if metric == "score" else values[metric])
            same = Value(0.0, 0.0, 0.0, values["score"].n)
            row |= _limits("difference", same if run is runs[0] else better[task].difference)
            rows.append(row | {"folder": str(run.folder)})
        yield rows


def _in_per_cent(share: Value) -> Value:
    return Value(100 * share.value, 100 * share.ci_low, 100 * share.ci_high, share.n)


def _limits(name: str, value: Value) -> dict[str, float]:
    """A number and its limits, which are NaN where it has none."""
    low, high = (value.ci_low, value.ci_high) if value.has_interval else (math.nan, math.nan)
    return {name: value.value, f"{name}_low": low, f"{name}_high": high}
