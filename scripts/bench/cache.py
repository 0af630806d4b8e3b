"""What caches save on a model of a published shape with random weights: forwards compared with their floor, and whole
decodes.

    python scripts/bench/cache.py [shape=small] [batch=8] [prompt=256] [gen=256] [block=32] [k=4] [caches=none,dual]

shape: `toy` (to try the script), `small` (width 512, 8 layers, float32), `head` (one layer of LLaDA's width, bfloat16),
`llada-8b` (bfloat16; for a GPU), all with LLaDA's vocabulary of 126,464 and an untied head. Uses a GPU where there is
one.

Forwards: milliseconds for a window of `block` columns and for the whole canvas, compared with the time in which this
machine reads the weights once or does the multiplications, both measured here. Decodes: each cache in a process of its
own, k tokens per step; NFE, queried columns, seconds, peak memory (of the process, or of the device), and `overhead`:
the decode's time over that of its forwards."""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from decoders import Decoder, FixedK, Never, decode
from dllm import DiffusionLM, ModelSpec
from dllm.cache import CacheStrategy
from dllm.plan import Plan
from parallelbench.report.options import split_options
from parallelbench.wiring.exits import explained

CONF = Path(__file__).resolve().parents[2] / "conf" / "cache"
VOCAB = 126464
SHAPES = {  # width, layers, heads, MLP width, dtype
    "toy": (16, 1, 2, 32, torch.float32),
    "small": (512, 8, 8, 1536, torch.float32),
    "head": (4096, 1, 32, 12288, torch.bfloat16),
    "llada-8b": (4096, 32, 32, 12288, torch.bfloat16),
}
OPTIONS = {"shape": "small", "batch": 8, "prompt": 256, "gen": 256, "block": 32, "k": 4, "caches": "none,prefix,dual"}


def build(shape: str) -> DiffusionLM:
    width, layers, heads, mlp, dtype = SHAPES[shape]
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        intermediate_size=mlp,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with torch.device(device):
        backbone = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return DiffusionLM(backbone, ModelSpec(126336, (126081,), 126081), name=shape).eval()


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The fastest of some runs, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        synchronize()
        began = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def machine(model: DiffusionLM) -> tuple[float, float]:
    """Bytes read per second and multiplications-and-additions (2 FLOPs) per second of this machine, measured."""
    dtype, device = model.backbone.dtype, model.device
    block = torch.ones(2**28, dtype=torch.int8, device=device).view(torch.float32)
    bandwidth = block.nbytes / seconds(lambda: block.sum())
    size = 4096 if device.type == "cuda" else 2048
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return bandwidth, 2 * size**3 / seconds(lambda: a @ b)


@torch.inference_mode()
def forwards(options: dict) -> None:
    model = build(options["shape"])
    bandwidth, rate = machine(model)
    length, block = options["prompt"] + options["gen"], options["block"]
    body = sum(p.numel() for p in model.backbone.get_decoder().layers.parameters())
    head = model.backbone.get_output_embeddings().weight.numel()
    weight_bytes = (body + head) * model.backbone.dtype.itemsize
    name = torch.cuda.get_device_name() if model.device.type == "cuda" else f"CPU, {torch.get_num_threads()} thread(s)"
    print(f"{options['shape']}, {model.backbone.dtype}, {name}: {bandwidth / 1e9:.0f} GB/s, {rate / 1e12:.2f} TFLOP/s")
    print(f"{'forward':8} {'batch':>5} {'columns':>7} {'ms':>9} {'floor ms':>9} {'ratio':>6}  bound by")
    for batch in sorted({1, options["batch"]}):
        canvas = torch.randint(0, 1000, (batch, length), device=model.device)
        rows, end = torch.arange(batch, device=model.device), torch.full((batch,), length, device=model.device)
        kv = model.new_kv(torch.full_like(end, options["prompt"]), length)
        want = torch.arange(options["prompt"], options["prompt"] + block, device=model.device).expand(batch, -1)
        for kind, query in (("full", torch.arange(length, device=model.device).expand(batch, -1)), ("window", want)):
            plan = Plan(rows, query, torch.full_like(end, query.shape[1]), all_rows=True)
            measured = seconds(lambda: model.logits(canvas, plan, want, end=end, kv=kv))  # noqa: B023
            flops = 2 * batch * (query.shape[1] * body + block * head)
            reading, computing = weight_bytes / bandwidth, flops / rate
            floor = max(reading, computing)
            bound = "reading the weights" if reading > computing else "multiplications"
            print(
                f"{kind:8} {batch:5} {query.shape[1]:7} {1e3 * measured:9.2f} {1e3 * floor:9.2f} "
                f"{measured / floor:6.2f}  {bound}",
                flush=True,
            )


