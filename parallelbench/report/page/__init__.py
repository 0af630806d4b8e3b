"""The page of a report: one HTML file that needs nothing else, neither network nor the runs it was made from.

Names, prompts and completions are data. They travel as JSON in which no character can end a script, the page shows them
as text only, and its content security policy allows nothing but the scripts written here, by their hashes. What each
run did on each sample travels compressed, so that any two runs can be compared in the page.
"""

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Template

import numpy as np
import vl_convert

from parallelbench.records.files import replace_file
from parallelbench.records.questions import numbered
from parallelbench.records.record import Record, Run
from parallelbench.report.compare import FEW, LEGEND as COMPARE_LEGEND, UNDECIDED
from parallelbench.report.drawing.style import KINDS, look
from parallelbench.report.page.viewer import viewer_data
from parallelbench.report.sections import equal_quality as opening, rewording
from parallelbench.stats.curves import curve_names, model_title, shown_knobs
from parallelbench.stats.groups import grouped
from parallelbench.stats.intervals import Value, quantiles
from parallelbench.stats.leading import apart_lines, crowned, leading, marked
from parallelbench.stats.metrics import ALL, METRICS, Metrics
from parallelbench.stats.paired import means, observed, pair
from parallelbench.stats.speed_at_quality import EqualQuality
from parallelbench.stats.sweeps import LEGEND as SWEEP_LEGEND, LEVELS, score_sweeps
from parallelbench.stats.timing import busy, told, unreliable, without_seconds
from parallelbench.stats.wordings import Wordings

HERE = Path(__file__).parent
MAX_CHARS = 400  # of a prompt or an answer
MAX_TEXTS = 5_000_000  # characters of the page that may be answers; it goes without them if they are more


def write_page(
    runs: Sequence[Run],
    metrics: Metrics,
    folder: Path,
    command: Callable[[Run], str],
    equal: EqualQuality | None,
    wordings: Wordings | None = None,
) -> None:
    """Writes report.html and, where runs have traces, watch.html, the player alone. metrics: of each run in turn, by
    its name, task and metric. command: what makes a run. equal: the runs' speeds at equal quality, if they make curves.
    wordings: what they did where questions have several."""
    traces = viewer_data(runs)
    parts = ["tables", "charts", "compare", "samples", *([] if traces is None else ["viewer"]), "page"]
    vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    data = _embedded(page_data(runs, metrics, command, equal, wordings))
    _write(folder / "report.html", "page.html", [vega, *_scripts(*parts)], data=data, traces=_embedded(traces))
    if traces is not None:
        _write(folder / "watch.html", "watch.html", _scripts("viewer", "watch"), traces=_embedded(traces))


def _scripts(*parts: str) -> list[str]:
    return [(HERE / f"{part}.js").read_text(encoding="utf-8") for part in ("algorithms", *parts)]


def _write(path: Path, template: str, scripts: Sequence[str], **data: str) -> None:
    page = Template((HERE / template).read_text(encoding="utf-8")).substitute(
        policy=_policy(scripts),
        style="".join((HERE / f"{part}.css").read_text(encoding="utf-8") for part in ("page", "viewer")),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
        **data,
    )
    replace_file(path, page)


def page_data(
    runs: Sequence[Run],
    metrics: Metrics,
    command: Callable[[Run], str],
    equal: EqualQuality | None,
    wordings: Wordings | None = None,
) -> dict[str, object]:
    """What the page shows, as JSON values: a row per run, the sets of samples they share, scores of sweeps."""
    led, best_of, hidden = set(leading(runs)), set(crowned(runs)), unreliable(runs)
    metrics = without_seconds(metrics, hidden)
    names, tasks = list(metrics), list(dict.fromkeys(task for rows in metrics.values() for task in rows if task != ALL))
    curves = curve_names(names, runs)
    sets = grouped(  # of samples, to the places of their runs
        (i for i, run in enumerate(runs) if run.info["status"] == "done"),
        lambda i: tuple((r.task, r.id, r.prompt_sha, r.task_version) for r in _in_order(runs[i])),
    )
    set_of = {i: place for place, members in enumerate(sets.values()) for i in members}
    samples = [_packed_json(_samples(run)) if i in set_of else "" for i, run in enumerate(runs)]
    texts = [_packed_json([r.completion[:MAX_CHARS] for r in _in_order(run)]) for run in runs]
    asked = [
        [[r.id, r.prompt[:MAX_CHARS], r.target[:MAX_CHARS]] for r in _in_order(runs[i])] for i, *_ in sets.values()
    ]
    questions = [_packed_json(of_set) for of_set in asked]
    if sum(map(len, (*texts, *questions))) > MAX_TEXTS:
        texts, questions = [""] * len(runs), [""] * len(sets)
    return {
        "tasks": tasks,
        "compare": {"few": FEW, "undecided": UNDECIDED},
        "legend": {"compare": COMPARE_LEGEND, "sweeps": SWEEP_LEGEND},
        "runs": [
            {
                "name": name,
                "curve": curve,
                "label": ", ".join(map(str, shown_knobs(run, runs).values())),
                "is_ceiling": run.facts.is_ceiling,
                "is_apart": i not in led,
                "text_of": run.facts.text_of,
                "may_be_best": i in best_of,
                "busy": busy(run),
                "looks": _looks(run),
                "folder": str(run.folder),
                "command": command(run),
                **{group: run.info["choices"][group] for group in ("decoder", "cache", "stop", "suite")},
                "model": run.info["model"],
                "model_title": model_title(run),
                "device": run.info["device"],
                "processes": run.info.get("processes", 1),
                "batch_size": run.config["batch_size"],
                "peak_memory": run.info.get("peak_memory"),
                "tasks": {
                    task: {"n": row["score"].n, **{metric: _numbers(row[metric]) for metric in METRICS}}
                    for task, row in metrics[name].items()
                },
                "set": set_of.get(i),
                "samples": samples[i],
                "texts": texts[i],
            }
            for i, (name, curve, run) in enumerate(zip(names, curves, runs, strict=True))
        ],
        "sets": [
            {"tasks": [tasks.index(task) for task, *_ in key], **_observed(_in_order(runs[i])), "questions": asked}
            for key, (i, *_), asked in zip(sets, sets.values(), questions, strict=True)
        ],
        "sweeps": [row for members in sets.values() for row in _sweeps([(runs[i], curves[i], i) for i in members])],
        "equal": _opening(equal, runs, names, curves),
        "apart": " ".join(apart_lines(runs, names)).replace("`", ""),
        "no_seconds": told(runs, names, hidden).replace("`", "") if hidden else "",
        "wordings": wordings and _rewording(wordings),
        "sweep_heads": [*([f"PB{x} {speed}", 2] for speed in ("TPF", "TPS") for x in LEVELS), ["AUP", 0]],
        "metrics": [
            [name, metric.heading, metric.about, metric.digits, metric.scale, metric.unit, metric.intervals[1]]
            for name, metric in METRICS.items()
        ],
    }


