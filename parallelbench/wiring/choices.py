"""The command `list`: what there is to choose from."""

from collections.abc import Sequence
from pathlib import Path

from dllm.validation import nearest
from parallelbench.records.files import to_json
from parallelbench.report.options import without_format
from parallelbench.tasks import named_tasks
from parallelbench.tasks.base import Task, question
from parallelbench.wiring.catalogue import LISTED, config_dir, options, settings, verified
from parallelbench.wiring.conf import own_tasks
from parallelbench.wiring.menu import table

HEADINGS = (*LISTED, "tasks", "settings")


def main(arguments: Sequence[str]) -> str:
    """Every config group's options, by the comment on the first line of their files, and what was verified of a model;
    the tasks; the plain keys."""
    mine = config_dir(arguments)
    wanted = [word for word in arguments if "=" not in word]
    if len(wanted) > 1:
        raise ValueError(f"list takes one group, not {len(wanted)}; give one of them, or none for all")
    wants_json, _ = without_format(arguments)
    for word in wanted:
        if word not in HEADINGS:
            raise ValueError(f"unknown group {word!r}; {nearest(word, HEADINGS)}")
    rows = {heading: _rows(heading, mine) for heading in wanted or HEADINGS}
    if wants_json:
        return to_json({heading: dict(found) for heading, found in rows.items()}, indent=2)
    return "\n\n".join(
        "\n".join([heading, *table([(f"  {name}", what) for name, what in found], 22)])
        for heading, found in rows.items()
    )


def _rows(heading: str, mine: Path | None) -> list[tuple[str, str]]:
    if heading == "tasks":
        rows = [(f"suite.tasks={name}", _asked(task)) for name, task in named_tasks().items()]
        own = own_tasks(mine) if mine else {}
        rows += [(f"suite={suite}: {name}", _asked(task)) for name, (suite, task) in own.items()]
    elif heading == "settings":
        rows = [(f"{key}={default}", what) for key, (default, what) in settings().items()]
    else:
        rows = [(f"{heading}={name}", what) for name, what in options(heading, mine).items()]
    if heading == "model":
        said = {row: verified(row.removeprefix("model="), mine) for row, _ in rows}
        rows = [(row, f"{what} [verified: {said[row]}]" if said[row] else what) for row, what in rows]
    return rows


def _asked(task: Task) -> str:
    """What a task's prompts end with."""
    (sample,) = task.samples(1, 0)
    return question(sample.messages).splitlines()[-1]
