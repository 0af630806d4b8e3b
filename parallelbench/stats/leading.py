"""Which runs a report leads with: those over the largest set of equal samples, and of them those that may be called
best."""

from collections.abc import Sequence

from parallelbench.records.facts import flatten
from parallelbench.records.record import Run
from parallelbench.stats.groups import grouped

AR = "ar"
_OF_AR = ("prompt_lookup", "self_spec", "linear_spec")


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


def text_of(run: Run) -> str | None:
    """The decoder whose text a verified one writes in fewer forwards, but for rounding; None for any other run."""
    settings = run.config["decoder"]
    chosen, tau = run.info["choices"].get("decoder"), settings.get("tau")
    if chosen in _OF_AR and not settings.get("temperature"):
        return AR
    if chosen == "freedave" and settings.get("match") == "exact":
        return "fixed k=1" if tau is None else f"threshold tau={tau}"
    return None


def marked(name: str, run: Run) -> str:
    """A run's name, or its curve's, with the decoder whose text it writes."""
    text = text_of(run)
    return name if text is None else f"{name} (same text as {text})"


def crowned(runs: Sequence[Run]) -> list[int]:
    """Places of the runs of which one may have the best score: methods, and no verified one beside the decoder whose
    text it writes, since their scores differ by rounding alone. All where there are no others."""
    methods = [i for i, run in enumerate(runs) if not run.facts.is_ceiling] or list(range(len(runs)))
    return [i for i in methods if not any(_writes(runs[j], runs[i]) for j in methods)] or methods


def _writes(original: Run, verified: Run) -> bool:
    """Whether a run is the slow one whose text the verified one has."""
    text = text_of(verified)
    if text is None or text_of(original) is not None:
        return False
    decoder, _, knob = text.partition(" ")
    name, _, value = knob.partition("=")
    settings = {key.split(".")[-1]: str(value) for key, value in flatten(original.config["decoder"]).items()}
    return (
        _same_network(original, verified)
        and original.info["choices"].get("decoder") == decoder
        and settings.get(name, "") == value
    )


def _same_network(original: Run, verified: Run) -> bool:
    """Whether one network verifies and decodes: it may be there as a causal and as a diffusion model, with further
    adapters that draft."""
    slow, fast = (run.config.get("model", {}) for run in (original, verified))
    verifier = verified.config["decoder"].get("verifier")
    if verifier is not None:
        return verifier in (original.info["model"], original.info["choices"].get("model"), slow.get("name_or_path"))
    if original.info["model"] == verified.info["model"]:
        return True
    path, parts = slow.get("name_or_path"), [set(map(str, _listed(model.get("adapter")))) for model in (slow, fast)]
    return path is not None and path == fast.get("name_or_path") and parts[0] <= parts[1]


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]
