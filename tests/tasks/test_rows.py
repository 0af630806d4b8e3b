"""Files of rows as people have them, by the one reader of tasks and training; a bad row is named by file and line."""

import json
from pathlib import Path
from typing import Any

import pytest

from dllm.training.tokenizer import build_tokenizer
from parallelbench.tasks.mathematics import Gsm8k
from parallelbench.tasks.prompts import Prompts
from parallelbench.tasks.rows import read_file
from parallelbench.training.mixture import phrases
from parallelbench.training.sources import Rows

ROWS = [{"prompt": "1+1?", "answer": 2}, {"prompt": "1/2?", "answer": "0.5"}]
LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS)
TABLE = 'prompt,answer\n"1+1?",2\n1/2?,0.5\n'
FILES = {
    "a.jsonl": LINES,
    "bom.jsonl": "\ufeff" + LINES,
    "windows.jsonl": LINES.replace("\n", "\r\n"),
    "array.json": "\ufeff\n" + json.dumps(ROWS, indent=2),
    "flat.jsonl": json.dumps(ROWS),
    "lines.json": LINES,
    "table.csv": "\ufeff" + TABLE,
    "table.tsv": TABLE.replace(",", "\t"),
}


def prompts(path: Path, **columns: Any) -> list[tuple[Any, str]]:
    """Messages and target of each row, in the order of the file."""
    found = sorted(Prompts(str(path), **columns).samples(9, 0), key=lambda sample: sample.id)
    return [(sample.messages, sample.target) for sample in found]


@pytest.mark.parametrize("name", FILES)
def test_files_as_people_have_them(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name], encoding="utf-8", newline="")
    found = prompts(tmp_path / name, answer="answer", check="number")
    assert [(messages[0]["content"], target) for messages, target in found] == [("1+1?", "2"), ("1/2?", "0.5")]


def test_parquet(tmp_path: Path) -> None:
    from pyarrow import Table
    from pyarrow.parquet import write_table

    rows = [{"prompt": [{"role": "user", "content": "1+1?"}], "answer": 18.0}]
    write_table(Table.from_pylist(rows), tmp_path / "r.parquet")
    assert prompts(tmp_path / "r.parquet", answer="answer") == [([{"role": "user", "content": "1+1?"}], "18.0")]
    (tmp_path / "bad.parquet").write_text("PAR1")
    with pytest.raises(ValueError, match=r"bad.parquet cannot be read .*; give a parquet file"):
        list(read_file(tmp_path / "bad.parquet"))


def test_chats_are_asked_as_they_are(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    rows = [{"p": [*said, {"role": "assistant", "content": "Ho"}]}, {"p": ["First?", "Second?"]}, {"p": said}]
    (tmp_path / "r.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    users = [{"role": "user", "content": "First?"}, {"role": "user", "content": "Second?"}]
    assert [messages for messages, _ in prompts(tmp_path / "r.jsonl", prompt="p")] == [said, users, said]


BAD = {
    '{"prompt": ""}': "'prompt' is empty",
    '{"prompt": [{"role": "user", "content": " "}]}': "'prompt' is empty",
    '{"prompt": []}': "'prompt' is empty",
    '{"prompt": null}': "'prompt' is None, not a text",
    '{"prompt": 3}': "'prompt' is 3, not a text",
    '{"prompt": [{"role": "user", "content": null}]}': "not a message",
    '{"prompt": [{"content": "x"}]}': "not a message",
    '{"prompt": ["\\ud83d"]}': "half a character",
    '{"prompt": "x"} {"prompt": "y"}': "not JSON",
    "[1]": "is not an object",
    '{"text": "x"}': "no field 'prompt'; choose suite.tasks.N.prompt= from text",
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "x"}\n\n' + line + "\n")
    with pytest.raises(ValueError, match=r"rows.jsonl, line 3: ") as caught:
        prompts(path)
    assert BAD[line] in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.json", '[{"prompt": "x"},\n 3]', r"r.json, line 2: '3' is not an object"),
        ("r.json", '[{"prompt": "x"},\n {"prompt": ""}]', r"r.json, line 2: 'prompt' is empty"),
        ("r.json", '[{"prompt": "x"}', r"r.json, line 1: not JSON"),
        ("r.json", '[{"prompt": "x"}]\n3', r"line 1: not JSON \(more after the array\)"),
        ("r.csv", "prompt,answer\nx\n", r"r.csv, line 2: another number of cells"),
        ("r.csv", 'prompt\n"x\n', r"r.csv cannot be read"),
    ],
)
def test_other_bad_files(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        prompts(tmp_path / name)


def test_benchmarks_and_training_read_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    path = tmp_path / "rows.json"
    rows = [{"question": f"{i}+1?", "answer": f"#### {i + 1}" if i % 2 else i + 1} for i in range(9)]
    path.write_text("\ufeff" + json.dumps(rows, indent=1), encoding="utf-8")
    tokenizer = build_tokenizer(phrases())
    assert len(Rows(str(path), prompt="question").open(tokenizer).encoded) == 9  # of mixed types
    path.write_text("\ufeff" + json.dumps(rows[1:2]), encoding="utf-8")
    assert [sample.target for sample in Gsm8k(str(path)).samples(9, 0)] == ["#### 2"]
    path.write_text(json.dumps([*rows, {"question": " ", "answer": "x"}], indent=0))
    with pytest.raises(ValueError, match=r"rows.json, line 38: 'question' is empty"):
        Rows(str(path), prompt="question").open(tokenizer)
