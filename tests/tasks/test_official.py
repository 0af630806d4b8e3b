"""The official benchmark: regeneration byte by byte and prompts by hash where the data are at hand, and the reader,
the generator and the scorers on data made here."""

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from conftest import samples

from parallelbench.tasks import Sample, Sudoku, Task
from parallelbench.tasks.names import FIRST_NAMES, LAST_NAMES
from parallelbench.tasks.official.manifest import PUBLISHED
from parallelbench.tasks.official.scores import LatinSquareScore, ListScore, SudokuScore, parse_list_strict
from parallelbench.tasks.official.suite import OfficialSuite, OfficialV2Suite, TextScore
from parallelbench.tasks.waiting_line import OPERATIONS, parse_lenient, write_list
from scripts.generate_official import (
    latin_square_rows,
    main as generate,
    read_names,
    task_seed,
    waiting_line_rows,
    write_rows,
)

ROOT = Path(__file__).parents[2]
OFFICIAL = Path(os.environ.get("PARALLELBENCH_DATA", ROOT.parent / "shared" / "official"))
NAMES_FILE = OFFICIAL / "first_last_names.yaml"
with_official = pytest.mark.skipif(
    not NAMES_FILE.is_file(), reason="the official data are not at hand; set PARALLELBENCH_DATA to their folder"
)
POOL = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
LINES_AND_PUZZLES = ("waiting_line", "puzzle")
METRICS = {"shuffle": "list_shuffle_score"} | {
    f"{kind}_random": f"list_random_{kind}_score" for kind in ("insert", "remove", "replace")
}

# sha256 of the rendered messages (compact JSON with sorted keys), first 16 digits: lines of 3 to 6 people, lines of 15
LINE_PROMPTS = {
    "copy": ("7d96915d7962afb4", "1f18a25f55424a2d"),
    "insert_index": ("77ea0bc67ec931cf", "8299a28c97341b11"),
    "insert_random": ("cda339e419e7b2f1", "36856b1132d14c12"),
    "remove_index": ("89d8f10f087e040c", "948c530d1159660b"),
    "remove_random": ("30c626717298fe0d", "ec5b22e1cfecfe0d"),
    "replace_index": ("3948c1c29ed97e87", "79320def2b5d3f84"),
    "replace_random": ("61e6fc6ffaa8de69", "db47568068c0fba6"),
    "reverse": ("eedebbdf39b6e15d", "2882655a888625a4"),
    "shuffle": ("4c7a3082a3611794", "15c4cea14c682c5b"),
    "sort": ("db14443cedcac3a5", "66157dad23f68fd7"),
}
OTHER_PROMPTS = {
    "puzzle/latin_square_n4": "3d7304e41197c7bd",
    "puzzle/sudoku_n4_12": "65a9e326998c5cc8",
    "words_to_sentence/easy": "7be9b984dfdf0aa1",
    "words_to_sentence/medium": "75ff6d842c2e2355",
    "words_to_sentence/hard": "10d507e713a6b7ae",
    "paraphrase_summarize/chatgpt-paraphrases": "d4bd5490df21fdb2",
    "paraphrase_summarize/samsum": "b174150bff93c49a",
}


