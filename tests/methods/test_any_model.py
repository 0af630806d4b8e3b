"""Every kind of model is loaded by one call and benchmarked through one protocol; what does not fit is refused in one
sentence."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, make_model, samples
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import dllm
from decoders import NO_CACHE, Decoder, FixedK, StrictEos, Threshold
from dllm.causal import CausalLM, save_causal
from dllm.exact import Enumerated, ExactModel, OneReplaced, Permutations
from dllm.guidance import Guided
from dllm.protocols import DenoisingLM, LanguageModel
from dllm.recurrent import RecurrentLM
from parallelbench.methods.autoregressive import Autoregressive
from parallelbench.methods.depth_recurrent import DiffusionForcing
from parallelbench.records.trace import TRACES
from parallelbench.run.generator import make_generator
from parallelbench.run.job import prepare
from parallelbench.run.resume import open_job
from parallelbench.tasks.base import Sample

FIT = {"cache": NO_CACHE, "stop": StrictEos(), "block_len": None, "seed": 0}


class Shuffle:
    """Any order of the numbers 0 .. n - 1 but the given one."""

    name, version, n = "shuffle", "1", 4

    def samples(self, limit: int, seed: int) -> list[Sample]:
        chat = [{"role": "user", "content": "shuffle 0 1 2 3"}]
        return [Sample(f"shuffle-{i}", self.name, chat, {}, "1 0 2 3", gen_len=self.n) for i in range(limit)]

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        right = sorted(completion.split()) == list("0123") and completion != "0 1 2 3"
        return {"score": float(right), "score_strict": float(right)}


@pytest.mark.parametrize(("k", "score"), [(1, 1.0), ("all", 0.0)])
def test_an_ideal_model_is_benchmarked(k: Any, score: float, tmp_path: Path) -> None:
    """One token per step it never errs; all at once, all columns take the same likeliest token."""
    model = ExactModel(Permutations(4, identity=False))
    generator = make_generator(model, Decoder(FixedK(k)), **FIT)
    sizes = {"limit": 3, "seed": 0, "batch_size": 2, "gen_len": None, "traces": 1}
    config = {"out_dir": str(tmp_path / "run"), "decoder": {}, "suite": {}, "batch_size": 2}
    job = prepare(generator, [Shuffle()], config=config, choices={}, **sizes)
    with open_job(job) as opened:
        run = opened.decode()
    assert [record.scores["score"] for record in run.records] == [score] * 3
    assert {record.nfe for record in run.records} == {4 if k == 1 else 1}
    assert run.info["model"] == "ideal" and run.info["parameters"] == 0 and run.info["dtype"] == "float64"
    assert list(TRACES.read(tmp_path / "run")[0]) == ["shuffle-0"]


def test_identities_tell_models_from_each_other() -> None:
    base = make_model("full")
    rivals = (
        base, make_model("full", seed=1), Guided(base, 1.0), Guided(base, 2.0),
        *map(ExactModel, (Permutations(4), Permutations(4, identity=False), Permutations(5), OneReplaced(4))),
        *(ExactModel(Enumerated.uniform(torch.arange(n).repeat(n, 1).fill_diagonal_(n))) for n in (4, 5)),
    )  # fmt: skip
    prints = [make_generator(model, Decoder(FixedK(1)), **FIT).fingerprint() for model in rivals]
    assert len(set(prints)) == len(prints)


def test_guidance_from_the_command_line(cli, tmp_path: Path) -> None:
    """Twice the columns, forward by forward; a run of its own."""
    for out, more in (("plain", []), ("guided", ["+model.guidance=0.5"])):
        code, _, err = cli("run", "decoder=fixed", "stop=never", *SMALL, *more, f"out_dir={out}")
        assert code == 0, err
    plain, guided = (samples(tmp_path / name) for name in ("plain", "guided"))
    assert [row["nfe"] for row in guided] == [row["nfe"] for row in plain]
    assert [row["queried"] for row in guided] == [2 * row["queried"] for row in plain]
    code, _, err = cli("run", *SMALL, "+model.guidance=0.7", "out_dir=guided")
    assert code == 2 and "guided" in err


def test_what_does_not_fit_is_refused_in_one_sentence(cli) -> None:
    for arguments, sentence in (
        (
            ["model=tiny_recurrent", "decoder=threshold"],
            "which is depth-recurrent; use decoder=diffusion_forcing, or a",
        ),
        (["model=tiny_recurrent", "decoder=ar"], "'tiny-recurrent' is depth-recurrent; use model=tiny_ar"),
        (["model=tiny", "decoder=diffusion_forcing"], "'tiny' is none; use model=tiny_recurrent"),
        (["model=tiny_ar", "+model.guidance=1.0"], "guidance"),
        (
            ["model=local", "model.name_or_path=tiny-ar", "+model.guidance=1.0"],
            "guidance=1.0 is not for model 'tiny-ar'",
        ),
        (["model=local", "model.name_or_path=tiny-ar"], "which is autoregressive; use decoder=ar or"),
    ):
        code, _, err = cli("run", *arguments, *SMALL)
        assert code == 2 and sentence in err and err.count("\n") == 1, err


def test_a_model_that_lacks_something_is_told_what() -> None:
    class Half:
        name, device = "half", torch.device("cpu")

    wanted = "decode, dtype, encode, identity, max_length, named_parameters, vocab_size"
    for decoder in (Autoregressive(), DiffusionForcing()):
        with pytest.raises(ValueError, match=f"a Half is no model that can be benchmarked: it has no {wanted} "):
            make_generator(Half(), decoder, **FIT)
    with pytest.raises(
        ValueError, match=r"new_kv, passes, renew_kv, spec, vocab_size \(see dllm.protocols.DenoisingLM\)"
    ):
        make_generator(Half(), Decoder(Threshold()), **FIT)


def test_one_load_for_every_kind(tmp_path: Path) -> None:
    kinds = {"tiny": dllm.DiffusionLM, "tiny-block": dllm.DiffusionLM, "tiny-ar": CausalLM}
    for name, kind in (kinds | {"tiny-recurrent": RecurrentLM}).items():
        model = dllm.load(name)
        assert isinstance(model, kind) and isinstance(model, LanguageModel)
        assert isinstance(model, DenoisingLM) == (kind is dllm.DiffusionLM)
        assert model.decode(model.encode('["')) == '["'
    assert isinstance(dllm.load("tiny", guidance=1.0), Guided)
    for name, options, message in (
        ("tiny-ar", {"spec": {"shift": 1}}, "spec=.* is not for model 'tiny-ar', which is autoregressive"),
        ("tiny-recurrent", {"chat_template": "plain"}, "chat_template='plain' .* which is depth-recurrent"),
    ):
        with pytest.raises(ValueError, match=message):
            dllm.load(name, **options)


def test_what_a_folder_holds_is_seen(tmp_path: Path) -> None:
    """A tokenizer without MASK, or a config that says so, makes a causal LM; one that knows MASK may be filled in."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {"eos_token": "<eos>", "pad_token": "<eos>"}

    def write(name: str, **more: str) -> Path:
        words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(8)} | {"<eos>": 8, "<mask>": 9}, unk_token="w0"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special, **more)
        with torch.random.fork_rng():
            backbone = LlamaForCausalLM(LlamaConfig(vocab_size=10, eos_token_id=8, bos_token_id=None, **sizes))
        backbone.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        save_causal(CausalLM(backbone, tokenizer), tmp_path / f"{name}-saved")
        return tmp_path / name

    plain, masked = write("plain"), write("masked", mask_token="<mask>")
    assert isinstance(dllm.load(plain), CausalLM) and isinstance(dllm.load(masked), dllm.DiffusionLM)
    assert isinstance(dllm.load(plain, spec={"mask_id": 9}), dllm.DiffusionLM)
    assert isinstance(dllm.load(f"{masked}-saved"), CausalLM)
