"""What commands print with format=json: one object on stdout, with names that stay."""

from collections.abc import Callable, Sequence
from typing import Any

from parallelbench.records.record import Run
from parallelbench.stats.curves import run_names
from parallelbench.stats.metrics import METRICS
from parallelbench.stats.timing import unreliable


def run_rows(runs: Sequence[Run], command: Callable[[Run], str]) -> list[dict[str, Any]]:
    """Name, folder, command, choices and knobs of each run, and its metrics by task with 95 % limits, as in run.json.
    Seconds of a busy machine are left out. command: what makes a run again."""
    hidden = unreliable(runs)
    timed = {name for name, metric in METRICS.items() if metric.is_timed}
    return [
        {
            "name": name,
            "folder": str(run.folder),
            "command": command(run),
            "model": run.info["model"],
            "choices": run.info["choices"],
            "knobs": run.facts.knobs,
            "metrics": {
                task: {key: value for key, value in row.items() if place not in hidden or key not in timed}
                for task, row in run.info["metrics"].items()
            },
        }
        for place, (name, run) in enumerate(zip(run_names(runs), runs, strict=True))
    ]
