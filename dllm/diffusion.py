"""Loading and saving checkpoints in Hugging Face layout: config, safetensors, tokenizer, and `dllm.json` with the
model's spec.

No hub code is ever run and no pickled weights are read. A folder or hub repository of a known family works as
published; any other transformers causal or masked LM works if its tokenizer names mask and EOS, or with `spec=`.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dllm.adapter import add_mask, attach_all, brings_mask, is_attached
from dllm.canvases import CanvasLM
from dllm.checkpoint import (
    RESCALED,
    check_weights,
    find_file,
    first_device,
    one_sentence,
    prepare,
    raw_config,
    read_backbone,
    read_tokenizer,
    to_dtype,
    warn_of_slow_halves,
)
from dllm.converted.block_routing import BlockRoutedLM, LLaDA2Backbone
from dllm.converted.ends import as_ids, with_ids
from dllm.converted.fields import check_whole_attention
from dllm.converted.probe import check_forward, probe
from dllm.converted.storage import refuse_quantised
from dllm.encoder import EncoderLM
from dllm.families import FAMILIES, recognise
from dllm.graphs import Graphs, Recorded, Work, on_gpu
from dllm.layers import use_fast_products_
from dllm.model import DiffusionLM
from dllm.plan import Plan
from dllm.shipped import ASSETS, SPEC_FILE, check_folder, shipped_causal_models, shipped_models
from dllm.spec import ModelSpec
from dllm.validation import check
from dllm.vision.dimple import DimpleBackbone
from dllm.vision.seeing import VisionLM, read_processor

MIX_FILE = "mix.safetensors"


def load_diffusion(
    name_or_path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str = torch.float32,
    spec: ModelSpec | Mapping[str, Any] | None = None,
    family: str | None = None,
    config: Mapping[str, Any] | None = None,
    adapter: str | Path | Sequence[str | Path] | None = None,
    chat_template: str | None = None,
    compile: bool | Literal["cuda_graphs"] = False,
    **pretrained: Any,
) -> DiffusionLM | CanvasLM:
    """A shipped diffusion model by name ("tiny"), or any checkpoint by folder or hub id, in eval mode.

    device: a torch device, or "auto" for a GPU where there is one.
    spec: in place of the recognised one. A mapping replaces some of its fields.
    family: in place of the one that config.json names (`dllm.families.FAMILIES`, or "native").
    config: fields in place of those of config.json, or that it lacks. None takes one out.
    adapter: a folder of LoRA weights or the name of a shipped adapter, or several. They become part of the weights; the
        last stays apart where it acts at drafted columns only or where weights are quantised (`dllm.adapter`).
    chat_template: in place of the tokenizer's: "plain" (message contents as they are) or a .jinja file.
    compile: torch.compile the transformer. It takes a minute at first, and on a CPU a C++ compiler. "cuda_graphs": a
        GPU records its forwards as they are, in few fixed shapes, and replays them; elsewhere a warning says that it
        is compiled as with true.
    pretrained: for transformers' `from_pretrained`: device_map (which replaces device), max_memory, offload_folder,
        attn_implementation, quantization_config, revision ...

    Raises ValueError, naming what is wrong, when the device does not exist; when the checkpoint is absent, incomplete
    or corrupt; when its architecture is unknown or cannot denoise, or nothing gives its spec; and when it would need
    hub code or pickled weights."""
    check(load_diffusion, name_or_path=name_or_path, device=device, dtype=dtype, spec=spec, family=family)
    dtype = to_dtype(dtype)
    check(load_diffusion, adapter=adapter, chat_template=chat_template, compile=compile)
    if str(name_or_path) in shipped_causal_models():
        raise ValueError(
            f"model {str(name_or_path)!r} is autoregressive, not a diffusion model; load it with "
            f"dllm.load_causal, or run it with model={str(name_or_path).replace('-', '_')} decoder=ar"
        )
    path = str(ASSETS / str(name_or_path) if str(name_or_path) in shipped_models() else name_or_path)
    check_folder(str(name_or_path))
    device, pretrained, hub = prepare(device, pretrained)
    with one_sentence(str(name_or_path), shipped_models()):
        raw = {**raw_config(path, hub), **(config or {})}
        chosen = recognise(raw, family)
        refuse_quantised(raw, stock=chosen is None)
        known = raw if chosen is None else with_ids(raw, _stated(path, spec, hub))
        stock, family_spec = (_native_config(raw), None) if chosen is None else chosen.read(known)
        canvases = chosen is not None and chosen.canvases
        if not canvases:
            stock.is_causal = False
        kind = _native_backbone(stock) if chosen is None else chosen.backbone
        keys = None if chosen is None else chosen.keys
        backbone, info = read_backbone(path, kind, stock, dtype, keys, pretrained, device)
        reader = AutoTokenizer if chosen is None else chosen.tokenizer
        tokenizer = read_tokenizer(path, stock, reader, chat_template, hub)
        masked = chosen is None and type(stock) in MODEL_FOR_MASKED_LM_MAPPING
        spec = _spec(path, tokenizer, vars(family_spec) if family_spec else {}, spec, keeps_kv=not masked, hub=hub)
        if tokenizer is not None and spec.mask_id == backbone.config.vocab_size and brings_mask(adapter, spec.mask_id):
            add_mask(backbone, tokenizer, spec.mask_id)
    check_weights(str(name_or_path), info)
    placed = "device_map" in pretrained
    entry = first_device(backbone) if placed else None
    name = Path(str(name_or_path)).name
    if canvases:
        refuse = [key for key, given in (("adapter", adapter), ("compile", compile)) if given]
        if refuse:
            raise ValueError(f"{refuse[0]} is not for model {name!r}, whose encoder and decoder share their weights")
        return CanvasLM(backbone, spec, tokenizer, name).to(device).eval()
    if masked:
        model: DiffusionLM = EncoderLM(backbone, spec, tokenizer, name, entry=entry)
    elif isinstance(backbone, DimpleBackbone):
        with one_sentence(str(name_or_path), shipped_models()):
            processor = read_processor(path, backbone, hub)
        model = VisionLM(backbone, spec, processor, tokenizer, name, keys=keys, entry=entry)
    else:
        by_block = isinstance(backbone, LLaDA2Backbone) and bool(backbone.config.expert_capacity)
        model = (BlockRoutedLM if by_block else DiffusionLM)(backbone, spec, tokenizer, name, keys=keys, entry=entry)
    if model.mix is not None:
        _load_mix(model, path, hub)
        model.mix.to(model.device, dtype)
    attach_all(model, adapter)
    model = model.eval() if placed else model.to(device).eval()
    if chosen is None:  # what the families' stock classes do is tested
        probe(model)
    two = torch.full((1, 2), spec.pad_id, device=model.device)
    check_forward(name, lambda: model.full_logits(two, two[:, 0] * 0 + 1))
    warn_of_slow_halves(model.device, backbone.dtype)
    if compile:
        compile_(model, graphs=compile == "cuda_graphs")
    else:
        use_fast_products_(model.backbone)
    return model


def save(model: DiffusionLM, folder: Path) -> None:
    """Writes a checkpoint that `load` reads: safetensors only, in the backbone's own layout.

    Raises ValueError for a model with an adapter attached, and for one that its stock classes would read as another.
    """
    if isinstance(model, BlockRoutedLM):
        raise ValueError(f"{model.name} routes by block, which the layout of its stock classes cannot say")
    if is_attached(model):
        raise ValueError(f"{model.name} has an adapter attached; merge or detach it before saving")
    folder.mkdir(parents=True, exist_ok=True)
    model.backbone.save_pretrained(folder, save_original_format=False)
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
    if isinstance(model, VisionLM):
        model.processor.save_pretrained(folder)
    if model.mix is not None:
        save_file(model.mix.state_dict(), folder / MIX_FILE)
    model.spec.save(folder)


def compile_(model: DiffusionLM, graphs: bool) -> None:
    """Compiles the transformer, with symbolic sizes, because rows end and batches shrink. graphs: records it instead
    (`dllm.graphs`), in few fixed shapes."""
    why = None if model.spec.kv and model.gate is None else "it is an encoder or has an adapter for drafted columns"
    why = why if model.device.type == "cuda" else f"it is on {model.device.type}"
    if graphs and why:
        warnings.warn(f"CUDA graphs are not for model {model.name!r}: {why}; it is compiled without", stacklevel=3)
        graphs = False
    if graphs:
        return record_(model)
    _make_room_apart(model)
    # one row or several, all or some of them, with and without K/V, the whole canvas or a part: torch would keep 8
    torch._dynamo.config.recompile_limit = max(16, torch._dynamo.config.recompile_limit)
    body = model.backbone if isinstance(model, EncoderLM) else model.backbone.get_decoder()
    body.compile(dynamic=True)


def record_(model: DiffusionLM, record: Callable[[Work], Recorded] = on_gpu) -> None:
    """Has the transformer's forwards recorded (`dllm.graphs`), in few fixed shapes."""
    _make_room_apart(model)
    model.fixed_shapes, model.graphs = True, Graphs(model.backbone, model.name, record)


