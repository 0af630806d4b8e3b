"""Every yaml composes, is instantiated, and says in its first line what it is."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_model
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from decoders import NO_CACHE, StrictEos
from dllm.causal import save_causal
from dllm.training.scratch import scratch_causal
from dllm.training.tokenizer import build_tokenizer
from parallelbench.run.generator import DiffusionGenerator
from parallelbench.stats import protocol
from parallelbench.wiring.catalogue import CONF
from parallelbench.wiring.overrides import leave_recipe_of_other_data
from parallelbench.wiring.sweeper import GridsSweeper, brought, jobs

pytestmark = pytest.mark.core
PACKAGED = ("experiment", "launcher", "recipe")  # settings of other groups
OPTIONS = [(path.parent.name, path.stem) for path in sorted(CONF.glob("*/*.yaml")) if path.parent.name not in PACKAGED]
EXPERIMENTS = [path.stem for path in sorted((CONF / "experiment").glob("*.yaml")) if path.stem != "published_ar"]
AUTOREGRESSIVE = ("causal", "qwen_coder", "smollm2", "smollm2_ar", "tiny_ar")
SOURCES = {"suite": "suite.tasks.0.source=rows.jsonl", "data": "data.source=rows.jsonl"}  # files of the user's
RECIPES = {"learn2pd": "train_filter", "minibatch": "train_filter", "fast_dllm_v2": "train", "tiny": "train"}
RECIPES |= {
    name: "train"
    for name in ("tiny_text", "tiny_ar", "tiny_block", "tiny_vision", "smollm2_ar", "smollm2_block", "smollm2_draft")
}
OTHER_ROOTS = {"objective": "train", "data": "train", "filter": "train_filter"}


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_and_instantiates(group: str, option: str, tmp_path: Path) -> None:
    overrides = [f"{group}={option}"]
    if group == "sink" and option != "none":
        pytest.importorskip(option)
    if group == "model" and option in AUTOREGRESSIVE:
        save_causal(scratch_causal(build_tokenizer(["hello"]), width=16, layers=1, heads=2, mlp_width=32), tmp_path)
        overrides += [f"model.name_or_path={tmp_path}", *(["model.adapter=null"] if option == "smollm2_ar" else [])]
    elif option == "tiny_recurrent":
        pass  # it ships, and no other kind of model stands in for it
    elif option in ("smollm2_block", "smollm2_draft"):
        overrides += ["model.name_or_path=tiny-draft", "model.adapter=null"]
    elif group == "model":
        overrides.append("model.name_or_path=tiny")  # the published ones are not at hand
    if option in ("prompts", "rows"):
        overrides.append(SOURCES[group])
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose(OTHER_ROOTS.get(group, "run"), overrides)
    assert instantiate(config[group], _convert_="all") is not None


@pytest.mark.parametrize("recipe", sorted(path.stem for path in CONF.glob("recipe/*.yaml")))
def test_every_recipe_composes_and_instantiates(recipe: str) -> None:
    root = RECIPES.get(recipe, "distill")
    sources = ["data.source=rows.jsonl"] if recipe == "fast_dllm_v2" else []
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose(root, [f"recipe={recipe}", *sources])
    for part in ("fit", "objective", "data"):
        assert part not in config or instantiate(config[part], _convert_="all") is not None


@pytest.mark.parametrize("recipe", [name for name, root in RECIPES.items() if root == "train"])
def test_every_recipe_of_training_takes_rows_of_one_s_own(recipe: str) -> None:
    words = [f"recipe={recipe}", "data=rows", "data.source=mine.jsonl", "data.prompt=question"]
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("train", words)
    leave_recipe_of_other_data(config, words)
    rows = instantiate(config.data, _convert_="all")
    assert (rows.source, rows.prompt, rows.answer) == ("mine.jsonl", "question", "answer")
    del config.data  # a recipe without data
    leave_recipe_of_other_data(config, words)


def test_a_setting_that_the_data_do_not_have_is_still_refused() -> None:
    words = ["recipe=tiny_ar", "data=rows", "data.source=mine.jsonl", "+data.packs=3"]
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("train", words)
    leave_recipe_of_other_data(config, words)
    with pytest.raises(InstantiationException, match="unexpected keyword argument 'packs'"):
        instantiate(config.data)


@pytest.mark.parametrize(
    ("launcher", "target"),
    [
        ("basic", "InTurnLauncher"),
        ("local", "LocalLauncher"),
        ("slurm", "ClusterLauncher"),
        ("ray", "ClusterLauncher"),
    ],
)
def test_a_launcher_is_chosen_by_its_group(launcher: str, target: str) -> None:
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("run", [f"launcher={launcher}"], return_hydra_config=True)
    assert config.hydra.launcher._target_.endswith(target) and "launcher" not in {
        key for key in config if key != "hydra"
    }


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_point_of_every_experiment_instantiates(name: str) -> None:
    with initialize_config_dir(str(CONF), version_base=None):
        sweeper = compose("run", [f"experiment={name}"], return_hydra_config=True).hydra.sweeper
        points = []
        for grid in brought(sweeper):
            parsed = OverridesParser.create().parse_overrides([f"{key}={values}" for key, values in grid.items()])
            choices = [
                [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
                if override.is_sweep_override()
                else [override.input_line]
                for override in parsed
            ]
            points += itertools.product(*choices)
        assert len(points) > 1
        composed = {}
        for overrides in points:
            chosen = tuple(override for override in overrides if "." not in override.partition("=")[0])
            if chosen not in composed:  # slow, and what it chose is merged with knobs as Hydra does it
                composed[chosen] = compose("run", [f"experiment={name}", *overrides])
            knobs = OmegaConf.from_dotlist([override for override in overrides if override not in chosen])
            assert instantiate(OmegaConf.merge(composed[chosen], knobs).decoder, _convert_="all") is not None


@pytest.mark.parametrize("path", sorted((CONF / "decoder").glob("*.yaml")), ids=lambda path: path.stem)
def test_one_decoder_is_the_baseline_and_one_a_ceiling(path: Path) -> None:
    config = OmegaConf.load(path)
    if config._target_ != "decoders.Decoder":
        return
    decoder, model = instantiate(config, _convert_="all"), make_model("full")
    noise = model.spec.mask_id if decoder.needs_noise else 0
    model.spec = replace(model.spec, delete_id=1, split_id=2, noise=noise)  # one decoder asks for them
    for temperature in (0.0, 0.5):
        try:
            changed = replace(decoder, temperature=temperature)
        except ValueError:
            continue  # it has no temperature
        facts = DiffusionGenerator(model, changed, NO_CACHE, StrictEos()).describe()
        assert facts.get("is_baseline", False) == (path.stem == "fixed" and not temperature)
        assert facts.get("is_ceiling", False) == (path.stem == "oracle")


@pytest.mark.parametrize(("experiment", "jobs"), [("published_dream", 41), ("published_blocks", 1 + 5 * 20 + 5 * 11)])
def test_other_published_grids_are_those_of_the_protocol_but_for_what_they_are_for(experiment: str, jobs: int) -> None:
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("run", [f"experiment={experiment}"], return_hydra_config=True)
    assert not deviations_of(config) and config.suite.grammar == "languagetool"
    overrides = OverridesParser.create().parse_overrides([f"experiment={experiment}"])
    (found,) = GridsSweeper(config.hydra.sweeper.grids).split_arguments(overrides, None)
    assert len(found) == len(set(map(tuple, found))) == jobs


@pytest.mark.parametrize(
    ("given", "jobs"),
    [
        ([], 5 * 6 + 6 + 5),
        (["decoder=threshold"], 6),
        (["decoder=threshold,factor_released"], 6 + 5),
        (["decoder=threshold", "decoder.rule.tau=0.9", "cache=none,dual"], 2),
        (["decoder=credit", "decoder.rule.tau=0.7,0.9"], 2),
        (["decoder=credit"], 1),
    ],
)
def test_the_published_grids_are_swept_one_after_the_other(given: list[str], jobs: int) -> None:
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("run", ["experiment=published"], return_hydra_config=True)
    assert not deviations_of(config) and config.suite.grammar == "languagetool"
    sweeper = GridsSweeper(config.hydra.sweeper.grids)
    overrides = OverridesParser.create().parse_overrides(["experiment=published", *given])
    (found,) = sweeper.split_arguments(overrides, None)
    assert len(found) == len(set(map(tuple, found))) == jobs
    assert all(len({setting.split("=")[0] for setting in job}) == len(job) for job in found)


def test_each_of_several_experiments_is_swept_over_its_own_grid() -> None:
    with initialize_config_dir(str(CONF), version_base=None):

        def brought_by(name: str) -> list:
            return brought(compose("run", [f"experiment={name}"], return_hydra_config=True).hydra.sweeper)

        words = ["experiment=threshold,published,fixed_margin,published_ar", "cache=none,dual"]
        found = jobs(OverridesParser.create().parse_overrides(words), brought_by)
    counts = Counter(next(word for word in job if word.startswith("experiment=")).split("=")[1] for job in found)
    assert counts == {"threshold": 2 * 7, "published": 2 * 41, "fixed_margin": 2 * 5, "published_ar": 2}
    assert len(set(map(tuple, found))) == len(found)
    assert all(("decoder.confidence=margin" in job) for job in found if "experiment=fixed_margin" in job)


def deviations_of(config: DictConfig) -> list[str]:
    """Settings of the experiment that are not the published protocol's."""
    wanted = {"gen_length": None, "block_length": None, "limit": 108, "stop": {"_target_": "decoders.Never"}}
    return [key for key, value in wanted.items() if config[key] != value]


def test_autoregressive_baselines_have_the_published_budget() -> None:
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose("run", ["experiment=published_ar"])
    assert config.gen_length == protocol.AR_BUDGET
    assert config.suite.grammar == "languagetool" and config.limit == 108


@pytest.mark.parametrize("path", sorted(CONF.glob("**/*.yaml")), ids=lambda p: str(p.relative_to(CONF)))
def test_every_file_says_what_it_is(path: Path) -> None:
    first = next(line for line in path.read_text().splitlines() if not line.startswith("# @"))
    assert first.startswith("# ") and len(first) > 10


@pytest.mark.parametrize("script", ["train", "distill", "collect_traces", "train_filter", "answer"])
def test_a_script_helps_without_naming_groups_that_it_does_not_have(script: str) -> None:
    with initialize_config_dir(str(CONF), version_base=None):
        told = OmegaConf.to_container(compose(script, return_hydra_config=True).hydra.help)
    assert isinstance(told, dict) and "APP_CONFIG_GROUPS" not in told["template"] and "$CONFIG" in told["template"]