def prompts_hash(task: Task) -> str:
    messages = [list(sample.messages) for sample in task.samples(1000, 0)]
    text = json.dumps(messages, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ----- the published data


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The official folder with the lines of 15 people generated into it."""
    folder = tmp_path_factory.mktemp("official")
    shutil.copytree(OFFICIAL / "test", folder / "test")
    generate([f"names_file={NAMES_FILE}", f"out_dir={folder / 'test'}"])  # refuses to change a file
    return folder


@with_official
def test_the_published_files_come_out_byte_by_byte(published: Path) -> None:
    folders = ("waiting_line", "waiting_line_n15", "puzzle")
    files = [(folder, file) for folder in folders for file in PUBLISHED[folder] if file.endswith("jsonl")]
    files.remove(("puzzle", "sudoku_n4_12.jsonl"))
    pool = read_names(NAMES_FILE)
    assert len(files) == 21 and len(pool) == 17664
    for folder, file in files:
        assert hashlib.sha256((published / "test" / folder / file).read_bytes()).hexdigest() == PUBLISHED[folder][file]
    for lengths, folder in (((3, 4, 5, 6), "waiting_line"), ((15,), "waiting_line_n15")):
        text = write_rows(waiting_line_rows("shuffle", pool, lengths))
        assert hashlib.sha256(text.encode()).hexdigest() == PUBLISHED[folder]["shuffle.jsonl"]


@with_official
def test_forms_of_lists_are_the_published_ones(published: Path) -> None:
    tasks = OfficialSuite(str(published), ["waiting_line"], infill=1).build()
    forms = [sample.form for task in tasks for sample in task.samples(1000, 0)]
    files = [published / "test" / f"{task.name}.jsonl" for task in tasks]
    known = [json.loads(line).get("output_format") for file in files for line in file.read_text().splitlines()]
    assert len(forms) == 1000 and sum(form is not None for form in known) == 600
    assert all(form == other for form, other in zip(forms, known, strict=True) if other is not None)


@with_official
def test_published_prompts_are_rendered_as_published(published: Path, capsys: pytest.CaptureFixture) -> None:
    folders = (*LINES_AND_PUZZLES, "waiting_line_n15")
    tasks = {task.name: task for task in OfficialSuite(str(published), folders).build()}
    expected = {f"waiting_line/{name}": short for name, (short, _) in LINE_PROMPTS.items()}
    expected |= {f"waiting_line_n15/{name}": long for name, (_, long) in LINE_PROMPTS.items()}
    expected |= {name: found for name, found in OTHER_PROMPTS.items() if name.startswith("puzzle")}
    assert {name: prompts_hash(task) for name, task in tasks.items()} == expected
    assert capsys.readouterr().err == ""
    assert {task.samples(1, 0)[0].gen_len for name, task in tasks.items() if name.startswith("waiting_line/")} == {32}
    assert tasks["waiting_line_n15/sort"].samples(1, 0)[0].gen_len == 128
    assert tasks["puzzle/sudoku_n4_12"].samples(1, 0)[0].gen_len == 64
    assert all("unpublished" not in task.version for task in tasks.values())


@with_official
def test_published_answers_score_one_and_sort_is_labelled_by_first_name(published: Path) -> None:
    folders = (*LINES_AND_PUZZLES, "waiting_line_n15")
    for task in OfficialSuite(str(published), folders).build():
        scores = [task.score(sample, sample.target) for sample in task.samples(1000, 0)]
        assert all(score["score"] == score["score_strict"] == 1 for score in scores)
        right = sum(score["score_corrected"] for score in scores)
        assert right == {"waiting_line/sort": 5, "waiting_line_n15/sort": 0}.get(task.name, len(scores))


@with_official
def test_the_benchmark_is_seventeen_tasks_with_1708_rows(published: Path) -> None:
    tasks = OfficialSuite(str(published)).build()
    assert len(tasks) == 17 and sum(len(task.samples(1000, 0)) for task in tasks) == 1708
    assert {task.name: prompts_hash(task) for task in tasks if "line" not in task.name} == OTHER_PROMPTS


# ----- the generator, on our own names


@pytest.mark.parametrize("operation", OPERATIONS)
def test_generated_rows_are_repeatable_and_keep_the_rules(operation: str) -> None:
    rows = waiting_line_rows(operation, POOL, (3, 4, 5, 6))
    assert rows == waiting_line_rows(operation, POOL, (3, 4, 5, 6))
    assert [row["metadata"]["length"] for row in rows] == [n for n in (3, 4, 5, 6) for _ in range(25)]
    examples = [row["input"].pop("icl_examples") for row in rows]
    assert {len(example) for example in examples} == {1}
    rule = ListScore(operation if operation in METRICS else "match")
    for row in [*rows, *(example[0] for example in examples)]:
        people = json.loads(row["input"]["context"])
        assert len({name.split()[0] for name in people}) == len({name.split()[1] for name in people}) == len(people)
        answer = row["answer"]
        target = answer["example"] if isinstance(answer, dict) else answer
        assert isinstance(answer, dict) == (operation in METRICS)
        assert (row["metadata"].get("index") is not None) == operation.endswith("index")
        assert ("output_format" in row) == (operation.split("_")[0] not in ("sort", "reverse", "remove"))
        if "output_format" in row:
            assert row["output_format"].count("[MASK]") == len(json.loads(target))
        sample = Sample("x", "x", [], {"people": people, "person": row["input"].get("word")}, target)
        assert rule.score(sample, target)["score_strict"] == 1
        if operation == "shuffle":
            assert json.loads(target) != people
        if operation.endswith("index"):
            index, word = row["input"]["index"], row["input"].get("word")
            kept = people[index + (not operation.startswith("insert")) :]
            assert json.loads(target) == [*people[:index], *([word] if word else []), *kept]
            assert word not in people


def test_generated_latin_squares() -> None:
    rows = latin_square_rows()
    assert rows == latin_square_rows() and len({row["input"]["symbols"] for row in rows}) > 90
    for row in rows:
        sample = Sample("x", "x", [], {"symbols": row["answer"]["symbols"]}, row["answer"]["example"])
        assert set(LatinSquareScore().score(sample, sample.target).values()) == {1.0}


def test_seeds_are_the_published_ones() -> None:
    seeds = {"copy": 31940, "sort": 48898, "shuffle": 30142, "insert_index": 49875, "remove_random": 47444}
    assert {name: task_seed(name) for name in seeds} == seeds
    assert task_seed("latin_square_n4") == 51291


def test_the_script_writes_all_and_never_over_other_data(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    names, out = tmp_path / "names.yaml", tmp_path / "out"
    names.write_text(yaml.safe_dump([FIRST_NAMES, LAST_NAMES]))
    for _ in range(2):  # the second time finds its own files
        generate([f"names_file={names}", f"out_dir={out}", "lengths=3-6,4"])
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 42 and next(line for line in listed if "as published" in line).startswith(str(out / "puzzle"))
    assert len((out / "waiting_line_n4" / "sort.jsonl").read_text().splitlines()) == 100
    (out / "waiting_line" / "copy.jsonl").write_text("mine")
    with pytest.raises(ValueError, match=r"copy\.jsonl holds something else"):
        generate([f"names_file={names}", f"out_dir={out}"])
    assert (out / "waiting_line" / "copy.jsonl").read_text() == "mine" and not (out / "waiting_line_n15").exists()


@pytest.mark.parametrize(
    ("names", "lengths", "sentence"),
    [
        (None, "3-6", "does not exist; give the YAML file"),
        ("[[Ada], {}]", "3-6", "must hold two lists"),
        ("[[Ada], [Bach, Van Dyke]]", "3-6", "each name one word"),
        ("[[Ada", "3-6", "not valid YAML"),
        ("[[Ada, Ben, Eva, Dan], [Bach, Cole]]", "3-6", "too few to draw"),
        ("[[Ada, Ben], [Bach, Cole]]", "many", "neither a length nor a range"),
        ("[[Ada, Ben], [Bach, Cole]]", "6-3", "give consecutive lengths from 2 to 20"),
        ("[[Ada, Ben], [Bach, Cole]]", "3-5", "as many as divide 100"),
    ],
)
def test_the_generator_refuses_what_it_cannot_fill(
    tmp_path: Path, names: str | None, lengths: str, sentence: str
) -> None:
    if names is not None:
        (tmp_path / "names.yaml").write_text(names)
    with pytest.raises(ValueError, match=sentence):
        generate([f"names_file={tmp_path / 'names.yaml'}", f"out_dir={tmp_path / 'out'}", f"lengths={lengths}"])
    assert not (tmp_path / "out").exists()


# ----- the reader, on a small copy of the layout


def write_lines(path: Path, rows: Sequence[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(write_rows(rows))


def sudoku_rows(blank: str = "0") -> list[dict]:
    drawn = Sudoku().samples(4, 0)
    rows = [{"input": {"sudoku": s.data["grid"].replace("0", blank)}, "answer": s.target} for s in drawn]
    return [{**row, "input": {**row["input"], "icl_examples": [rows[i - 1]]}} for i, row in enumerate(rows)]


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The official layout with our own rows and templates."""
    folder = tmp_path_factory.mktemp("layout")
    for operation in OPERATIONS:
        write_lines(folder / "waiting_line" / f"{operation}.jsonl", waiting_line_rows(operation, POOL, (3, 4))[:10])
    prompts = {
        f"waiting_line/{name}": {"prompt": f"{name} {{context}}\n", "metric": METRICS.get(name, "list_match_score")}
        for name in OPERATIONS
    }
    for name in ("insert_index", "replace_index"):
        prompts[f"waiting_line/{name}"]["prompt"] = "At {index} comes {word}: {context}"
    (folder / "waiting_line" / "task_config.yaml").write_text(yaml.safe_dump(prompts))
    write_lines(folder / "puzzle" / "latin_square_n4.jsonl", latin_square_rows()[:5])
    write_lines(folder / "puzzle" / "sudoku_n4_12.jsonl", sudoku_rows())
    puzzles = {
        "puzzle/latin_square_n4": {"prompt": "{symbols} {size}", "metric": "latin_square_score"},
        "puzzle/sudoku_n4_12": {"prompt": "Fill\\n{sudoku}\\n", "metric": "sudoku_score"},
    }
    (folder / "puzzle" / "task_config.yaml").write_text(yaml.safe_dump(puzzles))
    return folder


@pytest.fixture
def data(layout: Path, tmp_path: Path) -> Path:
    """A copy of the layout to change."""
    return shutil.copytree(layout, tmp_path / "data")


def build(data: Path, *tasks: str) -> dict[str, Task]:
    return {task.name: task for task in OfficialSuite(str(data), tasks or LINES_AND_PUZZLES).build()}


def test_rows_become_chats_with_one_demonstration(data: Path) -> None:
    tasks = build(data)
    assert len(tasks) == 12
    row = json.loads((data / "waiting_line" / "insert_index.jsonl").read_text().splitlines()[1])
    example = row["input"]["icl_examples"][0]
    sample = tasks["waiting_line/insert_index"].samples(5, 0)[1]
    turns = [f"At {r['input']['index']} comes {r['input']['word']}: {r['input']['context']}" for r in (example, row)]
    assert sample.messages == [
        {"role": "user", "content": turns[0]},
        {"role": "assistant", "content": example["answer"]},
        {"role": "user", "content": turns[1]},
    ]
    assert (sample.id, sample.gen_len) == ("official_v1/waiting_line/insert_index/1", 32)
    random = tasks["waiting_line/shuffle"].samples(1, 0)[0]  # here the demonstration's answer is its example
    assert parse_lenient(random.messages[1]["content"]) != parse_lenient(random.messages[0]["content"])
    grid = tasks["puzzle/sudoku_n4_12"].samples(1, 0)[0]
    assert grid.messages[-1]["content"] == f"Fill\n{grid.data['grid']}\n" and grid.gen_len == 64


def test_limit_takes_the_first_rows_and_the_seed_draws_nothing(data: Path) -> None:
    for task in build(data).values():
        everything = task.samples(10**6, 0)
        assert task.samples(2, 7) == everything[:2] and len({sample.id for sample in everything}) == len(everything)
        with pytest.raises(ValueError, match="limit=0"):
            task.samples(0, 0)
        for sample in everything:
            scores = task.score(sample, sample.target)
            assert scores["score"] == scores["score_strict"] == 1
            assert scores["score_corrected"] == 1 or task.name == "waiting_line/sort"
            assert set(task.score(sample, "").values()) == {0.0}


def test_data_are_found_in_a_folder_its_test_and_a_checkout(data: Path, tmp_path: Path) -> None:
    first = build(data, "puzzle")
    for place in ("a/test", "b/dataset/parallel_bench/data/output/test"):
        shutil.copytree(data, tmp_path / place)
        assert build(tmp_path / place.split("/")[0], "puzzle") == first


def test_longer_lines_use_the_prompts_of_shorter_ones(data: Path) -> None:
    write_lines(data / "waiting_line_n7" / "copy.jsonl", waiting_line_rows("copy", POOL, (7,)))
    (sample,) = build(data, "waiting_line_n7/copy")["waiting_line_n7/copy"].samples(1, 0)
    assert sample.messages[-1]["content"].startswith('copy ["') and sample.gen_len == 128


def test_a_changed_file_is_named_and_marks_the_record(data: Path, capsys: pytest.CaptureFixture) -> None:
    task = build(data, "waiting_line/copy")["waiting_line/copy"]
    found = hashlib.sha256((data / "waiting_line" / "copy.jsonl").read_bytes()).hexdigest()
    warning = capsys.readouterr().err.splitlines()[0]
    assert warning.startswith("warning: ") and found in warning and PUBLISHED["waiting_line"]["copy.jsonl"] in warning
    assert task.version.startswith(f"v1-unpublished-{found[:8]}-")


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("copy.jsonl", None, r"copy\.jsonl does not exist; give data_dir=DIR"),
        ("task_config.yaml", None, r"task_config\.yaml does not exist"),
        ("task_config.yaml", "a: [", r"task_config\.yaml is not valid YAML"),
        ("task_config.yaml", "a: 1", r"task_config\.yaml has no 'waiting_line/copy'"),
        ("task_config.yaml", "waiting_line/copy: {prompt: a}", r"task_config\.yaml has no 'metric'"),
        ("task_config.yaml", "waiting_line/copy: {prompt: 3, metric: a}", "'prompt' of task 'waiting_line/copy' of "),
        ("task_config.yaml", "waiting_line/copy: {prompt: '{who}', metric: list_match_score}", "it lacks 'who'"),
        (
            "task_config.yaml",
            "waiting_line/copy: {prompt: '{', metric: list_match_score}",
            "does not fit the demonstration in line 1",
        ),
        ("copy.jsonl", "\n", r"copy\.jsonl is empty"),
        ("copy.jsonl", "GOOD\n{", r"line 2 of \S*copy\.jsonl is not JSON"),
        ("copy.jsonl", "GOOD\n\n[]", r"line 3 of \S*copy\.jsonl has no 'answer'"),
        ("copy.jsonl", '{"answer": "[]"}', r"line 1 of \S*copy\.jsonl has no 'input'"),
        ("copy.jsonl", '{"answer": 3, "input": {}}', r"'answer' of line 1 of \S*copy\.jsonl is 3, a int"),
        ("copy.jsonl", '{"answer": {}, "input": {"context": ""}}', r"'answer' of line 1 of \S*copy\.jsonl is {}, a di"),
        ("copy.jsonl", '{"answer": "", "input": {"context": "", "icl_examples": 1}}', "'icl_examples' of line 1"),
        ("copy.jsonl", '{"answer": "", "input": {"context": "", "icl_examples": [1]}}', "the demonstration in line 1"),
    ],
)
def test_missing_and_malformed_files_are_named(data: Path, file: str, content: str | None, sentence: str) -> None:
    path = data / "waiting_line" / file
    good = (data / "waiting_line" / "copy.jsonl").read_text().splitlines()[0]
    path.unlink() if content is None else path.write_text(content.replace("GOOD", good))
    with pytest.raises(ValueError, match=sentence):
        build(data, "waiting_line/copy")


