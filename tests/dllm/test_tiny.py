"""The shipped models: accuracy floors with one token per step, ParallelBench's phenomenon in small, what training for
parallel decoding gains."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import dllm
from decoders import (
    BlockEos,
    Cooling,
    Decoder,
    EntropyBound,
    EntropyThreshold,
    FixedK,
    MaskDrafts,
    Prefix,
    Renoise,
    SelfCondition,
    StrictEos,
    Threshold,
    Verified,
    generate,
    generate_verified,
)
from dllm.cache import BlockCache, WindowCache
from dllm.shipped import ASSETS
from parallelbench.tasks import builtin_tasks, text_tasks, vision_tasks
from parallelbench.tasks.base import TRAIN_SEED_MIN
from parallelbench.tasks.wording import named_task

ROOT = Path(__file__).parents[2]
TASKS = builtin_tasks()


@pytest.fixture(scope="module")
def tiny() -> dllm.DiffusionLM:
    return dllm.load("tiny")


def accuracy(model: dllm.DiffusionLM, task: str, decoder: Decoder, n: int = 20, **settings: Any) -> float:
    scorer = named_task(task, TASKS | text_tasks() | vision_tasks())
    samples = scorer.samples(n, seed=4)
    settings = {"stop": StrictEos(), "batch_size": n, **settings}
    outputs = generate(model, [s.messages for s in samples], decoder=decoder, **settings)
    return sum(scorer.score(s, o.text)["score_strict"] for s, o in zip(samples, outputs, strict=True)) / n


@pytest.mark.parametrize("task", TASKS)
def test_one_token_per_step_solves_every_task(tiny: dllm.DiffusionLM, task: str) -> None:
    assert accuracy(tiny, task, Decoder(FixedK(1))) >= 0.85


@pytest.mark.parametrize(
    ("task", "settings", "floor"),
    [
        ("waiting_line/reverse@2", {}, 0.8),
        ("waiting_line/remove_index@3", {"gen_len": 128, "block_len": 128}, 0.8),
        ("waiting_line/replace_index", {"block_len": 8, "cache": WindowCache(before=0, after=0)}, 0.8),
        ("text/words_to_sentence_easy", {"gen_len": 64, "block_len": 64}, 0.6),
    ],
)
def test_it_knows_wordings_widths_caches_and_text(
    tiny: dllm.DiffusionLM, task: str, settings: dict[str, Any], floor: float
) -> None:
    assert accuracy(tiny, task, Decoder(Threshold(0.95)), n=10, **settings) >= floor


def test_parallel_decoding_breaks_dependent_tokens_only(tiny: dllm.DiffusionLM) -> None:
    assert accuracy(tiny, "waiting_line/copy", Decoder(FixedK("all"))) >= 0.85
    assert accuracy(tiny, "waiting_line/shuffle", Decoder(FixedK("all"))) <= 0.3
    assert accuracy(tiny, "waiting_line/shuffle", Decoder(Threshold(0.9))) >= 0.85


def decoded(model: dllm.DiffusionLM, decoder: Decoder, **settings: Any) -> tuple[float, float]:
    """Share of right answers and tokens per forward."""
    samples = [sample for task in TASKS.values() for sample in task.samples(8, seed=4)]
    settings = {"stop": StrictEos(), "batch_size": len(samples), **settings}
    outputs = generate(model, [sample.messages for sample in samples], decoder=decoder, **settings)
    right = [TASKS[s.task].score(s, o.text)["score_strict"] for s, o in zip(samples, outputs, strict=True)]
    return sum(right) / len(right), sum(o.num_tokens for o in outputs) / sum(o.nfe for o in outputs)


def test_distilled_it_is_sure_of_more_tokens_at_once(tiny: dllm.DiffusionLM) -> None:
    plain = decoded(tiny, Decoder(Threshold(0.9)))
    distilled = decoded(dllm.load("tiny-dparallel"), Decoder(EntropyThreshold(0.1), confidence="entropy"))
    assert distilled[1] > 1.4 * plain[1] and distilled[0] > plain[0] - 0.05


def test_turned_into_blocks_the_causal_model_writes_several_tokens_per_forward() -> None:
    settings = {"stop": BlockEos(), "block_len": 8}
    score, tpf = decoded(dllm.load("tiny-block"), Decoder(Prefix(0.99)), cache=BlockCache(), **settings)
    assert score >= 0.93 and tpf > 2.5
    assert decoded(dllm.load("tiny-block"), Decoder(Prefix(0.99)), **settings) == (score, tpf)  # its cache is exact


def test_taught_to_draft_it_writes_three_tokens_per_forward_and_the_same_text() -> None:
    model = dllm.load("tiny-draft")
    samples = [sample for task in TASKS.values() for sample in task.samples(4, seed=4)]
    prompts = [sample.messages for sample in samples]
    drafted, plain = (
        generate_verified(model, prompts, how=Verified(drafter), batch_size=len(prompts))
        for drafter in (MaskDrafts(masks=8), None)
    )
    assert [row.text for row in drafted] == [row.text for row in plain]
    assert sum(row.num_tokens for row in drafted) > 3 * sum(row.nfe for row in drafted)
    right = [TASKS[s.task].score(s, row.text)["score_strict"] for s, row in zip(samples, plain, strict=True)]
    assert sum(right) >= 0.95 * len(right)


RENOISE = Decoder(
    EntropyBound(0.1),
    transforms=(Cooling(),),
    revise=Renoise(),
    soft=SelfCondition(),
    temperature=1.0,
    confidence="entropy",
    at_least_one=False,
)


@pytest.mark.parametrize(("task", "floor"), [("waiting_line/shuffle", 0.7), ("waiting_line/remove_random", 0.9)])
def test_of_uniform_state_it_writes_dependent_tokens(task: str, floor: float) -> None:
    assert accuracy(dllm.load("tiny-uniform"), task, RENOISE, n=40) >= floor


@pytest.mark.slow
def test_of_uniform_state_it_solves_most_tasks_in_a_fifth_of_the_forwards() -> None:
    score, tpf = decoded(dllm.load("tiny-uniform"), RENOISE)
    assert score >= 0.8 and tpf > 1.5


@pytest.mark.parametrize("task", vision_tasks())
def test_it_answers_questions_about_pictures(task: str) -> None:
    settings = {"gen_len": 8, "block_len": 8}
    assert accuracy(dllm.load("tiny-vision"), task, Decoder(Threshold(0.9)), n=40, **settings) >= 0.9


@pytest.mark.parametrize("name", ["tiny", "tiny-dparallel", "tiny-block", "tiny-draft", "tiny-uniform", "tiny-vision"])
def test_its_record_says_how_it_was_trained(name: str) -> None:
    record = json.loads((ASSETS / name / "training.json").read_text())
    config = record["config"]
    assert config.get("data_seed", config.get("data", {}).get("seed")) >= TRAIN_SEED_MIN
    assert {"steps", "sequences", "seconds", "final_loss", "device"} <= set(record)
    assert record.get("torch") or record["versions"]["torch"]


SHIPPED = {
    path.parent.name: path for path in (*ASSETS.glob("*/training.json"), *ROOT.glob("decoders/assets/*/filter.json"))
}


@pytest.mark.parametrize("name", SHIPPED)
def test_its_record_names_the_whole_chain_of_trainings(name: str) -> None:
    """Every training down to the random weights, its record or that there is none, and a commit of this repository."""
    record = json.loads(SHIPPED[name].read_text())
    chain = record["chain"]
    assert "from scratch" in chain[0]["training"] and chain[-1]["record"] == "this"
    for stage in chain:
        path, _, inner = stage["record"].removeprefix("this").rpartition("#")
        found = json.loads((ROOT / path).read_text()) if path else record
        for key in inner.split(".") if inner else ():
            found = found[key]
        steps = re.search(r"([\d,]+) steps", stage["training"])
        assert stage["unknown"] if not stage["record"] else steps and found["steps"] == int(steps[1].replace(",", ""))
        own = found.get("git", {}).get("commit")
        assert (own == stage["commit"] and stage["commit"]) or stage["unknown"]
    card = SHIPPED[name].with_name("README.md")
    if card.exists():
        text = card.read_text()
        assert all(stage["commit"][:7] in text for stage in chain)
        assert all(stage["commit"] or stage["unknown"] for stage in chain)


def test_the_commits_of_records_are_of_this_repository() -> None:
    commits = {stage["commit"] for path in SHIPPED.values() for stage in json.loads(path.read_text())["chain"]}
    commits -= {""}  # trained by others
    git = ["git", "-C", str(ROOT), "rev-parse"]
    shallow = subprocess.run([*git, "--is-shallow-repository"], capture_output=True, text=True)
    if shallow.stdout.strip() != "false":
        pytest.skip("the repository's history is not here")
    for commit in commits:
        ancestor = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", commit, "HEAD"]
        assert subprocess.run(ancestor, capture_output=True).returncode == 0, f"{commit} is not of this repository"
