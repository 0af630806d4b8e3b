"""What a step takes on a GPU: random weights in LLaDA-8B's layout, each cache and batch, eager, compiled and with CUDA
graphs.

    python scripts/bench/gpu.py [shape=llada-8b] [prompt=256] [gen=128] [block=32] [decoder=fixed] [k=4] [tau=0.3]
        [caches=none,dual,block] [batches=1,8,16] [modes=eager,graphs,compiled] [minutes=8] [tests=true]
        [dtype=bfloat16] [out=FOLDER]

Needs torch, transformers and this project's light dependencies, and no download. Without a GPU it is a trial of
another shape. out=FOLDER gets gpu.json with all numbers, and gpu.md, a table of them. Of each decode, after one to
warm up:

first: seconds of a first decode, which compiles or records. step: milliseconds from one step to the next. forward:
those of the same forwards alone, without the loop. floor: the time in which this GPU reads the weights once, or does
the multiplications, both measured here. busy: milliseconds a step in which the GPU computes. kernels, waits: GPU
operations a step, and how often the host waits for the GPU. These three are of a profile of the first two blocks. peak:
GiB. tpf: tokens per forward.

parted: rows that commit something else than the eager decode does, of all rows. That is decided by rounding where the
numbers of their windows had differed by no more than rounding does: `apart` is the largest difference of a position's
largest logit or log-sum up to there, in units of the last place of the largest logit. The first row of an eager batch
is compared with the same prompt alone.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from cache import SHAPES, build, machine, synchronize
from torch import Tensor

from decoders import NO_CACHE, Decoder, FixedK, Never, Threshold, decode
from dllm import BlockCache, DiffusionLM, WindowCache
from dllm.cache import CacheStrategy
from dllm.diffusion import compile_
from parallelbench.report.markdown import table
from parallelbench.report.options import split_options
from parallelbench.wiring.exits import explained

CACHES: dict[str, CacheStrategy] = {"none": NO_CACHE, "dual": WindowCache(0, 0), "block": BlockCache()}
MODES = ("eager", "graphs", "compiled")
LOGIT_STD = 7  # a trained model's logits spread about so much; those of random weights are nearly equal
COLUMNS = ("first", "step", "forward", "floor", "busy", "kernels", "waits", "peak", "tpf", "parted", "apart")
OPTIONS: dict[str, Any] = {
    **{"shape": "llada-8b", "prompt": 256, "gen": 128, "block": 32, "decoder": "fixed", "k": 4, "tau": "0.3"},
    **{"caches": ",".join(CACHES), "batches": "1,8,16", "modes": ",".join(MODES)},
    **{"minutes": 8, "tests": "true", "dtype": "bfloat16", "out": ""},
}
TESTS = Path(__file__).resolve().parents[2] / "tests" / "decoders" / "test_gpu.py"
Trace = list[list[tuple[list[int], Tensor]]]  # of each row and step: the window after it, and the numbers of its logits


def sharpened(model: DiffusionLM) -> DiffusionLM:
    """With logits as far apart as a trained model's."""
    head = head_of(model)
    head.mul_(LOGIT_STD / (model.backbone.config.initializer_range * head.shape[1] ** 0.5))
    return model


def head_of(model: DiffusionLM) -> Tensor:
    head = model.backbone.get_output_embeddings()
    assert head is not None
    return head.weight


class Calls:
    """Keeps the arguments of the model's forwards, to make them again without the loop."""

    def __init__(self, model: DiffusionLM) -> None:
        self.forward, self.calls = model.logits, list[tuple[tuple, dict]]()
        self.model, model.logits = model, self

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        self.calls.append((args, kwargs))
        return self.forward(*args, **kwargs)

    def replay(self) -> None:
        for args, kwargs in self.calls:
            self.forward(*args, **kwargs)

    def stop(self) -> None:
        del self.model.logits


