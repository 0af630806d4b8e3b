"""What the trace viewer of a report's page shows (viewer.js draws it): the saved steps of the runs, by sample."""

import json
import sys
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

from msgspec.structs import asdict

from parallelbench.records.record import Record, Run
from parallelbench.records.trace import Trace, expected, traces_of
from parallelbench.stats.curves import run_names
from parallelbench.stats.groups import grouped

MAX_BYTES = 3_000_000  # of all traces in a page


def viewer_data(runs: Sequence[Run]) -> list[dict[str, Any]] | None:
    """The traced samples with what each run did on them, as JSON values; None when no run has traces.

    The first sample of every task comes before the second of any. What is beyond `MAX_BYTES` is named without its runs.
    Traces that cannot be read are named on stderr and left out.
    """
    samples: dict[tuple[str, str], dict[str, Any]] = {}
    for name, run in zip(run_names(runs), runs, strict=True):
        try:
            traces = traces_of(run)
        except ValueError as error:
            print(f"skipped: {error}", file=sys.stderr)
            continue
        for record in run.records:
            if record.id in traces:
                about = {key: getattr(record, key) for key in ("id", "task", "prompt", "target")}
                sample = samples.setdefault((record.id, record.prompt_sha), {**about, "runs": []})
                sample["runs"].append(_of_run(name, record, traces[record.id]))
    if not samples:
        return None
    left, by_task = MAX_BYTES, grouped(samples.values(), lambda sample: sample["task"])
    for sample in filter(None, chain.from_iterable(zip_longest(*by_task.values()))):
        left -= len(json.dumps(sample))
        if left < 0:
            sample["runs"] = []
    return list(samples.values())


def _of_run(name: str, record: Record, trace: Trace) -> dict[str, Any]:
    return {
        "name": name,
        "score": record.scores["score"],
        "nfe": record.nfe,
        "num_tokens": record.num_tokens,
        "length": len(record.token_ids),
        "expected": expected(trace, record),
        "reference_length": len(trace.reference),
        "columns": trace.columns,
        "texts": {str(token): text for token, text in trace.texts.items()},
        "steps": [asdict(step) for step in trace.steps],
    }
