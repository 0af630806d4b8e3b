"""The official ParallelBench files: where they lie, their published hashes, and how a row becomes a sample.

Both generations have rows of `input`, `answer` and perhaps `output_format` (not read: the answer says as much), and a
prompt template and a metric per task. A one-shot row carries its demonstration, itself a row, in `input.icl_examples`;
rendered with the same template it comes first, as a turn of the user's and one of the assistant's. No text of the
benchmark is kept here: rows and templates are read from the user's copy.
"""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from parallelbench.tasks.base import Sample
from parallelbench.tasks.official.manifest import PUBLISHED
from parallelbench.tasks.official.scores import parse_list

CONFIG = "task_config.yaml"
IN_CHECKOUT = "dataset/parallel_bench/data/output/test"
LONG_LINE = re.compile(r"waiting_line_n\d+(-\d+)?")
LIST_METRICS = {  # the rule that an answer is checked by
    "list_match_score": "match",
    "list_shuffle_score": "shuffle",
    "list_random_insert_score": "insert_random",
    "list_random_remove_score": "remove_random",
    "list_random_replace_score": "replace_random",
}


@dataclass(frozen=True)
class Row:
    """One line of a task's data. where: what error messages call it."""

    input: Mapping[str, Any]
    answer: Any
    where: str


@dataclass(frozen=True)
class Source:
    """One task as published. version: generation and hashes of what was read."""

    name: str
    prompt: str
    metric: str
    rows: Sequence[Row]
    version: str


def find_data(data_dir: str | None) -> Path:
    """The folder with the task folders: data_dir, its `test`, or a checkout's. Raises ValueError where none has any."""
    if data_dir is None:
        raise ValueError(f"data_dir is not given; name the folder that holds {', '.join(PUBLISHED)}")
    root = Path(data_dir).expanduser()
    for folder in (root, root / "test", root / IN_CHECKOUT):
        if any((folder / name).is_dir() for name in PUBLISHED):
            return folder
    state = "holds none of the folders" if root.is_dir() else "does not exist; give a folder that holds"
    raise ValueError(f"data_dir={data_dir} {state} {', '.join(PUBLISHED)}")