class Bench:
    """Decodes of one model with the options of a call."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options, self.plain = options, sharpened(build(options["shape"]).to(getattr(torch, options["dtype"])))
        self.body = self.plain.backbone.get_decoder()
        self.by_block = DiffusionLM(self.plain.backbone, replace(self.plain.spec, block=options["block"])).eval()
        self.bandwidth, self.rate = machine(self.plain)
        rng = torch.Generator().manual_seed(0)
        most = max(options["batches"])
        self.prompts = torch.randint(0, 1000, (most, options["prompt"]), generator=rng).tolist()
        rule = FixedK(options["k"]) if options["decoder"] == "fixed" else Threshold(float(options["tau"]))
        self.decoder, self.eager = Decoder(rule), dict[tuple[str, int], Trace]()

    def prepare(self, cache: str, mode: str) -> DiffusionLM:
        model = self.by_block if cache == "block" else self.plain
        self.body._compiled_call_impl, model.kv_samples, model.fixed_shapes, model.graphs = None, [], False, None
        torch._dynamo.reset()
        if mode != "eager":
            compile_(model, graphs=mode == "graphs")
        return model

    def decode(self, model: DiffusionLM, cache: str, batch: int, **more: Any) -> list:
        given = {"gen_len": self.options["gen"], "block_len": self.options["block"], "stop": Never(), **more}
        prompts, device = self.prompts[:batch], model.device
        return decode(model, prompts, decoder=self.decoder, cache=CACHES[cache], device=device, **given)

    def trace(self, model: DiffusionLM, cache: str, batch: int) -> Trace:
        """What every row does, step by step. Looking costs time."""
        rows: Trace = [[] for _ in range(batch)]

        def look(state: Any, view: Any, update: Any) -> None:
            values, written = view.logits.values, torch.where(update.write, update.tokens, -1).tolist()
            numbers = torch.stack([values.amax(-1), values.logsumexp(-1)], -1).cpu()
            for row in view.live.any(1).nonzero()[:, 0].tolist():
                rows[row].append((written[row], numbers[row]))

        self.decode(model, cache, batch, on_step=look)
        return rows

    def cell(self, cache: str, batch: int, mode: str, model: DiffusionLM) -> dict[str, Any]:
        """The numbers of one kind of decode."""
        began = time.perf_counter()
        trace = self.trace(model, cache, batch)  # and warms up
        with_eager = self.eager.setdefault((cache, batch), trace)
        pairs = list(zip(trace, with_eager, strict=True)) if with_eager is not trace else []
        if mode == "eager" and (cache, 1) in self.eager and batch > 1:
            pairs = [(trace[0], self.eager[cache, 1][0])]
        found = [differing(*pair) for pair in pairs]
        warm = time.perf_counter() - began
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        calls = Calls(model)
        whole, rows = took(lambda: self.decode(model, cache, batch))
        forwards, _ = took(calls.replay)
        calls.stop()
        peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else float("nan")
        steps, made = max(row.nfe for row in rows), len(calls.calls)
        cell = {"cache": cache, "batch": batch, "mode": mode, "steps": steps, "forwards": made, "first": warm}
        cell |= {"step": 1e3 * whole / steps, "forward": 1e3 * forwards / steps, "peak": peak}
        cell |= {"floor": 1e3 * self.floor(model, rows, made) / steps}
        cell |= {"tpf": sum(len(row.token_ids) for row in rows) / sum(row.nfe for row in rows)}
        cell |= self.profile(model, cache, batch)
        cell |= {"parted": f"{sum(parted for parted, _ in found)}/{len(found)}" if found else "-"}
        return cell | {"apart": max((apart for _, apart in found), default=float("nan"))}

    def floor(self, model: DiffusionLM, rows: Sequence[Any], forwards: int) -> float:
        """Seconds of all forwards."""
        body = sum(p.numel() for name, p in self.body.named_parameters() if name.startswith("layers."))
        head = head_of(model).numel()
        reading = forwards * (body + head) * model.backbone.dtype.itemsize / self.bandwidth
        asked = sum(row.nfe for row in rows) * self.options["block"]
        return max(reading, 2 * (sum(row.queried for row in rows) * body + asked * head) / self.rate)

    def profile(self, model: DiffusionLM, cache: str, batch: int) -> dict[str, Any]:
        """What the GPU does in a step of the first two blocks."""
        if not torch.cuda.is_available():
            return dict.fromkeys(("busy", "kernels", "waits", "waited"), float("nan"))
        from torch._C._autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            rows = self.decode(model, cache, batch, gen_len=2 * self.options["block"])
            synchronize()
        assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
        steps, events = max(row.nfe for row in rows), profiler.profiler.kineto_results.events()
        there = [event for event in events if event.device_type() == DeviceType.CUDA]
        waits = [event for event in events if "Synchronize" in event.name()]
        by_name = Counter[str]()
        for event in there:
            by_name[event.name()[:80]] += event.duration_ns()
        most = {name: ns / 1e6 / steps for name, ns in by_name.most_common(12)}
        ms = [sum(event.duration_ns() for event in some) / 1e6 / steps for some in (there, waits)]
        numbers = {"busy": ms[0], "kernels": len(there) / steps, "waits": len(waits) / steps, "waited": ms[1]}
        return numbers | {"most": most}


def took(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what comes of it."""
    synchronize()
    began = time.perf_counter()
    result = work()
    synchronize()
    return time.perf_counter() - began, result


def differing(row: list[tuple[list[int], Tensor]], other: list[tuple[list[int], Tensor]]) -> tuple[bool, float]:
    """Whether two decodes of a row part, and how far their numbers are apart until then, in units of the last place."""
    apart = 0.0
    for (written, numbers), (others, there) in zip(row, other, strict=False):
        unit = torch.finfo(torch.bfloat16).eps * float(there[:, 0].abs().max())
        apart = max(apart, float((numbers - there).abs().max()) / unit)
        if written != others:
            return True, apart
    return False, apart


