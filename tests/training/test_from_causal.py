"""Training starts from any model: stock causal LMs become block-diffusion LMs, with a MASK token of their own."""

import json
import os
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import forked
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

import dllm
from dllm.adapter import MASK_TOKEN, is_attached, merge
from dllm.causal import CausalLM
from dllm.training.lora import Lora
from dllm.training.objectives import Batch, BlockDiffusion
from dllm.training.start import show_noise, start_from
from dllm.training.tokenizer import build_tokenizer
from parallelbench.training.usage import adapted
from parallelbench.wiring.overrides import check_overrides

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT.parent / "shared" / "golden"
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
STOCK = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}


def stock(folder: Path, kind: str, spare: int = 0, mask: bool = False) -> str:
    """A random checkpoint as transformers saves it, whose tokenizer knows no MASK unless told so."""
    tokenizer = build_tokenizer(["hello"])
    if not mask:
        tokenizer._special_tokens_map["mask_token"] = None
    config_type, model_type = STOCK[kind]
    config = config_type(
        **SIZES, vocab_size=len(tokenizer) + spare, eos_token_id=tokenizer.eos_token_id, bos_token_id=None, head_dim=8
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model_type(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def script(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    env["HF_DATASETS_CACHE"] = str(folder / "cache")
    return forked.run(ROOT / "scripts" / name, "threads=1", *arguments, cwd=folder, env=env)


SHORT = ("fit.steps=2", "fit.save_every=1", "fit.muon_lr=null", "fit.adamw_lr=0.001", "validation_batches=1")
TEXTS = [{"question": f"How much is {i} and 1?", "answer": f"It is {i + 1}."} for i in range(40)]


@pytest.mark.parametrize("kind", STOCK)
def test_the_block_diffusion_command_runs_on_a_stock_folder(tmp_path: Path, kind: str) -> None:
    stock(tmp_path / "base", kind)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TEXTS))
    rows = ("data=rows", "data.source=rows.jsonl", "data.prompt=question", "data.batch_size=2")
    spec = "spec={shift: 1, block: 8}"
    done = script(
        tmp_path, "train.py", "objective=block_diffusion", "init=base", spec, *rows, *SHORT, "name=x", "out_dir=out"
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "model" / "training.json").read_text())
    model = dllm.load(tmp_path / "out" / "model")
    assert isinstance(model, dllm.DiffusionLM) and model.spec.block == 8 and model.spec.shift == 1
    assert record["mask"] == {"id": model.spec.mask_id, "token": MASK_TOKEN} and record["data"]["rows"] > 20
    assert record["validation_loss"] > 0 and record["tokens"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("init", [["init=tiny"], ["model.width=16", "model.heads=2", "model.layers=1"]])
def test_the_uniform_command_makes_a_model_that_sees_noise(tmp_path: Path, init: list[str]) -> None:
    small = ("data.batch_size=2", "fit.steps=2", "fit.save_every=1", "validation_batches=1")
    done = script(tmp_path, "train.py", "objective=uniform", *init, *small, "name=x", "out_dir=out")
    assert done.returncode == 0, done.stderr
    model = dllm.load(tmp_path / "out" / "model")
    assert isinstance(model, dllm.DiffusionLM) and model.spec.noise == model.spec.mask_id == model.vocab_size - 1
    record = json.loads((tmp_path / "out" / "model" / "training.json").read_text())
    assert record["mask"] == {"id": model.spec.mask_id, "token": MASK_TOKEN}
    assert script(tmp_path, "train.py", "objective=mdlm", "init=out/model", *small, "out_dir=again").returncode == 2


def test_mask_is_a_spare_row_or_an_added_one(tmp_path: Path) -> None:
    spare = start_from(stock(tmp_path / "spare", "qwen2", spare=7), spec={"block": 4}, causal=False)
    added = start_from(stock(tmp_path / "added", "llama"), spec={"block": 4}, causal=False)
    named = start_from(stock(tmp_path / "named", "llama", mask=True), spec={"block": 4}, causal=False)
    count = len(build_tokenizer(["hello"]))
    assert isinstance(spare, dllm.DiffusionLM) and isinstance(added, dllm.DiffusionLM)
    assert spare.spec.mask_id == added.spec.mask_id == count
    assert spare.backbone.config.vocab_size == count + 7 and added.backbone.config.vocab_size == count + 1
    weight = added.backbone.get_input_embeddings().weight
    torch.testing.assert_close(weight[count], weight[:count].mean(0))
    assert named.spec.mask_id == build_tokenizer(["hello"]).mask_token_id
    given = start_from(str(tmp_path / "spare"), spec={"block": 4, "mask_id": count + 3}, causal=False)
    assert given.spec.mask_id == count + 3
    assert isinstance(start_from(str(tmp_path / "spare"), spec=None, causal=True), CausalLM)
    with pytest.raises(ValueError, match="is for diffusion models"):
        start_from(str(tmp_path / "spare"), spec={"block": 4}, causal=True)


def test_an_adapter_becomes_part_of_the_weights_that_another_is_trained_on(tmp_path: Path) -> None:
    base = stock(tmp_path / "base", "llama")
    first = start_from(base, spec=None, causal=True)
    Lora(r=2).inject(first, 0)
    torch.manual_seed(0)
    for name, weight in first.backbone.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    Lora(r=2).save(first, tmp_path / "first", base)
    again = start_from(base, spec={"block": 4, "shift": 1}, causal=False, adapter=str(tmp_path / "first"))
    assert not is_attached(again)
    ids = torch.randint(0, 9, (1, 7))
    wanted = first.backbone(ids).logits
    got = again.backbone(ids, attention_mask=torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()).logits
    torch.testing.assert_close(got[..., : wanted.shape[-1]], wanted, rtol=1e-4, atol=1e-4)
    Lora(r=2).inject(again, 0)  # the next one


@pytest.mark.parametrize("active", ["everywhere", "drafts"])
def test_an_adapter_on_a_base_without_a_row_for_mask_decodes_as_it_was_trained(tmp_path: Path, active: str) -> None:
    base, spec = stock(tmp_path / "base", "llama"), {"block": 4, "shift": 1, "context_causal": active == "drafts"}
    model = start_from(base, spec=spec, causal=False)
    assert isinstance(model, dllm.DiffusionLM) and model.spec.mask_id == len(build_tokenizer(["hello"]))
    lora, folder, rng = Lora(r=2, active=active), tmp_path / "adapter", torch.Generator().manual_seed(0)
    lora.inject(model, 0)
    for name, weight in model.named_parameters():
        if "lora_B" in name or name == "mask_embedding":
            torch.nn.init.normal_(weight, generator=rng)
    lora.save(model, folder, base)
    words = adapted(model, base, None, folder, spec)
    loaded = dllm.load(**words)
    assert isinstance(loaded, dllm.DiffusionLM) and loaded.spec == model.spec
    assert loaded.tokenizer is not None and loaded.tokenizer.mask_token == MASK_TOKEN
    ids, start = torch.randint(6, 60, (1, 12), generator=rng), torch.tensor([4])
    ids[:, 8:] = model.spec.mask_id
    if active == "everywhere":
        merge(model)  # as loading does
    with torch.no_grad():
        assert loaded.full_logits(ids, start).equal(model.eval().full_logits(ids, start))
    further = start_from(base, spec=spec, causal=False)
    assert isinstance(further, dllm.DiffusionLM)
    replace(lora, start=str(folder)).inject(further, 1)
    if active == "everywhere":
        merge(further)
    with torch.no_grad():
        assert further.eval().full_logits(ids, start).equal(loaded.full_logits(ids, start))
    for wrong in ({"r": 3}, {"alpha": 8.0}, {"targets": ("q_proj",)}):
        with pytest.raises(ValueError, match=rf"lora\.{next(iter(wrong))}=.*give that"):
            replace(lora, start=str(folder), **wrong).inject(start_from(base, spec=spec, causal=False), 0)
    with pytest.raises(ValueError, match="'nowhere' has no adapter_config"):
        replace(lora, start="nowhere").inject(start_from(base, spec=spec, causal=False), 0)
    for other in ({**words, "adapter": None}, {**words, "spec": {**spec, "mask_id": model.spec.mask_id + 1}}):
        with pytest.raises(ValueError, match="is outside the vocabulary of"):
            dllm.load(**other)


@pytest.mark.parametrize("spare", [0, 5])
def test_an_adapter_of_uniform_state_loads_on_its_base(tmp_path: Path, spare: int) -> None:
    base = stock(tmp_path / "base", "qwen2", spare)
    model = start_from(base, spec=None, causal=False)
    assert isinstance(model, dllm.DiffusionLM) and model.tokenizer is not None
    tokens = len(model.tokenizer) - 1
    show_noise(model)
    assert model.spec.mask_id == model.spec.noise == tokens  # the MASK that was added, and no second one
    lora = Lora(r=2)
    lora.inject(model, 0)
    lora.save(model, tmp_path / "adapter", base)
    loaded = dllm.load(**adapted(model, base, None, tmp_path / "adapter", None))
    assert isinstance(loaded, dllm.DiffusionLM) and loaded.spec == model.spec
    ids, start = torch.randint(tokens, (1, 8), generator=torch.Generator().manual_seed(0)), torch.tensor([4])
    with torch.no_grad():
        assert loaded.full_logits(ids, start).equal(model.eval().full_logits(ids, start))


def test_drafts_only_leave_the_stock_model_as_it_is_and_resume_to_the_same_weights(tmp_path: Path) -> None:
    stock(tmp_path / "base", "llama")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TEXTS))
    common = (
        "objective=drafting",
        "init=base",
        "spec={shift: 1, block: 8, context_causal: true}",
        "lora={r: 4, alpha: 8, active: drafts}",
        "data=rows",
        "data.source=rows.jsonl",
        "data.prompt=question",
        "data.batch_size=2",
        *SHORT,
        "fit.steps=4",
    )
    for out in ("whole", "again"):
        done = script(tmp_path, "train.py", *common, f"out_dir={out}")
        assert done.returncode == 0, done.stderr
    line = shlex.split(done.stdout.partition("this decodes with it: ")[2])
    check_overrides(line[4:])
    assert f"mask_id: {len(build_tokenizer(['hello']))}" in line[-1]
    whole, again = (tmp_path / out / "adapter" / "adapter_model.safetensors" for out in ("whole", "again"))
    assert whole.read_bytes() == again.read_bytes() and "mask_embedding" in load_file(whole)
    other = script(tmp_path, "train.py", *common, "fit.adamw_lr=0.5", "out_dir=whole")
    assert other.returncode == 2 and "holds a run with other settings" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["init=nobody/nothing"], "cannot load model 'nobody/nothing'"),
        (["init=bare"], "has no tokenizer"),
        (["init=base", "data=rows", "data.source=rows.jsonl"], "has no column 'prompt'"),
        (["init=base", "data=rows", "data.source=empty.jsonl"], "error: data.source=empty.jsonl"),
        (
            ["init=base", "data=rows", "data.source=rows.jsonl", "data.prompt=question", "data.max_length=9"],
            "more than data.max_length=9",
        ),
        (["init=base", "adapter=wrong"], "adapter 'wrong' has factors"),
        (["init=base", "lora={r: 0}"], "r=0 of Lora; give a whole number"),
        (["lora={r: 4}"], "name it with init="),
    ],
)
def test_bad_input_is_one_sentence_before_the_first_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    arguments: list[str],
    message: str,
) -> None:
    stock(tmp_path / "base", "llama")
    stock(tmp_path / "bare", "llama")
    for file in (tmp_path / "bare").glob("token*"):
        file.unlink()
    wide = start_from(stock(tmp_path / "other", "qwen2"), spec={"block": 4}, causal=False)
    lora = Lora(r=2, targets=("down_proj",))
    lora.inject(wide, 0)
    lora.save(wide, tmp_path / "wrong", "other")
    about = json.loads((tmp_path / "wrong" / "adapter_config.json").read_text())
    (tmp_path / "wrong" / "adapter_config.json").write_text(json.dumps({**about, "r": 3}))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TEXTS))
    (tmp_path / "empty.jsonl").write_text("")
    settings = ["objective=block_diffusion", "spec={shift: 1, block: 8}", *SHORT, *arguments, "threads=1", "out_dir=o"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", *settings])
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for module in ("huggingface_hub.constants", "datasets.config"):
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", True)
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "scripts" / "train.py"), run_name="__main__")
    assert stop.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ") and message in last and not (tmp_path / "o").exists()


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the recordings are not beside this checkout")
@pytest.mark.parametrize("name", ["b1_l64", "b2_l96"])
def test_a_step_of_fast_dllm_v2_has_the_released_loss(name: str) -> None:
    recorded = load_file(GOLDEN / "fastdllm_v2_train" / f"{name}.safetensors")
    loss = json.loads((GOLDEN / "fastdllm_v2_train" / f"{name}.json").read_text())["loss"]
    model = dllm.load(GOLDEN / "models" / "fast_dllm_v2_tiny")
    ids, learned = recorded["ids"], recorded["labels_in"] != -100
    rows, length = ids.shape
    rate = (1 - 1e-3) * recorded["t"] + 1e-3
    noisy = (recorded["u"] < rate[:, None]).view(rows, length)
    end = torch.full((rows,), length)
    batch = Batch(ids, torch.zeros(rows, dtype=torch.long), end, end, learned)
    masked = torch.stack([learned & noisy, learned & ~noisy])
    found = BlockDiffusion().loss(model, batch, masked)
    assert abs(float(found.detach()) - loss) < 1e-5 * loss
