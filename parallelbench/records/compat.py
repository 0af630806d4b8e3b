"""Runs written before: class paths that have moved since, and the facts that such runs do not state.

A config names classes by public paths, those of a package's `__init__`, so that moving a class changes no run. A path
that was ever in a config and is no more gets a line in `MOVED`; a run keeps the hash of the paths it was first made by.
"""

from collections.abc import Callable, Mapping
from typing import Any

from parallelbench.records.facts import Facts, knobs_of

MOVED = {  # the path that configs held before, and the public one
    "decoders.learn2pd.BlockFilter": "decoders.BlockFilter",
    "decoders.learn2pd.PositionFilter": "decoders.PositionFilter",
    "dllm.cache.BlockCache": "dllm.BlockCache",
    "dllm.cache.DelayedCache": "dllm.DelayedCache",
    "dllm.cache.SubBlockCache": "dllm.SubBlockCache",
    "dllm.cache.WindowCache": "dllm.WindowCache",
    "dllm.causal.load_causal": "dllm.load_causal",
    "dllm.recurrent.load_recurrent": "dllm.load_recurrent",
    "dllm.training.certainty.CertaintyForcing": "dllm.training.CertaintyForcing",
    "dllm.training.fit.FitConfig": "dllm.training.FitConfig",
    "dllm.training.objectives.BlockDiffusion": "dllm.training.BlockDiffusion",
    "dllm.training.objectives.MaskedDiffusion": "dllm.training.MaskedDiffusion",
    "dllm.training.objectives.NextToken": "dllm.training.NextToken",
    "dllm.training.scratch.scratch_causal": "dllm.training.scratch_causal",
    "dllm.training.scratch.scratch_llama": "dllm.training.scratch_llama",
    "dllm.training.scratch.scratch_recurrent": "dllm.training.scratch_recurrent",
    "parallelbench.autoregressive.Autoregressive": "parallelbench.Autoregressive",
    "parallelbench.autoregressive.PromptLookup": "parallelbench.PromptLookup",
    "parallelbench.mixture.TaskMixture": "parallelbench.TaskMixture",
    "parallelbench.recurrent.DiffusionForcing": "parallelbench.DiffusionForcing",
    "parallelbench.sinks.TensorBoard": "parallelbench.TensorBoard",
    "parallelbench.sinks.Wandb": "parallelbench.Wandb",
    "parallelbench.tasks.Suite": "parallelbench.Suite",
    "parallelbench.tasks.coding.HumanEval": "parallelbench.HumanEval",
    "parallelbench.tasks.coding.Mbpp": "parallelbench.Mbpp",
    "parallelbench.tasks.mathematics.Gsm8k": "parallelbench.Gsm8k",
    "parallelbench.tasks.mathematics.Math": "parallelbench.Math",
    "parallelbench.tasks.official.OfficialSuite": "parallelbench.OfficialSuite",
    "parallelbench.tasks.official.OfficialV2Suite": "parallelbench.OfficialV2Suite",
}
FIRST = {public: first for first, public in reversed(MOVED.items())}

_BASELINES = ("parallelbench.Autoregressive",)
_FIXED_NUMBER = tuple(f"decoders.{rule}" for rule in ("FixedK", "Schedule", "DreamSchedule", "DreamOrigin"))
_GENERATIONS = {"parallelbench.OfficialSuite": "v1", "parallelbench.OfficialV2Suite": "v2"}


def public_paths(config: Any) -> Any:
    """A config, or a part of one, with its classes by their public paths."""
    return _with_targets(config, lambda path: MOVED.get(path, path))


def first_paths(config: Any) -> Any:
    """A config with its classes by the paths that they had first: what a run's hash is taken of."""
    return _with_targets(config, lambda path: FIRST.get(path, path))


def unstated_facts(config: Mapping[str, Any]) -> Facts:
    """The facts of a run that was written before runs stated them; `config` has public paths."""
    decoder = config["decoder"]
    rule = decoder.get("rule", {})
    is_plain = not any(decoder.get(part) for part in ("transforms", "rescore", "revise", "soft", "temperature"))
    by_confidence = rule.get("k") == 1 and decoder.get("confidence", "prob") == "prob"
    return Facts(
        is_baseline=is_plain and (by_confidence or decoder.get("_target_") in _BASELINES),
        fixed_number=rule.get("_target_") in _FIXED_NUMBER,
        generation=_GENERATIONS.get(config["suite"].get("_target_"), ""),
        knobs=knobs_of(config),
    )


def _with_targets(config: Any, renamed: Callable[[str], str]) -> Any:
    if isinstance(config, Mapping):
        return {
            key: renamed(value) if key == "_target_" and isinstance(value, str) else _with_targets(value, renamed)
            for key, value in config.items()
        }
    return [_with_targets(value, renamed) for value in config] if isinstance(config, list | tuple) else config
