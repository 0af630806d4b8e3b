"""Certainty-forcing distillation: what is masked, each loss term against a hand computation, the data's filter, and
the command from trajectories to weights, killed and resumed."""

import json
import math
import runpy
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import torch
from conftest import EOS, MASK, PAD, make_model
from safetensors.torch import load_file
from torch import Tensor

import dllm
from dllm import DiffusionLM
from dllm.training.certainty import CertaintyForcing
from dllm.training.fit import FitConfig, fit
from dllm.training.lora import Lora
from dllm.training.objectives import Batch, active_block
from parallelbench.records.record import Record, Run
from parallelbench.tasks import Suite
from parallelbench.tasks.base import TRAIN_SEED_MIN, is_held_out
from parallelbench.training.trajectories import correct_trajectories, train_tasks

SCRIPT = Path(__file__).parents[2] / "scripts" / "distill.py"


def make_batch(rows: int = 6, prompt: int = 3, text: int = 11, response: int = 24) -> Batch:
    """Rows with prompts of 3 or 4 tokens and `text` tokens before their EOS padding."""
    rng = torch.Generator().manual_seed(1)
    prompt_len = prompt + torch.arange(rows) % 2
    canvas = torch.full((rows, prompt + 1 + response), PAD)
    for row, start in enumerate(prompt_len.tolist()):
        canvas[row, : start + response] = EOS
        canvas[row, : start + text] = torch.randint(0, 40, (start + text,), generator=rng)
    return Batch(canvas, prompt_len, prompt_len + text + 1, prompt_len + response)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_active_blocks_are_those_with_text_and_the_last_takes_the_padding() -> None:
    batch = make_batch(rows=400)  # 11 tokens in blocks of 8: blocks 0 and 1 of three
    active, later = active_block(make_model("full").spec, batch, 8, rng(), "text")
    offset = torch.arange(batch.canvas.shape[1]) - batch.prompt_len[:, None]
    first = active.gather(1, batch.prompt_len[:, None])[:, 0]
    assert 150 < first.sum() < 250
    assert active[first].equal(((offset >= 0) & (offset < 8))[first])
    assert later[first].equal(((offset >= 8) & (offset < 24))[first])
    assert active[~first].equal(((offset >= 8) & (offset < 24))[~first]) and not later[~first].any()
    whole, none = active_block(make_model("full").spec, batch, None, rng())
    assert whole.equal((offset >= 0) & (offset < 24)) and not none.any()


