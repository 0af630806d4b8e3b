"""The page of structured output: every number is that of its pair of runs."""

import runpy
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from test_page import make_run

from parallelbench.records.record import Record

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "published" / "structured_page.py"))
TASKS = ["json/line", "json/record"]


def changed(record: Record, completion: str, score: float, parses: bool) -> Record:
    scores = {"score": score, "score_strict": score, "parses": float(parses), "fields": score}
    return replace(record, completion=completion, scores=scores, num_tokens=12, cpu_s=0.5)


@pytest.fixture
def one() -> Any:
    """Of 20 answers 5 parse freely. Held, 3 are laid out otherwise, 1 gets worse, 1 better; 10 others get right."""
    run = make_run("threshold", 0.9, "none", TASKS, 10, seed=0)
    free, held = [], []
    for i, record in enumerate(run.records):
        record = replace(record, id=f"{i:02}", nfe=12)
        text = f'{{"a": {i}}}' if i < 5 else f"it is {i}"
        free.append(changed(record, text, float(i < 4), i < 5))
        now = {3: "[]", 4: f'{{"a": {i + 100}}}'}.get(i, f'{{\n"a": {i}\n}}')
        held.append(changed(replace(record, nfe=6), now, float(i < 3 or 4 <= i < 15), True))
    return SCRIPT["Pair"]("tiny", "threshold", replace(run, records=free), replace(run, records=held))


def test_a_row_holds_both_halves(one: Any) -> None:
    cells = [cell.split(" [")[0] for cell in SCRIPT["row"](one)]
    assert cells == ["`threshold`", "25", "100", "20", "70", "+50.0", "1.00", "2.00", "42", "83"]
    (text,) = SCRIPT["paragraphs"]([one])
    assert (
        text.startswith("**`threshold`.** On tiny, `json/*`: 25 [")
        and "100 [" in text
        and "+50.0 [" in text
        and "2.00" in text
    )


def test_the_summary_names_both_ends(one: Any) -> None:
    other = SCRIPT["Pair"]("tiny", "eb", one.held, one.held)
    lines = list(SCRIPT["summary"]([one, other]))
    assert lines[0] == "- Of 40 answers 25 parse free and 40 held."
    assert lines[1].index("`eb` on tiny +0.0") < lines[1].index("`threshold` on tiny +50.0")
    assert lines[2].endswith("from 1.00 (`eb` on tiny) to 2.00 (`threshold` on tiny).")
    assert "1.50 in the middle, from 1.00 to 2.00" in lines[3]


def test_answers_that_parsed_anyway_are_counted_by_what_they_say(one: Any) -> None:
    (text,) = SCRIPT["costs"]([one])
    last = [cell.split(" [")[0] for cell in text.strip().splitlines()[-1].strip("| ").split(" | ")]
    assert last == ["tiny, json/*: `threshold`", "5", "40", "1", "1"]


def test_a_list_of_names_parses_by_its_form(one: Any) -> None:
    record = replace(one.free.records[0], scores={"score": 1.0, "score_strict": 0.0})
    assert SCRIPT["parses"](replace(record, completion='["Ada Bach", "Ben Cole"]'))
    assert not SCRIPT["parses"](replace(record, completion='["Ada Bach", "Ben Cole"'))


def test_a_half_without_the_other_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no run"):
        SCRIPT["pairs"](tmp_path)
