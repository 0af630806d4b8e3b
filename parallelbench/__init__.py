"""ParallelBench: tasks, runs, metrics and reports. The only package that knows tasks, files and plots.

Configs name classes by their paths here. Each is imported when it is asked for, so that `import parallelbench` and the
command line are quick.
"""

from importlib import import_module
from typing import Any

PUBLIC = {
    "parallelbench.methods.autoregressive": ("Autoregressive",),
    "parallelbench.methods.running": ("Running",),
    "parallelbench.methods.verified": ("FreeDave", "LinearSpec", "LoPA", "PromptLookup", "SelfSpec"),
    "parallelbench.training.mixture": ("TaskMixture",),
    "parallelbench.methods.diffusion_forcing": ("DiffusionForcing",),
    "parallelbench.methods.adaptive_depth": ("AdaptiveDepth",),
    "parallelbench.report.sinks": ("TensorBoard", "Wandb"),
    "parallelbench.tasks": ("Suite",),
    "parallelbench.tasks.code.tasks": ("HumanEval", "Mbpp"),
    "parallelbench.tasks.mathematics": ("Gsm8k", "Math"),
    "parallelbench.tasks.prompts": ("Prompts",),
    "parallelbench.tasks.shapes": ("Shapes",),
    "parallelbench.training.sources": ("Mixed", "Rows"),
    "parallelbench.tasks.official.suite": ("OfficialSuite", "OfficialV2Suite"),
}
_HOMES = {name: module for module, names in PUBLIC.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'parallelbench' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
