"""Recorded logits of published modelling code, and one training forward, against ours."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import dllm
from dllm.plan import Plan
from dllm.spec import ModelSpec
from dllm.vision.pictures import is_picture, number_of
from tests.golden.adapters import TableModel, pictured

CLOSE = 1e-4  # the largest difference of a logit


def forward(model: Any, canvas: Tensor, kv: Any, first: int, stop: int) -> Tensor:
    """Logits of the columns from `first` to `stop`, which alone are recomputed."""
    rows = torch.arange(len(canvas))
    query = torch.arange(first, stop).expand(len(canvas), -1)
    plan = Plan(rows, query, torch.full_like(rows, stop - first), all_rows=True)
    return model.logits(canvas, plan, query, end=torch.full_like(rows, canvas.shape[1]), kv=kv)


def start(model: Any, canvas: Tensor) -> Any:
    return model.new_kv(torch.ones(len(canvas), dtype=torch.long), canvas.shape[1])


def first_difference(pairs: dict[str, tuple[Tensor, Tensor]]) -> str | None:
    for case, (ours, theirs) in pairs.items():
        difference = float((ours - theirs)[~ours.isneginf()].abs().max())  # MASK is never offered
        if not difference <= CLOSE:
            return f"{case}: differs by {difference:.2g}"
    return None


def check_logits(folder: Path, group: str, name: str) -> str | None:
    """Full, cached, prefix, dual and vicinity forwards of a model against its recorded logits, and its values in the
    cache (largest difference 1e-4). A shifted model's full forward must be the recorded one moved by a column."""
    about = json.loads((folder / group / f"{name}.json").read_text())
    recorded = load_file(folder / group / f"{name}.safetensors")
    model: Any
    if about["model"].startswith("table"):
        model = TableModel(folder / "models" / about["model"], ModelSpec(199, (198,), 197))
    else:
        model = dllm.load(folder / "models" / about["model"])
    spec = model.spec
    model.spec = replace(spec, shift=0)  # the recordings are not shifted

    ids, before = recorded["full.ids"], recorded["cache.ids"]
    pairs = {"full": (forward(model, ids, start(model, ids), 0, ids.shape[1]), recorded["full.logits"])}
    if spec.shift:
        model.spec = spec
        pairs["shifted"] = (
            forward(model, ids, start(model, ids), 0, ids.shape[1])[:, 1:],
            recorded["full.logits"][:, :-1],
        )
        model.spec = replace(spec, shift=0)
    kv = start(model, before)
    pairs["cache"] = (forward(model, before, kv, 0, before.shape[1]), recorded["cache.logits"])
    for number, layer in enumerate(getattr(kv, "layers", ())):
        theirs = recorded[f"cache.v{number}"]
        theirs = theirs if theirs.ndim == 4 else theirs.unflatten(-1, (-1, layer.values.shape[-1])).transpose(1, 2)
        pairs[f"values of layer {number}"] = (layer.values, theirs)
    for case in about["cases"]:
        canvas, kv, first = before.clone(), start(model, before), case.get("start")
        forward(model, canvas, kv, 0, canvas.shape[1])  # what the cached forward finds
        changes = {
            "dual": [("dual.ids_block_1", "dual.logits_1"), ("dual.ids_block_2", "dual.logits_2")],
            "prefix": [("prefix.ids_suffix", "prefix.logits")],
            "window": [("window.ids", "window.logits")],
        }
        for new, expected in changes.get(case["name"], []):
            stop = first + recorded[new].shape[1]
            canvas[:, first:stop] = recorded[new]
            pairs[expected] = (forward(model, canvas, kv, first, stop), recorded[expected])
    return first_difference(pairs)


def check_dimple_logits(folder: Path, group: str, name: str) -> str | None:
    """Text, and text with pictures, whose features are the recorded ones too."""
    about = json.loads((folder / group / f"{name}.json").read_text())
    recorded = load_file(folder / group / f"{name}.safetensors")
    model: Any = dllm.load(folder / "models" / about["model"])
    model.spec = replace(model.spec, shift=0)  # the recordings are not shifted
    prompt = recorded["image.ids"][0].tolist()
    ids = torch.tensor([pictured(model, prompt, recorded["image.pixel_values"], recorded["image.grid_thw"])])
    pairs = {
        case: (forward(model, canvas, start(model, canvas), 0, canvas.shape[1]), recorded[f"{case}.logits"])
        for case, canvas in (("text", recorded["text.ids"]), ("image", ids))
    }
    numbers = list(dict.fromkeys(number_of(ids[is_picture(ids)]).tolist()))
    pairs["features"] = (torch.cat([model.album[number].features for number in numbers]), recorded["image.projected"])
    return first_difference(pairs)


