"""Command line: `python -m parallelbench run | report | score | analyze | lm_eval | list`. Hydra is known here only."""

import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from transformers.utils import logging as transformers_logging

from parallelbench.analyze import ANALYSES, analysis
from parallelbench.generate import DiffusionGenerator, Generator, make_generator
from parallelbench.grammar import BACKENDS
from parallelbench.options import split_options
from parallelbench.processes import join
from parallelbench.record import config_hash, find_runs, read_run
from parallelbench.report import run_table, write_report
from parallelbench.run import Job, execute, prepare, rescore, start
from parallelbench.tasks import builtin_tasks, text_tasks

USAGE = "\n".join(
    (
        "python -m parallelbench COMMAND",
        "",
        "run [key=value ...]            decode and score the tasks; -m sweeps over comma-separated values",
        "                               torchrun --nproc-per-node N -m parallelbench run ... shares the work",
        "report DIR ... [out_dir=DIR]   tables and plots of all runs at or below the directories",
        "score DIR ... [grammar=NAME]   score stored completions again, without a model, by another grammar checker",
        "analyze NAME ...               theory and studies of runs; `analyze` alone lists them",
        "lm_eval ARGUMENTS ...          lm-evaluation-harness with the model dllm, whose --model_args are those of run",
        "list                           decoders, caches, stop rules, models, suites and tasks to choose from",
    )
)
CONF = Path(__file__).parents[1] / "conf"  # by path: a folder `conf` of the user's must not shadow it
GROUPS = ("model", "decoder", "cache", "stop", "suite")


def main() -> None:
    arguments = sys.argv[1:]
    commands = {
        "run": run,
        "report": report,
        "score": score,
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
        fail(_sentence(error))


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
    say = print if processes.is_main else lambda *_, **__: None
    refused: list[str] = []
    died: list[Path] = []

    def refuse(error: Exception) -> None:
        refused.append(_sentence(error))
        say(f"error: {refused[-1]}", file=sys.stderr, flush=True)

    def run_one(config: DictConfig) -> None:
        """One composed config: check, decode, print. One that is refused or dies does not keep a sweep from its
        others."""
        try:
            job = processes.everywhere(lambda: _prepare(config))
            known = processes.in_main(lambda: start(job, processes.count))
        except ValueError as error:
            refuse(error)
            return
        say(f"{job.folder}: {sum(map(len, job.batches))} samples, {len(known)} already there", flush=True)
        try:
            finished = execute(job, known, processes)
        except Exception as error:
            died.append(job.folder)
            traceback.print_exc()
            say(f"error: {job.folder} died of {type(error).__name__}: {_sentence(error)}", file=sys.stderr, flush=True)
            return
        say(run_table(finished))
        say(finished.folder, flush=True)

    try:
        hydra.main(version_base=None, config_path=str(CONF), config_name="run")(run_one)()
    except (HydraException, OmegaConfBaseException) as error:
        refuse(error)
    processes.leave()
    if refused or died:
        raise SystemExit(2 if refused else 1)


def report(arguments: Sequence[str]) -> None:
    paths, options = split_options(arguments, {"out_dir": "results/report"})
    out_dir = Path(options["out_dir"])
    print(write_report([read_run(folder) for folder in find_runs(paths)], out_dir))
    print(out_dir)


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
            finished = rescore(folder, suite.build())
            print(run_table(finished))
            print(finished.folder)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(_sentence(error)) from error


def lm_eval(arguments: Sequence[str]) -> None:
    try:
        from parallelbench import harness
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
    for group in (*GROUPS, "experiment"):
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
        ("out_dir=DIR", "where the run is written"),
        ("suite.grammar=harper", f"{', '.join(BACKENDS)} or a LanguageTool server's URL (suites with text tasks)"),
    ):
        print(f"{key:22} {about}")


def _prepare(config: DictConfig) -> Job:
    """The job that a config describes. Raises ValueError with one sentence for what is wrong with it."""
    try:
        return _build(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(_sentence(error)) from error


def _build(config: DictConfig) -> Job:
    generator = _generator(config)
    settings = {**_resolved(config), "out_dir": str(_folder(config))}
    tasks = instantiate(config.suite, _convert_="all").build()
    return prepare(
        generator,
        tasks,
        limit=config.limit,
        seed=config.seed,
        batch_size=config.batch_size,
        gen_len=config.gen_length,
        config=settings,
        choices=_choices(),
    )


def _generator(config: DictConfig) -> Generator:
    for key in ("limit", "seed", "batch_size", "gen_length", "block_length"):
        optional = key.endswith("_length")  # null: each sample's own budget, the whole response
        if not isinstance(config[key], int) and not (optional and config[key] is None):
            raise ValueError(f"{key}={config[key]} is not a whole number")
    return make_generator(
        instantiate(config.model, _convert_="all"),
        instantiate(config.decoder, _convert_="all"),
        cache=instantiate(config.cache, _convert_="all"),
        stop=instantiate(config.stop, _convert_="all"),
        block_len=config.block_length,
        seed=config.seed,
    )


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
        generator = _generator(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(_sentence(error)) from error
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


def _choices() -> dict[str, str]:
    """The chosen option of each config group."""
    chosen = HydraConfig.get().runtime.choices
    return {group: chosen[group] for group in GROUPS}


def _folder(config: DictConfig) -> Path:
    """out_dir, or in a sweep and by default a folder below it, named by the choices and the hash of the config."""
    hydra_config = HydraConfig.get()
    if config.out_dir is not None and hydra_config.mode != RunMode.MULTIRUN:
        return Path(config.out_dir)
    names = [choice.replace("/", "_") for group, choice in _choices().items() if group in ("model", "decoder", "cache")]
    return Path(config.out_dir or "results/runs") / "-".join([*names, config_hash(_resolved(config))])


def _resolved(config: DictConfig) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))


def _sentence(error: Exception) -> str:
    """What went wrong in one line: our own words where Hydra only passes them on."""
    while isinstance(error, HydraException) and isinstance(error.__cause__, ValueError | HydraException):
        error = error.__cause__
    return " ".join(str(error).split("Config search path")[0].split())


if __name__ == "__main__":
    main()
