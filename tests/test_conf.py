"""Every yaml composes, is instantiated, and says in its first line what it is."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.utils import instantiate

CONF = Path(__file__).parent.parent / "conf"
OPTIONS = [(path.parent.name, path.stem) for path in sorted(CONF.glob("*/*.yaml"))]
IN_TRAINING = ("objective", "data")


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_and_instantiates(group: str, option: str) -> None:
    overrides = [f"{group}={option}"]
    if (group, option) == ("model", "local"):
        overrides.append("model.name_or_path=tiny")
    with initialize_config_module("conf", version_base=None):
        config = compose("train" if group in IN_TRAINING else "run", overrides)
    assert instantiate(config[group], _convert_="all") is not None


@pytest.mark.parametrize("path", sorted(CONF.glob("**/*.yaml")), ids=lambda p: str(p.relative_to(CONF)))
def test_every_file_says_what_it_is(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ") and len(first) > 10
