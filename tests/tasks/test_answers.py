"""A right program is found in whatever people and models write around it, and a wrong one stays wrong."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from parallelbench.tasks.code.answers import called_names, humaneval_programs, imported, programs
from parallelbench.tasks.code.sandbox import check_sandbox
from parallelbench.tasks.code.tasks import HumanEval, Mbpp
from parallelbench.tasks.rows import check_references

WHOLE = "def total(xs):\n    return sum(xs)"
INDENTED = "  def total(xs):\n      return sum(xs)"
PROMPT = 'from typing import List\n\n\ndef total(xs: List[float]) -> float:\n    """Sum of xs."""\n'
FORMS = {
    "glued close": f"```python\n{WHOLE}```",
    "glued close prose": f"```python\n{WHOLE}``` It sums.",
    "inline open": f"Here: ```python\n{WHOLE}```",
    "oneline": "```python def total(xs): return sum(xs)```",
    "close only": f"{WHOLE}\n```\nThis works.",
    "think": f"<think>Use ```python\nx = 1\n```</think>\n```python\n{WHOLE}\n```",
    "think def": f"<think>```python\ndef total(xs):\n    return 0\n```</think>\n```python\n{WHOLE}\n```",
    "list": f"- ```python\n{INDENTED}\n  ```",
    "number": "1. ```python\n   def total(xs):\n       return sum(xs)\n   ```",
    "quote": "> ```python\n> def total(xs):\n>     return sum(xs)\n> ```",
    "double": f"```python\n```python\n{WHOLE}\n```\n```",
    "double2": f"```\n```python\n{WHOLE}\n```\n```",
    "python bare": f"python\n{WHOLE}",
    "Solution": f"Solution\n{WHOLE}",
    "Done": f"{WHOLE}\nDone",
    "both": f"Answer\n{WHOLE}\nExplanation",
    "assistant": f"assistant\n{WHOLE}",
    "begin": f"[BEGIN]\n{WHOLE}\n[DONE]",
    "special": f"{WHOLE}<|im_end|>",
    "special2": f"{WHOLE}</s>",
    "special3": f"```python\n{WHOLE}\n```<|eot_id|>",
    "special4": f"{WHOLE}<|endoftext|>assistant",
    "tilde": f"~~~python\n{WHOLE}\n~~~",
    "Python3": f"```Python3\n{WHOLE}\n```",
    "py": f"```py\n{WHOLE}\n```",
    "title": f'```python title="a.py"\n{WHOLE}\n```',
    "unclosed": f"```python\n{WHOLE}",
    "four": f"````python\n{WHOLE}\n````",
    "crlf": f"```python\n{WHOLE}\n```".replace("\n", "\r\n"),
    "brace": f"```{{.python}}\n{WHOLE}\n```",
    "fence in fence done": f"```python\n{WHOLE}\nDone\n```",
    "docfence": '```python\ndef total(xs):\n    """Sum.\n\n    ```\n    total()\n    ```"""\n    return sum(xs)\n```',
    "else after": f"```python\n{WHOLE}\n\ntry:\n    pass\nexcept ValueError:\n    pass\n```",
    "markdown lang": f"```markdown\n```python\n{WHOLE}\n```\n```",
    "space": f"``` python\n{WHOLE}\n```",
    "colon": f"Solution:\n{WHOLE}\nExplanation: it sums.",
    "bold": f"**Solution**\n{WHOLE}\n**Done**",
    "answer tag": f"<answer>\n{WHOLE}\n</answer>",
    "begin glued": f"[BEGIN]{WHOLE}[DONE]",
    "usage": f"{WHOLE}\n\n>>> total([1])\n1",
    "heading": f"# Solution\n{WHOLE}\n## Explanation\nIt sums.",
    "two": f"```python\n{WHOLE}\n```\nor\n```python\ndef total(xs):\n    return 0\n```",
    "asserts": f"```python\n{WHOLE}\nassert total([1]) == 1\n```",
    "html": f"<code>\n{WHOLE}\n</code>",
    "cutsecond": f"```python\n{WHOLE}\n```\n```python\ndef total(xs):\n    return (",
    "helper in a block before": (
        "```python\ndef times(x):\n    return x\n```\nThen:\n```python\ndef total(xs):\n    return times(sum(xs))\n```"
    ),
    "import in a block before": (
        "```python\nfrom math import floor as f\n```\n```python\ndef total(xs):\n    return f(sum(xs)) * 1.0\n```"
    ),
    "example that fails": f"```python\n{WHOLE}\n```\n```python\nassert total([1]) == 5\n```",
    "future": f"```python\nfrom __future__ import annotations\n{WHOLE}\n```",
    "hard spaces": "```python\ndef total(xs):\n\u00a0\u00a0\u00a0 return\u00a0sum(xs)\n```",
    "no width": f"```python\n\ufeff\u200b{WHOLE}\n```",
    "firstbroken": f"```python\ndef total(xs):\n    return (\n```\n```python\n{WHOLE}\n```",
}


def first(found: list[str]) -> object:
    """What the first program that runs and defines `total` gives, as the sandbox chooses it."""
    for program in found:
        scope: dict = {}
        with contextlib.suppress(Exception):
            exec(program, scope)
            if callable(scope.get("total")):
                return scope["total"]([1.0, 2.0])
    return None


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_a_program_is_found(text: str) -> None:
    wrong = text.replace("sum(xs)", "len(xs)")
    assert first(programs(text, "total")) == first(humaneval_programs(PROMPT, "total", text)) == 3.0
    assert first(programs(wrong, "total")) == first(humaneval_programs(PROMPT, "total", wrong)) == 2


def test_of_two_blocks_the_first_counts_that_runs() -> None:
    right, wrong = f"```python\n{WHOLE}\n```\n", "```python\ndef total(xs):\n    return 0\n```\n"
    assert first(programs(right + wrong, "total")) == 3.0 and first(programs(wrong + right, "total")) == 0
    assert first(programs("```python\nSolution\n```\n" + right, "total")) == 3.0
    assert first(programs(f"<think>{right}</think>\nI do not know.", "total")) is None


def test_what_tests_call_and_import() -> None:
    tests = (
        "import math\nfrom a.b import c\ndef check(f): f(1)\nassert check(double) and math.isclose(sum(Pair(1)), c(2))"
    )
    assert called_names(tests) == ["Pair"] and called_names(tests, "def sum(x): pass") == ["sum", "Pair"]
    assert imported(tests + "\ntry:\n    import d\nexcept ImportError:\n    pass") == {"math", "a"}
    assert called_names("(") == [] and imported("(") == set()


def write(path: Path, row: dict) -> str:
    path.write_text(json.dumps(row) + "\n")
    return str(path)


def test_tests_that_import_a_package(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    try:
        check_sandbox()
    except ValueError as error:
        pytest.skip(str(error))
    plus = "import numpy as np\nfor given in ([1.0], []):\n    assert np.allclose(total(given), sum(given))\n"
    row = {"task_id": "1", "text": "Sum.", "code": WHOLE, "test_list": ["assert total([2]) == 2"], "test": plus}
    source = write(tmp_path / "mbpp.jsonl", row)
    with pytest.raises(ValueError, match=r"line 1: its tests import numpy, .*suite.tasks.N.packages=\[numpy\]"):
        Mbpp(source).samples(1, 0)
    task = Mbpp(source, packages=["numpy"])
    (sample,) = task.samples(1, 0)
    assert task.score(sample, sample.target)["score"] == 1
    assert task.score(sample, "def total(xs):\n    return 2")["score"] == 0  # right by the list alone
    assert "numpy" not in sample.messages[0]["content"]
    head = {"task_id": "0", "prompt": PROMPT, "entry_point": "total", "canonical_solution": "    return sum(xs)\n"}
    check = "import numpy as np\ndef check(candidate):\n    assert np.allclose(candidate([1.0, 2.0]), 3.0)\n"
    source = write(tmp_path / "humaneval.jsonl", head | {"test": check})
    with pytest.raises(ValueError, match=r"packages=\[numpy\]"):
        HumanEval(source).samples(1, 0)
    own = HumanEval(source, packages=["numpy"])
    (sample,) = own.samples(1, 0)
    assert [own.score(sample, text)["score"] for text in (sample.target, "    return 0")] == [1, 0]


def test_references_are_scored_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        check_sandbox()
    except ValueError as error:
        pytest.skip(str(error))
    rows = [
        {"task_id": number, "text": "Sum.", "code": WHOLE, "test_list": [f"assert total([1, 2]) == {right}"]}
        for number, right in enumerate((3, 4))
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Mbpp(str(path))
    samples = sorted(task.samples(2, 0), key=lambda sample: sample.id)
    check_references(task, samples[:1])
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"the references of 1 of 2 rows of .* do not score 1 \(mbpp/1\)"):
            check_references(task, samples)
        monkeypatch.setattr(Mbpp, "score", None)  # they are known now
    with pytest.raises(ValueError, match="the references of 1 of 1 rows"):
        check_references(task, samples[1:])


def test_a_run_names_failing_references(cli: Callable, tmp_path: Path) -> None:
    row = {"question": "?", "answer": "#### 3"}
    write(tmp_path / "good.jsonl", row)
    code, _, err = cli("run", "suite=gsm8k", "suite.tasks.0.source=good.jsonl", "gen_length=32", "out_dir=a")
    assert code == 0 and "references" not in err, err
    try:
        check_sandbox()
    except ValueError as error:
        pytest.skip(str(error))
    write(tmp_path / "bad.jsonl", {"text": "Sum.", "code": WHOLE, "test_list": ["assert total([1]) == 2"]})
    code, _, err = cli("run", "suite=mbpp", "suite.tasks.0.source=bad.jsonl", "gen_length=32", "out_dir=b")
    assert code == 2 and "the references of 1 of 1 rows of bad.jsonl do not score 1 (mbpp/0)" in err, err
    assert not (tmp_path / "b").exists()
