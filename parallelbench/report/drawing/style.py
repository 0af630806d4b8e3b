"""One style for figures and pages: fonts, sizes, and the look of every decoder, cache and model, the same in all of
them whatever else is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

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
KNOWN = {  # those compared most often first, since they differ in colour; new ones last, so that no other look changes
    "decoder": (
        "threshold fixed eb credit wino factor oracle prefix learn2pd entropy agreement ar "
        "klass slowfast saber rcr pc dilated maskgit dimple dmax d2f lopa freedave "
        "self_spec linear_spec prompt_lookup contention hierarchical remdm prophet llada2 d3llm multi_bd edit left "
        "diffusion_forcing diffusion_forcing_prefix adaptive_depth frechet dynamic density dream origin schedule "
        "smoothing slerp indel first_alone horizon credit_free diffusion_forcing_released dilated_remask "
        "factor_released klass_window learn2pd_released remdm_loop renoise eos_last prefix_edit d3llm_first "
        "smoothing_window prophet_released lopa_blocks"
    ).split(),
    "cache": (
        "none prefix dual delayed block interval vicinity prefill delayed_prefill greedy dual_dream sub_block "
        "prefix_dream fast_dllm_v2 fast_dllm_v2_block"
    ).split(),
    "model": (
        "tiny tiny_dparallel tiny_ar tiny_block tiny_draft tiny_recurrent tiny_uniform smollm2_block tiny_vision"
    ).split(),
}
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
    "svg.hashsalt": "dllm",  # the same figure is the same file
}


@dataclass(frozen=True)
class Look:
    """colour: `#rrggbb`. shape: Vega's name of the mark. marker: matplotlib's."""

    colour: str
    shape: str
    marker: str


def look(kind: str, name: str) -> Look:
    """Of a decoder, cache or model (`kind`). No two known names of a kind look alike; others take a place by theirs."""
    known = [one.replace("-", "_") for one in KNOWN[kind]]
    plain = name.replace("-", "_")
    place = known.index(plain) if plain in known else crc32(name.encode())
    shape = list(SHAPES)[(place + place // len(COLOURS)) % len(SHAPES)]
    return Look(COLOURS[place % len(COLOURS)], shape, SHAPES[shape])


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
