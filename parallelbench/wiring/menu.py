"""What the command line offers: each command with its words, from which come its help, its completion and the check of
a command before anything heavy is loaded for it."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from textwrap import wrap

from dllm.validation import nearest, shown
from parallelbench.records.record import find_runs

WIDTH = 100  # characters of a line
LONGEST, DEEPEST = 10_000, 20  # characters and levels of brackets of a word
# Hydra's options that take a value
VALUED = (
    *("--cfg", "--package", "--config-dir", "--config-name", "--config-path", "--experimental-rerun"),
    *("-c", "-p", "-cd", "-cn", "-cp"),
)


@dataclass(frozen=True)
class Command:
    """module: of `main(arguments)`, which returns what is left to print. takes: the words that follow. options: what
    else may follow as key=value. reads_runs: its paths hold runs. handed: what of the wiring it needs, to go back from
    a run to its command or its decoder. extra: of the package, whose libraries it needs."""

    module: str
    takes: str
    about: str
    options: Mapping[str, str] = field(default_factory=dict)
    reads_runs: bool = True
    handed: str = ""
    extra: str = ""


TABLES = {
    "csv": "FILE,... published tables to compare your runs with",
    "leaderboard": "FILE,... the leaderboard site's MODEL.json",
    "generation": "v1 or v2 of ParallelBench, where the files do not say it",
}
FORMAT = {"format": "text, or json on stdout; text"}
FIGURES = {"figures": "formats of the plots, such as png,pdf; png"}
TRUST = {"trust": "true makes whatever the config of a run names, not only parts of this package; false"}
LIBRARIES = {"report": ("matplotlib", "vl_convert"), "eval": ("lm_eval",)}  # of extras, as they are imported
TRAINING = "wiring.overrides"  # of the commands that train, each over its file of conf/
COMMANDS = {
    "run": Command(
        "wiring.ask",
        "[-m] [KEY=VALUE ...]",
        "decode and score the tasks; -m sweeps over comma-separated values, in turn or with launcher=local on all "
        "devices of this machine; torchrun --nproc-per-node N -m parallelbench run ... shares the work of one run",
        reads_runs=False,
    ),
    "tune": Command(
        "wiring.tune",
        "[KEY=VALUE ...]",
        "the fastest configuration that loses little, found with a fifth of a sweep's samples; takes the words of "
        "run -m",
        {
            "max_loss": "points that may be lost; 1.0",
            "budget": "samples to decode in all, or minutes as in 30min; a fifth of the sweep's",
            "by": "what speed is: forwards, columns or seconds per token; columns where several caches compete",
        },
        reads_runs=False,
    ),
    "report": Command(
        "report.report",
        "DIR ...",
        "page, tables and plots of all runs at or below the directories",
        {"out_dir": "folder to write; results/report", **FIGURES, **FORMAT},
        handed="command.command",
        extra="report",
    ),
    "score": Command(
        "wiring.score",
        "DIR ...",
        "score stored completions again, without a model",
        {"grammar": "another grammar checker: harper, languagetool, link_grammar or a URL", **TRUST},
    ),
    "recommend": Command(
        "report.recommend",
        "DIR ...",
        "the fastest configuration that loses at most a point",
        {"max_loss": "points that may be lost; 1.0", "reference": "run to compare with; the best", **FORMAT},
        handed="command.command",
    ),
    "leaderboard": Command(
        "report.leaderboard",
        "[DIR ...]",
        "runs of several machines and published tables, ranked",
        TABLES | {"out_dir": "folder to write leaderboard.md and .csv into; none"},
    ),
    "demo": Command(
        "wiring.demo",
        '["PROMPT"] [KEY=VALUE ...]',
        "a prompt decoded before your eyes, by one decoder or two side by side; takes the settings of run",
        {
            "versus": "a second decoder",
            "svg": "FILE to draw it into, as a moving picture",
            "task": "the task whose first sample is decoded where no prompt is given; waiting_line/shuffle",
            "speed": "forwards a second at most; 6",
            "config_dir": "folder with options of your own",
        },
        reads_runs=False,
    ),
    "trace": Command(
        "report.trace_view",
        "RUN [SAMPLE]",
        "one sample forward by forward, of two runs side by side; needs a run with traces=N",
        {"other": "RUN, a second one", "svg": "FILE to draw it into, as a moving picture"},
        reads_runs=False,
    ),
    "lm_eval": Command(
        "wiring.lm_eval",
        "ARGUMENTS ...",
        "lm-evaluation-harness with the model dllm, whose --model_args are the settings of run; "
        "`python -m lm_eval --help` shows the harness's own arguments",
        reads_runs=False,
        extra="eval",
    ),
    "list": Command(
        "wiring.choices",
        "[GROUP]",
        "what there is to choose from: model, decoder, cache, stop, suite, launcher, sink, experiment, tasks, settings",
        {"config_dir": "folder with options of your own", **FORMAT},
        reads_runs=False,
    ),
    "show": Command(
        "wiring.show",
        "KIND NAME",
        "one choice: a task's prompt, target and scorer; a decoder's paper, knobs, defaults and grid; a model",
        {"config_dir": "folder with options of your own", **FORMAT},
        reads_runs=False,
    ),
    "new": Command(
        "wiring.new",
        "KIND NAME",
        "a decoder, cache, task or model of your own: code, yaml, grid and test in this folder, which run as they are",
        {"config_dir": "folder of the yaml files; mine"},
        reads_runs=False,
    ),
    "train": Command(
        TRAINING,
        "KEY=VALUE ...",
        "train a model from random weights, or any causal LM or dLLM on your rows: docs/training.md",
        reads_runs=False,
    ),
    "distill": Command(
        TRAINING,
        "KEY=VALUE ...",
        "train a model on its own correct decodes, or on a causal LM's",
        reads_runs=False,
    ),
    "answer": Command(
        TRAINING,
        "KEY=VALUE ...",
        "answers of a causal LM to prompts, as rows to train on",
        reads_runs=False,
    ),
    "collect_traces": Command(
        TRAINING,
        "KEY=VALUE ...",
        "what a decoder sees at each step, as rows to train a filter on",
        reads_runs=False,
    ),
    "train_filter": Command(
        TRAINING,
        "KEY=VALUE ...",
        "train a filter of Learn2PD's kind on recorded decodes",
        reads_runs=False,
    ),
    "completion": Command(
        "wiring.completion",
        "bash|zsh",
        'print a script for tab completion: eval "$(parallelbench completion bash)"',
        reads_runs=False,
    ),
    "analyze theory": Command(
        "studies.theory",
        "",
        "ParallelBench's theory, ideal models and tiny",
        {
            "tasks": "all of them",
            "n": "items of a list; 3..10",
            "k": "items per step; 1,2,3,4,n",
            "samples": "of an ideal model; 2000",
            "tiny": "samples of the shipped model; 100",
            "out_dir": "folder to write; results/theory",
            **FIGURES,
        },
        reads_runs=False,
        extra="report",
    ),
    "analyze frontier": Command(
        "studies.best_possible",
        "RUN ...",
        "score against forwards of runs compared with the best possible",
        {"samples": "of an ideal model; 100", "out_dir": "folder to write; results/frontier", **FIGURES, **TRUST},
        handed="conf.build_part",
        extra="report",
    ),
    "analyze pbx": Command(
        "report.pbx",
        "[RUN ...]",
        "PBx, AUP and Pareto front of sweeps",
        TABLES | {"out_dir": "folder to write; results/pbx"} | FIGURES,
        extra="report",
    ),
    "analyze compare": Command(
        "report.compare",
        "RUN_A RUN_B",
        "B against A per task: score, p-value, ratios of NFE and TPF, paired bootstrap; of folders of runs: whether "
        "they rank decoders alike",
        {"out_dir": "folder to write compare.md and .csv into; none"},
    ),
    "analyze oracle": Command(
        "report.best_knob",
        "RUN ...",
        "the best knob for each sample: what a choice per sample could gain over one for all",
        {"out_dir": "folder to write; results/oracle", **FIGURES},
        extra="report",
    ),
    "analyze order": Command(
        "report.decoding_order",
        "RUN ...",
        "how far decoders go from left to right: Kendall's and Spearman's correlations",
        {"out_dir": "folder to write order.md and .csv into; none"},
    ),
}
TRAINS = tuple(name for name, command in COMMANDS.items() if command.module == TRAINING)
PASSED_ON = ("run", "tune", "demo", "lm_eval", *TRAINS)  # they read words of their own
NAMES = tuple(dict.fromkeys(name.split()[0] for name in COMMANDS))  # as they are typed first


def usage() -> str:
    """The page of `--help`."""
    first = {name: command for name, command in COMMANDS.items() if " " not in name}
    rows = [(f"{name} {command.takes}", command.about) for name, command in first.items()]
    rows.append(("analyze NAME ...", "theory and studies of runs; `analyze` alone lists them"))
    rows.append(("--version", "of this package"))
    return "\n".join(
        ("python -m parallelbench COMMAND", "", *table(rows), "", "COMMAND --help shows what else it takes.")
    )


def analyses() -> str:
    """What `analyze` alone prints."""
    rows = [(name.split()[1], command) for name, command in COMMANDS.items() if name.startswith("analyze ")]
    return "\n".join(table([(f"{name} {command.takes}", command.about) for name, command in rows]))


def help_of(name: str) -> str:
    """One command's page."""
    command = COMMANDS[name]
    takes = " ".join((name, *filter(None, [command.takes]), *(f"[{key}=...]" for key in command.options)))
    lines = [
        *wrap(f"python -m parallelbench {takes}", WIDTH, subsequent_indent="    "),
        "",
        *wrap(command.about, WIDTH),
    ]
    return "\n".join(
        [*lines, *([""] if command.options else []), *table([(f"{k}=", v) for k, v in command.options.items()])]
    )