def test_wrong_choices_are_refused_in_one_sentence(data: Path, tmp_path: Path) -> None:
    for tasks, sentence in (
        (["waiting_line/nap"], "unknown task 'waiting_line/nap'; choose among waiting_line, puzzle"),
        (["waiting_line", "waiting_line/copy"], "each once"),
        ([], "at least one task"),
    ):
        with pytest.raises(ValueError, match=sentence):
            OfficialSuite(str(data), tasks).build()
    for place, sentence in (
        (None, "data_dir is not given; name the folder that holds waiting_line, "),
        (str(tmp_path / "nowhere"), "nowhere does not exist; give a folder"),
        (str(tmp_path), "holds none of the folders waiting_line, "),
    ):
        with pytest.raises(ValueError, match=sentence):
            OfficialSuite(place).build()


def test_a_run_scores_and_reports_the_official_data(data: Path, cli) -> None:
    chosen = [f"data_dir={data}", "suite.tasks=[waiting_line/sort,puzzle/sudoku_n4_12]"]
    code, out, err = cli("run", "suite=official", *chosen, "limit=2", "decoder=fixed", "decoder.rule.k=8", "out_dir=r")
    assert code == 0 and "\nsort " in out and "warning: " in err
    first = samples(Path("r"))
    assert [len(line["committed_at"]) for line in first] == [32, 32, 64, 64]  # each task's own budget
    assert all(set(line["scores"]) == {"score", "score_strict", "score_corrected"} for line in first)
    assert first[0]["task_version"].startswith("v1-unpublished-")
    assert cli("score", "r")[0] == 0 and samples(Path("r")) == first
    assert cli("report", "r", "out_dir=page")[0] == 0
    assert "score_corrected" in "".join(path.read_text() for path in Path("page").glob("*.csv"))
    assert cli("run", "suite=official", "suite.tasks=[puzzle]")[2].startswith("error: data_dir is not given")


