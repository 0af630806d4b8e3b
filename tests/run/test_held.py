"""Runs whose answers are held to a constraint: from the command line to the record, and what is refused before."""

import json
import re
from pathlib import Path

import pytest
import yaml
from conftest import samples

import dllm
from decoders import JsonSchema, MaskDrafts, Regex, Verified, generate, generate_verified
from parallelbench.run.job import request_of
from parallelbench.tasks import builtin_tasks
from parallelbench.tasks.base import Sample

pytest.importorskip("outlines_core")
FEW = ["run", "limit=2", "batch_size=2", "suite.tasks=[waiting_line/copy,waiting_line/shuffle]"]
SCHEMA = {"type": "array", "items": {"type": "string", "pattern": "[A-Z][a-z]+ [A-Z][a-z]+"}}


@pytest.fixture(autouse=True)
def own_folder_of_automata(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("words", "form"),
    [
        (["+constraint.regex='\"[A-Z]+\"'"], '"[A-Z]+"'),
        (["+constraint.choice=[yes,no]", "decoder=eb", "cache=prefix"], "yes|no"),
        (["+constraint.json_schema=list.json", "decoder=d2f"], r'\[ ?("\w+ \w+"(, ?"\w+ \w+")*)? ?\]'),
        (["+constraint.regex='[a-z ]{4,9}'", "decoder=freedave"], "[a-z ]{4,9}"),
        (["+constraint.regex='[a-z ]{4,9}'", "decoder=ar", "model=tiny_ar"], "[a-z ]{4,9}"),
        (["+constraint.regex='[a-z ]{4,9}'", "decoder=self_spec", "model=tiny_draft"], "[a-z ]{4,9}"),
        (["constraint=task"], r'\["[A-Za-z ]+"(, "[A-Za-z ]+")*\]'),
    ],
)
def test_answers_of_a_run_keep_its_constraint(cli, words: list[str], form: str) -> None:
    Path("list.json").write_text(json.dumps(SCHEMA))
    if words == ["constraint=task"] and builtin_tasks()["waiting_line/copy"].samples(1, 0)[0].constraint is None:
        pytest.skip("the waiting line does not say yet what its answers look like")
    code, _, err = cli(*FEW, *words, "out_dir=out")
    assert code == 0, err
    texts = [line["completion"] for line in samples(Path("out"))]
    assert len(texts) == 4 and all(re.fullmatch(form, text) for text in texts), texts


def test_a_run_states_its_constraint_and_goes_on_with_no_other(cli) -> None:
    Path("list.json").write_text(json.dumps(SCHEMA))
    assert cli(*FEW, "+constraint.json_schema=list.json", "out_dir=out")[0] == 0
    stated = yaml.safe_load(Path("out/config.yaml").read_text())["constraint"]
    assert json.loads(stated["json_schema"]) == SCHEMA
    Path("list.json").write_text(json.dumps({"type": "string"}))
    code, _, err = cli(*FEW, "+constraint.json_schema=list.json", "out_dir=out")
    assert code == 2 and "constraint" in err
    assert cli(*FEW, "out_dir=free")[0] == 0
    assert "constraint" not in yaml.safe_load(Path("free/config.yaml").read_text())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["constraint=tsk"], "constraint='tsk'; give constraint=task"),
        (["constraint.regex=a"], "put a + before it: +constraint.regex="),
        (["+constraint.regx=a"], "constraint.regx is no kind of constraint"),
        (["+constraint.json_schema=none.json"], "constraint.json_schema='none.json' is not a file"),
        (["+constraint.regex='('"], "cannot be used"),
        (["+constraint.regex='a{90}'"], "tokens, and gen_length=32; give gen_length=90 or more"),
        (["+constraint.regex='[^\\x00-\\x{10FFFF}]'"], "matches no text"),
        (["+constraint.regex='\u4e2d'"], "no tokens of model 'tiny' spell"),
        (["+constraint.regex='a+'", "decoder=edit"], "TokenEdit writes over tokens"),
        (["+constraint.regex='a+'", "stop=eotp"], "Eotp cuts an answer"),
        (["+constraint.regex='a+'", "template=[4,b,4]"], "no answer keeps both the constraint and the template"),
        (["+constraint.regex='a+'", "decoder=adaptive_depth", "model=tiny_recurrent"], "keep no constraints"),
        (["+constraint.regex='a{90}'", "decoder=ar", "model=tiny_ar"], "give gen_length=90 or more"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_the_first_forward(cli, words: list[str], said: str) -> None:
    code, _, err = cli(*FEW, *words, "out_dir=out")
    assert code == 2 and said in err, err
    assert err.count("\n") == 1 and not Path("out").exists()


def test_each_sample_has_its_own_constraint() -> None:
    sample = Sample("a", "b", [{"role": "user", "content": "x"}], {}, "", constraint={"json_schema": SCHEMA})
    assert request_of(sample, 32, "task").constraint == JsonSchema(SCHEMA)
    assert request_of(sample, 32).constraint is None
    assert request_of(sample, 32, Regex("a")).constraint == Regex("a")


def test_generate_takes_one_constraint_for_all_or_one_for_each() -> None:
    model = dllm.load("tiny")
    texts = [[{"role": "user", "content": text}] for text in ("Say yes.", "Say no.", "Say it.")]
    rows = generate(model, texts, constraints=[Regex("[a-z]{3}"), None, JsonSchema(SCHEMA)])
    assert re.fullmatch("[a-z]{3}", rows[0].text) and isinstance(json.loads(rows[2].text), list)
    assert rows[1] == generate(model, texts[1:2])[0]
    assert all(row.text in ("", "ab") for row in generate(model, texts, constraints=Regex("(ab)?"), gen_len=8))
    assert generate(model, texts, constraints=Regex(".*")) == generate(model, texts)
    with pytest.raises(ValueError, match="constraints has 1 entries for 3 prompts"):
        generate(model, texts, constraints=[Regex("a")])
    drafting = dllm.load("tiny-draft")
    given = {"how": Verified(MaskDrafts()), "constraints": Regex("[a-z]{3}")}
    assert all(re.fullmatch("[a-z]{3}", row.text) for row in generate_verified(drafting, texts, **given))


def test_demo_holds_its_answer_to_a_constraint(cli) -> None:
    code, out, err = cli("demo", "+constraint.choice=[amber]", "decoder=eb", "speed=1000")
    assert code == 0, err
    assert out.rstrip().endswith("amber")
