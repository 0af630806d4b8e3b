"""Command line: `parallelbench COMMAND`, or `python -m parallelbench COMMAND`. Each command is imported when it is
called for."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

from parallelbench.records.files import printable
from parallelbench.wiring.exits import explained

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
        "--version                      of this package",
    )
)
ANALYSES = {
    "theory": "ParallelBench's theory, ideal models and tiny: [tasks=all n=3..10 k=1,2,3,4,n samples=2000 tiny=100 "
    "out_dir=...]",
    "frontier": "score against forwards of runs beside the best possible: RUNS... [samples=100 out_dir=...]",
    "pbx": "[RUN ...] [csv=FILE] [leaderboard=FILE] [generation=v1] [out_dir=DIR]   PBx, AUP, Pareto front of sweeps",
    "compare": "RUN_A RUN_B [out_dir=DIR]   B against A per task: score, p-value, ratios of NFE and TPF, paired "
    "bootstrap",
    "oracle": "RUN ... [out_dir=DIR]   the best knob for each sample: what a choice per sample could gain over one for "
    "all",
}
MODULES = {  # of `main(arguments)`, which returns what is left to print
    "run": "wiring.sweep",
    "report": "report.report",
    "score": "wiring.score",
    "recommend": "report.recommend",
    "leaderboard": "report.leaderboard",
    "trace": "report.trace_view",
    "lm_eval": "wiring.lm_eval",
    "list": "wiring.choices",
    "analyze theory": "report.theory",
    "analyze frontier": "report.best_possible",
    "analyze pbx": "report.pbx",
    "analyze compare": "report.compare",
    "analyze oracle": "report.best_knob",
}
HANDED = {  # what of the wiring a report needs, to go back from a run to its command or its decoder
    "report": "command.command",
    "recommend": "command.command",
    "analyze frontier": "conf.build_part",
}


def main() -> None:
    with explained():
        _main()


def _main() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(USAGE)
        return
    if name == "--version":
        print(f"dllm-parallelbench {version('dllm-parallelbench')}")
        return
    if name == "analyze":
        if not arguments:
            print("\n".join(f"{name:10} {usage}" for name, usage in ANALYSES.items()))
            return
        if arguments[0] not in ANALYSES:
            raise ValueError(f"unknown analysis {arguments[0]!r}; choose among {', '.join(ANALYSES)}")
        name, arguments = f"analyze {arguments[0]}", arguments[1:]
    if name not in MODULES:
        known = dict.fromkeys(name.split()[0] for name in MODULES)
        raise ValueError(f"unknown command {name!r}; choose one of {', '.join(known)}")
    if name == "lm_eval" and find_spec("lm_eval") is None:
        raise ValueError("lm_eval needs lm-evaluation-harness; pip install 'dllm-parallelbench[eval]'")
    call(name, arguments)


def call(name: str, arguments: Sequence[str]) -> None:
    """Calls a command with its arguments and what it is handed, and prints what it returns."""
    command: Callable[..., str | None] = import_module(f"parallelbench.{MODULES[name]}").main
    handed = []
    if name in HANDED:
        module, function = HANDED[name].split(".")
        handed = [getattr(import_module(f"parallelbench.wiring.{module}"), function)]
    text = command(arguments, *handed)
    if text is not None:
        print(printable(text))


if __name__ == "__main__":
    main()