def markdown(cells: Sequence[dict[str, Any]]) -> str:
    """A line for each cache and batch: milliseconds of a step and of its forward in each mode, and of the eager one
    where they go."""
    by_mode: dict[str, dict[tuple[str, int], dict[str, Any]]] = {mode: {} for mode in MODES}
    for cell in cells:
        by_mode[cell["mode"]][cell["cache"], cell["batch"]] = cell
    others = [mode for mode in MODES if mode != "eager" and by_mode[mode]]
    heads = ["cache", "rows", "eager step", "its forward"]
    for mode in others:
        heads += [f"{mode} step", "its forward", f"eager / {mode}"]
    rows = []
    for place, eager in by_mode["eager"].items():
        row = [f"`{place[0]}`", str(place[1]), *(f"{eager[name]:.1f}" for name in ("step", "forward"))]
        for cell in (by_mode[mode].get(place) for mode in others):
            ratio = cell and [f"{cell['step']:.1f}", f"{cell['forward']:.1f}", f"{eager['step'] / cell['step']:.2f}"]
            row += ratio or [""] * 3
        rows.append([*row, *(f"{eager[name]:.1f}" for name in ("busy", "floor")), f"{eager['kernels']:.0f}"])
        rows[-1].append(f"{eager['peak']:.1f}")
    heads += ["GPU busy", "floor", "GPU operations", "GiB"]
    return "\n".join(table(heads, rows)) + "\n"


def run_tests() -> str:
    """The last line of the tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TESTS.parents[2])
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "\n".join([*lines, *done.stdout.splitlines()[-1:]])


def read_options(arguments: list[str]) -> dict[str, Any]:
    paths, given = split_options(arguments, {key: str(value) for key, value in OPTIONS.items()}, needs_paths=False)
    known = {"caches": CACHES, "modes": MODES, "shape": SHAPES, "decoder": ("fixed", "threshold")}
    known |= {"dtype": ("bfloat16", "float32"), "tests": ("true", "false")}
    numbers = [given[key] for key, default in OPTIONS.items() if isinstance(default, int)] + given["batches"].split(",")
    if (
        paths
        or not all(number.isdecimal() and int(number) for number in numbers)
        or not all(word in words for key, words in known.items() for word in given[key].split(","))
    ):
        raise ValueError(
            f"options are {', '.join(OPTIONS)}, whole numbers; shapes are {', '.join(SHAPES)}, caches "
            f"{', '.join(CACHES)}, modes {', '.join(MODES)}; decoder=fixed or threshold, dtype=bfloat16 or float32, "
            "tests=true or false"
        )
    if given["shape"] == "llada-8b" and not torch.cuda.is_available():
        raise ValueError("shape=llada-8b is for a GPU, and there is none; give shape=toy or shape=small")
    options = {key: int(given[key]) if isinstance(value, int) else given[key] for key, value in OPTIONS.items()}
    return options | {
        "batches": sorted(map(int, given["batches"].split(","))),
        **{key: given[key].split(",") for key in ("caches", "modes")},
    }


@torch.inference_mode()
def main(arguments: list[str]) -> None:
    options, began = read_options(arguments), time.perf_counter()
    cells, left_out = list[dict[str, Any]](), list[str]()
    tests = run_tests() if options["tests"] == "true" and torch.cuda.is_available() else "not run"
    print(f"tests that need a GPU: {tests}", flush=True)
    bench = Bench(options)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU: a trial"
    about = {"gpu": gpu, "torch": torch.__version__, "bandwidth": bench.bandwidth, "rate": bench.rate, "tests": tests}
    print(f"{gpu}, torch {torch.__version__}, {bench.bandwidth / 1e9:.0f} GB/s, {bench.rate / 1e12:.0f} TFLOP/s")
    print(f"{options['shape']}, prompt {options['prompt']}, {options['gen']} tokens in blocks of {options['block']}")
    print(f"{'cache':6} {'batch':>5} {'mode':9}" + "".join(f"{name:>9}" for name in COLUMNS), flush=True)
    for mode in options["modes"]:
        for cache in options["caches"]:
            model = bench.prepare(cache, mode)
            for batch in options["batches"]:
                if time.perf_counter() - began > 60 * options["minutes"]:
                    left_out.append(f"{mode} {cache} {batch}")
                    continue
                cell = bench.cell(cache, batch, mode, model)
                cells.append(cell)
                values = (cell[name] for name in COLUMNS)
                shown = (f"{value:9.2f}" if isinstance(value, float) else f"{value:>9}" for value in values)
                print(f"{cache:6} {batch:5} {mode:9}" + "".join(shown), flush=True)
                if options["out"]:
                    Path(options["out"]).mkdir(parents=True, exist_ok=True)
                    result = {**about, "options": options, "cells": cells}
                    Path(options["out"], "gpu.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
                    Path(options["out"], "gpu.md").write_text(markdown(cells), encoding="utf-8")
    if left_out:
        print(f"left out, as minutes={options['minutes']} were over: {', '.join(left_out)}")


if __name__ == "__main__":
    with explained():
        main(sys.argv[1:])