def test_published_blocks_are_those_of_the_whole_canvas() -> None:
    batch = make_batch(rows=900)  # 24 columns in blocks of 10: three blocks, the last of 4 columns
    active, later = active_block(make_model("full").spec, batch, 10, rng())
    offset = torch.arange(batch.canvas.shape[1]) - batch.prompt_len[:, None]
    chosen = offset.where(active, 99).amin(1) // 10
    assert torch.bincount(chosen, minlength=3).tolist() == pytest.approx([300, 300, 300], abs=60)
    assert active.equal((offset // 10 == chosen[:, None]) & (offset >= 0) & (offset < 24))
    assert later.equal((offset // 10 > chosen[:, None]) & (offset >= 0) & (offset < 24))


def test_blocks_of_a_block_causal_model_lie_on_its_grid() -> None:
    batch, spec = make_batch(rows=100), make_model("block_causal").spec
    active, _ = active_block(spec, batch, 8, rng(), "text")
    columns = torch.arange(batch.canvas.shape[1])
    assert {int(columns[row].min()) for row in active} == {3, 4, 8}
    with pytest.raises(ValueError, match="a block of 5, but this block-causal model has blocks of 8"):
        active_block(spec, batch, 5, rng())


def watched(
    monkeypatch: pytest.MonkeyPatch, table: torch.Tensor | None = None
) -> tuple[DiffusionLM, list[torch.Tensor]]:
    """A model that notes the canvases it sees, and that answers with `table` where one is given."""
    model, seen = make_model("full"), []
    forward = model.full_logits

    def full_logits(canvas: Tensor, prompt_len: Tensor, end: Tensor, where: Tensor) -> Tensor:
        seen.append(canvas)
        return forward(canvas, prompt_len, end, where) if table is None else torch.cat([table, table])[where]

    monkeypatch.setattr(model, "full_logits", full_logits)
    return model, seen


@pytest.mark.parametrize("ratio", [0.5, "uniform"])
def test_two_views_cover_each_active_column_once_and_hide_what_comes_later(monkeypatch, ratio) -> None:
    batch = make_batch(rows=400)
    model, seen = watched(monkeypatch)
    CertaintyForcing(block_len=8, mask_ratio=ratio)(model, batch, rng(5))
    active, later = active_block(model.spec, batch, 8, rng(5))
    seen = seen[0].chunk(2)
    one, two = (canvas == MASK for canvas in seen)
    assert (one & two).equal(later) and (one | two).equal(active | later)
    for canvas in seen:
        assert canvas[canvas != MASK].equal(batch.canvas[canvas != MASK])
    share = (one & active).sum(1) / active.sum(1)
    assert 0.45 < share.mean() < 0.55
    assert (share.std() > 0.2) == (ratio == "uniform")


def test_each_term_is_what_its_definition_says(monkeypatch) -> None:
    batch = make_batch()
    batch.canvas[0, 3:27] = torch.arange(24) % 5  # row 0: text to the end
    table = torch.randn(*batch.canvas.shape, 48, generator=rng(7))
    table[..., MASK] = -math.inf
    right = torch.rand(batch.canvas.shape, generator=rng(8)) < 0.5
    right[1] = False  # no correct prediction in this row
    table.scatter_add_(2, batch.canvas[..., None], 3.0 * right[..., None])

    def by_hand(view: torch.Tensor, temperature: float) -> tuple[float, float]:
        """Both terms of a view, token by token."""
        consistency = certainty = 0.0
        for row in range(len(view)):
            losses, entropies = [], []
            for column in ((view[row] == MASK) & active[row]).nonzero()[:, 0].tolist():
                token, logits = int(batch.canvas[row, column]), table[row, column].tolist()
                total = sum(math.exp(x) for x in logits)
                losses.append(-math.log(math.exp(logits[token]) / total))
                if max(logits) == logits[token]:
                    cold = [math.exp(x / temperature) for x in logits]
                    entropies.append(-sum(c / sum(cold) * math.log(c / sum(cold)) for c in cold if c))
            consistency += sum(losses) / max(len(losses), 1) / len(view)
            certainty += sum(entropies) / max(len(entropies), 1) / len(view)
        return consistency, certainty

    model, seen = watched(monkeypatch, table)
    active, _ = active_block(model.spec, batch, 8, rng(2))
    loss = {}
    for weights in ((1.0, 0.0), (0.0, 1.0), (1.0, 2.0)):
        seen.clear()
        loss[weights] = float(CertaintyForcing(*weights, temperature=0.5, block_len=8)(model, batch, rng(2)))
    terms = [by_hand(view, 0.5) for view in seen[0].chunk(2)]
    consistency, certainty = (sum(term) for term in zip(*terms, strict=True))
    assert consistency > 0.5 and certainty > 1e-4
    assert loss[1.0, 0.0] == pytest.approx(consistency, rel=1e-4)
    assert loss[0.0, 1.0] == pytest.approx(certainty, rel=1e-4)
    assert loss[1.0, 2.0] == pytest.approx(consistency + 2 * certainty, rel=1e-4)


def test_certainty_pushes_correct_predictions_only(monkeypatch) -> None:
    batch = make_batch()
    table = torch.randn(*batch.canvas.shape, 48, generator=rng(7))
    table[..., MASK] = -math.inf
    table.requires_grad_(True)
    model, _ = watched(monkeypatch, table)
    CertaintyForcing(consistency=0.0, block_len=None)(model, batch, rng(2)).backward()
    assert table.grad is not None and table.grad.isfinite().all()
    response, _ = active_block(model.spec, batch, None, rng())
    correct = (table.argmax(-1) == batch.canvas) & response
    assert correct.any() and (table.grad.abs().sum(-1) > 0).equal(correct)


def test_no_correct_prediction_gives_no_certainty_and_still_a_gradient(monkeypatch) -> None:
    batch = make_batch(rows=2)
    table = torch.zeros(*batch.canvas.shape, 48).index_fill(2, torch.tensor([44]), 9.0).requires_grad_(True)
    model, _ = watched(monkeypatch, table)
    loss = CertaintyForcing(consistency=0.0)(model, batch, rng())
    loss.backward()
    assert loss == 0 and table.grad is not None and not table.grad.any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"consistency": 0.0, "certainty": 0.0}, "not both 0"),
        ({"temperature": 0.0}, r"temperature=0.0 of CertaintyForcing; give a number in \(0, 1e6\]"),
        ({"block_len": 0}, r"block_len=0 of CertaintyForcing; give a whole number in \[1, 1e6\] or null"),
        ({"mask_ratio": 1.0}, r"mask_ratio=1.0 .*; give a number in \(0, 1\) or uniform"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        CertaintyForcing(**settings)


def test_training_samples_are_no_benchmark_samples() -> None:
    (task,) = train_tasks(Suite(["waiting_line/copy"]))
    samples = task.samples(40, TRAIN_SEED_MIN)
    assert not any(is_held_out(sample.messages[0]["content"]) for sample in samples)
    assert all(task.score(sample, sample.target)["score"] == 1 for sample in samples)
    with pytest.raises(ValueError, match="smaller seeds belong to the benchmark"):
        task.samples(1, 0)


def test_only_correct_trajectories_are_learned_from() -> None:
    def record(i: int, score: float) -> Record:
        text = {"prompt": f"say {i}", "prompt_sha": "", "data": {}, "target": "", "completion": "", "batch": "0"}
        tokens = {"token_ids": [20 + i] * (i + 1), "num_tokens": i + 1, "committed_at": [0], "nfe": i + 1, "queried": 1}
        about = {"task": "t", "task_version": "1", "stopped_by": "eos", "batch_size": 1}
        about |= {"latency_s": 0.1, "share_s": 0.1}
        return Record(id=str(i), scores={"score": score}, **text, **tokens, **about)

    tiny = dllm.load("tiny")
    run = Run(Path("somewhere"), {}, {}, [record(i, float(i % 2)) for i in range(6)])
    data = correct_trajectories(run, tiny, gen_len=8, batch_size=300, seed=0)
    batch = data.batch(3)
    columns = torch.arange(batch.canvas.shape[1])
    length = [0, 0, 0]
    for tokens, prompt, end in zip(batch.canvas, batch.prompt_len, batch.end, strict=True):
        text, padding = tokens[prompt:end].unique_consecutive().tolist()
        n = text - 19
        assert padding == tiny.spec.eos_ids[0] and (tokens[prompt:end] == text).sum() == n and end - prompt == 8
        assert (tokens[columns >= end] == tiny.spec.pad_id).all()
        length[n // 2 - 1] += 1
    assert length[0] < length[1] < length[2]  # drawn by the forwards they took: 2, 4 and 6
    assert data.batch(3).canvas.equal(batch.canvas) and not data.batch(4).canvas.equal(batch.canvas)
    with pytest.raises(ValueError, match="none of the 1 trajectories in somewhere is correct"):
        correct_trajectories(Run(Path("somewhere"), {}, {}, [record(0, 0.0)]), tiny, 8, 2, 0)


@pytest.mark.parametrize("lora", [None, Lora(r=2, alpha=4.0)])
def test_a_killed_distillation_resumes_to_the_same_weights(tmp_path, lora) -> None:
    batch, config = make_batch(), FitConfig(steps=8, warmup=2, save_every=3, muon_lr=None, adamw_lr=1e-2)

    def train(folder: Path, stop_at: int | None) -> DiffusionLM:
        model = make_model("mixed")
        if lora is not None:
            lora.inject(model, seed=0)

        def loss(step: int, rng: torch.Generator) -> torch.Tensor:
            if step == stop_at:
                raise KeyboardInterrupt
            return CertaintyForcing(block_len=8)(model, batch, rng)

        fit(model, loss, config, folder)
        return model

    whole = train(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed", 5)
    resumed = train(tmp_path / "killed", None).state_dict()
    for name, value in whole.state_dict().items():
        assert value.equal(resumed[name]), name
    if lora is not None:
        base = make_model("mixed").state_dict()
        for name, value in whole.state_dict().items():
            if "lora_" not in name:
                assert value.equal(base[name.replace(".base_layer", "")]), name
        assert all(
            "lora_" in name for name in load_file(tmp_path / "whole" / "state-8.safetensors") if "model." in name[:6]
        )


def test_a_trained_adapter_is_one_that_loads(tmp_path) -> None:
    tiny = dllm.load("tiny")
    before = logits(tiny)
    Lora(r=3, alpha=6.0, targets=("q_proj", "down_proj")).inject(tiny, seed=1)
    assert logits(tiny).equal(before)
    for name, parameter in tiny.named_parameters():
        assert parameter.requires_grad == ("lora_" in name)
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=rng())
    Lora(r=3, alpha=6.0, targets=("q_proj", "down_proj")).save(tiny, tmp_path, "tiny")
    assert not logits(tiny).allclose(before, atol=1e-2)
    torch.testing.assert_close(logits(dllm.load("tiny", adapter=tmp_path)), logits(tiny))
    with pytest.raises(ValueError, match="already has an adapter"):
        Lora().inject(tiny, seed=0)
    with pytest.raises(ValueError, match="has linear layers"):
        Lora(targets=("w_pack",)).inject(make_model("full"), seed=0)
    make_model("full").backbone.save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=r"adapter .* has factors of shapes .* which maps"):
        dllm.load(tmp_path / "other", spec={"mask_id": MASK, "eos_ids": [EOS]}, adapter=tmp_path)


def logits(model: DiffusionLM) -> torch.Tensor:
    with torch.no_grad():
        return model.full_logits(torch.arange(6, 18)[None], torch.tensor([5]))


SMALL = [
    "threads=1",
    "recipe=dparallel_tiny",
    "fit.steps=2",
    "batch_size=4",
    "limit=3",
    "suite.tasks=[waiting_line/copy,waiting_line/shuffle]",
]
FAST = ["decoder=threshold", "decoder.rule.tau=0.9"]


def distill(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return forked.run(SCRIPT, *SMALL, *FAST, *arguments, cwd=folder)


def test_the_command_distils_the_shipped_model_and_repeats_nothing(tmp_path) -> None:
    done = distill(tmp_path, "out_dir=out")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "model" / "training.json").read_text())
    assert record["steps"] == 2 and record["trajectories"]["decoded"] == 6 and record["config"]["data_seed"] >= 2**31
    assert not logits(dllm.load(tmp_path / "out" / "model")).equal(logits(dllm.load("tiny")))
    lines = (tmp_path / "out" / "trajectories" / "samples.jsonl").read_bytes()

    control = distill(tmp_path, "out_dir=control", "trajectories=out/trajectories", "objective=mdlm", "lora={r: 2}")
    assert control.returncode == 0, control.stderr
    assert (tmp_path / "out" / "trajectories" / "samples.jsonl").read_bytes() == lines
    assert (tmp_path / "control" / "adapter" / "adapter_model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data_seed=3"], "smaller seeds belong to the benchmark"),
        (["gen_length=40"], "not a multiple of block_length=32"),
        (["objective.certainty=-1.0"], "objective.certainty=-1.0; give a number in [0, 1e6]"),
        (["lora={r: 0}"], "r=0 of Lora; give a whole number in [1, 1e6]"),
        (["gen_length=4", "block_length=4"], "is correct, so there is nothing to learn from"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["distill.py", *SMALL, *FAST, *arguments])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert stop.value.code == 2
    assert message in (error := capsys.readouterr().err) and error.strip().splitlines()[-1].startswith("error: ")
