"""Every built-in task in four wordings: the same questions, answers and scores, and the same hold-out."""

import itertools

import pytest
import yaml

from parallelbench import Suite
from parallelbench.tasks import builtin_tasks, text_tasks
from parallelbench.tasks.base import TRAIN_SEED_MIN, is_held_out, train_draw
from parallelbench.tasks.structured import json_tasks
from parallelbench.tasks.wording import Reworded, reworded
from parallelbench.wiring.catalogue import CONF

TASKS = {**builtin_tasks(), **text_tasks(), **json_tasks()}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_sample_asks_the_same_in_each_wording(task):
    first, *others = task.samples(3, 5), *(Reworded(task, template).samples(3, 5) for template in (1, 2, 3))
    for sample, *same in zip(first, *others, strict=True):
        assert all((s.data, s.target) == (sample.data, sample.target) for s in same)
        prompts = [s.messages[0]["content"] for s in (sample, *same)]
        assert len(set(prompts)) == 4
        assert not any("{" in prompt or "}" in prompt for prompt in prompts)
        assert all(Reworded(task, 1).score(s, s.target) == task.score(sample, sample.target) for s in same)


def test_names_and_ids_tell_wordings_apart():
    tasks = Suite(["waiting_line/copy", "puzzle/sudoku_n4"], templates=(0, 2)).build()
    assert [task.name for task in tasks] == [
        "waiting_line/copy",
        "waiting_line/copy@2",
        "puzzle/sudoku_n4",
        "puzzle/sudoku_n4@2",
    ]
    (sample,) = tasks[1].samples(1, 0)
    assert (sample.id, sample.task) == ("waiting_line/copy@2/0/0", "waiting_line/copy@2")
    assert [task.name for task in Suite(["waiting_line/copy@3"]).build()] == ["waiting_line/copy@3"]


@pytest.mark.parametrize("name", ["waiting_line/sort", "puzzle/sudoku_n4", "text/paraphrase", "json/call"])
def test_no_wording_of_a_benchmark_question_is_trained_on(name):
    task = TASKS[name]
    for template, index in itertools.product((1, 2, 3), range(60)):
        draw = train_draw(Reworded(task, template), TRAIN_SEED_MIN, index)
        first = train_draw(task, TRAIN_SEED_MIN, index)
        assert draw.prompt != first.prompt and draw.data == first.data
        assert not is_held_out(first.prompt)
    for template in (1, 2, 3):
        for first, same in zip(task.samples(20, 0), Reworded(task, template).samples(20, 0), strict=True):
            assert is_held_out(first.messages[0]["content"]) and same.data == first.data


def test_the_right_answer_nearest_to_a_completion_is_that_of_the_task():
    task = TASKS["waiting_line/remove_random"]
    (sample,) = Reworded(task, 3).samples(1, 0)
    left = sample.data["people"][1:]
    assert Reworded(task, 3).nearest(sample, str(left).replace("'", '"')) == str(left).replace("'", '"')
    copied = Reworded(TASKS["puzzle/sudoku_n4"], 1)
    (sample,) = copied.samples(1, 0)
    assert copied.nearest(sample, "1111") == sample.target


@pytest.mark.parametrize(
    ("tasks", "templates", "message"),
    [
        (["waiting_line/copy"], (0, 4), "task 'waiting_line/copy' has no wording 4; give 0 to 3"),
        (["waiting_line/copy@x"], (0,), "unknown task 'waiting_line/copy@x'"),
        (["waiting_line/copy@1"], (1,), "has one wording"),
        (["waiting_line/copy", "waiting_line/copy@1"], (0, 1), "has one wording"),
        (["waiting_line/copy"], (1, 1), "each once"),
        (["waiting_line/cop@1"], (0,), "unknown task"),
        (["waiting_line/copy"], (-1,), "templates"),
    ],
)
def test_refused(tasks, templates, message):
    with pytest.raises(ValueError, match=message):
        Suite(tasks, templates=templates).build()


def test_a_task_of_ones_own_without_wordings_is_refused():
    class Plain:
        name, version = "mine", "1"

        def samples(self, limit, seed):
            return []

        def score(self, sample, completion):
            return {"score": 0.0, "score_strict": 0.0}

    with pytest.raises(ValueError, match="task 'mine' has one wording"):
        reworded(Plain(), 1)


@pytest.mark.parametrize("suite", ["all", "default", "json", "text", "waiting_line", "puzzle"])
def test_every_suite_of_our_tasks_takes_templates(suite):
    assert yaml.safe_load((CONF / "suite" / f"{suite}.yaml").read_text())["templates"] == [0]