def table(rows: Sequence[tuple[str, str]], least: int = 0) -> list[str]:
    """Two columns, the second wrapped; what is too long for the first has lines of its own."""
    left = max([least, *(len(name) for name, _ in rows if len(name) <= WIDTH // 2)]) + 2
    lines = []
    for name, about in rows:
        first, *more = wrap(about, WIDTH - left, break_on_hyphens=False) or [""]
        if len(name) > left - 2:
            lines += wrap(name.replace(",", ", "), WIDTH, initial_indent="  ", subsequent_indent="    ")
            name, more, first = "", [first, *more] if first else [], ""
        if name:
            lines.append(f"{name:{left}}{first}".rstrip())
        lines += [" " * left + line for line in more]
    return lines


def find(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command that words name, and the words after it. Raises ValueError with the closest where there is none."""
    name, *rest = words
    kind, known = "command", list(NAMES)
    if name == "analyze" and rest:
        kind, known = "analysis", [other.split()[1] for other in COMMANDS if other.startswith("analyze ")]
        name, rest = rest[0], rest[1:]
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}; {nearest(name, known)}")
    return (f"analyze {name}" if kind == "analysis" else name), rest


def checked(name: str, words: Sequence[str]) -> list[str]:
    """A command's words as key=value and paths. Raises ValueError for an option that it does not have, a path
    without runs, or a library that is not installed, before the command is imported."""
    command = COMMANDS[name]
    check_extra(name, command.extra)
    if name in PASSED_ON:
        return list(words)
    given = [word if os.path.exists(word) else _without_brackets(word) for word in plain(words)]
    for word in given:
        key, equals, _ = word.partition("=")
        if not equals:
            if command.reads_runs and not os.path.exists(word):
                find_runs([Path(word)])
        elif key not in command.options and not os.path.exists(word):
            raise ValueError(f"unknown option {word!r}; {nearest(f'{key}=', [f'{key}=' for key in command.options])}")
    return given


def check_extra(name: str, extra: str) -> None:
    """Raises ValueError where a library of an extra of this package, which `name` needs, is not installed."""
    missing = [library for library in LIBRARIES.get(extra, ()) if find_spec(library) is None]
    if missing:
        raise ValueError(f"{name} needs {missing[0]}; pip install 'dllm-parallelbench[{extra}]'")


def understood(words: Sequence[str]) -> list[str]:
    """Words with ~/ for the home folder where a value, or one of a list, begins with it. A shell leaves that to us
    after an equals sign. Raises ValueError for words that no setting needs: very long ones, and ones nested deeply."""
    for word in words:
        if len(word) > LONGEST:
            raise ValueError(
                f"{shown(word, quoted=False)} has {len(word)} characters; give at most {LONGEST}, and the rest in a "
                "yaml file of a --config-dir"
            )
        if max(accumulate((c in "[({") - (c in "])}") for c in word)) > DEEPEST:
            raise ValueError(
                f"{shown(word, quoted=False)} is nested more than {DEEPEST} levels deep; give fewer brackets"
            )
    return [_with_home(word) for word in words]


def _with_home(word: str) -> str:
    key, equals, value = word.partition("=")
    if not equals or not re.fullmatch(r"[-+]{0,2}[\w.@/-]+", key) or key.lstrip("-+") == "template":
        return word
    if re.match("['\"]?~\\w", value):
        raise ValueError(f"{shown(word, quoted=False)} is a folder of another user's; give its whole path")
    home = os.path.expanduser("~")
    found = re.sub(r"(?:^|(?<=[\[,'\"]))(?<![\w ]['\"])~(?=[/\],'\"]|$)", lambda _: home, value)
    plain_home = re.fullmatch(r"[\w/.-]+", home) or found == value or value[0] in "'\"["
    return f"{key}={found}" if plain_home else f"{key}='{found}'"


def plain(words: Sequence[str], flags: Sequence[str] = (), valued: Sequence[str] = ()) -> list[str]:
    """`--key value` and `--key=value` as `key=value`, and as `key=` without a value. flags, valued: words with
    dashes that stay; one of `valued` is followed by its value."""
    found, left = list[str](), list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name in (*flags, *valued) or not re.match("--[a-zA-Z]", word) or os.path.exists(word):
            found += [word, *([left.pop(0)] if name in valued and not equals and left else [])]
        else:
            if not equals and left and not left[0].startswith("--"):
                value = left.pop(0)
            found.append(f"{name[2:].replace('-', '_')}={value}")
    return found


def _without_brackets(word: str) -> str:
    """A list as `run` takes it, key=[a,b], as key=a,b."""
    return re.sub(r"^(\w+)=\[(.*)\]$", r"\1=\2", word)
