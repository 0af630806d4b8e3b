"""lm-evaluation-harness drives our loop: answers, stop strings, costs and likelihoods."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("lm_eval", reason="the extra eval is not installed")

from conftest import make_model
from lm_eval.api.instance import Instance

import dllm
from decoders import NO_CACHE, Decoder, FixedK, Regex, StrictEos, generate
from parallelbench.run.generator import DiffusionGenerator
from parallelbench.tasks import builtin_tasks
from parallelbench.wiring.lm_eval import DllmLM, _options, elbo

pytestmark = pytest.mark.filterwarnings("default")  # the harness's own


def instances(kind: str, pairs: list[tuple]) -> list[Instance]:
    return [Instance(kind, {}, pair, i, metadata=("own", i, 1)) for i, pair in enumerate(pairs)]


@pytest.fixture(scope="module")
def tiny() -> DiffusionGenerator:
    return DiffusionGenerator(dllm.load("tiny"), Decoder(FixedK(2)), NO_CACHE, StrictEos(), 32)


def test_answers_are_those_of_the_loop(tiny: DiffusionGenerator, tmp_path: Path) -> None:
    samples = builtin_tasks()["waiting_line/copy"].samples(5, 0)
    lm = DllmLM(tiny, batch_size=2, costs=tmp_path / "costs.jsonl")
    chats = [lm.apply_chat_template([dict(m) for m in sample.messages]) for sample in samples]
    wanted = generate(tiny.model, [s.messages for s in samples], decoder=tiny.decoder, gen_len=32, block_len=32)
    texts = lm.generate_until(instances("generate_until", [(c, {"until": [], "max_gen_toks": 20}) for c in chats]))
    assert texts == [generation.text for generation in wanted]
    lines = [json.loads(line) for line in (tmp_path / "costs.jsonl").read_text().splitlines()]
    assert {line["doc_id"]: (line["nfe"], line["num_tokens"]) for line in lines} == {
        i: (generation.nfe, generation.num_tokens) for i, generation in enumerate(wanted)
    }
    info = lm.get_model_info()["dllm"]
    assert info["tpf"]["value"] == pytest.approx(sum(g.num_tokens for g in wanted) / sum(g.nfe for g in wanted))
    (cut,) = DllmLM(tiny).generate_until(
        instances("generate_until", [(chats[0], {"until": [",", "]"], "max_gen_toks": 32})])
    )
    assert cut == texts[0][: texts[0].index(",")]
    with pytest.raises(ValueError, match=r"exists; choose another file"):
        DllmLM(tiny, costs=tmp_path / "costs.jsonl")


def test_answers_are_held_to_a_constraint(tiny: DiffusionGenerator) -> None:
    pytest.importorskip("outlines_core")
    asked = instances("generate_until", [(text, {"until": [], "max_gen_toks": 8}) for text in ("a", "b")])
    texts = DllmLM(tiny, constraint=Regex("[a-z]{3}")).generate_until(asked)
    assert all(re.fullmatch("[a-z]{3}", text) for text in texts)
    with pytest.raises(ValueError, match="constraint=task is for tasks of this benchmark"):
        DllmLM(tiny, constraint="task")


@pytest.mark.parametrize("arguments", [{"do_sample": True}, {"num_beams": 4}, {"beams": 3}])
def test_what_cannot_be_honoured_is_refused(tiny: DiffusionGenerator, arguments: dict) -> None:
    with pytest.raises(ValueError, match=r"decoder.temperature|mean nothing here"):
        DllmLM(tiny).generate_until(instances("generate_until", [("x", arguments)]))
    with pytest.raises(NotImplementedError, match="loglikelihood_rolling"):
        DllmLM(tiny).loglikelihood_rolling([])


def test_samples_are_drawn_as_the_task_says(tiny: DiffusionGenerator) -> None:
    """Equal requests get different samples; a decoder's own temperature comes first; greedy is greedy."""
    chat = "<user>Say a word.<assistant>"

    def answers(generator: DiffusionGenerator, count: int = 4, **arguments: object) -> list[str]:
        pair = (chat, {"until": [], "max_new_tokens": 8, **arguments})
        return DllmLM(generator).generate_until([*instances("generate_until", [pair])] * count)

    greedy = answers(tiny)
    assert len(set(greedy)) == 1
    assert answers(tiny, temperature=1, do_sample=False, top_p=0.9, num_beams=1) == greedy
    drawn = answers(tiny, temperature=1.0, do_sample=True)
    assert len(set(drawn)) > 1 and answers(tiny, 5, temperature=1.0)[:4] == drawn
    own = replace(tiny, decoder=replace(tiny.decoder, temperature=1.0))
    assert answers(own, do_sample=True, temperature=0.2) == drawn
    assert len(set(answers(tiny, temperature=1.0, top_k=1, top_p=0.9))) == 1
    with pytest.raises(ValueError, match=r"lengths \[8, 9\]"):
        answers(tiny, max_gen_toks=9)


