"""The command `demo`: one prompt decoded before your eyes, by one decoder or two side by side."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parallelbench.records.files import check_picture, replace_file
from parallelbench.records.record import Record
from parallelbench.records.trace import Trace
from parallelbench.tasks import Sample, Task, builtin_tasks, named_task, text_tasks
from parallelbench.tasks.base import ManyAnswers
from parallelbench.wiring.catalogue import CONF, GROUPS, RUN, config_dir
from parallelbench.wiring.conf import in_one_sentence, own_tasks, resolved, searched
from parallelbench.wiring.menu import plain
from parallelbench.wiring.overrides import check_given, check_overrides

if TYPE_CHECKING:
    from parallelbench.run.live import Decoding

OWN = {"versus": "", "svg": "", "task": "waiting_line/shuffle", "speed": "6"}


def main(arguments: Sequence[str]) -> None:
    """Plays a decode of the prompt, or of the first sample of `task`, and writes it as a moving picture if asked."""
    words = plain(arguments)
    given = OWN | {key: value for key, _, value in (word.partition("=") for word in words) if key in OWN}
    texts = [word for word in words if "=" not in word or " " in word.partition("=")[0]]
    mine = config_dir(words)
    overrides = [word for word in words if word not in texts and word.partition("=")[0] not in (*OWN, "config_dir")]
    if len(texts) > 1:
        raise ValueError(f"demo takes one prompt, not {len(texts)}; put it in quotes")
    tasks: dict[str, Task] = {**builtin_tasks(), **text_tasks()}
    if mine:
        tasks |= {name: task for name, (_, task) in own_tasks(mine).items()}
    task = named_task(given["task"], tasks)
    try:
        speed = float(given["speed"])
    except ValueError:
        speed = 0
    if not 0.1 <= speed <= 1000:
        raise ValueError(f"speed={given['speed']}; give forwards a second in [0.1, 1000]")
    if given["svg"]:
        check_picture(given["svg"])
    asked = [overrides]
    if given["versus"]:
        rest = [word for word in overrides if not word.startswith(("decoder=", "decoder."))]
        asked.append([*rest, f"decoder={given['versus']}"])
    for each in asked:
        check_given(check_overrides(each, mine, sweeps=False))
    (sample,) = task.samples(1, 0)
    if texts:
        task, sample = None, Sample("your prompt", "", [{"role": "user", "content": texts[0]}], {}, "")
    asked = [[*searched(mine), *each] for each in asked]
    _show(asked, sample, task, speed, Path(given["svg"]) if given["svg"] else None)


def _show(asked: Sequence[Sequence[str]], sample: Sample, task: Task | None, speed: float, svg: Path | None) -> None:
    told = "loading PyTorch, which takes a few seconds" if sys.stderr.isatty() else ""
    print(told, end="", file=sys.stderr, flush=True)
    import hydra
    from rich.console import Console
    from rich.text import Text
    from transformers.utils import logging as transformers_logging

    from parallelbench.report.moving_picture import moving_picture
    from parallelbench.run.generator import Traceable
    from parallelbench.run.job import request_of
    from parallelbench.run.live import Decoding, play
    from parallelbench.wiring.config import build_generator, constraint_in, title

    transformers_logging.disable_progress_bar()
    ready = []
    for overrides in asked:
        with in_one_sentence(), hydra.initialize_config_dir(str(CONF), version_base=None):
            chosen = hydra.compose(RUN, list(overrides), return_hydra_config=True).hydra.runtime.choices
            chosen = {group: chosen[group] for group in GROUPS}
            config = hydra.compose(RUN, list(overrides))
            name = title(chosen, resolved(config))
            request = request_of(sample, config.gen_length, constraint_in(config))
            generator = build_generator(config)
            generator.prompt_len(request)
            if not isinstance(generator, Traceable):
                raise ValueError(f"the loop of {name} does not tell its steps; choose another decoder")
            generator.warm_up([request])  # else the first decode has the seconds that it takes to get going
            ready.append((name, generator, request))
    print("\r" + " " * len(told) + "\r" if told else "", end="", file=sys.stderr, flush=True)
    decodings = [Decoding(*each) for each in ready]
    console = Console(markup=False, highlight=False, emoji=False)
    console.print(Text(sample.messages[-1]["content"]), "")
    play(decodings, console, speed)
    for decoding in decodings:
        assert decoding.generation is not None
        console.print("", Text(f"{decoding.name}:", "bold"), Text(decoding.generation.text), sep="\n")
    if svg is not None:
        records, traces = zip(*(_record(decoding, sample, task) for decoding in decodings), strict=True)
        replace_file(svg, moving_picture([decoding.name for decoding in decodings], records, traces))
        console.print("", str(svg), sep="\n")


def _record(decoding: "Decoding", sample: Sample, task: Task | None) -> tuple[Record, Trace]:
    """What a run would keep of a decode; without scores where there is no task."""
    from parallelbench.run.recorder import make_record, make_trace

    generation, generator = decoding.generation, decoding.generator
    assert generation is not None
    right = task.nearest(sample, generation.text) if isinstance(task, ManyAnswers) else sample.target
    scores, version = (task.score(sample, generation.text), task.version) if task else ({}, "")
    record = make_record(sample, generation, scores, version, decoding.seconds, decoding.seconds)
    return record, make_trace(sample.id, generator.model, generation, decoding.steps, right)
