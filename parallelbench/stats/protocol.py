"""ParallelBench's own protocol, and what a run does otherwise: only complete runs by it stand in a published table.

Published runs decode all rows of the seventeen tasks, greedily, without a cache, the whole answer as one block in each
task's own budget and to its last column, in bfloat16; text is scored by LanguageTool. v1 gives Dream and DiffuCoder
Dream's time schedule where others commit k tokens per step. Autoregressive baselines have 1,024 tokens.
The v2 leaderboard counts the forwards of a batch of eight, which adaptive decoders here do not share.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from parallelbench.records.record import Run

NUM_TASKS = 17
NUM_ROWS = {"v1": 1708, "v2": 1700}
AR_BUDGET = 1024
DREAMS = ("dream", "diffucoder")  # in the names of models that v1 decodes by Dream's code


def deviations(run: Run, generation: str) -> list[str]:
    """What keeps a run from a table of the generation's published numbers, in words; nothing where it may stand there.

    Decoder, model and knob are the run's own.
    """
    suite, config, facts = run.info["choices"]["suite"], run.config, run.facts
    data = facts.generation
    if data != generation:
        what = f"{data} data, the numbers are {generation}'s" if data else "not ParallelBench's data"
        return [f"suite={suite} is {what}"]
    found = []
    tasks, rows = {record.task for record in run.records}, len(run.records)
    if len(tasks) != NUM_TASKS:
        found.append(f"suite={suite} ran with {len(tasks)} tasks, the published means are over {NUM_TASKS}")
    elif rows != NUM_ROWS[generation]:
        found.append(f"{rows} of {NUM_ROWS[generation]} rows were decoded")
    versions = {record.task_version for record in run.records}
    if any("unpublished" in version for version in versions):
        found.append("its data are not the published files")
    checkers = {version.split("+")[2] for version in versions if version.count("+") > 1}
    found += [f"{name} checks grammar, not LanguageTool" for name in sorted(checkers) if name[:12] != "languagetool"]
    if facts.is_autoregressive:
        return found + _unless(config, "gen_length", AR_BUDGET)
    if run.info["choices"]["stop"] != "never":
        found.append(f"stop={run.info['choices']['stop']}, published runs decode the whole canvas (stop=never)")
    if run.info["choices"]["cache"] != "none":
        found.append(f"cache={run.info['choices']['cache']}, published runs have none")
    found += _unless(config, "gen_length", None)
    found += [] if facts.block_is_knob else _unless(config, "block_length", None)
    dtype = run.info.get("dtype", "not stated")
    if dtype != "bfloat16":
        found.append(f"dtype={dtype}, published runs have bfloat16, whose confidences tie where others differ")
    names = f"{run.info['choices'].get('model', '')} {run.info.get('model', '')}".lower()
    if generation == "v1" and facts.commits_k and any(name in names for name in DREAMS):
        found.append(
            "it commits k tokens per step, published runs of Dream follow its time schedule (decoder=dream "
            "decoder.rule.per_step=K)"
        )
    if temperature := config["decoder"].get("temperature"):
        found.append(f"temperature={temperature}, published runs are greedy")
    if generation == "v2" and not facts.fixed_number:
        found.append("its forwards are each sample's own, the v2 leaderboard counts those of a batch")
    return found


def stand_apart(runs: Sequence[Run], curves: Sequence[str], generation: str) -> dict[str, list[str]]:
    """The curves that may not stand in a published table, with what keeps them from it; `curves` names each run's."""
    found: dict[str, list[str]] = {}
    for run, curve in zip(runs, curves, strict=True):
        known = found.setdefault(curve, [])
        known += [reason for reason in deviations(run, generation) if reason not in known]
    return {curve: reasons for curve, reasons in found.items() if reasons}


def _unless(config: Mapping[str, Any], key: str, published: int | None) -> list[str]:
    value = config.get(key)
    name = "null" if published is None else published
    return [] if value == published else [f"{key}={value}, published runs have {key}={name}"]