# ----- the scorers

LINE = ["Ada Bach", "Ben Cole", "Eva Frost"]


def line_score(operation: str, completion: str, target: Sequence[str] = LINE) -> dict[str, float]:
    data = {"people": LINE, "person": "New Guy"}
    return ListScore(operation).score(Sample("x", "x", [], data, write_list(target)), completion)


@pytest.mark.parametrize(
    ("completion", "lenient", "strict"),
    [
        ('["Ada Bach", "Ben Cole", "Eva Frost"]', 1, 1),
        ('Sure! ["Ada Bach", "Ben Cole", "Eva Frost"] Done.', 1, 1),  # text around the list
        ('["x"] or ["Ada Bach", "Ben Cole", "Eva Frost"]', 1, 1),  # the last list counts
        ("Ada Bach, Ben Cole, Eva Frost", 1, 0),  # no brackets
        ('["Ada Bach", "Ben Cole", "Eva Frost', 1, 0),  # unterminated
        ('"Ada Bach", "Ben Cole", "Eva Frost"] and more', 1, 0),
        ('["Ada Bach, "Ben Cole, Eva Frost]', 1, 0),  # unterminated quotes
        ('["Ada Bach","Ben Cole","Eva Frost"]', 1, 0),  # no space
        ('["Ada Bach", "Ben Cole",  "Eva Frost", ]', 1, 0),  # empty items
        ('["Ada Bach",\n"Ben Cole",\n"Eva Frost"]', 0, 0),  # a newline stays with its name
        ("['Ada Bach', 'Ben Cole', 'Eva Frost']", 0, 0),
        ('["Ada Bach", "Ben Cole", "Eva Frost"] ["', 0, 0),
        ('["Ada Bach", "Ben Cole"]', 0, 0),
        ('["Ada Bach", "Eva Frost", "Ben Cole"]', 0, 0),
        ("[]", 0, 0),
        ("", 0, 0),
    ],
)
def test_lists_are_read_as_published(completion: str, lenient: int, strict: int) -> None:
    scores = line_score("match", completion)
    assert scores == {"score": lenient, "score_strict": strict, "score_corrected": lenient}


