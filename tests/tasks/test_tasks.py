"""Tasks: targets score 1, corrupted answers do not, scorers as documented, benchmark and training apart."""

import random
import re

import pytest

from parallelbench.tasks import Sample, Suite, Task, WaitingLine, builtin_tasks, train_draw
from parallelbench.tasks.base import TRAIN_SEED_MIN, is_held_out
from parallelbench.tasks.puzzles import latin_squares, sudoku_grids
from parallelbench.tasks.waiting_line import parse_lenient, parse_strict, write_list
from parallelbench.training.mixture import TaskMixture, phrases

TASKS = builtin_tasks((3, 4, 5, 6, 10))


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]


def test_targets_score_one(task: Task) -> None:
    for sample in task.samples(30, seed=5):
        assert task.score(sample, sample.target) == {"score": 1.0, "score_strict": 1.0}


def test_corrupted_targets_do_not_score(task: Task) -> None:
    for sample in task.samples(30, seed=5):
        for completion in ("", "[]", sample.target[:-4], sample.target.replace(sample.target[2], "#")):
            assert task.score(sample, completion)["score_strict"] == 0.0
        if task.name.startswith("waiting_line"):
            people = parse_lenient(sample.target)
            assert task.score(sample, write_list([*people, people[0]]))["score"] == 0.0
            first, last = people[0].split()
            mixed = [f"{first} {people[1].split()[1]}", f"{people[1].split()[0]} {last}", *people[2:]]
            assert task.score(sample, write_list(mixed))["score"] == 0.0


def test_an_answer_of_the_exact_form_meets_the_constraint() -> None:
    line, puzzle = TASKS["waiting_line/copy"].samples(1, seed=0) + TASKS["puzzle/sudoku_n4"].samples(1, seed=0)
    assert puzzle.constraint is None and line.constraint is not None
    meets = re.compile(line.constraint["regex"]).fullmatch
    for answer in (line.target, '["A B"]', '["A B","C D"]', '["A B", "C D"', "[]", '["A [B]"]', f"{line.target} "):
        assert bool(meets(answer)) == (parse_strict(answer) is not None)


def test_samples_are_seeded_and_nested(task: Task) -> None:
    assert task.samples(12, seed=1)[:5] == task.samples(5, seed=1)
    assert task.samples(5, seed=1) != task.samples(5, seed=2)
    assert len({sample.id for sample in task.samples(12, seed=1)}) == 12


def test_benchmark_and_training_are_disjoint(task: Task) -> None:
    bench = {sample.messages[0]["content"] for sample in task.samples(50, seed=0)}
    train = {train_draw(task, TRAIN_SEED_MIN, i).prompt for i in range(300)}
    assert all(map(is_held_out, bench)) and not any(map(is_held_out, train))
    with pytest.raises(ValueError, match="belong to training"):
        task.samples(1, seed=TRAIN_SEED_MIN)
    with pytest.raises(ValueError, match="belong to the benchmark"):
        train_draw(task, 0, 0)


def one(operation: str, people: list[str], target: list[str], person: str = "New Guy") -> tuple[WaitingLine, Sample]:
    task = WaitingLine(operation)
    return task, Sample("x", task.name, [], {"people": people, "person": person, "index": 0}, write_list(target))


@pytest.mark.parametrize(
    ("operation", "answer", "valid"),
    [
        ("shuffle", ["C D", "A B", "E F"], True),
        ("shuffle", ["A B", "C D", "E F"], False),  # the same order
        ("shuffle", ["A B", "A B", "E F"], False),
        ("insert_random", ["A B", "C D", "E F", "New Guy"], True),
        ("insert_random", ["A B", "New Guy", "E F", "C D"], False),
        ("insert_random", ["A B", "C D", "E F"], False),
        ("insert_random", ["A B", "New Guy", "New Guy", "C D", "E F"], False),
        ("remove_random", ["A B", "E F"], True),
        ("remove_random", ["E F", "A B"], False),
        ("remove_random", ["A B", "C D", "E F"], False),
        ("replace_random", ["A B", "C D", "New Guy"], True),
        ("replace_random", ["A B", "C D", "E F"], False),
        ("replace_random", ["New Guy", "New Guy", "E F"], False),
        ("copy", ["A B", "C D", "E F"], True),
    ],
)
def test_waiting_line_validity(operation: str, answer: list[str], valid: bool) -> None:
    task, sample = one(operation, ["A B", "C D", "E F"], ["A B", "C D", "E F"])
    assert task.score(sample, write_list(answer)) == {"score": float(valid), "score_strict": float(valid)}


