"""A Hydra sweeper for several grids, one after the other: each decoder of a comparison with the values of its knob."""

from collections.abc import Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins

Plugins.instance()  # it runs the modules of Hydra's own plugins once more, so their classes are new ones afterwards
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper  # noqa: E402


class GridsSweeper(BasicSweeper):
    """grids: a decoder each, and the values of its settings. A decoder on the command line takes its own grids alone;
    one that has none is swept over what the rest of the command says."""

    def __init__(self, grids: Sequence[Mapping[str, str]]) -> None:
        super().__init__(max_batch_size=None)
        self.grids = grids

    def split_arguments(  # type: ignore[override]  # static in Hydra, which calls it on the object
        self, overrides: list[Override], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        chosen = next((override for override in overrides if override.key_or_group == "decoder"), None)
        grids = [grid for grid in self.grids if chosen is None or grid["decoder"] in _values(chosen)]
        if not grids:
            return BasicSweeper.split_arguments(overrides, None)
        rest = [override for override in overrides if override is not chosen]
        parser, jobs = OverridesParser.create(), []
        for grid in grids:
            mine = parser.parse_overrides([f"{key}={values}" for key, values in grid.items()])
            jobs += BasicSweeper.split_arguments([*mine, *rest], None)[0]
        return [jobs]


def _values(override: Override) -> list[str]:
    return list(override.sweep_string_iterator()) if override.is_sweep_override() else [str(override.value())]
