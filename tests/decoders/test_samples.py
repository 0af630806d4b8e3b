"""Several samples of one prompt: they differ, and do not depend on batches, order or what else is asked."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import make_model, samples

import dllm
from decoders import Decoder, FixedK, Generation, MaskDrafts, Sampling, StrictEos, Verified, generate, generate_verified
from decoders.loop import decode, decode_queue
from decoders.noise import row_seeds
from decoders.running.blocks import RunningSet
from decoders.spread import NO_CACHE
from decoders.types import in_order
from parallelbench.methods.depth_recurrent import AdaptiveDepth, DiffusionForcing
from parallelbench.methods.running import Running
from parallelbench.methods.verified import SelfSpec
from parallelbench.run.generator import Request, make_generator

SAMPLED = Decoder(FixedK(1), temperature=1.0)
PARTS: dict[str, Any] = {"cache": NO_CACHE, "stop": StrictEos(), "block_len": 8}
CHAT = [{"role": "user", "content": "Say a word."}]


def test_the_first_sample_of_a_prompt_has_the_seed_that_published_runs_have() -> None:
    assert row_seeds(3, [[1, 2], [5], [1, 2], [1, 2]])[:2] == [1762687825, 345958305] == row_seeds(3, [[1, 2], [5]])
    assert row_seeds(3, [[1, 2]], [2]) == row_seeds(3, [[1, 2]] * 3)[2:]
    assert len(set(row_seeds(3, [[1, 2]] * 9))) == 9


def test_equal_prompts_get_different_samples_whatever_the_batch() -> None:
    model, prompts = make_model("full"), [[1, 2, 3], [4], [1, 2, 3], [1, 2, 3]]
    parts = {"gen_len": 8, "decoder": SAMPLED, **PARTS}
    rows = decode(model, prompts, **parts)
    assert len({tuple(row.token_ids) for row in (rows[0], *rows[2:])}) == 3
    assert rows == list(in_order(decode_queue(model, prompts, slots=1, **parts)))
    assert [rows[3]] == decode(model, prompts[3:], draws=[2], **parts)
    assert rows[:2] == [decode(model, [prompt], **parts)[0] for prompt in prompts[:2]]
    with pytest.raises(ValueError, match="draws has 2 numbers for 4 prompts"):
        decode(model, prompts, draws=[0, 1], **parts)


def test_generate_gives_as_many_samples_as_it_is_asked_for() -> None:
    tiny, how = dllm.load("tiny"), dict[str, Any](gen_len=8, block_len=8)
    outputs = generate(tiny, [CHAT] * 5, decoder=SAMPLED, **how)
    assert len({output.text for output in outputs}) > 1
    assert outputs == generate(tiny, [CHAT] * 5, decoder=SAMPLED, batch_size=2, **how)
    assert len({output.text for output in generate(tiny, [CHAT] * 5, **how)}) == 1  # likeliest tokens are the same
    draft = dllm.load("tiny-draft")
    drafted = dict[str, Any](how=Verified(MaskDrafts("all"), Sampling(1.0)), gen_len=8)
    verified = generate_verified(draft, [CHAT] * 5, batch_size=2, **drafted)
    assert len({output.text for output in verified}) > 1
    assert verified == generate_verified(draft, [CHAT] * 5, **drafted)


METHODS = {
    "tiny": SAMPLED,
    "tiny-block": Running(RunningSet(), SAMPLED),
    "tiny-draft": SelfSpec(temperature=1.0),
    "tiny-recurrent": AdaptiveDepth(recurrences=2, temperature=1.0),
    "tiny-recurrent ": DiffusionForcing(recurrences=2, temperature=1.0),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_request_says_which_sample_it_wants(name: str) -> None:
    generator = make_generator(dllm.load(name.strip()), METHODS[name], seed=0, **PARTS)
    both: list[Generation] = list(generator([Request(CHAT, 8), Request(CHAT, 8)]))
    assert both[0].token_ids != both[1].token_ids
    assert list(generator([Request(CHAT, 8, draw=1)])) == both[1:]


def test_a_run_draws_equal_prompts_anew_and_resumes_to_the_same(cli, tmp_path: Path) -> None:
    """Their order in the file says which sample is which, not the order in which they are decoded."""
    rows = [{"prompt": "Say a word."}, {"prompt": "Say two long words."}, {"prompt": "Say a word."}]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows * 2))
    run = ["run", "suite=prompts", "suite.tasks.0.source=rows.jsonl", "decoder=fixed", "decoder.temperature=1.0"]
    run += ["limit=6", "gen_length=32", "suite.tasks.0.gen_len=8"]
    assert cli(*run, "out_dir=whole")[0] == 0
    found = {row["id"]: row["completion"] for row in samples(tmp_path / "whole")}
    assert len(found) == 6 and len(set(found.values())) > 2
    folder = tmp_path / "whole"
    lines = (folder / "samples.jsonl").read_text().splitlines(True)
    (folder / "samples.jsonl").write_text("".join(lines[4:]))
    info = json.loads((folder / "run.json").read_text()) | {"status": "partial"}
    (folder / "run.json").write_text(json.dumps(info))
    assert cli(*run, "out_dir=whole")[0] == 0
    assert {row["id"]: row["completion"] for row in samples(folder)} == found