def test_lenient_and_strict_reading() -> None:
    assert parse_lenient('Sure: ["A B", "C D"] done') == ["A B", "C D"]
    assert parse_lenient('A B, "C D') == ["A B", "C D"]
    assert parse_lenient('["x"] then ["A B","C D"') == ["A B", "C D"]
    assert parse_strict('["A B", "C D"]') == ["A B", "C D"]
    for text in ('Sure: ["A B"]', '["A B","C D"]', '["A B", "C D', "[A B, C D]", '["A "B"]', "[]", ""):
        assert parse_strict(text) is None


def test_puzzles_are_enumerated() -> None:
    assert len(latin_squares()) == 576 and len(sudoku_grids()) == 288


def test_latin_square_strict_closes_the_published_loopholes() -> None:
    task = TASKS["puzzle/latin_square_n4"]
    sample = task.samples(1, seed=0)[0]
    rows = sample.target.split("\n")
    five_cells = "\n".join(f"{row},{row[0]}" for row in rows)
    assert task.score(sample, "Here it is\n" + sample.target) == {"score": 1.0, "score_strict": 0.0}
    assert task.score(sample, five_cells)["score_strict"] == 0.0


def test_suite_refuses_unknown_and_repeated_tasks() -> None:
    assert [task.name for task in Suite(["waiting_line/copy", TASKS["puzzle/sudoku_n4"]]).build()] == [
        "waiting_line/copy",
        "puzzle/sudoku_n4",
    ]
    with pytest.raises(ValueError, match="unknown task 'waiting_line/nap'; `parallelbench list tasks` lists them all"):
        Suite(["waiting_line/nap"]).build()
    for tasks in ([], ["waiting_line/copy", "waiting_line/copy"]):
        with pytest.raises(ValueError, match="each once"):
            Suite(tasks).build()
    with pytest.raises(ValueError, match=r"lengths\[0\]=1 of WaitingLine; give a whole number in \[2, 20\]"):
        Suite(["waiting_line/copy"], lengths=[1]).build()


def test_training_batches_are_padded_with_eos_and_repeatable() -> None:
    from dllm.training.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(phrases())
    mixture = TaskMixture(dict.fromkeys(builtin_tasks(), 1.0), batch_size=8)
    stream = mixture.open(tokenizer)
    for step in range(20):
        batch, again = stream.batch(step), stream.batch(step)
        assert batch.canvas.equal(again.canvas)
        for row, start, end in zip(batch.canvas, batch.prompt_len, batch.end, strict=True):
            response = tokenizer.decode(row[start:end].tolist())
            assert response.endswith("<eos>") and "<unk>" not in tokenizer.decode(row[:end].tolist())
            assert (row[end:] == tokenizer.pad_token_id).all()


def test_tokenizer_round_trip_is_verbatim() -> None:
    from dllm.training.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(phrases())
    rng = random.Random(0)
    texts = [sample.messages[0]["content"] for task in TASKS.values() for sample in task.samples(5, seed=3)]
    texts += ["".join(chr(rng.randrange(32, 127)) for _ in range(40)) for _ in range(50)]
    for text in texts:
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    ids = tokenizer('["Ada Bach", "Ben Cole"]')["input_ids"]
    assert len(ids) == 7  # three pieces of punctuation, two first and two last names
    with pytest.raises(ValueError, match="outside printable ASCII"):
        build_tokenizer(["caf\u00e9"])
