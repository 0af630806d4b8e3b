"""The JSON tasks: what parses, what is right, and what a field is worth."""

import json

import pytest
from jsonschema import Draft202012Validator

from parallelbench.tasks import Sample
from parallelbench.tasks.base import TRAIN_SEED_MIN, is_held_out, train_draw
from parallelbench.tasks.structured import REQUESTS, SCHEMAS, is_valid, json_tasks

TASKS = json_tasks()
ANSWER = {"name": "Ada Bach", "age": 34, "city": "Oslo"}
RECORD = Sample("r/0", "json/record", [], {"schema": "record"}, json.dumps(ANSWER))
PEOPLE = [{"name": "Ada Bach", "age": 34}, {"name": "Ben Cole", "age": 51}]
RECORDS = Sample("r/1", "json/records", [], {"schema": "records"}, json.dumps(PEOPLE))
ALL_RIGHT = {"score": 1.0, "score_strict": 1.0, "parses": 1.0, "fields": 1.0}


def scores(sample: Sample, completion: str) -> list[float]:
    """score, score_strict, parses, fields."""
    return list(TASKS[sample.task].score(sample, completion).values())


@pytest.mark.parametrize("name", TASKS)
def test_targets_are_right_and_samples_are_seeded(name: str) -> None:
    task = TASKS[name]
    samples = task.samples(60, seed=3)
    assert all(task.score(sample, sample.target) == ALL_RIGHT for sample in samples)
    assert all(sample.constraint == {"json_schema": SCHEMAS[sample.data["schema"]]} for sample in samples)
    assert all(task.score(sample, sample.target[:-1])["parses"] == 0 for sample in samples)
    assert task.samples(7, seed=3) == samples[:7] and task.samples(7, seed=4) != samples[:7]
    assert all(is_held_out(sample.messages[0]["content"]) for sample in samples)
    assert not any(train_draw(task, TRAIN_SEED_MIN, i).is_held_out for i in range(60))


@pytest.mark.parametrize("name", TASKS)
def test_the_prompt_holds_every_value_and_key(name: str) -> None:
    for sample in TASKS[name].samples(60, seed=0):
        answer, prompt = json.loads(sample.target), sample.messages[0]["content"]
        for item in answer if isinstance(answer, list) else [answer]:
            assert all(str(value) in prompt and f'"{key}"' in prompt for key, value in item.items())


def test_schemas_are_schemas_and_every_function_is_called() -> None:
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    assert {sample.data["schema"] for sample in TASKS["json/call"].samples(5, 0)} == set(REQUESTS)


@pytest.mark.parametrize(
    ("completion", "wanted"),
    [
        (json.dumps(ANSWER, indent=2), [1, 1, 1, 1]),
        (json.dumps(dict(reversed(ANSWER.items()))), [1, 1, 1, 1]),  # keys in another order are the same object
        (f"Here it is:\n```json\n{json.dumps(ANSWER)}\n```", [1, 0, 0, 1]),
        (json.dumps(ANSWER | {"age": 35}), [0, 0, 1, 2 / 3]),
        (json.dumps(ANSWER | {"age": "34"}), [0, 0, 0, 2 / 3]),
        (json.dumps(ANSWER | {"age": True}), [0, 0, 0, 2 / 3]),
        (json.dumps(ANSWER | {"age": 34.0}), [1, 1, 1, 1]),  # which is an integer to JSON schema
        (json.dumps(ANSWER | {"note": "none"}), [0, 0, 0, 0.75]),
        (json.dumps({key: ANSWER[key] for key in ("name", "age")}), [0, 0, 0, 2 / 3]),
        (json.dumps(ANSWER).replace('"age"', '"age": 34, "age"'), [0, 0, 0, 0]),  # a key twice
        (json.dumps(ANSWER).replace("34", "NaN"), [0, 0, 0, 0]),
        (json.dumps(ANSWER).replace("34", "9" * 5000), [0, 0, 0, 0]),
        (json.dumps(ANSWER)[:-1], [0, 0, 0, 0]),
        (json.dumps([ANSWER]), [1, 0, 0, 1]),
        (json.dumps(json.dumps(ANSWER)), [0, 0, 0, 0]),
        ("null", [0, 0, 0, 0]),
        ("", [0, 0, 0, 0]),
        ("{" * 5000, [0, 0, 0, 0]),
        ('{"a":' * 900 + "1" + "}" * 900, [0, 0, 0, 0]),
    ],
)
def test_a_record(completion: str, wanted: list[float]) -> None:
    assert scores(RECORD, completion) == wanted


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (PEOPLE[::-1], [0, 0, 1, 0]),
        (PEOPLE[:1], [0, 0, 1, 0.5]),
        ([*PEOPLE, PEOPLE[0]], [0, 0, 1, 4 / 6]),
        ([PEOPLE[0], {"name": "Ben Cole", "age": 15}], [0, 0, 1, 0.75]),
        ({"people": PEOPLE}, [1, 0, 0, 1]),
        (PEOPLE[0], [0, 0, 0, 0]),
        ([], [0, 0, 0, 0]),
        ([[PEOPLE]], [0, 0, 0, 0]),
    ],
)
def test_a_list_of_records(answer: object, wanted: list[float]) -> None:
    assert scores(RECORDS, json.dumps(answer)) == wanted


def test_arguments_are_checked_by_the_schema_of_their_function() -> None:
    (sample,) = [one for one in TASKS["json/call"].samples(5, 0) if one.data["schema"] == "set_light"]
    answer = json.loads(sample.target)
    assert scores(sample, json.dumps(answer | {"room": "attic"})) == [0, 0, 0, 2 / 3]
    assert is_valid(answer, "set_light") and not is_valid(answer, "book_table")
