"""How the weights of a checkpoint are stored, by the headers of its files: what is read as it is, what under other
names, and what is not read and is called by its name."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from safetensors import safe_open
from torch import Tensor

from dllm.validation import shown

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
WRAPPERS = ("module.", "_orig_mod.", "base_model.model.", "backbone.")
"""What distributed training, torch.compile, PEFT and others put before every name."""

PLAIN, WHOLE = ("F64", "F32", "F16", "BF16"), ("I64", "BOOL")  # of weights, and of buffers of positions too
SCALES = re.compile(r"qweight|qzeros|SCB|absmax|weight_scale(_inv)?|weight_packed|quant_state")
STACKED = re.compile(r"(.*\.experts)\.((?:gate|up|down)_proj)(?:\.weight)?")
LAYERS = re.compile(r"(num|n)_(\w+_)?layers?(_in_\w+)?|(\w+_)?(layers|depth)|mean_recurrence")
MOST_LAYERS, MOST_GROWTH = 1000, 50
ADVICE = "use the checkpoint in bfloat16 or float32 that they were made from"
Held = dict[str, tuple[str, tuple[int, ...]]]  # name of a tensor to its type and shape


def check_counts(raw: Mapping[str, Any]) -> None:
    """Raises ValueError for more layers than any model has, which take hours to make before a weight is read."""
    for name, value in raw.items():
        if isinstance(value, Mapping):
            check_counts(value)
        elif type(value) in (int, float) and value > MOST_LAYERS and LAYERS.fullmatch(name):
            raise ValueError(f"{name}={value} of its config.json is more than {MOST_LAYERS}; no model has as many")


def refuse_quantised(raw: Mapping[str, Any], *, stock: bool) -> None:
    """Raises ValueError for weights that config.json calls quantised. stock: a model of transformers as it is, which
    reads those that say so in its own way."""
    for name in ("quantization", *([] if stock else ["quantization_config", "compression_config"])):
        given = raw.get(name)
        if given:
            about = dict(given) if isinstance(given, Mapping) else {}
            method = about.get("quant_method", "mlx" if name == "quantization" else given)
            bits = about.get("bits") or next((n for n in (4, 8) if about.get(f"load_in_{n}bit")), None)
            how = f"{name}: {shown(method)}" + (f", {bits} bits" if bits else "")
            raise ValueError(f"its weights are quantised ({how}), which is not read here; {ADVICE}")


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights of a folder. Raises ValueError when one does not exist or is elsewhere, and for
    weights of another format."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        others = sorted(folder.glob("*.gguf"))
        if others:
            raise ValueError(f"its weights are in GGUF ({others[0].name}); only safetensors are read, so {ADVICE}")
        return []
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"its {INDEX} has no weight_map from weights to files")
    files = sorted(set(names.values()))
    for name in files:
        if PurePath(name).name != name or "\\" in name:
            raise ValueError(f"its {INDEX} names {shown(name)}, which is no file of its folder")
        if not (folder / name).is_file():
            raise ValueError(f"it has no file {name}, which its {INDEX} names")
    return [folder / name for name in files]


def held(files: Iterable[Path]) -> Held:
    """What these files hold. Nothing but their headers is read."""
    found: Held = {}
    for file in files:
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it is no mapping)
                piece = tensors.get_slice(name)
                found[name] = (piece.get_dtype(), tuple(piece.get_shape()))
    return found


def check_plain(tensors: Held) -> None:
    """Raises ValueError, naming a tensor, for an adapter that was saved within the model and for quantised weights."""
    for name, (kind, _) in tensors.items():
        if ".lora_A." in name or ".base_layer." in name:
            raise ValueError(
                f"its weights hold an adapter that was not merged ({name!r}); merge it before saving, or save it apart "
                "and give it as adapter"
            )
        plain = PLAIN if name.endswith(".weight") else (*PLAIN, *WHOLE)
        if kind not in plain or SCALES.search(name):
            raise ValueError(
                f"its weights are quantised ({name!r} is of type {kind}), which is not read here; {ADVICE}"
            )


def check_tokenizer(file: Path) -> None:
    """Raises ValueError for a tokenizer.json that makes far more of a text than it holds: every prompt would take all
    memory. What it puts before or after a text counts, and by how much each replacement may lengthen it."""
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
        steps = [*_steps(whole.get("normalizer")), *_steps(whole.get("pre_tokenizer"))]
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"its {file.name} is no tokenizer: {shown(str(error))}") from error
    growth = 1.0
    for step in steps:
        added, pattern = step.get("prepend") or step.get("content") or "", step.get("pattern")
        plain = len(pattern["String"]) if isinstance(pattern, dict) and isinstance(pattern.get("String"), str) else 1
        growth *= max(1.0, len(added) / max(plain, 1)) if isinstance(added, str) else 1.0
        if growth > MOST_GROWTH:
            raise ValueError(
                f"its {file.name} makes a text more than {MOST_GROWTH} times as long (by {shown(step.get('type'))} of "
                f"{len(added):,} characters); no published tokenizer does"
            )
    template = whole.get("post_processor")
    if len(json.dumps(template)) > 1000 * MOST_GROWTH:
        raise ValueError(f"its {file.name} adds more than {MOST_GROWTH} tokens to every text; no published one does")


def _steps(part: Any) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer, or those that a sequence of them is made of."""
    if not isinstance(part, dict):
        return []
    nested = [*(part.get("normalizers") or ()), *(part.get("pretokenizers") or ())]
    return [part, *(step for one in nested for step in _steps(one))]


def unwrapped(names: Iterable[str], own: str) -> dict[str, str]:
    """Renames that take away what a wrapper put before every name. own: the model's own first part of names."""
    parts = "|".join(re.escape(wrapper) for wrapper in WRAPPERS if wrapper != f"{own}.")
    every = [re.match(f"(?:{parts})+", name) for name in names]
    before = {match[0] for match in every if match is not None}
    inside = {r"(?<=\.)_orig_mod\.": ""} if any("._orig_mod." in name for name in names) else {}
    if len(before) != 1 or None in every:
        return inside
    return {f"^{re.escape(before.pop())}": ""} | inside


def unstacked(files: Iterable[Path], tensors: Held) -> dict[str, Tensor] | None:
    """All weights, where experts are stacked in `[E, out, in]` by matrix (dFactory), each expert's by its published
    name. None where none are."""
    if not any(
        STACKED.fullmatch(name) and len(shape) == 3 and ".down_proj" not in name for name, (_, shape) in tensors.items()
    ):
        return None
    found: dict[str, Tensor] = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                match, tensor = STACKED.fullmatch(name), opened.get_tensor(name)
                if match is None or tensor.ndim != 3:
                    found[name] = tensor
                else:
                    found |= {f"{match[1]}.{i}.{match[2]}.weight": one for i, one in enumerate(tensor)}
    return found
