"""Autoregressive baselines against textbook loops, their costs by definition, what they refuse, and runs beside a
diffusion model's."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import samples
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GenerationConfig,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
)

import dllm
from decoders import NO_CACHE, BlockEos, Decoder, Never, StrictEos, Threshold
from decoders.loop import DecodedRow
from decoders.noise import row_seeds
from decoders.verified.drafters import LookupDrafts
from decoders.verified.rounds import Verified, verify
from dllm.cache import WindowCache
from dllm.causal import CausalLM, CausalStream, load_causal, save_causal
from dllm.diffusion import load_diffusion
from dllm.training.tokenizer import build_tokenizer
from parallelbench.methods.autoregressive import Autoregressive
from parallelbench.methods.verified import PromptLookup
from parallelbench.records.record import read_run
from parallelbench.run.generator import Generator, Request, make_generator
from parallelbench.training.mixture import phrases

GEN_LEN = 24
TASKS = "suite.tasks=[waiting_line/copy,waiting_line/shuffle]"
SMALL = ["limit=4", "batch_size=2", TASKS]
TOKENIZER = build_tokenizer(phrases())


def make_causal(seed: int = 0, repeats: bool = False) -> CausalLM:
    """Two layers of random weights; with `repeats` a token depends on the last one alone, so texts run into cycles."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"vocab_size": len(TOKENIZER), "eos_token_id": TOKENIZER.eos_token_id, "bos_token_id": None}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = LlamaForCausalLM(LlamaConfig(**sizes, **ids, initializer_range=0.6, tie_word_embeddings=False))
    if repeats:
        for layer in backbone.model.layers:
            layer.self_attn.o_proj.weight.data.zero_()
    return CausalLM(backbone, TOKENIZER, "random-ar").eval()


def prompts(seed: int = 3) -> list[list[int]]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(6, len(TOKENIZER), (n,), generator=rng).tolist() for n in (5, 11, 3, 1, 8)]


def with_eos(model: CausalLM, *eos_ids: int) -> CausalLM:
    """The same model, other tokens ending its texts."""
    model.backbone.generation_config = GenerationConfig(eos_token_id=list(eos_ids))
    return CausalLM(model.backbone, model.tokenizer, model.name)


