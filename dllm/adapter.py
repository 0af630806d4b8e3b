"""LoRA adapters (arXiv 2106.09685) through PEFT: attach, detach, merge.

An adapter that was trained on a published layout names that layout's modules. The model's key map (`dllm.families`)
renames them. Which modules it covers is read off its tensors, so any way of listing targets works.

Three things are ours and not PEFT's:
    "active": "drafts" in adapter_config.json: the adapter acts at drafted columns only (`ModelSpec.context_causal`).
    "mask_id" in adapter_config.json: the MASK that it was trained with, which the base may have no row for.
    A tensor `mask_embedding` `[D]` next to the factors: the input embedding of MASK.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dllm.converted.fields import Fields
from dllm.layers import Gate, lora_layers
from dllm.model import DiffusionLM
from dllm.shipped import ASSETS, IN_THE_REPOSITORY, check_folder
from dllm.text import BackboneLM
from dllm.validation import shown

if TYPE_CHECKING:  # a model without adapter needs no PEFT
    from peft import LoraConfig
    from peft.tuners.lora import LoraLayer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MASK_EMBEDDING = "mask_embedding"
MASK_TOKEN = "<|mask|>"  # where a model had none
PREFIX = "base_model.model."  # PEFT's, before the trained model's own names
HARMLESS = (
    "auto_mapping|inference_mode|target_modules|exclude_modules|layers_to_transform|layers_pattern|fan_in_fan_out"
    "|megatron_core|runtime_config|eva_config|qalora_group_size|mask_id|lora_?plus\\w*"
)
"""Fields of its config that are about training, void without another, or said again by its tensors."""

MOST_ALPHA = 1e9
STARTS = (True, False, "gaussian", "orthogonal", "eva", "mica")
"""First values of the factors that leave the base's weights as they were. PiSSA, OLoRA, CorDA, LoRA-GA and LoftQ take
something out of them first."""

_TENSOR = re.compile(rf"(?:{re.escape(PREFIX)})?(.+)\.lora_([AB])(?:\.default)?\.weight")


def attach(model: BackboneLM, folder: Path) -> None:
    """Adds the adapter in `folder` to the model, in place: W becomes W + scaling * B @ A in every covered module.

    The scaling is lora_alpha / r, or lora_alpha / sqrt(r) for rslora. Dropout is for training and left out. The
    adapter's weights are not trainable and are on their module's device. Raises ValueError, and leaves the model as it
    was, when the adapter is absent, not LoRA, not safetensors, or does not fit.
    """
    from peft import inject_adapter_in_model

    if is_attached(model):
        raise ValueError(f"{model.name} already has an adapter; merge or detach it first")
    config, pairs, mask_embedding, drafts_only = read_adapter(folder, model)
    if drafts_only or mask_embedding is not None:
        _check_drafts(folder, model, mask_embedding)
    config.target_modules = sorted(pairs)
    inject_adapter_in_model(config, model.backbone)
    tensors = {f"{name}.lora_{part}.default.weight": t for name, pair in pairs.items() for part, t in pair.items()}
    left = model.backbone.load_state_dict(tensors, strict=False).unexpected_keys
    assert not left, left
    if isinstance(model, DiffusionLM) and drafts_only:
        put_gate(model)
    if isinstance(model, DiffusionLM) and mask_embedding is not None:
        # where the head is tied to it, MASK's logit changes too, which is not used
        weight = model.backbone.get_input_embeddings().weight
        assert isinstance(weight, Tensor)
        with torch.no_grad():
            weight[model.spec.mask_id] = mask_embedding
    model.eval()  # injected modules start in training mode


def attach_all(model: BackboneLM, folders: str | Path | Sequence[str | Path] | None) -> None:
    """Attaches adapters one on another. They become part of the weights, so that a forward costs what it costs without
    them. The last stays attached where it acts at drafted columns only, or where weights are quantised.

    folders: folders or names of shipped adapters. Raises ValueError as `attach` does.
    """
    several = find_adapters(folders)
    for i, folder in enumerate(several, 1):
        attach(model, folder)
        if i < len(several) or _can_merge(model):
            merge(model)


def brings_mask(folders: str | Path | Sequence[str | Path] | None, mask_id: int) -> bool:
    """Whether one of the adapters was trained with this MASK, so that a base without a row for it gets one."""
    files = [folder / CONFIG for folder in find_adapters(folders) if (folder / CONFIG).is_file()]
    try:
        return any(json.loads(file.read_text(encoding="utf-8")).get("mask_id") == mask_id for file in files)
    except (ValueError, AttributeError, RecursionError):
        return False  # `attach` says what is wrong with it


def add_mask(backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, token: int) -> None:
    """Gives a model MASK_TOKEN, in place: a spare row of the embeddings, or one after them, their mean."""
    embeddings = backbone.get_input_embeddings().weight
    assert isinstance(embeddings, Tensor)
    if token >= len(embeddings):
        with torch.random.fork_rng():  # transformers draws the new row
            backbone.resize_token_embeddings(token + 1, mean_resizing=False)
        for layer in (backbone.get_input_embeddings(), backbone.get_output_embeddings()):
            weight = cast(nn.Embedding, layer).weight
            weight.data[token] = weight.data[:token].float().mean(0)
    tokenizer.add_special_tokens({"mask_token": MASK_TOKEN})


def find_adapters(folders: str | Path | Sequence[str | Path] | None) -> list[Path]:
    """The folders of adapters, each given by its folder or as the name of a shipped one. Raises ValueError for one that
    the wheel leaves out."""
    several = [folders] if isinstance(folders, str | Path) else list(folders or ())
    for one in several:
        if str(one) in IN_THE_REPOSITORY:
            check_folder(str(one))
    return [ASSETS / str(one) if (ASSETS / str(one) / CONFIG).is_file() else Path(one) for one in several]


def put_gate(model: DiffusionLM) -> None:
    """Makes the attached adapter active at drafted columns only."""
    model.gate = Gate()
    for layer in layers(model).values():
        cast(nn.Module, layer).forward = partial(model.gate.forward, layer)


def detach(model: BackboneLM) -> None:
    """Takes the adapter away, in place. The weights are then the original ones, except for an embedding of MASK that
    the adapter brought."""
    for name, layer in layers(model).items():
        model.backbone.set_submodule(name, cast(nn.Module, layer.get_base_layer()))
    vars(model.backbone).pop("peft_config", None)
    if isinstance(model, DiffusionLM):
        model.gate = None


def merge(model: BackboneLM) -> None:
    """Adds the adapter's product to the weights for good, in place, and takes its layers away. Raises ValueError for an
    adapter that acts at drafted columns only."""
    if isinstance(model, DiffusionLM) and model.gate is not None:
        raise ValueError(f"the adapter of {model.name} is active at drafted columns only and cannot be merged")
    for layer in layers(model).values():
        layer.merge()
    detach(model)


def _can_merge(model: BackboneLM) -> bool:
    """Whether merging keeps what the adapter does."""
    gated = isinstance(model, DiffusionLM) and model.gate is not None
    weights = [cast(nn.Linear, layer.get_base_layer()).weight for layer in layers(model).values()]
    return not gated and all(weight.is_floating_point() and weight.itemsize > 1 for weight in weights)


def is_attached(model: BackboneLM) -> bool:
    return bool(layers(model))


def layers(model: BackboneLM) -> dict[str, "LoraLayer"]:
    """The layers that have an adapter, by their names in the backbone."""
    return lora_layers(model.backbone)


def _check_drafts(folder: Path, model: BackboneLM, mask_embedding: Tensor | None) -> None:
    """Raises ValueError when an adapter for drafted columns does not fit the model."""
    if not isinstance(model, DiffusionLM) or not model.spec.context_causal:
        raise ValueError(
            f"adapter {str(folder)!r} is for drafted columns and {model.name} has none; load it with dllm.load and a "
            "spec with context_causal=true and block=N"
        )
    width = model.backbone.config.get_text_config().hidden_size
    if mask_embedding is not None and tuple(mask_embedding.shape) != (width,):
        raise ValueError(
            f"adapter {str(folder)!r} has an embedding of MASK of shape {tuple(mask_embedding.shape)}, {model.name} "
            f"has {width} channels"
        )


def read_adapter(
    folder: Path, model: BackboneLM
) -> tuple["LoraConfig", dict[str, dict[str, Tensor]], Tensor | None, bool]:
    """The adapter's config; its A `[r, in]` and B `[out, r]` by module name of the backbone; its embedding of MASK, if
    any; and whether it acts at drafted columns only. Raises ValueError for what is none, and for one that
    is of another kind or of another model."""
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(f"adapter {str(folder)!r} has no {name}; give a folder that PEFT has saved as safetensors")
    try:
        raw, tensors = json.loads((folder / CONFIG).read_text(encoding="utf-8")), load_file(folder / WEIGHTS)
        if not isinstance(raw, dict):
            raise ValueError(f"{CONFIG} holds a {type(raw).__name__} where an object belongs")
        fields = Fields(raw)
        config = _config(fields)
        active = fields.get("active", "everywhere")
        if active not in ("everywhere", "drafts"):
            raise ValueError(f"active={shown(active)}; it is 'everywhere' or 'drafts'")
        for name, value in fields.unread(HARMLESS).items():
            raise ValueError(f"{name}={shown(value)}: only plain LoRA is supported, which adds B A to the weights")
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot read adapter {str(folder)!r}: {error}") from error
    pairs: dict[str, dict[str, Tensor]] = {}
    mask_embedding = tensors.pop(MASK_EMBEDDING, None)
    for key, tensor in tensors.items():
        match = _TENSOR.fullmatch(key)
        if match is None:
            raise ValueError(f"adapter {str(folder)!r} holds {key!r}, which is no LoRA factor of a linear layer")
        name = _renamed(match[1], model)
        if match[2] in pairs.setdefault(name, {}):
            raise ValueError(f"adapter {str(folder)!r} has two factors {match[2]} of {name!r}; delete one")
        if not tensor.is_floating_point() or tensor.itemsize == 1:
            raise ValueError(f"adapter {str(folder)!r} holds {key!r} of type {tensor.dtype}; save it in float32")
        pairs[name][match[2]] = tensor
    if not pairs:
        raise ValueError(f"adapter {str(folder)!r} is empty")
    for name, factors in pairs.items():
        _check(folder, name, factors, config.r, model)
    trained_with = fields.get("mask_id")
    if trained_with is not None and isinstance(model, DiffusionLM) and trained_with != model.spec.mask_id:
        raise ValueError(
            f"adapter {str(folder)!r} was trained with mask_id={shown(trained_with)}, and {model.name} has "
            f"{model.spec.mask_id}; give spec.mask_id"
        )
    return config, pairs, mask_embedding, active == "drafts"


def _config(raw: Mapping[str, Any]) -> "LoraConfig":
    """PEFT's config. PEFT itself checks these values only after it has changed the model."""
    from peft import LoraConfig

    if raw.get("peft_type") != "LORA":
        raise ValueError(f"peft_type={shown(raw.get('peft_type'))}: only plain LoRA is supported")
    r, alpha, rslora = (raw.get(name) for name in ("r", "lora_alpha", "use_rslora"))
    if type(r) is not int or r < 1:
        raise ValueError(f"r={shown(r)}; a rank is an integer of at least 1")
    if type(alpha) not in (int, float) or not abs(cast(float, alpha)) <= MOST_ALPHA:  # NaN is not either
        raise ValueError(f"lora_alpha={shown(alpha)} is no number")
    if rslora not in (None, False, True):
        raise ValueError(f"use_rslora={shown(rslora)} is neither true nor false")
    for name in ("alpha_pattern", "rank_pattern"):
        if raw.get(name):
            raise ValueError(
                f"{name}={shown(raw[name])}: ranks and scalings that differ between modules are not supported"
            )
    start = raw.get("init_lora_weights", True)
    if (start.lower() if isinstance(start, str) else start) not in STARTS:
        raise ValueError(
            f"init_lora_weights={shown(start)}: it may have changed the weights that the factors add to; save the "
            "adapter as plain LoRA (PEFT: path_initial_model_for_weight_conversion), or merge it where it was trained"
        )
    return LoraConfig(r=r, lora_alpha=cast(int, alpha), use_rslora=bool(rslora), inference_mode=True)


def _renamed(module: str, model: BackboneLM) -> str:
    """The backbone's name of a module that may have a published one."""
    key = f"{module}.weight"
    for pattern, ours in (model.keys if isinstance(model, DiffusionLM) else {}).items():
        key = re.sub(pattern, ours, key)
    return key.removesuffix(".weight")


def _check(folder: Path, name: str, factors: dict[str, Tensor], rank: int, model: BackboneLM) -> None:
    """Raises ValueError when the factors do not fit the module of that name, or have another rank."""
    module = dict(model.backbone.named_modules()).get(name)
    if not isinstance(module, nn.Linear):
        raise ValueError(f"adapter {str(folder)!r} is for {name!r}, which is no linear layer of {model.name}")
    if module.weight.is_meta:
        raise ValueError(f"{name!r} of {model.name} is offloaded; an adapter needs it on a device")
    shapes = {part: tuple(tensor.shape) for part, tensor in factors.items()}
    if shapes != {"A": (rank, module.in_features), "B": (module.out_features, rank)}:
        raise ValueError(
            f"adapter {str(folder)!r} has factors of shapes {shapes} for {name!r} of {model.name}, which maps "
            f"{module.in_features} features to {module.out_features}; its {CONFIG} says r={rank}"
        )
