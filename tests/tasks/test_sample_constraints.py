"""The constraint of a sample admits its right answers, as the tokens of a model, and no others of a wrong form."""

import json

import pytest

import dllm
from decoders.constraints.automaton import TokenAutomaton, automaton_of, vocabulary_of
from decoders.constraints.patterns import Regular, constraint_of
from parallelbench.tasks import Sample, named_tasks
from parallelbench.tasks.structured import is_valid

pytest.importorskip("outlines_core")
TASKS = {name: task for name, task in named_tasks().items() if task.samples(1, 0)[0].constraint}


@pytest.fixture(scope="module")
def tiny() -> dllm.DiffusionLM:
    return dllm.load("tiny")


def automaton(sample: Sample, model: dllm.DiffusionLM) -> TokenAutomaton:
    assert sample.constraint is not None
    constraint = constraint_of(sample.constraint)
    assert isinstance(constraint, Regular)
    found = automaton_of(constraint, vocabulary_of(model))
    assert found is not None
    return found


def test_json_and_lists_have_constraints() -> None:
    assert {name.split("/")[0] for name in TASKS} == {"json", "waiting_line"} and len(TASKS) == 14


@pytest.mark.parametrize("name", TASKS)
def test_a_target_is_admitted_and_its_parts_are_not(name: str, tiny: dllm.DiffusionLM) -> None:
    for sample in TASKS[name].samples(5, seed=1):
        accepts = automaton(sample, tiny).accepts
        ids = tiny.tokenizer(sample.target, add_special_tokens=False)["input_ids"]
        assert accepts(ids) and accepts([*ids, *tiny.spec.eos_ids])
        assert not accepts(ids[:-1]) and not accepts([*ids, ids[-1]]) and not accepts(ids[1:])


def test_whatever_the_schema_of_a_function_admits_is_valid(tiny: dllm.DiffusionLM) -> None:
    for sample in TASKS["json/call"].samples(5, seed=1):
        answer = json.loads(sample.target)
        wrong = {key: "no" if isinstance(value, int) else 7 for key, value in answer.items()}
        for given in (answer, wrong, answer | {"more": 1}):
            ids = tiny.tokenizer(json.dumps(given), add_special_tokens=False)["input_ids"]
            assert automaton(sample, tiny).accepts(ids) == is_valid(given, sample.data["schema"])
