"""Command line: `python -m parallelbench COMMAND`. Hydra is known here only."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import hydra
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from transformers.utils import logging as transformers_logging

from parallelbench.records.record import find_runs, read_run, readable_runs, writing
from parallelbench.report import leaderboard, recommend
from parallelbench.report import trace_view as trace
from parallelbench.report.options import split_options
from parallelbench.report.report import run_table, write_report
from parallelbench.report.sinks import publish_sweep
from parallelbench.run.generator import DiffusionGenerator
from parallelbench.run.job import rescore
from parallelbench.run.processes import Processes, join
from parallelbench.tasks import builtin_tasks, text_tasks
from parallelbench.tasks.text.grammar import BACKENDS
from parallelbench.wiring.config import (
    CONF,
    GROUPS,
    Outcome,
    build_generator,
    check_overrides,
    command,
    decode_config,
    sentence,
)
from parallelbench.wiring.launcher import register

ANALYSES = {  # what `analyze NAME` runs: modules with USAGE (one line) and main(arguments), which returns what to print
    "theory": "theory",
    "frontier": "best_possible",
    "pbx": "pbx",
    "compare": "compare",
    "oracle": "best_knob",
}
USAGE = "\n".join(
    (
        "python -m parallelbench COMMAND",
        "",
        "run [key=value ...]            decode and score the tasks; -m sweeps over comma-separated values, in",
        "                               turn or with launcher=local on all devices of this machine",
        "                               torchrun --nproc-per-node N -m parallelbench run ... shares the work",
        "report DIR ... [out_dir=DIR]   page, tables and plots of all runs at or below the directories",
        "score DIR ... [grammar=NAME]   score stored completions again, without a model, by another grammar checker",
        "recommend DIR ... [max_loss=1.0] [reference=NAME]   the fastest configuration that loses at most a point",
        "leaderboard DIR ... [csv=FILE] [leaderboard=FILE]   runs of several machines and published tables, ranked",
        "trace RUN [SAMPLE] [other=RUN] one sample forward by forward, of two runs beside each other; needs traces=N",
        "analyze NAME ...               theory and studies of runs; `analyze` alone lists them",
        "lm_eval ARGUMENTS ...          lm-evaluation-harness with the model dllm, whose --model_args are those of run",
        "list                           decoders, caches, stop rules, models, suites and tasks to choose from",
    )
)


def main() -> None:
    arguments = sys.argv[1:]
    commands = {
        "run": run,
        "report": report,
        "score": score,
        "recommend": lambda arguments: print(recommend.main(arguments)),
        "leaderboard": lambda arguments: print(leaderboard.main(arguments)),
        "trace": trace.main,
        "analyze": analyze,
        "lm_eval": lm_eval,
        "list": show_choices,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    if arguments[0] not in commands:
        fail(f"unknown command {arguments[0]!r}; choose one of {', '.join(commands)}")
    try:
        commands[arguments[0]](arguments[1:])
    except ValueError as error:
        fail(sentence(error))


def fail(message: str) -> NoReturn:
    """One sentence on stderr, exit code 2."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


def run(arguments: Sequence[str]) -> None:
    overrides = [a for a in arguments if "=" in a and not a.startswith("-")]  # Hydra wants them side by side
    sys.argv = ["parallelbench run", *(a for a in arguments if a not in overrides), *overrides]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come to us instead of being printed by Hydra
    transformers_logging.disable_progress_bar()  # one bar, the run's
    processes = join()
    task = _Task(processes)
    register()
    try:
        if not any(a.startswith(("--config-name", "-cn", "--config-path", "-cp")) for a in arguments):
            check_overrides([*overrides, *(a for a in arguments if a.startswith("~"))], _config_dir(arguments))
        hydra.main(version_base=None, config_path=str(CONF), config_name="run")(task)()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        task.finish(Outcome(refused=sentence(error)))
    task.close()
    processes.leave()
    if task.failed:
        raise SystemExit(task.failed)


def _config_dir(arguments: Sequence[str]) -> Path | None:
    """Where options of the user's own are."""
    for flag, value in pairwise([*(part for a in arguments for part in a.split("=", 1)), ""]):
        if flag in ("--config-dir", "-cd"):
            return Path(value)
    return None


class _Task:
    """What Hydra calls with each composed config: one that is refused or dies does not keep a sweep from its others.
    failed: the exit code, 0 for none."""

    def __init__(self, processes: Processes) -> None:
        self.processes, self.failed = processes, 0
        self.finished: dict[Path, Outcome] = {}

    def __call__(self, config: DictConfig) -> None:
        say = partial(print, flush=True) if self.processes.is_main else lambda text: None
        self.finish(decode_config(config, self.processes, say))

    def finish(self, outcome: Outcome) -> None:
        self.failed = 2 if outcome.refused else max(self.failed, int(bool(outcome.died)))
        if not self.processes.is_main:
            return
        if outcome.refused or outcome.died:
            what = outcome.refused or f"{outcome.folder or 'a job'} died of {outcome.died}"
            print(f"error: {what}", file=sys.stderr, flush=True)
        else:
            assert outcome.folder is not None
            self.finished[outcome.folder] = outcome
            print(outcome.table, outcome.folder, sep="\n", flush=True)

    def close(self) -> None:
        """A sweep's summary, where its runs have sent their numbers."""
        sinks = {name: sink for outcome in self.finished.values() for name, sink in outcome.sinks.items()}
        if len(self.finished) > 1 and sinks:
            publish_sweep(list(self.finished), sinks)