def allowed(operation: str, answer: list[str]) -> bool:
    """The published rules, word by word."""
    if operation == "shuffle":
        return sorted(answer) == sorted(LINE) and answer != LINE
    if operation == "insert_random":
        rest = list(answer)
        if "New Guy" in rest:
            rest.remove("New Guy")
        return len(rest) < len(answer) and rest == LINE
    if operation == "remove_random":
        missing = set(LINE) - set(answer)
        return len(answer) == len(LINE) - 1 and len(missing) == 1 and [x for x in LINE if x not in missing] == answer
    if len(answer) != len(LINE) or "New Guy" not in answer:
        return False
    expected = list(LINE)
    expected[answer.index("New Guy")] = "New Guy"
    return expected == answer


@pytest.mark.parametrize("operation", ["shuffle", "insert_random", "remove_random", "replace_random"])
def test_every_short_answer_is_judged_by_the_published_rules(operation: str) -> None:
    valid = 0
    for size in range(1, 5):
        for answer in itertools.product([*LINE, "New Guy"], repeat=size):
            scores = line_score(operation, write_list(answer))
            assert scores["score"] == scores["score_strict"] == allowed(operation, list(answer))
            valid += allowed(operation, list(answer))
    assert valid == {"shuffle": 5, "insert_random": 4, "remove_random": 3, "replace_random": 3}[operation]


