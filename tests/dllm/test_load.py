"""Checkpoints in Hugging Face layout: round trip, and one clear sentence for each way they can be broken."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import make_model
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from safetensors.torch import load_file, save_file
from test_families import make, qwen3
from tokenizers import Tokenizer, models
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

import dllm
from decoders import NO_CACHE, Decoder, Smoothing, Threshold, generate
from dllm import ModelSpec
from dllm.cache import WindowCache
from dllm.causal import CausalLM
from dllm.checkpoint import read_backbone
from dllm.converted.probe import probe
from dllm.diffusion import load_diffusion
from dllm.shipped import ASSETS
from dllm.training.scratch import scratch_llama
from dllm.training.tokenizer import build_tokenizer
from parallelbench.tasks import builtin_tasks
from parallelbench.wiring.catalogue import CONF


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = scratch_llama(build_tokenizer(["hello", " world"]), width=16, layers=1, heads=2, mlp_width=32)
    dllm.save(model, tmp_path / "model")
    return tmp_path / "model"


def test_saved_models_load_back_the_same(folder: Path) -> None:
    model = scratch_llama(build_tokenizer(["hello", " world"]), width=16, layers=1, heads=2, mlp_width=32)
    loaded = dllm.load(folder)
    assert loaded.spec == model.spec and loaded.spec.mix == 1
    canvas, prompt_len = torch.randint(6, 90, (2, 12)), torch.tensor([3, 5])
    assert loaded.full_logits(canvas, prompt_len).equal(model.full_logits(canvas, prompt_len))
    assert not any(path.suffix in (".bin", ".pt", ".pkl") for path in folder.iterdir())
    assert loaded.tokenizer is not None and loaded.tokenizer.decode(loaded.tokenizer("hello world!")["input_ids"]) == (
        "hello world!"
    )


def test_logits_never_offer_mask(folder: Path) -> None:
    model = dllm.load(folder)
    logits = model.full_logits(torch.randint(6, 90, (1, 9)), torch.tensor([4]))
    assert logits[..., model.spec.mask_id].isneginf().all()


def test_spec_can_be_given_or_read_from_the_tokenizer(folder: Path) -> None:
    (folder / "dllm.json").unlink()
    loaded = dllm.load(folder)
    assert (loaded.spec.mask_id, loaded.spec.eos_ids, loaded.spec.mix) == (2, (1,), 0)
    assert dllm.load(folder, spec=ModelSpec(5, (4,), 3, shift=1)).spec.shift == 1


def broken(folder: Path, name: str, content: bytes | None) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", None, "cannot load model"),
        ("model.safetensors", b"garbage", "cannot load model"),
        ("config.json", None, "cannot load model"),
        ("mix.safetensors", None, "has no mix.safetensors"),
        ("dllm.json", b"{", "is not a model spec"),
        ("dllm.json", b'{"mask_id": 2}', "is not a model spec"),
        ("dllm.json", b'{"mask_id": 999, "eos_ids": [1], "pad_id": 0}', "mask_id=999 is outside the vocabulary"),
        ("dllm.json", b'{"mask_id": 1, "eos_ids": [1], "pad_id": 0}', "mask_id=1 is also EOS or PAD"),
    ],
)
def test_broken_checkpoints_are_named(folder: Path, name: str, content: bytes | None, message: str) -> None:
    broken(folder, name, content)
    with pytest.raises(ValueError, match=message):
        dllm.load(folder)


def test_unknown_names_list_what_is_shipped() -> None:
    for slip, meant in (("tinny", "tiny"), ("tiny_ar", "tiny-ar")):  # at once, without the hub
        with pytest.raises(ValueError, match=f"unknown model '{slip}'; did you mean '{meant}'"):
            dllm.load(slip)
    with pytest.raises(ValueError, match=r"cannot load model '/no/such': .* a shipped model \(tiny, .*, tiny-vision\)"):
        dllm.load("/no/such")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the folder has no config.json"),
        ("{", "is not a valid JSON file"),
        ("[1]", "its config.json holds a list where an object belongs"),
        ("null", "cannot load model"),
        ("{}", "architecture None is neither"),
        ('{"model_type": "llama", "hidden_size": "x"}', "Field 'hidden_size' expected int"),
    ],
)
def test_broken_configs_are_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        dllm.load(tmp_path)
    assert "\n" not in str(error.value)


def test_hub_names_out_of_reach_are_named() -> None:
    with pytest.raises(ValueError, match=r"cannot load model 'GSAI-ML/X' \(shipped models: tiny, .*, tiny-vision\): "):
        dllm.load("GSAI-ML/X", local_files_only=True)


def test_devices_are_checked_before_the_weights_are_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for device in ("gpu", "cuda:99"):
        with pytest.raises(ValueError, match=f"device='{device}' cannot be used here: ") as error:
            dllm.load(folder, device=device)
        assert "\n" not in str(error.value)


def test_missing_weights_are_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(ValueError, match=r"lacks 9 weights, first 'model\.layers\.1\."):
        dllm.load(folder)


def test_shipped_assets_are_small_and_safe() -> None:
    files = [path for path in ASSETS.rglob("*") if path.is_file()]
    adapters = [path for path in files if path.name == "adapter_model.safetensors"]
    assert sum(path.stat().st_size for path in files if path not in adapters) <= 40 * 10**6  # seven models
    assert all(path.stat().st_size <= 20e6 for path in adapters)
    assert sum(path.stat().st_size for path in adapters) <= 45e6
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".jinja", ".md"}


def test_block_causal_mix_looks_back_only() -> None:
    from dllm.layers import NeighbourMix

    assert NeighbourMix(4, look_ahead=False).after is None
    assert make_model("mixed").mix.after is not None


@pytest.fixture
def causal(tmp_path: Path) -> Path:
    """A causal LM of no family, without spec or tokenizer."""
    make(qwen3, tmp_path)
    (tmp_path / "dllm.json").unlink()
    return tmp_path


def add_tokenizer(folder: Path, **special: str) -> None:
    vocab = {f"w{i}": i for i in range(36)} | {"<eos>": 36, "<mask>": 39}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def test_a_spec_can_be_given_in_parts(causal: Path) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer that names a mask token; give spec\.mask_id"):
        dllm.load(causal)
    with pytest.raises(ValueError, match=r"names an end-of-text token; give spec\.eos_ids"):
        dllm.load(causal, spec={"mask_id": 39})
    spec = dllm.load(causal, spec={"mask_id": 39, "eos_ids": [36, 35], "block": 4}).spec
    assert spec == ModelSpec(39, (36, 35), 36, block=4)
    add_tokenizer(causal, eos_token="<eos>")
    with pytest.raises(ValueError, match=r"give spec\.mask_id"):
        load_diffusion(causal)
    assert isinstance(dllm.load(causal), CausalLM)  # it has no MASK, so it is taken for what its architecture is
    assert dllm.load(causal, spec={"mask_id": 39}).spec == ModelSpec(39, (36,), 36)
    add_tokenizer(causal, eos_token="<eos>", mask_token="<mask>", pad_token="w3")
    assert dllm.load(causal, spec={"shift": 1}).spec == ModelSpec(39, (36,), 3, shift=1)
    for spec, message in (({"mask_id": 40}, "mask_id=40 is outside"), ({"mask": 39}, "unexpected keyword .*'mask'")):
        with pytest.raises(ValueError, match=message):
            dllm.load(causal, spec=spec)


def test_the_command_line_can_give_parts_of_a_spec(causal: Path) -> None:
    given = ["+model.spec.mask_id=39", "+model.spec.eos_ids=[36]", "+model.attn_implementation=eager"]
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("run", ["model=local", f"model.name_or_path={causal}", *given])
    assert instantiate(config.model).spec == ModelSpec(39, (36,), 36)


def test_a_chat_template_can_be_given(causal: Path) -> None:
    spec = {"mask_id": 39, "eos_ids": [36]}
    messages = [{"role": "system", "content": "w1"}, {"role": "user", "content": "w2"}]
    with pytest.raises(ValueError, match="no tokenizer to use a chat template with"):
        dllm.load(causal, spec=spec, chat_template="plain")
    add_tokenizer(causal, eos_token="<eos>")
    (causal / "mine.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    for template, text in (("plain", "w1\nw2"), (str(causal / "mine.jinja"), "<system>w1<user>w2")):
        tokenizer = dllm.load(causal, spec=spec, chat_template=template).tokenizer
        assert tokenizer is not None
        assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == text
    for wrong in ("chatml", str(causal / "none.jinja")):
        with pytest.raises(ValueError, match=r"neither 'plain' nor a \.jinja file"):
            dllm.load(causal, spec=spec, chat_template=wrong)


SPEC = {"mask_id": 39, "eos_ids": [36]}


def test_attention_is_sdpa_or_eager(causal: Path) -> None:
    canvas, prompt_len, end = torch.randint(0, 30, (2, 12)), torch.tensor([3, 5]), torch.tensor([12, 9])
    for block in (None, 4):
        spec = SPEC | {"block": block}
        sdpa, eager = (dllm.load(causal, spec=spec, attn_implementation=name) for name in ("sdpa", "eager"))
        expected, got = (model.full_logits(canvas, prompt_len, end) for model in (sdpa, eager))
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="attn_implementation='flex_attention' takes no 4-D mask"):
        dllm.load(causal, spec=SPEC, attn_implementation="flex_attention")


def test_a_model_spread_over_places_decodes_the_same(causal: Path) -> None:
    parts = ("embed_tokens", "rotary_emb", "norm", "layers.0")
    places = {f"model.{part}": "cpu" for part in parts} | {"lm_head": "cpu", "model.layers.1": "disk"}
    spread = dllm.load(causal, spec=SPEC, device_map=places, offload_folder=str(causal / "offload"))
    assert spread.backbone.get_parameter("model.layers.1.mlp.up_proj.weight").is_meta
    assert spread.device == torch.device("cpu")
    alone = dllm.load(causal, spec=SPEC)
    canvas, prompt_len = torch.randint(0, 30, (2, 12)), torch.tensor([3, 5])
    with torch.no_grad():
        assert spread.full_logits(canvas, prompt_len).equal(alone.full_logits(canvas, prompt_len))
    far = dllm.load(causal, spec=SPEC, device_map=places | {"model.embed_tokens": "disk"}, offload_folder=str(causal))
    with pytest.raises(ValueError, match="soft inputs mix the whole input embedding"):
        generate(far, [[1, 2, 3]], decoder=Decoder(Threshold(), soft=Smoothing()), gen_len=16, block_len=8)
    rows = [
        generate(model, [[1, 2, 3], [4, 5, 6, 7, 8]], cache=WindowCache(0, 0), gen_len=16, block_len=8)
        for model in (spread, alone)
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("device", "given", "wanted"),
    [
        ("cpu", {}, None),
        ("meta", {}, {"": "meta"}),
        (torch.device("meta"), {}, {"": torch.device("meta")}),
        ("meta", {"device_map": {"": "cpu"}}, {"": "cpu"}),
    ],
)
def test_weights_go_straight_to_their_device(causal: Path, monkeypatch, device, given: dict, wanted) -> None:
    read, maps = PreTrainedModel.from_pretrained.__func__, []

    def note(kind, *args, **options):
        maps.append(options.get("device_map"))
        return read(kind, *args, **options)

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(note))
    config = AutoConfig.from_pretrained(causal)
    model, info = read_backbone(
        str(causal), MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config, torch.float32, None, given, device
    )
    assert maps == [wanted] and not info["missing_keys"]
    assert model.device == torch.device("cpu" if wanted in (None, {"": "cpu"}) else "meta")


def test_a_mapped_model_is_not_moved(causal: Path) -> None:
    assert dllm.load(causal, spec=SPEC, device="meta", device_map={"": "cpu"}).device == torch.device("cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "no_such"}, r"'no_such' is neither a causal nor a masked LM .* llada, .*dream, "),
        ({"model_type": "t5", "is_encoder_decoder": True}, r"'t5' is neither a causal nor a masked LM .* llada, "),
        ({"model_type": "vit"}, r"'vit' is neither a causal nor a masked LM"),
        (
            {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
            r"has 11 weights that its architecture has no place for, first 'model\.layers\.1",
        ),
        ({"hidden_size": 16}, "cannot load model"),
    ],
)
def test_other_architectures_are_named(causal: Path, change: dict, message: str) -> None:
    config = json.loads((causal / "config.json").read_text())
    (causal / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=message):
        dllm.load(causal, spec=SPEC)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MambaConfig(), "'mamba' is recurrent and cannot look ahead"),
        (Gemma2Config(), r"final_logit_softcapping=30.0: logits rescaled after the head are not supported"),
        (CohereConfig(), r"logit_scale=0.0625: logits rescaled"),
        (MistralConfig(sliding_window=4), "sliding_window=4: local attention is not supported"),
        (Qwen2Config(use_sliding_window=True, max_window_layers=1), "sliding_attention: local attention"),
        (Gemma3TextConfig(), "sliding_attention: local attention"),
        (Llama4TextConfig(), "chunked_attention: local attention"),
    ],
)
def test_causal_models_that_would_be_wrong_are_refused(tmp_path: Path, config, message: str) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        dllm.load(tmp_path, spec=SPEC)


TINY = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
TINY |= {"bos_token_id": 1, "eos_token_id": 36}
ROPE = {**TINY, "intermediate_size": 64, "num_key_value_heads": 2}


def write_causal(config: PreTrainedConfig, folder: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            GPTNeoConfig(**TINY, attention_types=[[["global", "local"], 1]], window_size=4),
            "column 0 does not see column",
        ),
        (BloomConfig(**TINY), "ValueError: "),
        (FalconConfig(**TINY, alibi=True), "ValueError: "),
        (Lfm2Config(**ROPE, layer_types=["conv", "full_attention"]), ""),
    ],
)
def test_backbones_that_fail_the_probe_are_refused(tmp_path: Path, config: PreTrainedConfig, message: str) -> None:
    write_causal(config, tmp_path)
    with pytest.raises(ValueError, match=f"cannot be used as a denoiser: {message}") as error:
        dllm.load(tmp_path, spec=SPEC)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("machine", "able", "dtype", "slow"),
    [
        ("x86_64", "AVX2", "bfloat16", True),
        ("AMD64", "DEFAULT", "float16", True),
        ("x86_64", "AVX512", "bfloat16", False),
        ("x86_64", "AVX2", "float32", False),
        ("arm64", "DEFAULT", "bfloat16", False),
    ],
)
def test_a_dtype_that_the_processor_has_no_instructions_for_is_said_to_be_slow(
    machine: str, able: str, dtype: str, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: able)
    for load in (lambda: dllm.load("tiny", dtype=dtype), lambda: dllm.load_causal("tiny-ar", dtype=dtype)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            load()
        texts = [str(one.message) for one in said if "as slow as float32" in str(one.message)]
        assert len(texts) == slow and all(text.startswith(dtype) for text in texts)


@pytest.mark.parametrize(
    ("config", "max_length"),
    [
        (GPT2Config(**TINY, n_positions=24), 24),
        (OPTConfig(**TINY, ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=24), 24),
        (LlamaConfig(**ROPE, max_position_embeddings=16), None),
        (Qwen3Config(**ROPE, head_dim=8, max_position_embeddings=16), None),
        (MistralConfig(**ROPE, sliding_window=None, max_position_embeddings=16), None),
    ],
)
def test_other_causal_models_denoise(tmp_path: Path, config: PreTrainedConfig, max_length: int | None) -> None:
    write_causal(config, tmp_path)
    for fields in ({}, {"shift": 1}, {"block": 4}, {"block": 1}):
        dllm.load(tmp_path, spec=SPEC | fields, dtype="bfloat16")
    model = dllm.load(tmp_path, spec=SPEC)
    assert model.max_length == max_length
    assert len(generate(model, [[5] * 8], cache=WindowCache(0, 0), gen_len=16, block_len=8)[0].token_ids) > 0
    if max_length is not None:
        with pytest.raises(ValueError, match=r"25 columns is too long for .*, which has 24 positions"):
            generate(model, [[5] * 9], gen_len=16, block_len=8)
        assert dllm.load(tmp_path, spec=SPEC | {"response_position": 10}).max_length == max_length - 10


@pytest.mark.parametrize(
    ("ignored", "message"),
    [("attention_mask", "what is past a row's end"), ("position_ids", "a window on kept K/V gives other logits")],
)
def test_the_probe_finds_what_a_backbone_ignores(causal: Path, ignored: str, message: str) -> None:
    model = dllm.load(causal, spec=SPEC)
    decoder = model.backbone.get_decoder()
    forward = decoder.forward
    decoder.forward = lambda **inputs: forward(**inputs | {ignored: None})
    with pytest.raises(ValueError, match=f"cannot be used as a denoiser: {message}"):
        probe(model)


def test_identity_is_what_the_weights_do_not_say(causal: Path) -> None:
    add_tokenizer(causal, eos_token="<eos>", mask_token="<mask>")
    known = dllm.load(causal).identity()
    assert dllm.load(causal).identity() == known
    for change in ({"spec": {"shift": 1}}, {"spec": {"block": 4}}, {"chat_template": "plain"}):
        assert dllm.load(causal, **change).identity() != known


def test_unknown_weights_are_refused_and_spare_ones_are_not(causal: Path) -> None:
    weights = load_file(causal / "model.safetensors")
    spare = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8), "pooler.dense.weight": torch.ones(2, 2)}
    save_file(weights | spare, causal / "model.safetensors", metadata={"format": "pt"})
    dllm.load(causal, spec=SPEC)
    save_file(weights | {"model.extra.weight": torch.ones(2)}, causal / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has 1 weights that .*'model\.extra\.weight'"):
        dllm.load(causal, spec=SPEC)


def test_neither_pickles_nor_hub_code_are_read(causal: Path) -> None:
    torch.save(load_file(causal / "model.safetensors"), causal / "pytorch_model.bin")
    dllm.load(causal, spec=SPEC)
    (causal / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"its weights are pickled \(pytorch_model\.bin\)"):
        dllm.load(causal, spec=SPEC)
    for name in ("trust_remote_code", "use_safetensors"):
        with pytest.raises(ValueError, match=f"{name}=.*: hub code is never run and only safetensors are read"):
            dllm.load(causal, spec=SPEC, **{name: True})


def test_misspelt_arguments_are_named(causal: Path) -> None:
    with pytest.raises(ValueError, match="unexpected keyword argument 'devise'"):
        dllm.load(causal, spec=SPEC, devise="cpu")
    with pytest.raises(ValueError, match="dtype='float99' is none that a model computes in"):
        dllm.load(causal, spec=SPEC, dtype="float99")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_model_decodes_the_same() -> None:
    prompts = [s.messages for s in builtin_tasks()["waiting_line/sort"].samples(5, 0)]
    plain, compiled = dllm.load("tiny"), dllm.load("tiny", compile=True)
    for cache in (NO_CACHE, WindowCache(0, 0)):
        for batch_size in (5, 2):
            parts = {"decoder": Decoder(Threshold(0.9)), "cache": cache, "batch_size": batch_size}
            assert generate(compiled, prompts, **parts) == generate(plain, prompts, **parts)


@pytest.mark.parametrize("load", [dllm.load, load_diffusion, dllm.load_causal])
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("models/smollm2", r"make it: python -m dllm\.training\.fetch smollm2"),
        ("models/other", "give one that is"),
    ],
)
def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub(
    load: Callable[..., object], name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*args: object, **kwargs: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dllm.checkpoint.cached_file", ask)
    with pytest.raises(ValueError, match=f"^the folder {name} is not here; {how}"):
        load(name)
