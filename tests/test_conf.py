"""Every yaml composes, is instantiated, and says in its first line what it is."""

import itertools
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate

from dllm.causal import save_causal
from dllm.training.scratch import scratch_causal
from dllm.training.tokenizer import build_tokenizer
from parallelbench.wiring.conf import CONF

PACKAGED = ("experiment", "launcher", "recipe")  # settings of other groups
OPTIONS = [(path.parent.name, path.stem) for path in sorted(CONF.glob("*/*.yaml")) if path.parent.name not in PACKAGED]
EXPERIMENTS = [path.stem for path in sorted((CONF / "experiment").glob("*.yaml"))]
AUTOREGRESSIVE = ("causal", "smollm2", "tiny_ar")
SOURCES = {"suite": "suite.tasks.0.source=rows.jsonl", "data": "data.source=rows.jsonl"}  # files of the user's
RECIPES = {"learn2pd": "train_filter", "minibatch": "train_filter", "fast_dllm_v2": "train"}
OTHER_ROOTS = {"objective": "train", "data": "train", "filter": "train_filter"}


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_and_instantiates(group: str, option: str, tmp_path: Path) -> None:
    overrides = [f"{group}={option}"]
    if group == "sink" and option != "none":
        pytest.importorskip(option)
    if group == "model" and option in AUTOREGRESSIVE:
        save_causal(scratch_causal(build_tokenizer(["hello"]), width=16, layers=1, heads=2, mlp_width=32), tmp_path)
        overrides.append(f"model.name_or_path={tmp_path}")
    elif option == "tiny_recurrent":
        pass  # it ships, and no other kind of model stands in for it
    elif group == "model":
        overrides.append("model.name_or_path=tiny")  # the published ones are not at hand
    if option in ("prompts", "rows"):
        overrides.append(SOURCES[group])
    with initialize_config_module("conf", version_base=None):
        config = compose(OTHER_ROOTS.get(group, "run"), overrides)
    assert instantiate(config[group], _convert_="all") is not None


@pytest.mark.parametrize("recipe", sorted(path.stem for path in CONF.glob("recipe/*.yaml")))
def test_every_recipe_composes_and_instantiates(recipe: str) -> None:
    root = RECIPES.get(recipe, "distill")
    sources = ["data.source=rows.jsonl"] if recipe == "fast_dllm_v2" else []
    with initialize_config_module("conf", version_base=None):
        config = compose(root, [f"recipe={recipe}", *sources])
    for part in ("fit", "objective", "data"):
        assert part not in config or instantiate(config[part], _convert_="all") is not None


@pytest.mark.parametrize(("launcher", "target"), [("basic", "BasicLauncher"), ("local", "LocalLauncher")])
def test_a_launcher_is_chosen_by_its_group(launcher: str, target: str) -> None:
    with initialize_config_module("conf", version_base=None):
        config = compose("run", [f"launcher={launcher}"], return_hydra_config=True)
    assert config.hydra.launcher._target_.endswith(target) and "launcher" not in {
        key for key in config if key != "hydra"
    }


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_point_of_every_experiment_instantiates(name: str) -> None:
    with initialize_config_module("conf", version_base=None):
        grid = compose("run", [f"experiment={name}"], return_hydra_config=True).hydra.sweeper.params
        parsed = OverridesParser.create().parse_overrides([f"{key}={values}" for key, values in grid.items()])
        choices = [
            [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
            if override.is_sweep_override()
            else [override.input_line]
            for override in parsed
        ]
        points = list(itertools.product(*choices))
        assert len(points) > 1
        for overrides in points:
            config = compose("run", [f"experiment={name}", *overrides])
            assert instantiate(config.decoder, _convert_="all") is not None


@pytest.mark.parametrize("path", sorted(CONF.glob("**/*.yaml")), ids=lambda p: str(p.relative_to(CONF)))
def test_every_file_says_what_it_is(path: Path) -> None:
    first = next(line for line in path.read_text().splitlines() if not line.startswith("# @"))
    assert first.startswith("# ") and len(first) > 10