def test_sort_is_corrected_to_last_names() -> None:
    people = ["Ada Frost", "Ben Cole", "Eva Bach"]
    sample = Sample("x", "x", [], {"people": people, "person": None}, write_list(people))
    by_last = write_list(people[::-1])
    assert ListScore("sort").score(sample, by_last) == {"score": 0, "score_strict": 0, "score_corrected": 1}
    assert ListScore("sort").score(sample, sample.target) == {"score": 1, "score_strict": 1, "score_corrected": 0}
    assert ListScore("sort").score(sample, write_list(people[:0:-1]))["score_corrected"] == 0


ROWS = ["A,B,C,D", "B,A,D,C", "C,D,A,B", "D,C,B,A"]


@pytest.mark.parametrize(
    ("lines", "score", "corrected"),
    [
        (ROWS, 1, 1),
        ([row.replace(",", " , ") for row in ROWS], 1, 1),
        (["Here it is:", *ROWS, "Enjoy"], 1, 0),  # lines of junk
        ([f"{row},{row[0]}" for row in ROWS], 1, 0),  # a fifth cell
        ([*ROWS, ROWS[0]], 1, 0),  # a fifth row
        ([f"{row},A" for row in ROWS], 0, 0),
        ([*ROWS[:3], ROWS[0]], 0, 0),
        (ROWS[:3], 0, 0),
        ([""], 0, 0),
    ],
)
def test_latin_squares_are_read_as_published_and_corrected(lines: list[str], score: int, corrected: int) -> None:
    sample = Sample("x", "x", [], {"symbols": list("ABCD")}, "\n".join(ROWS))
    scores = LatinSquareScore().score(sample, "\n".join(lines))
    assert scores == {"score": score, "score_strict": score, "score_corrected": corrected}