def read_source(folder: Path, name: str) -> Source:
    """One v1 task, from `<name>.jsonl` and the task_config.yaml next to it. A file that is not as published is named on
    stderr, and in the version.

    Raises ValueError naming the file, and the line where it is one, for what is missing or malformed.
    """
    group, task = name.split("/")
    path, config, entry = folder / f"{name}.jsonl", folder / group / CONFIG, name
    if LONG_LINE.fullmatch(group) and not config.is_file():  # generated rows: the prompts of shorter lines fit
        config, entry = folder / "waiting_line" / CONFIG, f"waiting_line/{task}"
    text, settings = _read(path), _read_config(config, entry)
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, config)]
    published = [PUBLISHED.get(file.parent.name, {}).get(file.name) for file in (path, config)]
    for file, found, known in zip((path, config), hashes, published, strict=True):
        if known and found != known:
            print(f"warning: {file} has sha256 {found}, not the published {known}", file=sys.stderr)
    state = "" if hashes == published else "unpublished-"
    rows = [_parse_row(line, f"line {i} of {path}") for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not rows:
        raise ValueError(f"{path} is empty; restore the file")
    version = f"v1-{state}{'-'.join(found[:8] for found in hashes)}"
    return Source(name, settings["prompt"], settings["metric"], rows, version)


def load_source(data_dir: str, name: str) -> Source:
    """One v2 task, the split `test` of a configuration, through `datasets`: columns `prompt`, `metric` and rows whose
    `input` and `answer` may be JSON texts.

    Raises ValueError where the data or a column is missing.
    """
    from datasets import load_dataset  # a second to import
    from datasets.exceptions import DatasetsError

    config = name.replace("/", "-", 1)
    try:
        lines = [dict(line) for line in load_dataset(data_dir, config, split="test")]
    except (OSError, ValueError, DatasetsError) as error:
        raise ValueError(f"cannot load {config} of data_dir={data_dir}: {error}") from error
    where = f"{config} of {data_dir}"
    if not lines:
        raise ValueError(f"{where} has no rows; restore it")
    rows = [_decode_row(line, f"row {i} of {where}") for i, line in enumerate(lines)]
    found = hashlib.sha256(json.dumps(lines, sort_keys=True, default=str).encode()).hexdigest()
    prompt, metric = (get(lines[0], key, str, f"row 0 of {where}") for key in ("prompt", "metric"))
    return Source(name, prompt, metric, rows, f"v2-{found[:8]}")


def build_samples(source: Source, prefix: str, gen_len: int) -> tuple[Sample, ...]:
    """The samples of a task in the order of its rows, ids `<prefix>/<name>/<index>`.

    Raises ValueError naming a malformed row.
    """
    return tuple(
        Sample(
            f"{prefix}/{source.name}/{index}", source.name, _messages(source, row), *_data(source.metric, row), gen_len
        )
        for index, row in enumerate(source.rows)
    )


def make_row(fields: Any, where: str) -> Row:
    """A row from its decoded JSON. Raises ValueError where the shape is wrong."""
    answer = get(fields, "answer", (str, dict), where)
    return Row(get(fields, "input", dict, where), answer, where)


def get(fields: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """A field of a type. Raises ValueError naming the place where there is none."""
    if not isinstance(fields, dict) or key not in fields:
        raise ValueError(f"{where} has no {key!r}; restore the file")
    if not isinstance(fields[key], kind):
        raise ValueError(f"{key!r} of {where} is {fields[key]!r}, a {type(fields[key]).__name__}; restore the file")
    return fields[key]


def _messages(source: Source, row: Row) -> list[dict[str, str]]:
    examples = row.input.get("icl_examples", [])
    if not isinstance(examples, list):
        raise ValueError(f"'icl_examples' of {row.where} is no list; restore the file")
    turns = []
    for example in examples:
        shown = make_row(example, f"the demonstration in {row.where}")
        answer = shown.answer if isinstance(shown.answer, str) else get(shown.answer, "example", str, shown.where)
        turns += [{"role": "user", "content": _render(source, shown)}, {"role": "assistant", "content": answer}]
    return [*turns, {"role": "user", "content": _render(source, row)}]


def _render(source: Source, row: Row) -> str:
    """The template with the row's fields; some templates hold newlines as backslash and n."""
    try:
        return source.prompt.format(**row.input).replace("\\n", "\n")
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"the prompt of {source.name} does not fit {row.where}: {reason}") from error


def _data(metric: str, row: Row) -> tuple[dict[str, Any], str]:
    """What the metric's scorer needs, and one correct answer."""
    answer, where = row.answer, row.where
    if metric in LIST_METRICS:
        target = answer if metric == "list_match_score" else get(answer, "example", str, where)
        data: dict[str, Any] = {"people": parse_list(get(row.input, "context", str, where))}
        data["person"] = get(row.input, "word", str, where) if "word" in row.input else None
        return data, get({"answer": target}, "answer", str, where)
    if metric == "latin_square_score":
        return {"symbols": get(answer, "symbols", list, where)}, get(answer, "example", str, where)
    if metric == "sudoku_score":
        grid = get(row.input, "sudoku" if "sudoku" in row.input else "puzzle", str, where).replace("_", "0")
        if not re.fullmatch(r"([0-4]{4}\n){3}[0-4]{4}", grid) or not isinstance(answer, str):
            raise ValueError(f"{where} holds no 4x4 Sudoku with its solution; restore the file")
        return {"grid": grid}, answer
    if metric == "sentence_to_words_score":
        return {"words": get(answer, "words", list, where)}, answer.get("example", "")
    if metric == "summary_score":
        summary = get(answer, "summary", str, where)
        return {"text": get(answer, "text", str, where), "summary": summary}, summary
    if metric == "paraphrase_score":
        references = _references(answer, where)
        return {"text": get(answer, "text", str, where), "references": references}, references[0]
    raise ValueError(f"the metric {metric!r} of {where} is not one of the official tasks'; restore the file")


def _references(answer: Any, where: str) -> list[str]:
    """The published paraphrases, a list written as Python text."""
    written = get(answer, "examples", str, where)
    try:
        references = ast.literal_eval(written)
    except (ValueError, SyntaxError):
        references = None
    if not isinstance(references, list) or not references or not all(isinstance(r, str) for r in references):
        raise ValueError(f"'examples' of {where} is no list of texts; restore the file")
    return references


def _decode_row(line: dict[str, Any], where: str) -> Row:
    """A row whose objects are JSON texts (a list as JSON stays a text: it is an answer)."""
    objects = {}
    for key in ("input", "answer"):
        value = get(line, key, (str, dict), where)
        try:
            decoded = json.loads(value) if isinstance(value, str) else value
        except json.JSONDecodeError:
            decoded = value
        objects[key] = decoded if isinstance(decoded, dict) else value
    return make_row({**line, **objects}, where)


def _parse_row(line: str, where: str) -> Row:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON ({error}); restore the file") from error
    return make_row(fields, where)


def _read_config(path: Path, entry: str) -> dict[str, Any]:
    try:
        tasks = yaml.safe_load(_read(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML; restore the file") from error
    where = f"task {entry!r} of {path}"
    settings = get(tasks, entry, dict, str(path))
    return {key: get(settings, key, str, where) for key in ("prompt", "metric")}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        raise ValueError(f"{path} {reason}; give data_dir=DIR with the official files") from error
