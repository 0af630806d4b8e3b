"""What `dllm.layers.FastLinear` saves on this processor: the time of a linear layer over that of a `FastLinear`.

    python scripts/bench/products.py [threads=1] [repeats=9]

Each shape is multiplied with as many weights as a model of some hundred megabytes has, so that they come from memory.
Above 1 the latter is faster. In float32, medians of wall seconds: nothing else should be running.
"""

import statistics
import sys
import time

import torch
from torch import nn

from dllm.layers import FastLinear
from parallelbench.report.options import split_options
from parallelbench.wiring.exits import explained

COLUMNS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
SHAPES = {"576 -> 1536": (576, 1536, 90), "576 -> 576": (576, 576, 240), "576 -> 49152": (576, 49152, 1)}


def seconds(layers: list[nn.Linear], columns: torch.Tensor, repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):  # the first one warms up
        began = time.perf_counter()
        for layer in layers:
            layer(columns)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


@torch.inference_mode()
def main(arguments: list[str]) -> None:
    defaults = {"threads": "1", "repeats": "9"}
    paths, options = split_options(arguments, defaults, needs_paths=False)
    if paths or not all(value.isdecimal() and int(value) for value in options.values()):
        raise ValueError(f"options are {', '.join(f'{key}={value}' for key, value in defaults.items())}; whole numbers")
    torch.set_num_threads(int(options["threads"]))
    print(f"{'columns':14}" + "".join(f"{columns:>8}" for columns in COLUMNS))
    for name, (inner, outer, count) in SHAPES.items():
        plain, few = ([kind(inner, outer, bias=False) for _ in range(count)] for kind in (nn.Linear, FastLinear))
        ratios = []
        for columns in COLUMNS:
            x = torch.randn(columns, inner)
            ratios.append(seconds(plain, x, int(options["repeats"])) / seconds(few, x, int(options["repeats"])))
        print(f"{name:14}" + "".join(f"{ratio:8.2f}" for ratio in ratios), flush=True)


if __name__ == "__main__":
    with explained():
        main(sys.argv[1:])