def _opening(
    equal: EqualQuality | None, runs: Sequence[Run], names: Sequence[str], curves: Sequence[str]
) -> dict[str, object] | None:
    """Speed at equal quality, and the run to use."""
    if equal is None:
        return None
    use = opening.to_use(equal, runs, curves)
    return {
        "about": opening.about(equal),
        "use": use,
        "answer": "" if use is None else opening.answer(equal, marked(names[use], runs[use])),
        "heads": opening.heads(),
        "rows": [
            {
                "curve": name,
                "is_ceiling": name in equal.ceilings,
                "runs": (at := [i for i in equal.runs if curves[i] == name]),
                "text_of": runs[at[0]].facts.text_of,
                "cells": [
                    [
                        speed.tpf and _numbers(speed.tpf),
                        opening.cell(equal, name, speed),
                        speed.lead and _numbers(speed.lead),
                    ]
                    for speed in row.values()
                ],
            }
            for name, row in equal.rows.items()
        ],
    }


def _rewording(wordings: Wordings) -> dict[str, object]:
    return {
        "heads": rewording.heads(wordings),
        "rows": [
            {
                "run": run,
                "numbers": [_numbers(value) for value in (*values, wordings.spread[run][0])],
                "cells": rewording.cells(wordings, run),
            }
            for run, values in wordings.score.items()
        ],
        "verdicts": rewording.verdicts(wordings),
        "legend": rewording.LEGEND.format(questions=wordings.questions, ranked=wordings.ranked),
    }


def _looks(run: Run) -> dict[str, tuple[str, str]]:
    """Colour and shape of what may tell the run from others."""
    named = {**run.info["choices"], "model": str(run.info["model"])}
    looks = {kind: look(kind, named[kind]) for kind in KINDS}
    return {kind: (seen.colour, seen.shape) for kind, seen in looks.items()}


def _numbers(value: Value) -> list[float | None]:
    """A value and its interval to six digits; None where there is no number."""
    numbers = (value.value, value.ci_low, value.ci_high)
    return [float(f"{number:.6g}") if math.isfinite(number) else None for number in numbers]


def _in_order(run: Run) -> list[Record]:
    """As `paired.pair` sorts them."""
    return sorted(run.records, key=lambda r: (r.task, r.id))


def _samples(run: Run) -> dict[str, list[float | None]]:
    """Numbers of each sample, with the further scores that differ from the score."""
    records = _in_order(run)
    return {
        "score": [r.scores["score"] for r in records],
        "nfe": [r.nfe for r in records],
        "tokens": [r.num_tokens for r in records],
        "columns": [len(r.committed_at) for r in records],
        **{
            f"score:{name}": [r.scores.get(name) for r in records]
            for name in dict.fromkeys(name for r in records for name in r.scores)
            if any(r.scores.get(name) != r.scores["score"] for r in records)
        },
    }


def _observed(records: Sequence[Record]) -> dict[str, object]:
    """A number for each sample that the wordings of its question share, nothing where none has several, and the
    quantiles of each task's intervals, as it comes first, and of all samples' together."""
    of, numbers = np.array([record.task for record in records]), numbered(records)
    student = [quantiles(of[of == task]) for task in dict.fromkeys(of.tolist())]
    asked = numbers if len(set(numbers)) < len(numbers) else None
    return {"asked": asked, "student": [*student, quantiles(observed(of, np.array(numbers)).strata)]}


def _sweeps(members: Sequence[tuple[Run, str, int]]) -> list[dict[str, object]]:
    """Scores of each curve of two or more runs among those over the same samples."""
    runs, curves, places = (list(column) for column in zip(*members, strict=True))
    if len(set(curves)) == len(curves):
        return []
    sweeps = score_sweeps(runs, curves, means(pair(runs)), runs[0].facts.generation or "v2")
    return [
        {
            "curve": curve,
            "points": sweep.points,
            "runs": [place for place, other in zip(places, curves, strict=True) if other == curve],
            "values": [
                *(_numbers(levels[x]) for levels in (sweep.tpf, sweep.tps) for x in LEVELS),
                _numbers(sweep.aup),
            ],
        }
        for curve, sweep in sweeps.items()
        if sweep.points > 1
    ]


def _packed_json(value: object) -> str:
    content = json.dumps(value, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(content, 9)).decode()


def _embedded(value: object) -> str:
    """JSON in ASCII that can neither end the script element it is in nor open a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Sequence[str]) -> str:
    """Nothing from any network, and no script but these."""
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts]
    return (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
