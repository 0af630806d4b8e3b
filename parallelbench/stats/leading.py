"""Which runs a report leads with: those over the largest set of equal samples, and of them those that may be called
best."""

from collections.abc import Sequence

from parallelbench.records.record import Run
from parallelbench.stats.curves import knobs
from parallelbench.stats.groups import grouped


def leading(runs: Sequence[Run]) -> list[int]:
    """Places of the runs over the largest set of equal samples: that of several runs with the most records."""
    sets = grouped(range(len(runs)), lambda i: tuple(sorted((r.task, r.id, r.prompt_sha) for r in runs[i].records)))
    return max(sets.values(), key=lambda at: (len(at) > 1, len(at) * len(runs[at[0]].records)), default=[])


def apart_lines(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """A sentence that names the runs over other samples, nothing where there are none."""
    led = set(leading(runs))
    others = [f"`{names[i]}` ({len(run.records)} samples)" for i, run in enumerate(runs) if i not in led]
    if not others:
        return []
    n = len(runs[min(led)].records)
    return [
        f"Compared are the {len(led)} runs over the same {n} samples. Over other samples, so not compared with them: "
        f"{', '.join(others)}."
    ]


def marked(name: str, run: Run) -> str:
    """A run's name, or its curve's, with the decoder whose text it writes."""
    text = run.facts.text_of
    return f"{name} (same text as {text})" if text else name


def crowned(runs: Sequence[Run]) -> list[int]:
    """Places of the runs of which one may have the best score: methods, and no verified one next to the decoder whose
    text it writes, since their scores differ by rounding alone. All where there are no others."""
    methods = [i for i, run in enumerate(runs) if not run.facts.is_ceiling] or list(range(len(runs)))
    return [i for i in methods if not any(_writes(runs[j], runs[i]) for j in methods)] or methods


def _writes(original: Run, verified: Run) -> bool:
    """Whether a run is the slow one whose text the verified one has."""
    settings = [f"{key}={value}" for key, value in knobs(original).items()]
    name = " ".join([original.info["choices"].get("decoder", ""), *settings])
    return verified.facts.text_of == name != "" and _same_network(original, verified)


def _same_network(original: Run, verified: Run) -> bool:
    """Whether one network verifies and decodes: it may be there as a causal and as a diffusion model, with further
    adapters that draft."""
    same = original.info["model"] == verified.info["model"]
    if same or "drafter" in verified.info:  # its config's model drafts, its own one verifies
        return same
    slow, fast = (run.config.get("model", {}) for run in (original, verified))
    path, parts = slow.get("name_or_path"), [set(map(str, _listed(model.get("adapter")))) for model in (slow, fast)]
    return path is not None and path == fast.get("name_or_path") and parts[0] <= parts[1]


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]