@pytest.mark.parametrize(
    ("completion", "lenient", "strict", "corrected"),
    [
        ("1234\n3412\n2143\n4321", 1, 1, 1),
        ("  1234\n3412\n\n2143\n4321\n", 1, 1, 1),
        ("1 2 3 4\n3,4,1,2\n2143\n4321", 1, 0, 1),
        ("|1|2|3|4|\n|3|4|1|2|\n|2|1|4|3|\n|4|3|2|1|", 1, 0, 1),  # any separator
        ("The answer:\n1234\n3412\n2143\n4321\nfor 4x4", 1, 0, 1),
        ("1234\n3412\n4321\n2143", 0, 0, 1),  # another solution
        ("2134\n3412\n1243\n4321", 0, 0, 0),  # changes a given
        ("1234\n3412\n2143\n4321\n1234", 0, 0, 0),
        ("1234\n3412\n2143", 0, 0, 0),
        ("1234341221434321", 0, 0, 0),
        ("", 0, 0, 0),
    ],
)
def test_sudoku_is_read_as_published_and_corrected(completion: str, lenient: int, strict: int, corrected: int) -> None:
    sample = Sample("x", "x", [], {"grid": "1234\n3412\n0000\n0000"}, "1234\n3412\n2143\n4321")
    scores = SudokuScore().score(sample, completion)
    assert scores == {"score": lenient, "score_strict": strict, "score_corrected": corrected}


