"""One style for figures and pages: fonts, sizes, and the look of every decoder, cache and model, the same in all of
them whatever else is shown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from zlib import crc32

from parallelbench.records.files import CONF

KINDS = ("decoder", "cache", "model")
GREY = "#8a94a0"
COLOURS = (  # at least 3:1 on white and on the page's dark ground
    "#0072b2",
    "#d55e00",
    "#1f9168",
    "#a8559b",
    "#b07d0a",
    "#5b7fde",
    "#c2455f",
    "#5f8a1f",
    "#1489a0",
    "#8f6f5c",
    "#d9508f",
    "#7a62c9",
)
SHAPES = {"circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "triangle-down": "v", "cross": "P"}
MARKERS, DASHES = "osD^vPX*<>hd", ("-", "--", ":", "-.")  # of curves of one decoder
RC: dict[Any, Any] = {  # of matplotlib
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,  # letters stay letters
    "savefig.dpi": 160,
    "text.parse_math": False,  # names are no formulas
    "svg.hashsalt": "dllm",  # the same figure is the same file
}


@dataclass(frozen=True)
class Look:
    """colour: `#rrggbb`. shape: Vega's name of the mark. marker: matplotlib's."""

    colour: str
    shape: str
    marker: str


def look(kind: str, name: str) -> Look:
    """Of a decoder, cache or model (`kind`): the place that its yaml says, as in "# look: 3", no two of a kind
    alike; or one by its name. The first twelve differ in colour."""
    place = _places(kind).get(name.replace("-", "_"), crc32(name.encode("utf-8", "backslashreplace")))
    shape = list(SHAPES)[(place + place // len(COLOURS)) % len(SHAPES)]
    return Look(COLOURS[place % len(COLOURS)], shape, SHAPES[shape])


@cache
def _places(kind: str) -> dict[str, int]:
    files = (CONF / kind).glob("*.yaml")
    said = {file.stem: re.search(r"^# look: (\d+)$", file.read_text(encoding="utf-8"), re.MULTILINE) for file in files}
    return {name: int(found[1]) for name, found in said.items() if found}


def curve_looks(names: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and line of each curve: its decoder's, wherever it is drawn. Curves of one decoder differ in the
    marker and the line; where all are of one, in the colour instead of the line."""
    decoders = [name.split()[0] for name in names]
    looks = {}
    for i, (name, decoder) in enumerate(zip(names, decoders, strict=True)):
        seen, again = look("decoder", decoder), decoders[:i].count(decoder)
        if len(set(decoders)) == 1 and len(names) > 1:
            looks[name] = (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], DASHES[0])
        else:
            marker = MARKERS[(MARKERS.index(seen.marker) + again) % len(MARKERS)]
            looks[name] = (seen.colour, marker, DASHES[again % len(DASHES)])
    return looks