class Stopwatch:
    """Seconds spent in forwards of the model."""

    def __init__(self, model: DiffusionLM) -> None:
        self.total, self.forward = 0.0, model.logits
        model.logits = self

    def __call__(self, *args: object, **kwargs: object) -> Tensor:
        synchronize()
        began = time.perf_counter()
        logits = self.forward(*args, **kwargs)
        synchronize()
        self.total += time.perf_counter() - began
        return logits


@torch.inference_mode()
def decoded(options: dict, name: str) -> dict[str, float]:
    """One decode after a short one to warm up."""
    torch.set_num_threads(options["threads"])
    model = build(options["shape"])
    cache: CacheStrategy = instantiate(OmegaConf.load(CONF / f"{name}.yaml"))
    prompts = torch.randint(0, 1000, (options["batch"], options["prompt"])).tolist()

    def run(max_steps: int | None) -> list:
        return decode(
            model,
            prompts,
            gen_len=options["gen"],
            block_len=options["block"],
            decoder=Decoder(FixedK(options["k"])),
            cache=cache,
            stop=Never(),
            max_steps=max_steps,
            device=model.device,
        )

    run(2)
    watch = Stopwatch(model)
    synchronize()
    began = time.perf_counter()
    rows = run(None)
    synchronize()
    took = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _resident()
    return {
        "nfe": rows[0].nfe,
        "queried": rows[0].queried,
        "seconds": took,
        "overhead": took / watch.total,
        "peak": peak / 2**30,
    }


def _resident() -> int:
    """The process' highest resident memory in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(arguments: list[str]) -> None:
    paths, given = split_options(arguments, {key: str(default) for key, default in OPTIONS.items()}, needs_paths=False)
    numbers = [given[key] for key, default in OPTIONS.items() if isinstance(default, int)]
    if paths or given["shape"] not in SHAPES or not all(number.isdecimal() and int(number) for number in numbers):
        raise ValueError(f"options are {', '.join(OPTIONS)}, whole numbers; shapes are {', '.join(SHAPES)}")
    options = {key: type(default)(given[key]) for key, default in OPTIONS.items()}
    options["threads"] = torch.get_num_threads()
    forwards(options)
    length, step = f"prompt {options['prompt']}, {options['gen']} tokens", f"{options['k']} per step"
    print(f"\ndecodes: batch {options['batch']}, {length} in blocks of {options['block']}, {step}")
    titles = ("columns", "of none", "seconds", "speed-up", "overhead", "peak GiB")
    print(f"{'cache':16} {'NFE':>4} {' '.join(f'{title:>8}' for title in titles)}")
    first = None
    for name in options["caches"].split(","):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row = pool.apply(decoded, (options, name))
        first = first or row
        share, gain = row["queried"] / first["queried"], first["seconds"] / row["seconds"]
        print(
            f"{name:16} {row['nfe']:4} {row['queried']:8} {share:8.1%} {row['seconds']:8.1f} {gain:8.2f} "
            f"{row['overhead']:8.2f} {row['peak']:8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    with explained():
        main(sys.argv[1:])
