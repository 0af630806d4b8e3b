"""The command `list`: what there is to choose from."""

from collections.abc import Sequence

from parallelbench.tasks import builtin_tasks, text_tasks
from parallelbench.tasks.text.grammar import BACKENDS
from parallelbench.wiring.conf import CONF, GROUPS


def main(arguments: Sequence[str]) -> None:
    """Every config group's options, by the comment on the first line of their files; the tasks; the plain keys."""
    for group in (*GROUPS, "launcher", "sink", "experiment"):
        for option in sorted((CONF / group).glob("*.yaml")):
            comments = (line.removeprefix("#").strip() for line in option.read_text(encoding="utf-8").splitlines())
            about = next(comment for comment in comments if not comment.startswith("@"))
            label = f"{group}={option.name.removesuffix('.yaml')}"
            print(f"{label:22} {about}")
    for name in (*builtin_tasks(), *text_tasks()):
        print(f"suite.tasks=[{name}]")
    for key, about in (
        ("limit=50", "samples per task"),
        ("seed=0", "benchmark seed"),
        ("batch_size=16", "samples decoded at once"),
        ("gen_length=32", "columns to fill, a multiple of block_length"),
        ("block_length=32", "columns decoded before the next block opens"),
        ("traces=2", "samples per task whose steps are saved, for `trace` and the page of a report"),
        ("out_dir=DIR", "where the run is written"),
        ("suite.grammar=harper", f"{', '.join(BACKENDS)} or a LanguageTool server's URL (suites with text tasks)"),
    ):
        print(f"{key:22} {about}")