@torch.no_grad()
def textbook(model: CausalLM, prompt: list[int], gen_len: int) -> list[int]:
    """The argmax of the last column of a whole forward, until EOS (which is returned)."""
    ids = list(prompt)
    while len(ids) < len(prompt) + gen_len:
        ids.append(int(model.backbone(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] in model.eos_ids:
            break
    return ids[len(prompt) :]


def frequent(model: CausalLM) -> int:
    """A token that the model decodes early for some prompts, late or not at all for others."""
    texts = [textbook(model, prompt, GEN_LEN) for prompt in prompts()]
    spread = {t: len({text.index(t) if t in text else None for text in texts}) for text in texts for t in text}
    return max(spread, key=lambda token: spread[token])


@pytest.mark.parametrize("seed", range(4))
def test_greedy_is_the_textbook_loop_batched_and_alone(seed: int) -> None:
    model = make_causal(seed)
    model = with_eos(model, frequent(model))
    gen_lens = [GEN_LEN, 7, GEN_LEN, 1, 16]
    batched = greedy_rows(model, prompts(), gen_lens)
    for prompt, gen_len, row in zip(prompts(), gen_lens, batched, strict=True):
        text = textbook(model, prompt, gen_len)
        ended = text[-1] in model.eos_ids
        nothing = [-1] * (gen_len - len(text))
        assert row == DecodedRow(
            token_ids=text[:-1] if ended else text,
            committed_at=[*range(len(text)), *nothing],
            nfe=len(text),
            queried=len(prompt) + len(text) - 1,
            stopped_by="eos" if ended else "length",
        )
        assert row.num_tokens == row.nfe - ended
        assert [row] == greedy_rows(model, [prompt], [gen_len])


def test_forwards_are_those_that_the_backbone_sees() -> None:
    model = make_causal()
    widths: list[int] = []
    stream = CausalStream(model, drafts=False)
    hook = lambda _module, _args, inputs: widths.append(inputs["input_ids"].numel())  # noqa: E731
    handle = model.backbone.register_forward_pre_hook(hook, with_kwargs=True)
    for prompt in prompts():
        widths.clear()
        (row,) = verify(stream, Verified(), [prompt], [GEN_LEN], [0])
        assert (row.nfe, row.queried) == (len(widths), sum(widths))
    handle.remove()


def greedy_rows(model: CausalLM, prompts: list[list[int]], gen_lens: list[int]) -> list[DecodedRow]:
    stream = CausalStream(model, drafts=False)
    return verify(stream, Verified(), prompts, gen_lens, row_seeds(0, prompts))


def looked_up(method: PromptLookup, model: CausalLM, prompts: list[list[int]], gen_lens: list[int]) -> list[DecodedRow]:
    how = Verified(LookupDrafts(method.num_tokens, method.max_ngram))
    return verify(CausalStream(model), how, prompts, gen_lens, row_seeds(0, prompts))


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("method", [PromptLookup(), PromptLookup(num_tokens=3, max_ngram=1)])
def test_prompt_lookup_gives_the_tokens_of_greedy_decoding(repeats: bool, method: PromptLookup) -> None:
    for seed in range(3):
        model = make_causal(seed, repeats)
        for ending in (model, with_eos(model, frequent(model))):
            gen_lens = [64, 7, 64, 1, 16]
            greedy = greedy_rows(ending, prompts(), gen_lens)
            lookup = looked_up(method, ending, prompts(), gen_lens)
            assert lookup[:1] == looked_up(method, ending, prompts()[:1], gen_lens[:1])
            for slow, fast, gen_len in zip(greedy, lookup, gen_lens, strict=True):
                assert (fast.token_ids, fast.stopped_by) == (slow.token_ids, slow.stopped_by)
                assert fast.nfe <= slow.nfe and fast.queried >= slow.queried
                assert len(fast.committed_at) == gen_len and max(fast.committed_at) == fast.nfe - 1
                written = [at for at in fast.committed_at if at >= 0]
                assert written == sorted(written) and len(written) == slow.nfe
    if repeats:
        (row,) = looked_up(method, make_causal(0, repeats), prompts()[:1], [128])
        assert row.tokens_per_forward > 1.5


def test_a_texts_first_eos_of_any_kind_ends_it() -> None:
    model = make_causal()
    text = textbook(model, prompts()[0], GEN_LEN)
    first, second = text[4], text[9]
    ended = with_eos(model, second, first)
    for decode in (greedy_rows, partial(looked_up, PromptLookup())):
        (row,) = decode(ended, prompts()[:1], [GEN_LEN])
        end = min(text.index(first), text.index(second))
        assert (
            row.token_ids == text[:end]
            and row.stopped_by == "eos"
            and row.committed_at[end + 1 :].count(-1) == 23 - end
        )


def test_a_chat_models_sampling_settings_and_penalties_are_not_used() -> None:
    model = make_causal()
    plain = greedy_rows(model, prompts(), [GEN_LEN] * 5)
    model.backbone.generation_config = GenerationConfig(
        do_sample=True, temperature=9.0, repetition_penalty=3.0, eos_token_id=model.eos_ids[0]
    )
    assert greedy_rows(CausalLM(model.backbone, TOKENIZER), prompts(), [GEN_LEN] * 5) == plain


def bind(decoder: object, model: object = None, **parts: object) -> Generator:
    defaults = {"cache": NO_CACHE, "stop": StrictEos(), "block_len": 32, "seed": 0}
    return make_generator(model or make_causal(), decoder, **{**defaults, **parts})


@pytest.mark.parametrize("name", ["ar", "prompt_lookup"])
def test_what_does_not_fit_is_refused(name: str) -> None:
    method = {"ar": Autoregressive, "prompt_lookup": PromptLookup}[name]()
    with pytest.raises(ValueError, match=f"decoder={name} needs an autoregressive model, and 'tiny' is a diffusion"):
        bind(method, dllm.load("tiny"))
    with pytest.raises(ValueError, match=f"decoder={name} keeps the K/V .* use cache=none"):
        bind(method, cache=WindowCache())
    for stop in (Never(), BlockEos()):
        with pytest.raises(ValueError, match=f"decoder={name} stops at its first EOS, .* use stop=strict_eos"):
            bind(method, stop=stop)
    with pytest.raises(ValueError, match="gen_len=0 of Request; give a whole number"):
        bind(method).prompt_len(Request([{"role": "user", "content": "a"}], 0))
    with pytest.raises(ValueError, match=r"\(Threshold\) cannot use model 'random-ar'.* use decoder=ar or"):
        bind(Decoder(Threshold()))
    for settings in ({"num_tokens": 0}, {"max_ngram": -1}):
        with pytest.raises(ValueError, match="of PromptLookup; give a whole number"):
            PromptLookup(**settings)


def test_backbones_that_cannot_verify_are_refused() -> None:
    """A window of attention, logits changed behind the head, and positions that are no argument (ALiBi)."""
    sizes = {"vocab_size": len(TOKENIZER), "hidden_size": 32, "bos_token_id": None, "eos_token_id": None}
    layers = {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    for config, reason in (
        (MistralConfig(**sizes, **layers, num_key_value_heads=2, sliding_window=16), "has layers of sliding_attention"),
        (BloomConfig(**sizes, n_layer=2, n_head=4), "gives other logits where a mask of ours"),
    ):
        model = CausalLM(AutoModelForCausalLM.from_config(config), TOKENIZER, "odd")
        with pytest.raises(ValueError, match=f"model 'odd' {reason}.* use decoder=ar"):
            bind(PromptLookup(), model)
    learned = GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=4, eos_token_id=None)
    model = CausalLM(AutoModelForCausalLM.from_config(learned), TOKENIZER, "learned").eval()
    lookup, greedy = (
        looked_up(PromptLookup(), model, prompts(), [9] * 5),
        greedy_rows(model, prompts(), [9] * 5),
    )
    assert [row.token_ids for row in lookup] == [row.token_ids for row in greedy]


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> Path:
    save_causal(make_causal(repeats=True), tmp_path / "small-ar")
    capsys.readouterr()  # transformers' progress bar
    return tmp_path / "small-ar"


def test_saved_models_load_back_the_same(folder: Path) -> None:
    model, loaded = make_causal(repeats=True), load_causal(folder)
    assert loaded.name == "small-ar" and loaded.eos_ids == model.eos_ids and loaded.pad_id == model.pad_id
    ids = torch.tensor(prompts()[1:2])
    assert loaded.backbone(ids).logits.equal(model.backbone(ids).logits)
    assert not loaded.training


def test_broken_checkpoints_are_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())

    def refused(message: str, **options: object) -> None:
        with pytest.raises(ValueError, match=message) as error:
            load_causal(folder, **options)
        assert "\n" not in str(error.value)

    refused("hub code is never run", trust_remote_code=True)
    refused("device='gpu' cannot be used here", device="gpu")
    refused("dtype='int9' is none that a model computes in", dtype="int9")
    refused("neither 'plain' nor a .jinja file", chat_template="fancy")
    for change, message in (
        ({"is_causal": False}, "it is a diffusion model; load it with dllm.load"),
        ({"model_type": "bert"}, "architecture 'bert' is not a causal LM"),
        ({"model_type": "t5"}, "architecture 't5' is not a causal LM"),
        ({"model_type": "dream"}, "architecture 'dream' is not a causal LM"),
        ({"num_hidden_layers": 3}, "lacks 9 weights, first 'model.layers.2"),
        ({"num_hidden_layers": 1}, "has 9 weights that its architecture has no place for"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        refused(message)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).rename(folder / f"{name}.away")
    refused("it has no tokenizer to read prompts with")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused("its weights are pickled")
    with pytest.raises(ValueError, match="cannot load model '/no/such'"):
        load_causal("/no/such")
    with pytest.raises(ValueError, match=r"cannot load model 'tiny' .* it is a diffusion model"):
        load_causal("tiny")


def test_a_diffusion_models_loader_names_the_shipped_autoregressive_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dllm.shipped.ASSETS", folder.parent)
    monkeypatch.setattr("dllm.causal.ASSETS", folder.parent)
    assert load_causal("small-ar").name == "small-ar"
    with pytest.raises(ValueError, match=r"'small-ar' is autoregressive, .* or run it with model=small_ar decoder=ar"):
        load_diffusion("small-ar")
    assert isinstance(dllm.load("small-ar"), CausalLM)


@pytest.mark.parametrize("decoder", ["ar", "prompt_lookup"])
def test_a_run_is_resumed_to_the_same_samples(cli, tmp_path: Path, folder: Path, decoder: str) -> None:
    command = ["run", "model=causal", f"model.name_or_path={folder}", f"decoder={decoder}", *SMALL]
    assert cli(*command, "out_dir=whole")[0] == 0
    assert cli(*command, "out_dir=cut")[0] == 0
    whole = samples(tmp_path / "whole")
    assert len(whole) == 8 and all(len(r["committed_at"]) == 32 for r in whole)
    assert read_run(tmp_path / "whole").info["model"] == "small-ar"
    path = tmp_path / "cut" / "samples.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    info = json.loads((tmp_path / "cut" / "run.json").read_text()) | {"status": "partial"}
    (tmp_path / "cut" / "run.json").write_text(json.dumps(info))
    assert cli(*command, "out_dir=cut")[0] == 0
    assert read_run(tmp_path / "cut").info["status"] == "done"
    assert sorted(samples(tmp_path / "cut"), key=lambda r: r["id"]) == sorted(whole, key=lambda r: r["id"])


def test_mismatches_cost_one_sentence_before_anything_is_written(cli, tmp_path: Path, folder: Path) -> None:
    causal = ["model=causal", f"model.name_or_path={folder}"]
    for arguments, message in (
        ([*causal, "decoder=credit"], "cannot use model 'small-ar', which is autoregressive; use decoder=ar"),
        (["decoder=ar"], "decoder=ar needs an autoregressive model, and 'tiny' is a diffusion model"),
        ([*causal, "decoder=ar", "cache=dual"], "use cache=none"),
        ([*causal, "decoder=prompt_lookup", "stop=eotp"], "use stop=strict_eos"),
        (
            [*causal, "decoder=prompt_lookup", "decoder.num_tokens=0"],
            "decoder.num_tokens=0; give a whole number in",
        ),
    ):
        code, out, err = cli("run", *arguments, *SMALL, "out_dir=never")
        assert code == 2 and out == "" and not (tmp_path / "never").exists()
        assert len(err.strip().splitlines()) == 1 and err.startswith("error: ") and message in err


def test_a_report_puts_autoregressive_runs_beside_diffusion(cli, tmp_path: Path, folder: Path) -> None:
    causal = ["model=causal", f"model.name_or_path={folder}"]
    assert cli("run", *causal, "decoder=ar", *SMALL, "out_dir=runs/ar")[0] == 0
    sweep = ["decoder=prompt_lookup", "decoder.num_tokens=2,10"]
    assert cli("run", "-m", *causal, *sweep, *SMALL, "out_dir=runs/lookup")[0] == 0
    assert cli("run", "-m", "decoder=fixed", "decoder.rule.k=1,4", *SMALL, "out_dir=runs/fixed")[0] == 0
    code, out, _ = cli("report", "runs", "out_dir=page")
    text = (tmp_path / "page" / "report.md").read_text()
    assert code == 0 and out.startswith("# small-ar and tiny: 5 runs")
    assert text.startswith("# small-ar and tiny: 5 runs")
    assert "Where a name does not say it: model=causal." in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    table = {
        cells[0].removeprefix("| ").removesuffix(" (same text as ar)"): cells
        for cells in reversed(rows)
        if len(cells) > 8  # without seconds where the machine is busy
    }  # the first one
    nfe = {name: float(cells[4].split()[0]) for name, cells in table.items() if name not in ("run", "---")}
    assert set(nfe) == {
        "ar",
        "prompt_lookup num_tokens=2",
        "prompt_lookup num_tokens=10",
        "fixed k=1 model=tiny",
        "fixed k=4 model=tiny",
    }
    for name, cells in table.items():  # each model's runs against its own run of one token per forward
        slowest = nfe.get("fixed k=1 model=tiny" if "tiny" in name else "ar", 0)
        if name in nfe:
            assert float(cells[-1].strip("x| ")) == pytest.approx(slowest / nfe[name], rel=0.02)
    assert "No level is reached by ar, prompt_lookup." in text  # one curve each; a random model writes no lists
    assert (tmp_path / "page" / "quality_tpf.png").stat().st_size > 10_000


def test_the_new_options_are_listed(cli) -> None:
    out = cli("list")[1]
    for option in ("decoder=ar ", "decoder=prompt_lookup ", "model=tiny_ar ", "model=causal "):
        assert option in out