def check_block_logits(folder: Path, group: str, name: str) -> str | None:
    """Fast-dLLM v2's forwards: whole, over the prompt's blocks, a block on them, sub-blocks within it, and the finished
    block; with the values that each leaves."""
    about = json.loads((folder / group / f"{name}.json").read_text())
    recorded = load_file(folder / group / f"{name}.safetensors")
    model: Any = dllm.load(folder / "models" / about["model"])
    model.spec = replace(model.spec, shift=0)  # the recordings are not shifted
    ids, prefix = recorded["full.ids"], recorded["prefill.ids"]
    pairs = {"full": (forward(model, ids, start(model, ids), 0, ids.shape[1]), recorded["full.logits"])}
    begin, block = prefix.shape[1], model.spec.block
    canvas = torch.cat([prefix, recorded["block.ids"]], 1)
    kv = start(model, canvas)
    pairs["prefill"] = (forward(model, canvas, kv, 0, begin), recorded["prefill.logits"])
    for number, layer in enumerate(kv.layers):
        pairs[f"prefill, values {number}"] = (layer.values[:, :, :begin], recorded[f"prefill.v{number}"])
    pairs["block"] = (forward(model, canvas, kv, begin, begin + block), recorded["block.logits"])
    for name, first in (("sub8", begin + 8), ("sub16", begin + 16)):
        canvas[:, first : first + 8] = recorded[f"{name}.ids"]
        pairs[name] = (forward(model, canvas, kv, first, first + 8), recorded[f"{name}.logits"])
        for number, layer in enumerate(kv.layers):
            pairs[f"{name}, values {number}"] = (
                layer.values[:, :, begin:].clone(),
                recorded[f"{name}.block_v{number}"],
            )
    canvas[:, begin:] = recorded["commit.ids"]
    pairs["commit"] = (forward(model, canvas, kv, begin, begin + block), recorded["commit.logits"])
    return first_difference(pairs)


def check_causal_logits(folder: Path, group: str, name: str) -> str | None:
    """Forwards under a block-causal mask from column 0 on, and bidirectional ones."""
    about = json.loads((folder / group / f"{name}.json").read_text())
    recorded = load_file(folder / group / f"{name}.safetensors")
    ids, pairs = recorded["ids"], {}
    for case, block in (("block", about["block_size"]), ("full", None)):
        spec = ModelSpec(199, (198,), 197, shift=0, block=block)
        model: Any = dllm.load(folder / "models" / about["model"], spec=spec)
        pairs[case] = (forward(model, ids, start(model, ids), 0, ids.shape[1]), recorded[case])
    return first_difference(pairs)


def check_training(folder: Path, group: str, name: str) -> str | None:
    """Fast-dLLM v2's training forward over two complementary views. Ours predicts a block's first column from the
    clean stream, as decoding does, theirs from the noisy one; so those columns are left out."""
    about = json.loads((folder / group / f"{name}.json").read_text())
    recorded = load_file(folder / group / f"{name}.safetensors")
    model: Any = dllm.load(folder / "models" / about["model"])
    clean = recorded["ids"]
    length, block = clean.shape[1], model.spec.block
    noisy = recorded["input_ids"][:, :length].unflatten(0, (2, len(clean)))
    zeros, ends = torch.zeros(len(clean), dtype=torch.long), torch.full((len(clean),), length)
    ours = model.two_stream_logits(noisy, clean, zeros, ends)
    inside = torch.arange(length) % block > 0
    theirs = recorded["logits"].unflatten(0, (2, len(clean))).roll(1, 2)  # row i predicts column i + 1
    pairs = {"logits": (ours[:, :, inside], theirs[:, :, inside])}
    labels = recorded["labels"].unflatten(0, (2, len(clean)))
    counted = (labels >= 0) & (torch.arange(length) > 0)
    nll = torch.zeros(labels.shape).masked_scatter(counted, recorded["nll"])
    counted = counted & inside
    full = theirs[counted].log_softmax(-1)  # theirs has MASK in its softmax, ours has not
    ours_nll = torch.nn.functional.cross_entropy(ours[counted], labels[counted], reduction="none")
    share = 1 - full[:, about["mask_id"]].exp()
    pairs["loss terms"] = (ours_nll - share.log(), nll[counted])
    return first_difference(pairs)