def _make_room_apart(model: DiffusionLM) -> None:
    """Room for K/V that a forward made would be a second way to call it, and no place that a recording knows."""
    if not model.spec.kv:
        return
    two = torch.arange(2, device=model.device)[None]
    kv, plan = model.new_kv(two[:, 1], 2), Plan(two[0, :1], two, two[:, 1] + 1, all_rows=True)
    with torch.no_grad():
        model.logits(two * 0, plan, two, end=two[:, 1] + 1, kv=kv)
    assert kv is not None
    model.kv_samples = kv.samples()


def _stated(path: str, given: ModelSpec | Mapping[str, Any] | None, hub: dict) -> Mapping[str, Any]:
    """What the given spec and dllm.json say."""
    if isinstance(given, ModelSpec):
        return vars(given)
    file = find_file(path, SPEC_FILE, hub)
    return {**({} if file is None else ModelSpec.fields_of(Path(file))), **(given or {})}


def _native_config(raw: dict[str, Any]) -> PreTrainedConfig:
    if raw.get("model_type") not in CONFIG_MAPPING:
        raise _unknown(raw.get("model_type"))
    return CONFIG_MAPPING[raw["model_type"]].from_dict(raw)


def _unknown(model_type: str | None) -> ValueError:
    return ValueError(
        f"architecture {model_type!r} is neither a causal nor a masked LM of transformers, nor one of the families "
        f"{', '.join(FAMILIES)}"
    )