def test_nothing_before_or_behind_is_scored_too(tiny: DiffusionGenerator) -> None:
    lm = DllmLM(tiny, samples=4)
    pairs = [("", '["Ada Bach"]'), ("Say", ""), (" ", "a")]
    (bare, _), nothing, (space, _) = lm.loglikelihood(instances("loglikelihood", pairs))
    assert bare < 0 and space < 0 and nothing == (0.0, True)
    assert len(lm.generate_until(instances("generate_until", [("", {"max_gen_toks": 8})]))) == 1


def test_a_cache_is_of_one_configuration(tiny: DiffusionGenerator) -> None:
    other = replace(tiny, decoder=Decoder(FixedK(1)))
    hook = Mock(dbdict={})
    DllmLM(tiny).set_cache_hook(hook)
    DllmLM(tiny).set_cache_hook(hook)
    for changed in (DllmLM(other), DllmLM(tiny, samples=3), DllmLM(tiny, gen_len=64)):
        with pytest.raises(ValueError, match="answers of another model or decoder"):
            changed.set_cache_hook(hook)
    with pytest.raises(ValueError, match="this decoder samples"):
        DllmLM(replace(tiny, decoder=Decoder(FixedK(1), temperature=1.0))).set_cache_hook(Mock(dbdict={}))


def test_a_dtype_is_the_model_s() -> None:
    with pytest.raises(ValueError, match=r"write model.dtype=bfloat16"):
        _options({"dtype": "bfloat16"})


@pytest.mark.parametrize("kind", ["full", "shifted"])
def test_the_bound_is_the_mean_over_all_masks(kind: str) -> None:
    """For two tokens there are three masks: the expectation is known, and at most the log-likelihood of an order."""
    model, context, target = make_model(kind), [3, 4, 5], [6, 7]

    def loss(masked: list[int]) -> float:
        canvas = torch.tensor([context + [47 if i in masked else t for i, t in enumerate(target)]])
        with torch.no_grad():
            log_probs = model.full_logits(canvas, torch.tensor([3])).log_softmax(-1)[0, 3:]
        return -sum(float(log_probs[i, target[i]]) for i in masked)

    exact = -(0.5 * (loss([0]) + loss([1])) / 2 * 2 + 0.5 * loss([0, 1]))
    assert elbo(model, context, target, 4000, 500, 0) == pytest.approx(exact, rel=0.05)
    assert elbo(model, context, target[:1], 9, 2, 0) == pytest.approx(-one_token(model, context, target[0]), rel=1e-4)


def one_token(model: dllm.DiffusionLM, context: list[int], token: int) -> float:
    with torch.no_grad():
        logits = model.full_logits(torch.tensor([[*context, 47]]), torch.tensor([len(context)]))
    return -float(logits.log_softmax(-1)[0, -1, token])


def test_right_answers_are_likelier(tiny: DiffusionGenerator) -> None:
    lm = DllmLM(tiny, samples=8)
    (sample,) = builtin_tasks()["waiting_line/copy"].samples(1, 0)
    chat = lm.apply_chat_template([dict(m) for m in sample.messages])
    names = json.loads(sample.target)
    pairs = [(chat, sample.target), (chat, json.dumps(names[::-1]))]
    (right, is_greedy), (wrong, is_wrong_greedy) = lm.loglikelihood(instances("loglikelihood", pairs))
    assert wrong < right <= 0 and math.isfinite(wrong) and is_greedy and not is_wrong_greedy
    blocks = DiffusionGenerator(make_model("block_causal"), Decoder(FixedK(2)), NO_CACHE, StrictEos(), 8)
    with pytest.raises(ValueError, match="block by block"):
        DllmLM(blocks).loglikelihood([])


@pytest.mark.slow
def test_the_command_line(cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    samples = builtin_tasks()["puzzle/sudoku_n4"].samples(8, 0)  # the harness reads a list as Python's
    rows = [{"question": s.messages[0]["content"], "answer": s.target} for s in samples]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    task = {
        "task": "small_sudoku",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 30},
        "metric_list": [{"metric": "exact_match"}],
        "metadata": {"version": 1},
    }
    (tmp_path / "tasks" / "sudoku.yaml").write_text(json.dumps(task))
    arguments = ["--tasks", "small_sudoku", "--include_path", "tasks", "--apply_chat_template", "--output_path", "out"]
    code, out, err = cli("lm_eval", "--model_args", "decoder=credit,costs=costs.jsonl", *arguments)
    assert code == 0, err
    (results,) = (json.loads(path.read_text()) for path in (tmp_path / "out").rglob("results_*.json"))
    assert results["results"]["small_sudoku"]["exact_match,none"] >= 0.8
    assert results["config"]["dllm"]["tpf"]["value"] > 1 and "tpf" in out
    assert len((tmp_path / "costs.jsonl").read_text().splitlines()) == len(samples)
    code, _, err = cli("lm_eval", "--model_args", "decoder=none_such", *arguments)
    assert code == 2 and "none_such" in err
