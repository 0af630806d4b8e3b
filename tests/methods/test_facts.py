"""What a run states of itself is what its decoder declares, and readers take no run that leaves something out."""

import json
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

import dllm
import parallelbench
from decoders import NO_CACHE, Decoder, Dilated, DreamSchedule, FixedK, StrictEos, Threshold
from parallelbench.records.facts import Facts
from parallelbench.records.record import read_info, write_info
from parallelbench.records.typed import typed
from parallelbench.run.generator import make_generator
from parallelbench.wiring.conf import CONF

pytestmark = pytest.mark.core
STORED = Path(__file__).parents[1] / "stored"
PARTS = {"cache": NO_CACHE, "stop": StrictEos(), "block_len": 16, "seed": 0}
VERIFIED = ("prompt_lookup", "self_spec", "linear_spec")


@pytest.mark.parametrize(
    ("model", "decoder", "stated"),
    [
        ("tiny", Decoder(FixedK(1)), Facts(is_baseline=True, fixed_number=True, commits_k=True)),
        ("tiny", Decoder(FixedK(2)), Facts(fixed_number=True, commits_k=True)),
        ("tiny", Decoder(FixedK(1), confidence="entropy"), Facts(fixed_number=True, commits_k=True)),
        ("tiny", Decoder(DreamSchedule()), Facts(fixed_number=True)),
        ("tiny", Decoder(Dilated()), Facts(block_is_knob=True)),
        ("tiny", Decoder(Threshold(0.9)), Facts()),
        ("tiny", parallelbench.FreeDave(), Facts(text_of="fixed k=1")),
        ("tiny", parallelbench.FreeDave(tau=0.7), Facts(text_of="threshold tau=0.7")),
        ("tiny", parallelbench.FreeDave(confidence="margin"), Facts(text_of="fixed k=1 confidence=margin")),
        ("tiny", parallelbench.FreeDave(tau=0.7, match="subset"), Facts()),
        ("tiny", parallelbench.LoPA(rule=FixedK(1)), Facts()),
        ("tiny-ar", parallelbench.Autoregressive(), Facts(is_baseline=True, is_autoregressive=True)),
        ("tiny-ar", parallelbench.PromptLookup(), Facts(is_autoregressive=True, text_of="ar")),
        ("tiny-draft", parallelbench.SelfSpec(), Facts(text_of="ar")),
        ("tiny-draft", parallelbench.SelfSpec(temperature=0.7), Facts()),
    ],
    ids=str,
)
def test_a_generator_states_what_its_decoder_declares(model: str, decoder: Any, stated: Facts) -> None:
    about = make_generator(dllm.load(model), decoder, **PARTS).describe()
    assert typed(about, Facts) == stated


@pytest.mark.parametrize("name", [*VERIFIED, "freedave"])
def test_the_text_of_a_verified_decoder_is_that_of_a_decoder_by_its_name(name: str) -> None:
    model = "tiny" if name == "freedave" else "tiny-ar" if name == "prompt_lookup" else "tiny-draft"
    decoder = instantiate(OmegaConf.load(CONF / "decoder" / f"{name}.yaml"), _convert_="all")
    text = str(make_generator(dllm.load(model), decoder, **PARTS).describe()["text_of"])
    chosen, *knobs = text.split()
    original: Any = OmegaConf.load(CONF / "decoder" / f"{chosen}.yaml")
    assert knobs == [f"{key}={value}" for key, value in original.get("rule", {}).items() if key != "_target_"]


@pytest.mark.parametrize("fact", ["is_autoregressive", "commits_k", "text_of", "knobs"])
def test_a_run_that_lacks_a_fact_is_refused(fact: str, tmp_path: Path) -> None:
    info = json.loads((STORED / "run.json").read_text())
    write_info(tmp_path, {key: value for key, value in info.items() if key != fact})
    with pytest.raises(ValueError, match=f"holds no run of this package .nothing says its {fact}.; leave it out"):
        read_info(tmp_path)
