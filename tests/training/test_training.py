"""Training: the forward process has its distribution, and a killed run resumes to the same weights."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import forked
import pytest
import torch
from conftest import BLOCK, make_model
from safetensors.torch import load_file

import dllm
from dllm.plan import Plan
from dllm.shipped import ASSETS
from dllm.training.fit import FitConfig, fit
from dllm.training.lora import Lora
from dllm.training.masking import content_columns, draw_groups, mask_response, rising
from dllm.training.objectives import Batch, BlockDiffusion, MaskedDiffusion, NextToken, stale_logits
from dllm.training.scratch import scratch_causal
from dllm.training.tokenizer import build_tokenizer


def test_number_of_masks_is_uniform_and_weights_are_its_inverse() -> None:
    eligible = torch.zeros(4000, 12, dtype=torch.bool)
    eligible[:, 3:11] = True
    masked, weight = mask_response(eligible, torch.Generator().manual_seed(0))
    k = masked.sum(1)
    assert not (masked & ~eligible).any() and k.min() == 1 and k.max() == 8
    assert torch.bincount(k)[1:].float().std() < 2  # stratified: 500 each
    torch.testing.assert_close(weight.sum(1), torch.ones(4000))
    per_column = masked.float().mean(0)[3:11]
    assert (per_column - 4.5 / 8).abs().max() < 0.03


def test_content_columns_leave_out_the_scaffold() -> None:
    tokens = torch.tensor([[1, 2, 9, 3, 9], [9, 9, 9, 9, 9], [1, 2, 9, 3, 9], [1, 2, 9, 3, 9]])
    response = torch.tensor([[False, True, True, True, True]] * 4)
    content = content_columns(response, tokens, [9], 0.75)
    some, every = [False, True, False, True, False], [False, True, True, True, True]
    assert content.tolist() == [some, every, some, every]


def test_loss_is_the_weighted_cross_entropy_of_masked_tokens() -> None:
    model = make_model("full")
    canvas = torch.randint(0, 40, (6, 14), generator=torch.Generator().manual_seed(1))
    batch = Batch(canvas, torch.full((6,), 4), torch.full((6,), 14), torch.full((6,), 14))
    rng = torch.Generator().manual_seed(2)
    loss = MaskedDiffusion(content_fraction=0.0)(model, batch, rng)
    response = torch.zeros_like(canvas, dtype=torch.bool)
    response[:, 4:] = True
    masked, _ = mask_response(response, torch.Generator().manual_seed(2))
    expected = 0.0
    for row in range(6):
        noisy = canvas[row].masked_fill(masked[row], 47)[None]
        log_p = model.full_logits(noisy, batch.prompt_len[:1]).log_softmax(-1)[0].detach()
        columns = masked[row].nonzero()[:, 0]
        expected += -sum(float(log_p[c, canvas[row, c]]) for c in columns) / len(columns) / 6
    assert abs(float(loss.detach()) - expected) < 1e-4


def test_groups_of_blocks_are_masked_at_rates_that_rise() -> None:
    rng = torch.Generator().manual_seed(0)
    first = torch.tensor([0, 2]).repeat(4000)
    start = draw_groups(first, 7, 3, rng)
    block = torch.arange(7).expand_as(start)
    begins = start == block
    assert begins[first == 2, :3].all() and not begins[first == 0, 1].all()
    ended = begins & (block > first[:, None])  # where one ends and another begins
    sizes = (block - start.roll(1, 1))[ended]
    assert sizes.unique().tolist() == [1, 2, 3] and (start <= block).all()
    assert torch.equal(start.gather(1, start), start)  # a group's first block begins it
    rate = rising(torch.rand(start.shape, generator=rng), start)
    later = ~begins
    assert (rate[later] >= rate.roll(1, 1)[later]).all() and rate.max() <= 1
    assert abs(float(rate[begins].mean()) - 0.5) < 0.01
    second = later & begins.roll(1, 1)
    assert abs(float(rate[second].mean()) - 0.75) < 0.01


@pytest.mark.parametrize("prompt_grid", [False, True])
@pytest.mark.parametrize("kind", ["block_causal", "shifted_block_causal"])
def test_two_streams_see_what_decoding_several_blocks_sees(kind: str, prompt_grid: bool) -> None:
    """Groups of 1 and 2 blocks: each is given the clean blocks before it and its own, as they are masked."""
    model, rng = make_model(kind), torch.Generator().manual_seed(4)
    model.spec = replace(model.spec, prompt_grid=prompt_grid)
    clean = torch.randint(0, 40, (2, 32), generator=rng)
    prompt_len, end = torch.tensor([9, 11]), torch.tensor([32, 30])
    masked = (torch.rand(clean.shape, generator=rng) < 0.5) & (torch.arange(32) >= prompt_len[:, None])
    noisy = clean.masked_fill(masked, 47)
    ours = model.response_blocks(prompt_len, 3 * BLOCK)
    groups = torch.tensor([[0, 1, 1], [0, 0, 2]]).repeat_interleave(BLOCK, 1)
    start = ours[:, :1] + groups * BLOCK
    ours = ours.clamp(max=31)
    logits = model.two_stream_logits(noisy.gather(1, ours)[None], clean, prompt_len, end, group_start=start)[0]
    for row, place in itertools.product(range(2), range(0, 3 * BLOCK, BLOCK)):
        from_, to = int(start[row, place]), int(ours[row, place]) + BLOCK
        if to > 32:
            continue
        canvas = torch.cat([clean[row, :from_], noisy[row, from_:to], clean[row, to:]])[None]
        expected = model.full_logits(canvas, prompt_len[row : row + 1], end[row : row + 1])[0, to - BLOCK : to]
        live = ours[row, place : place + BLOCK] < end[row]
        torch.testing.assert_close(logits[row, place : place + BLOCK][live], expected[live], atol=1e-4, rtol=1e-4)


def test_block_diffusion_shows_later_blocks_what_is_masked_before_them() -> None:
    model, seen = make_model("shifted_block_causal"), []
    canvas = torch.randint(0, 40, (40, 40), generator=torch.Generator().manual_seed(1))
    batch = Batch(canvas, torch.full((40,), 9), torch.full((40,), 38), torch.full((40,), 40))

    def record(noisy, clean, prompt_len, end, *, clean_before, group_start):
        seen.append((noisy == 47, group_start))
        return torch.zeros(*noisy.shape, 48, requires_grad=True)

    model.two_stream_logits = record
    for group in (1, 3):
        BlockDiffusion(group=group)(model, batch, torch.Generator().manual_seed(2))
    (alone, nothing), (masked, start) = seen
    response = torch.arange(32) >= 1  # the prompt's last column is in the first block
    assert nothing is None and torch.equal(alone[0] ^ alone[1], (response & (torch.arange(32) < 30)).expand(40, -1))
    assert not masked[:, :, 0].any() and not masked[:, :, 30:].any() and not torch.equal(masked[0], ~masked[1])
    assert start[:, 0].unique().tolist() == [8] and start.unique().tolist() == [8, 16, 24, 32]
    share = masked.float().unflatten(2, (4, 8)).mean(3)
    inside = start.unflatten(1, (4, 8))[:, :, 0] < torch.tensor([8, 16, 24, 32])
    assert share[:, :, 1:3][:, inside[:, 1:3]].mean() > 0.7 > 0.6 > share[:, :, 1:3][:, ~inside[:, 1:3]].mean() > 0.4
    with pytest.raises(ValueError, match="group=0 of BlockDiffusion; give a whole number"):
        BlockDiffusion(group=0)


def batch_of_two() -> Batch:
    """Prompts of 5 and 3 tokens, texts of 9 and 4 (EOS included), 16 response columns each."""
    canvas = torch.randint(3, 30, (2, 21), generator=torch.Generator().manual_seed(3))
    canvas[0, 14:], canvas[1, 7:19] = 1, 1
    return Batch(canvas, torch.tensor([5, 3]), torch.tensor([14, 7]), torch.tensor([21, 19]))


def test_blocks_are_learned_as_a_decode_that_stops_at_eos_meets_them() -> None:
    model, batch, seen = make_model("full"), batch_of_two(), []
    plain = model.full_logits
    model.full_logits = lambda canvas, *args: (seen.append((canvas, args[-1])), plain(canvas, *args))[1]
    for seed in range(30):
        MaskedDiffusion(0.0, blocks=(4,))(model, batch, torch.Generator().manual_seed(seed))
    begins = [set(), set()]
    for canvas, masked in seen:
        for row in range(2):
            columns = torch.arange(canvas.shape[1]) - batch.prompt_len[row]
            block = (columns[masked[row]] // 4).unique()
            assert len(block) == 1
            behind = (columns >= (int(block) + 1) * 4) & (columns < batch.end[row] - batch.prompt_len[row])
            is_mask = canvas[row] == model.spec.mask_id
            assert torch.equal(is_mask, masked[row] | behind)
            begins[row].add(int(block))
    assert begins == [{0, 1, 2}, {0}]


def test_a_stale_block_sees_the_other_columns_as_they_were_when_it_was_entered() -> None:
    model, batch = make_model("full").double(), batch_of_two()
    columns = torch.arange(21)
    block = (columns >= batch.prompt_len[:, None] + 4) & (columns < batch.prompt_len[:, None] + 8)
    behind = batch.response & (columns >= batch.prompt_len[:, None] + 8)
    entered = batch.canvas.masked_fill(block | behind, model.spec.mask_id)
    where = block.clone()
    logits = stale_logits(model, entered, batch.prompt_len, batch.end, block, where)
    fresh = model.full_logits(entered, batch.prompt_len, batch.end, where)
    torch.testing.assert_close(logits, fresh)  # nothing has changed since
    half = entered.clone()
    half[:, 9], half[1, 8] = batch.canvas[:, 9], batch.canvas[1, 8]  # columns of both blocks
    later = stale_logits(model, half, batch.prompt_len, batch.end, block, where)
    uncached = model.full_logits(half, batch.prompt_len, batch.end, where)
    assert not torch.allclose(later, logits) and not torch.allclose(later, uncached)
    kv = model.new_kv(batch.prompt_len, 21)
    whole = torch.arange(21).repeat(2, 1)
    plan = Plan(torch.arange(2), whole, torch.tensor([21, 21]), all_rows=True)
    model.logits(entered, plan, whole, end=batch.end, kv=kv)
    query = batch.prompt_len[:, None] + torch.arange(4, 8)
    plan = Plan(torch.arange(2), query, torch.tensor([4, 4]), all_rows=True)
    torch.testing.assert_close(later, model.logits(half, plan, query, end=batch.end, kv=kv).flatten(0, 1))


def test_a_stale_batch_passes_a_gradient_through_its_block_alone() -> None:
    model, batch = make_model("full"), batch_of_two()
    model.requires_grad_(True)
    loss = MaskedDiffusion(0.5, blocks=(4, None), stale=1.0)(model, batch, torch.Generator().manual_seed(0))
    loss.backward()
    used = model.backbone.get_input_embeddings().weight.grad.abs().sum(1) > 0
    assert not used[batch.canvas[0, :1]].any() and used[model.spec.mask_id]


@pytest.mark.parametrize(
    ("knob", "message"), [({"blocks": (0,)}, "blocks.0.=0 of MaskedDiffusion"), ({"stale": 1.5}, "stale=1.5")]
)
def test_settings_of_masked_diffusion_are_checked(knob, message) -> None:
    with pytest.raises(ValueError, match=message):
        MaskedDiffusion(**knob)


@pytest.mark.parametrize("kind", ["block_causal", "shifted_block_causal"])
def test_two_streams_see_what_decoding_a_block_sees(kind: str) -> None:
    model, rng = make_model(kind), torch.Generator().manual_seed(4)
    clean = torch.randint(0, 40, (3, 29), generator=rng)
    prompt_len, end = torch.tensor([3, 8, 11]), torch.tensor([29, 24, 21])
    masked = torch.rand(clean.shape, generator=rng) < 0.5
    masked &= torch.arange(29) >= prompt_len[:, None]
    noisy = clean.masked_fill(masked, 47)
    ours = model.response_blocks(prompt_len, 4 * BLOCK)
    within = ours.clamp(max=28)
    views = torch.stack([noisy, clean, noisy.flip(0).where(masked, clean)])
    logits = model.two_stream_logits(views.gather(2, within.expand(3, -1, -1)), clean, prompt_len, end)
    for view, first in itertools.product(range(3), range(0, 29, BLOCK)):
        block = slice(first, first + BLOCK)
        canvas = torch.cat([clean[:, :first], views[view, :, block], clean[:, first + BLOCK :]], dim=1)
        expected = model.full_logits(canvas, prompt_len, end)
        live = (ours // BLOCK == first // BLOCK) & (ours < end[:, None])
        found = expected.gather(1, within[..., None].expand(-1, -1, expected.shape[-1]))
        torch.testing.assert_close(logits[view][live], found[live], atol=1e-4, rtol=1e-4)


def test_block_diffusion_trains_each_token_once_up_to_the_block_of_the_first_eos() -> None:
    model, seen = make_model("block_causal"), []
    canvas = torch.randint(0, 40, (2, 30), generator=torch.Generator().manual_seed(1))
    canvas[0, 13:] = 46  # the first EOS is in the second block, columns 8 to 15
    batch = Batch(canvas, torch.tensor([4, 9]), torch.tensor([14, 30]), torch.tensor([28, 30]))
    plain = model.two_stream_logits

    def record(noisy, clean, prompt_len, end, **options):
        seen.append(noisy)
        return plain(noisy, clean, prompt_len, end, **options)

    model.two_stream_logits = record
    loss = BlockDiffusion(block_first="clean", eos_fill=True)(model, batch, torch.Generator().manual_seed(2))
    noisy = seen[0]
    ours = model.response_blocks(batch.prompt_len, noisy.shape[2])
    masked = (noisy == 47) & (ours < 30)
    once, again = masked
    assert not (once & again).any() and once.any() and again.any()
    expected = torch.stack([(ours[0] >= 4) & (ours[0] < 16), (ours[1] >= 9) & (ours[1] < 30)])
    assert torch.equal(once | again, expected)
    losses = []
    for view, row, place in masked.nonzero().tolist():
        column = int(ours[row, place])
        first = column // BLOCK * BLOCK
        alone = canvas[row : row + 1].clone()
        inside = ours[row] // BLOCK == column // BLOCK
        alone[0, first : first + BLOCK] = noisy[view, row, inside][: 30 - first]
        log_p = model.full_logits(alone, batch.prompt_len[row : row + 1], batch.end[row : row + 1]).log_softmax(-1)
        losses.append(-log_p[0, column, canvas[row, column]])
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_the_causal_baseline_starts_with_a_head_that_looks_back() -> None:
    model = scratch_causal(build_tokenizer(["ab"]))
    model.backbone.set_attn_implementation("eager")
    tokens = torch.randint(6, 100, (2, 40), generator=torch.Generator().manual_seed(0))
    attention = model.backbone(tokens, output_attentions=True).attentions[0]
    assert attention[:, 0].diagonal(-1, 1, 2).min() > 0.9 > 0.5 > attention[:, 1].diagonal(-1, 1, 2)[:, 5:].max()


def test_next_token_loss_ends_with_the_first_eos() -> None:
    tokenizer = build_tokenizer(["ab"])
    model = scratch_causal(tokenizer, width=16, layers=1, heads=2, mlp_width=16)
    canvas = torch.tensor([[10, 11, 12, 13, 1, 1, 1], [10, 11, 12, 13, 14, 15, 1]])
    batch = Batch(canvas, torch.tensor([2, 3]), torch.tensor([5, 7]), torch.tensor([7, 7]))
    loss = NextToken()(model, batch, torch.Generator())
    log_p = model.backbone(canvas).logits.log_softmax(-1)
    rows = [[-log_p[0, c - 1, canvas[0, c]] for c in (2, 3, 4)], [-log_p[1, c - 1, canvas[1, c]] for c in (3, 4, 5, 6)]]
    torch.testing.assert_close(loss, sum(sum(row) / len(row) for row in rows) / 2)


def test_resumed_training_equals_uninterrupted(tmp_path) -> None:
    canvas = torch.randint(0, 40, (8, 12), generator=torch.Generator().manual_seed(1))
    batch = Batch(canvas, torch.full((8,), 4), torch.full((8,), 12), torch.full((8,), 12))

    def train(folder, stop_at: int | None) -> dict[str, torch.Tensor]:
        model = make_model("mixed")
        objective = MaskedDiffusion()

        def loss(step: int, rng: torch.Generator) -> torch.Tensor:
            if step == stop_at:
                raise KeyboardInterrupt
            return objective(model, batch, rng)

        fit(model, loss, FitConfig(steps=12, warmup=2, save_every=4), folder)
        return model.state_dict()

    whole = train(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed", 7)
    resumed = train(tmp_path / "killed", None)
    for name, value in whole.items():
        assert value.equal(resumed[name]), name
    assert not value.equal(make_model("mixed").state_dict()[name])
    assert [p.name for p in (tmp_path / "killed").glob("*.safetensors")] == ["state-12.safetensors"]


SMALL_RUN = ("threads=1", "fit.steps=6", "fit.save_every=2")
SMALL_NET = ("model.width=16", "model.heads=2", "model.layers=1", "data.batch_size=2")
RECURRENT = ("model._target_=dllm.training.scratch.scratch_recurrent", "+model.recurrences=2", "~model.layers")
COMMANDS = {
    "masked": ("train.py", "objective=mdlm", *SMALL_NET),
    "accumulated": ("train.py", "objective=mdlm", *SMALL_NET, "fit.accumulate=2"),
    "next token": (
        "train.py",
        "objective=next_token",
        "model._target_=dllm.training.scratch.scratch_causal",
        *SMALL_NET,
    ),
    "recurrent": (
        "train.py",
        "objective=next_token",
        *(part for part in SMALL_NET if "layers" not in part),
        *RECURRENT,
    ),
    "block diffusion": (
        "train.py",
        "objective=block_diffusion",
        "init=tiny-ar",
        "spec={shift: 1, block: 8}",
        "data.batch_size=2",
    ),
}


def finished(folder: Path, *command: str, launcher: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    script = str(Path(__file__).parents[2] / "scripts" / command[0])
    line = [sys.executable, *launcher, script, *SMALL_RUN, *command[1:], f"out_dir={folder}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(line, cwd=folder.parent, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_training_command_killed_ends_with_the_same_weights(tmp_path, name: str) -> None:
    command = [part.replace("tiny-ar", str(ASSETS / "tiny-ar")) for part in COMMANDS[name]]
    assert finished(tmp_path / "whole", *command).returncode == 0
    script = str(Path(__file__).parents[2] / "scripts" / command[0])
    line = [sys.executable, script, *SMALL_RUN, *command[1:], f"out_dir={tmp_path / 'killed'}"]
    process = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "killed" / "checkpoint" / "state.json").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    done = finished(tmp_path / "killed", *command)
    assert done.returncode == 0, done.stderr
    weights = [tmp_path / run / "model" / "model.safetensors" for run in ("whole", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    logs = [(tmp_path / run / "checkpoint" / "log.jsonl").read_text() for run in ("whole", "killed")]
    assert logs[0] == logs[1] and json.loads(logs[0].splitlines()[-1])["step"] == 6


@pytest.mark.slow
def test_two_processes_train_like_one_that_accumulates(tmp_path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = ("train.py", "objective=mdlm", *SMALL_NET)
    for folder, extra, how in (("two", (), launcher), ("one", ("fit.accumulate=2",), ())):
        done = finished(tmp_path / folder, *command, *extra, launcher=how)
        assert done.returncode == 0, done.stderr
    two, one = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("two", "one"))
    for key, value in two.items():
        torch.testing.assert_close(value, one[key], atol=1e-4, rtol=1e-4)
    record = json.loads((tmp_path / "two" / "model" / "training.json").read_text())
    assert record["sequences"] == 24 and record["device"] == "2 x cpu, 1 thread(s)" and "git" in record


def test_bf16_trains_float32_weights(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    canvas = torch.randint(0, 40, (8, 12), generator=torch.Generator().manual_seed(1))
    batch = Batch(canvas, torch.full((8,), 4), torch.full((8,), 12), torch.full((8,), 12))

    def losses(precision: str) -> list[float]:
        model, objective, seen = make_model("mixed"), MaskedDiffusion(), []
        fit(
            model,
            lambda step, rng: objective(model, batch, rng),
            FitConfig(steps=40, warmup=2, precision=precision),
            tmp_path / precision,
            on_log=lambda step, numbers: seen.append(numbers["loss"]),
        )
        assert all(weight.dtype == torch.float32 for weight in model.state_dict().values())
        return seen

    full = losses("float32")
    with pytest.warns(UserWarning, match="bfloat16 is several times as slow as float32"):
        half = losses("bf16")
    assert half != full and half[-1] < half[0]


def test_a_checkpoint_of_other_settings_is_refused(tmp_path) -> None:
    def loss(step: int, rng: torch.Generator) -> torch.Tensor:
        return sum(p.square().sum() for p in model.parameters())

    model = make_model("full")
    fit(model, loss, FitConfig(steps=2), tmp_path)
    with pytest.raises(ValueError, match="other settings"):
        fit(model, loss, FitConfig(steps=3), tmp_path)


def test_the_training_command_trains_and_continues(tmp_path) -> None:
    script = Path(__file__).parents[2] / "scripts" / "train.py"
    small = ["fit.steps=2", "data.batch_size=2", "model.width=16", "model.heads=2", "model.layers=1", "threads=1"]

    def train(*arguments: str) -> str:
        done = forked.run(script, "objective=mdlm", *small, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    train("out_dir=first")
    said = train("out_dir=second", "init=first/model", "seed=1", "fit.muon_lr=0", "fit.adamw_lr=0")
    record = json.loads((tmp_path / "second" / "model" / "training.json").read_text())
    assert record["steps"] == 2 and record["config"]["model"]["model"]["config"]["seed"] == 0
    with_it = "python -m parallelbench run model=local model.name_or_path=second/model"
    assert said == (
        f"second/model has a validation loss of {record['validation_loss']:.4f}; this decodes with it: {with_it}\n"
    )
    canvas, prompt_len = torch.randint(6, 90, (1, 12)), torch.tensor([4])
    first, second = (
        dllm.load(tmp_path / name / "model").full_logits(canvas, prompt_len) for name in ("first", "second")
    )
    assert first.equal(second)  # a learning rate of 0 leaves the weights it started from


def test_schedules_end_where_they_say() -> None:
    for schedule, middle in (("linear", 0.55), ("cosine", 0.55), ("constant", 1.0)):
        config = FitConfig(steps=100, warmup=10, schedule=schedule, decay=0.4, floor=0.1)
        assert config.lr_scale(4) == pytest.approx(0.5) and config.lr_scale(50) == 1.0
        assert config.lr_scale(80) == pytest.approx(middle)
    assert FitConfig(steps=100, schedule="cosine", decay=0.4, floor=0.1).lr_scale(99) < 0.11
    for wrong in ({"betas": [0.9]}, {"floor": 2.0}, {"clip": 0.0}, {"adamw_lr": float("nan")}, {"validate_every": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            FitConfig(**wrong)


@pytest.mark.parametrize("adapter", [False, True])
def test_forgotten_activations_change_no_weight_and_frozen_ones_stay(tmp_path, adapter: bool) -> None:
    canvas = torch.randint(0, 40, (8, 12), generator=torch.Generator().manual_seed(1))
    batch = Batch(canvas, torch.full((8,), 4), torch.full((8,), 12), torch.full((8,), 12))

    def trained(**settings) -> dict[str, torch.Tensor]:
        model, objective = make_model("full"), MaskedDiffusion()
        if adapter:
            Lora(r=2).inject(model, 0)
        config = FitConfig(steps=3, warmup=1, muon_lr=None, adamw_lr=0.01, **settings)
        fit(model, lambda step, rng: objective(model, batch, rng), config, tmp_path / str(len(settings)))
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    before = make_model("full").state_dict()
    plain, forgetful = trained(), trained(checkpointing=True)
    assert plain.keys() == forgetful.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(forgetful[name], tensor)
    if not adapter:
        frozen = trained(frozen=["embed_tokens"], clip=None)
        moved = {name for name, tensor in frozen.items() if not tensor.equal(before[name])}
        assert moved and not any("embed_tokens" in name for name in moved)
        with pytest.raises(ValueError, match=r"frozen='nothing' finds no parameter"):
            trained(frozen=["nothing"], clip=1.0, seed=3)
