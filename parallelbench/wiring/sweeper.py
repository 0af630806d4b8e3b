"""A Hydra sweeper that takes each experiment with the grid that it brings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.types import RunMode

from parallelbench.wiring.catalogue import RUN

Plugins.instance()  # it runs the modules of Hydra's own plugins once more, so their classes are new ones afterwards
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper  # noqa: E402

Grid = Mapping[str, str]  # settings, and the values of each


class GridsSweeper(BasicSweeper):
    """The jobs of `jobs`. params, grids: what one experiment brings. Of several each brings its own."""

    def __init__(self, grids: Sequence[Grid] = (), params: Grid | None = None) -> None:
        super().__init__(max_batch_size=None)
        self.brought = list(grids) or [params or {}]

    def split_arguments(  # type: ignore[override]  # static in Hydra, which calls it on the object
        self, overrides: list[Override], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        chosen = named(overrides, "experiment")
        several = chosen is not None and chosen.is_sweep_override()
        return [jobs(overrides, self._brought_by if several else lambda _: self.brought)]

    def _brought_by(self, experiment: str) -> list[Grid]:
        assert self.hydra_context is not None
        loader = self.hydra_context.config_loader
        return brought(loader.load_configuration(RUN, [f"experiment={experiment}"], RunMode.MULTIRUN).hydra.sweeper)


def brought(sweeper: Mapping[str, Any]) -> list[Grid]:
    """The grids in the sweeper's settings of a composed config."""
    return list(sweeper["grids"]) or [sweeper["params"] or {}]


def jobs(overrides: Sequence[Override], brought_by: Callable[[str], Sequence[Grid]]) -> list[list[str]]:
    """The settings of each job of a sweep: each experiment over its own grids, all with the rest of the command. What
    the command sets itself takes the place of a grid's values. A grid may name its decoder: then a decoder in the
    command takes its own grids alone, and one that has none is swept over what the rest of the command says."""
    experiment, decoder = named(overrides, "experiment"), named(overrides, "decoder")
    parse, found = OverridesParser.create().parse_overrides, list[list[str]]()
    for name in values(experiment) if experiment else [""]:
        rest = [override for override in overrides if override is not experiment]
        mine = parse([f"experiment={name}"] if experiment else [])
        grids = [
            grid for grid in brought_by(name) if decoder is None or grid.get("decoder") in (None, *values(decoder))
        ]
        for grid in grids or [{}]:
            own = parse([f"{key}={those}" for key, those in grid.items()])
            others = [override for override in rest if override is not decoder or "decoder" not in grid]
            found += BasicSweeper.split_arguments([*mine, *own, *others], None)[0]
    return found


def named(overrides: Sequence[Override], key: str) -> Override | None:
    """The override of a key, None where there is none."""
    return next((override for override in overrides if override.key_or_group == key), None)


def values(override: Override) -> list[str]:
    """Each value of an override as a job is given it."""
    if override.is_sweep_override():
        return list(override.sweep_string_iterator())
    return [override.get_value_element_as_str()]  # a list too, as experiment=[fixed,prefix]