def test_strict_lists_are_never_read_differently_from_lenient_ones() -> None:
    for text in ('["A B"]', 'x ["A B", "C D"] y', '["A B", "C D"'):
        assert parse_list_strict(text) in (None, parse_lenient(text))


def test_text_is_headlined_by_grammar_and_keeps_the_other_scores() -> None:
    class Words:
        version = "7"

        def score(self, sample: Sample, completion: str) -> dict[str, float]:
            return {"score": 0.25, "score_strict": 0.0, "grammar": float(bool(completion)), "score_published": 0.5}

    sample, scorer = Sample("x", "x", [], {}, ""), TextScore(Words())
    assert scorer.version == "7"
    assert scorer.score(sample, "a") == {
        "score": 1.0,
        "score_strict": 1.0,
        "score_corrected": 0.25,
        "grammar": 1.0,
        "score_published": 0.5,
    }
    assert scorer.score(sample, "")["score"] == 0


# ----- v2


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local folder in the layout of the hub's dataset: a configuration per task, objects as JSON texts."""
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "v2"
    demonstration = {"input": {"context": '["A B", "C D"]'}, "answer": '["C D", "A B"]'}
    lists = [["Ada Bach", "Ben Cole"], ["Eva Frost", "Ida Graf"]]
    reverse = [
        {
            "input": json.dumps({"context": write_list(people), "icl_examples": [demonstration]}),
            "answer": write_list(people[::-1]),
            "output_format": None,
            "metadata": json.dumps({"length": 2}),
            "task_name": "waiting_line/reverse",
            "prompt": "Turn round.\n\n{context}\n\nThe list only.",
            "metric": "list_match_score",
        }
        for people in lists
    ]
    sudoku = [
        {
            "input": json.dumps({"puzzle": row["input"]["sudoku"]}),
            "answer": row["answer"],
            "prompt": "{puzzle}",
            "metric": "sudoku_score",
        }
        for row in sudoku_rows(blank="_")
    ]
    configs = {"waiting_line-reverse": reverse, "puzzles-sudoku_n4": sudoku}
    for name, rows in configs.items():
        write_lines(folder / name / "test.jsonl", rows)
    files = [{"config_name": name, "data_files": [{"split": "test", "path": f"{name}/*"}]} for name in configs]
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': files})}---\n")
    return folder


def test_v2_reads_configurations_and_cuts_at_the_stop_string(v2: Path) -> None:
    suite = OfficialV2Suite(str(v2), ["waiting_line/reverse", "puzzles/sudoku_n4"])
    line, puzzle = suite.build()
    assert [task.version for task in suite.build()] == [line.version, puzzle.version]
    sample = line.samples(100, 0)[1]
    assert [message["content"] for message in sample.messages] == [
        'Turn round.\n\n["A B", "C D"]\n\nThe list only.',
        '["C D", "A B"]',
        'Turn round.\n\n["Eva Frost", "Ida Graf"]\n\nThe list only.',
    ]
    assert sample.target == '["Ida Graf", "Eva Frost"]' and sample.id == "official_v2/waiting_line/reverse/1"
    assert line.score(sample, f"{sample.target}\n\n[never read")["score_strict"] == 1
    assert line.score(sample, f"{sample.target}\n[read")["score"] == 0
    grid = puzzle.samples(1, 0)[0]
    assert "0" in grid.data["grid"] and "_" not in grid.data["grid"]
    assert set(puzzle.score(grid, f"{grid.target}\n\n\n1234").values()) == {1.0}
    assert puzzle.score(grid, f"{grid.target}\n\n1234")["score"] == 0


def test_v2_says_what_is_missing(v2: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot load waiting_line-copy of data_dir=\S*v2: "):
        OfficialV2Suite(str(v2), ["waiting_line/copy"]).build()
    with pytest.raises(ValueError, match="unknown task 'puzzle'; choose among waiting_line, puzzles"):
        OfficialV2Suite(str(v2), ["puzzle"]).build()