def _native_backbone(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The stock class of a config that belongs to no family: a masked LM where there is one, else a causal LM.

    A causal LM must attend wherever its mask allows, and its head must give logits as they are. `probe` tries what
    the config does not say.
    """
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING and not config.is_encoder_decoder:
        return cast(type[PreTrainedModel], MODEL_FOR_MASKED_LM_MAPPING[type(config)])
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder:
        backbone = cast(type[PreTrainedModel], MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
        if backbone._is_stateful:
            raise ValueError(f"architecture {config.model_type!r} is recurrent and cannot look ahead")
        for name in RESCALED:
            if vars(config).get(name) not in (None, 1):
                raise ValueError(f"{name}={vars(config)[name]}: logits rescaled after the head are not supported")
        check_whole_attention(config)
        return backbone
    raise _unknown(config.model_type)


def _spec(
    path: str,
    tokenizer: PreTrainedTokenizerBase | None,
    of_family: Mapping[str, Any],
    given: ModelSpec | Mapping[str, Any] | None,
    *,
    keeps_kv: bool,
    hub: dict,
) -> ModelSpec:
    """The given spec, or dllm.json's, the family's or the tokenizer's (in this order) with the given fields."""
    if isinstance(given, ModelSpec):
        return given
    file = find_file(path, SPEC_FILE, hub)
    if file is not None or of_family:
        known = of_family if file is None else vars(ModelSpec.read(Path(file), of_family))
    else:
        known = _special_ids(tokenizer) | {"kv": keeps_kv}
    fields: dict[str, Any] = {**known, **(given or {})}
    for name, what in (("mask_id", "a mask token"), ("eos_ids", "an end-of-text token")):
        if name not in fields:
            raise ValueError(f"it has no {SPEC_FILE} and no tokenizer that names {what}; give spec.{name}")
    eos_ids = as_ids(fields["eos_ids"])
    return ModelSpec(**{"pad_id": eos_ids[0], **fields, "eos_ids": eos_ids})


def _special_ids(tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    """The special ids that the tokenizer names. In BERT, [SEP] ends a text."""
    if tokenizer is None:
        return {}
    eos = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    ids = {"mask_id": tokenizer.mask_token_id, "eos_ids": None if eos is None else (eos,)}
    return {name: value for name, value in {**ids, "pad_id": tokenizer.pad_token_id}.items() if value is not None}


def _load_mix(model: DiffusionLM, path: str, hub: dict) -> None:
    """Reads the learned input mix. Raises ValueError when it is missing or does not fit."""
    assert model.mix is not None
    file = find_file(path, MIX_FILE, hub)
    if file is None:
        raise ValueError(f"model {path!r} has no {MIX_FILE}, which its {SPEC_FILE} asks for (mix={model.spec.mix})")
    try:
        model.mix.load_state_dict(load_file(file))
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{file} does not fit model {path!r}: {error}") from error