def report(arguments: Sequence[str]) -> None:
    paths, options = split_options(arguments, {"out_dir": "results/report"})
    out_dir = Path(options["out_dir"])
    runs, skipped = readable_runs(paths)
    for why in skipped:
        print(f"skipped: {why}", file=sys.stderr)
    print(write_report(runs, out_dir, command))
    print(out_dir)


def analysis(name: str) -> ModuleType:
    """The module of an analysis. Raises ValueError for an unknown name."""
    if name not in ANALYSES:
        raise ValueError(f"unknown analysis {name!r}; choose among {', '.join(ANALYSES)}")
    return import_module(f"parallelbench.report.{ANALYSES[name]}")


def analyze(arguments: Sequence[str]) -> None:
    if not arguments:
        for name in ANALYSES:
            print(f"{name:10} {analysis(name).USAGE}")
        return
    print(analysis(arguments[0]).main(arguments[1:]))


def score(arguments: Sequence[str]) -> None:
    paths, options = split_options(arguments, {"grammar": ""})
    try:
        for folder in find_runs(paths):
            config = read_run(folder).config["suite"]
            if options["grammar"]:
                config = {**config, "grammar": options["grammar"]}
            suite = instantiate(OmegaConf.create(config), _convert_="all")
            with writing(folder):
                finished = rescore(folder, suite.build())
            print(run_table(finished))
            print(finished.folder)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(sentence(error)) from error


def lm_eval(arguments: Sequence[str]) -> None:
    try:
        from parallelbench.wiring import lm_eval as harness
    except ImportError as error:
        raise ValueError(
            f"lm_eval needs lm-evaluation-harness ({error}); pip install 'dllm-parallelbench[eval]'"
        ) from error

    try:
        harness.main(arguments, lambda given: harness.DllmLM(**_harness_options(given)))
    except NotImplementedError as error:
        raise ValueError(str(error)) from error


def show_choices(arguments: Sequence[str]) -> None:
    """Every config group's options, by the comment on the first line of their files; the tasks; the plain keys."""
    for group in (*GROUPS, "launcher", "sink", "experiment"):
        for option in sorted((CONF / group).glob("*.yaml")):
            comments = (line.removeprefix("#").strip() for line in option.read_text().splitlines())
            about = next(comment for comment in comments if not comment.startswith("@"))
            label = f"{group}={option.name.removesuffix('.yaml')}"
            print(f"{label:22} {about}")
    for name in (*builtin_tasks(), *text_tasks()):
        print(f"suite.tasks=[{name}]")
    for key, about in (
        ("limit=50", "samples per task"),
        ("seed=0", "benchmark seed"),
        ("batch_size=16", "samples decoded together"),
        ("gen_length=32", "columns to fill, a multiple of block_length"),
        ("block_length=32", "columns decoded before the next block opens"),
        ("traces=2", "samples per task whose steps are saved, for `trace` and the page of a report"),
        ("out_dir=DIR", "where the run is written"),
        ("suite.grammar=harper", f"{', '.join(BACKENDS)} or a LanguageTool server's URL (suites with text tasks)"),
    ):
        print(f"{key:22} {about}")


def _harness_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of DllmLM from lm_eval's --model_args: pretrained (an option of conf/model, a path or a hub id),
    samples, costs, and what `run` takes."""
    options = {"pretrained": "tiny", "batch_size": None, "samples": 128, "costs": None, **given}
    name, batch_size, samples, costs = (options.pop(key) for key in ("pretrained", "batch_size", "samples", "costs"))
    for key in ("device", "max_batch_size"):  # the harness always gives them; here model.device says it
        options.pop(key, None)
    known = (CONF / "model" / f"{name}.yaml").exists()
    overrides = [f"model={name}"] if known else ["model=local", f"model.name_or_path={json.dumps(str(name))}"]
    overrides += [f"batch_size={batch_size}"] if batch_size else []
    overrides += ["gen_length=null", *(f"{key}={json.dumps(value)}" for key, value in options.items())]
    try:
        with hydra.initialize_config_dir(str(CONF), version_base=None):
            config = hydra.compose("run", overrides)
        generator = build_generator(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(sentence(error)) from error
    if not isinstance(generator, DiffusionGenerator):
        raise ValueError(
            f"pretrained={name} with these arguments is no diffusion model and decoder, as lm_eval needs here"
        )
    return {
        "generator": generator,
        "gen_len": config.gen_length,
        "batch_size": config.batch_size,
        "samples": samples,
        "costs": costs and Path(costs),
    }


if __name__ == "__main__":
    main()
