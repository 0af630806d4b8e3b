"""Runs written before: class paths that have moved since, and the facts that such runs do not state.

A config names classes by public paths, those of a package's `__init__`, so that moving a class changes no run. A path
that was ever in a config and is no more gets a line in `MOVED`; a run keeps the hash of the paths it was first made by.
"""

from collections.abc import Callable, Mapping
from typing import Any

from parallelbench.records.facts import Facts, knobs_of

MOVED = {  # the path that configs held before, and the public one
    f"{module}.{name}": f"{package}.{name}"
    for package, module, names in (
        ("decoders", "decoders.learn2pd", "BlockFilter PositionFilter"),
        ("dllm", "dllm.cache", "BlockCache DelayedCache SubBlockCache WindowCache"),
        ("dllm", "dllm.causal", "load_causal"),
        ("dllm", "dllm.recurrent", "load_recurrent"),
        ("dllm.training", "dllm.training.certainty", "CertaintyForcing"),
        ("dllm.training", "dllm.training.fit", "FitConfig"),
        ("dllm.training", "dllm.training.objectives", "BlockDiffusion MaskedDiffusion NextToken"),
        ("dllm.training", "dllm.training.scratch", "scratch_causal scratch_llama scratch_recurrent"),
        ("parallelbench", "parallelbench.autoregressive", "Autoregressive PromptLookup"),
        ("parallelbench", "parallelbench.mixture", "TaskMixture"),
        ("parallelbench", "parallelbench.recurrent", "DiffusionForcing"),
        ("parallelbench", "parallelbench.sinks", "TensorBoard Wandb"),
        ("parallelbench", "parallelbench.tasks", "Suite"),
        ("parallelbench", "parallelbench.tasks.coding", "HumanEval Mbpp"),
        ("parallelbench", "parallelbench.tasks.mathematics", "Gsm8k Math"),
        ("parallelbench", "parallelbench.tasks.official", "OfficialSuite OfficialV2Suite"),
    )
    for name in names.split()
}
ADDED = {  # settings that came later, and what runs without them did
    "parallelbench.DiffusionForcing": {"freeze": "prefix"},
    "parallelbench.Suite": {"templates": [0]},
    "decoders.DreamSchedule": {"per_step": None},
    "decoders.RunningSet": {"surest_of_all": False, "fill_eos": False},
    "dllm.DelayedCache": {"entry": 1},
    "decoders.Schedule": {"per": "masks"},
    "decoders.Threshold": {"least": 1},
}
PAIRS = {  # rules that have a revision of their own, and how configs held both before: class and settings of each
    "decoders.LoopMdm": (("decoders.LoopRule", None), ("decoders.LoopRemask", None)),
    "decoders.ReMdm": (("decoders.ReMdmRule", None), ("decoders.ReMdmRemask", None)),
    "decoders.Wino": (("decoders.WideIn", "tau"), ("decoders.Wino", "keep")),
}
FIRST = {public: first for first, public in reversed(MOVED.items())}

_FIXED_NUMBER = tuple(f"decoders.{rule}" for rule in ("FixedK", "Schedule", "DreamSchedule", "DreamOrigin"))
_GENERATIONS = {"parallelbench.OfficialSuite": "v1", "parallelbench.OfficialV2Suite": "v2"}


def public_paths(config: Any) -> Any:
    """A config, or a part of one, with its classes by their public paths."""
    return _with_targets(_with_pairs(config, True), lambda path: MOVED.get(path, path))


def first_paths(config: Any) -> Any:
    """A config with its classes by the paths that they had first, without what was added since: what a run's hash is
    taken of."""
    return _with_targets(_with_added(_with_pairs(config, False), False), lambda path: FIRST.get(path, path))


def as_written_today(config: Any) -> Any:
    """A stored config with public paths, and with the settings that came later."""
    return _with_added(public_paths(config), True)


def unstated_facts(config: Mapping[str, Any]) -> Facts:
    """The facts of a run that was written before runs stated them; `config` has public paths."""
    decoder = config["decoder"]
    rule = decoder.get("rule")
    rule = rule if isinstance(rule, Mapping) else {}
    is_plain = not any(decoder.get(part) for part in ("transforms", "rescore", "revise", "soft", "temperature"))
    by_confidence = rule.get("k") == 1 and decoder.get("confidence", "prob") == "prob"
    return Facts(
        is_baseline=is_plain and (by_confidence or decoder.get("_target_") == "parallelbench.Autoregressive"),
        fixed_number=rule.get("_target_") in _FIXED_NUMBER,
        generation=_GENERATIONS.get(config["suite"].get("_target_"), ""),
        knobs=knobs_of(config),
        is_ceiling=rule.get("_target_") == "decoders.Oracle",
    )


def _with_added(config: Any, stated: bool) -> Any:
    """A config that states, or leaves out, the settings of `ADDED` that have the value of runs without them."""
    if isinstance(config, Mapping):
        config = {key: _with_added(value, stated) for key, value in config.items()}
        target = config.get("_target_")
        added = ADDED.get(target, {}) if isinstance(target, str) else {}
        if stated:
            return {**config, **{key: value for key, value in added.items() if key not in config}}
        return {key: value for key, value in config.items() if key not in added or added[key] != value}
    return [_with_added(value, stated) for value in config] if isinstance(config, list | tuple) else config


def _with_pairs(config: Any, joined: bool) -> Any:
    """A config with the rules of `PAIRS`, or with a rule and a revision in their place."""
    if isinstance(config, list | tuple):
        return [_with_pairs(value, joined) for value in config]
    if not isinstance(config, Mapping):
        return config
    config = {key: _with_pairs(value, joined) for key, value in config.items()}
    rule, revise = (part if isinstance(part := config.get(name), Mapping) else {} for name in ("rule", "revise"))
    for public, paths in PAIRS.items():
        if joined and (rule.get("_target_"), revise.get("_target_")) == tuple(path for path, _ in paths):
            del config["revise"]
            return config | {"rule": {**revise, **rule, "_target_": public}}
        if not joined and rule.get("_target_") == public and not revise:
            parts = [{k: v for k, v in rule.items() if only in (None, k)} | {"_target_": path} for path, only in paths]
            return config | dict(zip(("rule", "revise"), parts, strict=True))
    return config


def _with_targets(config: Any, renamed: Callable[[str], str]) -> Any:
    if isinstance(config, Mapping):
        return {
            key: renamed(value) if key == "_target_" and isinstance(value, str) else _with_targets(value, renamed)
            for key, value in config.items()
        }
    return [_with_targets(value, renamed) for value in config] if isinstance(config, list | tuple) else config
