"""Loading and saving checkpoints in Hugging Face layout: config, safetensors, tokenizer, and `dllm.json` with the
model's spec.

No hub code is ever run and no pickled weights are read. A folder or hub repository of a known family works as
published; any other transformers causal or masked LM works if its tokenizer names mask and EOS, or with `spec=`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file

from dllm.adapter import attach, is_attached
from dllm.encoder import EncoderLM
from dllm.families import FAMILIES, Family, recognise
from dllm.model import DiffusionLM
from dllm.probe import probe
from dllm.spec import SPEC_FILE, ModelSpec

ASSETS = Path(__file__).parent / "assets"
MIX_FILE = "mix.safetensors"
HUB = ("revision", "token", "cache_dir", "local_files_only")  # where the files are; config and tokenizer need it too
PLAIN_TEMPLATE = "{{ messages | map(attribute='content') | join('\n') }}"
SPARE = re.compile(r"pooler|seq_relationship|position_ids$|rotary_emb\.inv_freq$")
"""Weights of a checkpoint that its masked or causal LM does without: other heads, and buffers computed anew."""


def shipped_models() -> list[str]:
    """Names of the checkpoints that come with the package."""
    return sorted(path.parent.name for path in ASSETS.glob(f"*/{SPEC_FILE}"))


def load(
    name_or_path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str = torch.float32,
    spec: ModelSpec | Mapping[str, Any] | None = None,
    family: str | None = None,
    adapter: str | Path | None = None,
    chat_template: str | None = None,
    compile: bool = False,
    **pretrained: Any,
) -> DiffusionLM:
    """A shipped model by name ("tiny"), or any checkpoint by folder or hub id, in eval mode.

    device: a torch device, or "auto" for a GPU where there is one. spec: instead of the recognised one; a mapping
    replaces some of its fields. family: instead of the one that config.json names (`dllm.families.FAMILIES`, or
    "native"). adapter: a folder of LoRA weights. chat_template: "plain" (message contents as they are) or a .jinja
    file, instead of the tokenizer's. compile: torch.compile the transformer (a minute at first; on a CPU it
    needs a C++ compiler). pretrained: for transformers' `from_pretrained`: device_map (which then decides
    in place of device), max_memory, offload_folder, attn_implementation, quantization_config, revision ...

    Raises ValueError, naming what is wrong, when the device is not there, or the checkpoint is absent, incomplete,
    corrupt, of an architecture that is unknown or cannot denoise, has no spec, or would need hub code or pickled
    weights.
    """
    source = ASSETS / str(name_or_path) if str(name_or_path) in shipped_models() else name_or_path
    path = str(source)
    for name in ("trust_remote_code", "use_safetensors"):
        if name in pretrained:
            raise ValueError(f"{name}={pretrained[name]!r}: hub code is never run and only safetensors are read")
    # from a yaml these are mappings of other types
    pretrained = {name: dict(value) if isinstance(value, Mapping) else value for name, value in pretrained.items()}
    hub = {name: pretrained[name] for name in HUB if name in pretrained}
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_device(device)
    if "quantization_config" in pretrained:  # quantised weights cannot be moved afterwards
        pretrained.setdefault("device_map", {"": device})
    try:
        raw = _raw_config(path, hub)
        chosen = recognise(raw, family)
        config, family_spec = (_native_config(path, raw, hub), None) if chosen is None else _translated(chosen, raw)
        config.is_causal = False
        backbone_type = _native_backbone(config) if chosen is None else chosen.backbone
        _refuse_pickles(path)
        loaded = cast(Any, backbone_type).from_pretrained(
            path,
            config=config,
            dtype=_dtype(dtype),
            key_mapping=dict(chosen.keys) if chosen else None,
            use_safetensors=True,
            output_loading_info=True,
            **pretrained,
        )
        backbone, info = cast(tuple[PreTrainedModel, dict], loaded)
        tokenizer = _tokenizer(path, config, chosen, chat_template, hub)
        masked = chosen is None and type(config) in MODEL_FOR_MASKED_LM_MAPPING
        spec = _spec(path, tokenizer, family_spec, spec, keeps_kv=not masked, hub=hub)
    except Exception as error:  # files made by others break the libraries that read them in many ways
        known = ", ".join(shipped_models()) or "none"
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        raise ValueError(f"cannot load model {str(name_or_path)!r} (shipped models: {known}): {reason}") from error
    _check_weights(str(name_or_path), info)
    placed = "device_map" in pretrained
    entry = _entry(backbone) if placed else None
    name = Path(str(name_or_path)).name
    if masked:
        model: DiffusionLM = EncoderLM(backbone, spec, tokenizer, name, entry=entry)
    else:
        model = DiffusionLM(backbone, spec, tokenizer, name, keys=chosen.keys if chosen else None, entry=entry)
    if model.mix is not None:
        _load_mix(model, path, hub)
        model.mix.to(model.device, _dtype(dtype))
    if adapter is not None:
        attach(model, Path(adapter))
    model = model.eval() if placed else model.to(device).eval()
    if chosen is None:  # what the families' stock classes do is tested
        probe(model)
    if compile:  # symbolic sizes: rows finish, so batches shrink
        (backbone if masked else backbone.get_decoder()).compile(dynamic=True)
    return model


def save(model: DiffusionLM, folder: Path) -> None:
    """Writes a checkpoint that `load` reads back, safetensors only, in the backbone's own layout.

    Raises ValueError for a model with an adapter attached.
    """
    if is_attached(model):
        raise ValueError(f"{model.name} has an adapter attached; merge or detach it before saving")
    folder.mkdir(parents=True, exist_ok=True)
    model.backbone.save_pretrained(folder, save_original_format=False)
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
    if model.mix is not None:
        save_file(model.mix.state_dict(), folder / MIX_FILE)
    model.spec.save(folder)


def _dtype(dtype: torch.dtype | str) -> torch.dtype:
    if isinstance(dtype, str):
        found = vars(torch).get(dtype)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"unknown dtype {dtype!r}; use float32, bfloat16 or float16")
        return found
    return dtype


def _check_device(device: torch.device | str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device={str(device)!r} cannot be used here: {reason}") from error


def _raw_config(path: str, hub: dict) -> dict[str, Any]:
    """config.json as it is."""
    if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
        raise ValueError("the folder has no config.json")
    raw, _ = PreTrainedConfig.get_config_dict(path, **hub)
    if not isinstance(raw, dict):
        raise ValueError(f"its config.json holds a {type(raw).__name__} where an object belongs")
    return raw


def _translated(family: Family, raw: Mapping[str, Any]) -> tuple[PreTrainedConfig, ModelSpec]:
    try:
        return family.config(raw), family.spec(raw)
    except KeyError as error:
        raise ValueError(f"its config.json has no {error}, which its family needs") from error


def _native_config(path: str, raw: Mapping[str, Any], hub: dict) -> PreTrainedConfig:
    if raw.get("model_type") not in CONFIG_MAPPING:
        raise _unknown(raw.get("model_type"))
    return AutoConfig.from_pretrained(path, **hub)


def _unknown(model_type: str | None) -> ValueError:
    return ValueError(
        f"architecture {model_type!r} is neither a causal nor a masked LM of transformers, nor one of the families "
        f"{', '.join(FAMILIES)}"
    )


def _native_backbone(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The stock class of a config that belongs to no family: a masked LM where there is one, else a causal LM that
    attends wherever its mask allows and whose head gives its logits as they are. `dllm.probe` finds the rest."""
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING and not config.is_encoder_decoder:
        return cast(type[PreTrainedModel], MODEL_FOR_MASKED_LM_MAPPING[type(config)])
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder:
        backbone = cast(type[PreTrainedModel], MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
        if backbone._is_stateful:
            raise ValueError(f"architecture {config.model_type!r} is recurrent and cannot look ahead")
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if vars(config).get(name) not in (None, 1):
                raise ValueError(f"{name}={vars(config)[name]}: logits rescaled after the head are not supported")
        kinds = [kind for kind in vars(config).get("layer_types") or () if re.search("sliding|chunked", kind)]
        window = vars(config).get("sliding_window") if vars(config).get("use_sliding_window") is not False else None
        if kinds or window is not None:  # our mask is every layer's, so the window would be lost
            raise ValueError(f"{kinds[0] if kinds else f'sliding_window={window}'}: local attention is not supported")
        return backbone
    raise _unknown(config.model_type)


def _refuse_pickles(path: str) -> None:
    """Raises ValueError for a folder whose weights are pickles, which may run code on loading."""
    folder = Path(path)
    pickles = sorted(file.name for file in folder.glob("*.bin")) if folder.is_dir() else []
    if pickles and not any(folder.glob("*.safetensors")):
        raise ValueError(f"its weights are pickled ({pickles[0]}); only safetensors are read, so convert them first")


def _check_weights(name: str, info: dict) -> None:
    """Raises ValueError when weights are missing, or there are some that the model would leave out."""
    missing = sorted(info["missing_keys"])
    if missing:
        raise ValueError(f"model {name!r} lacks {len(missing)} weights, first {missing[0]!r}; its files are incomplete")
    unexpected = sorted(key for key in info["unexpected_keys"] if not SPARE.search(key))
    if unexpected:
        raise ValueError(
            f"model {name!r} has {len(unexpected)} weights that its architecture has no place for, first "
            f"{unexpected[0]!r}; it is another architecture than its config.json says, or another family"
        )


def _entry(backbone: PreTrainedModel) -> torch.device | None:
    """Where the canvases of a model in several places belong: with its first part on a GPU, else on the CPU."""
    places = vars(backbone).get("hf_device_map", {}).values()
    if len(places) < 2:  # accelerate leaves a model in one place alone
        return None
    gpus = [place for place in places if str(place) not in ("cpu", "disk")]
    return torch.device(gpus[0] if gpus else "cpu")


def _tokenizer(
    path: str, config: PreTrainedConfig, family: Family | None, chat_template: str | None, hub: dict
) -> PreTrainedTokenizerBase | None:
    """The checkpoint's tokenizer, None where it has none. Raises ValueError for a chat template it cannot have."""
    template = None
    if chat_template is not None:
        file = Path(chat_template)
        if chat_template != "plain" and not (file.suffix == ".jinja" and file.is_file()):
            raise ValueError(f"chat_template={chat_template!r} is neither 'plain' nor a .jinja file")
        template = PLAIN_TEMPLATE if chat_template == "plain" else file.read_text()
    if not any(_file(path, name, hub) for name in ("tokenizer.json", "tokenizer_config.json")):
        if template is not None:
            raise ValueError("it has no tokenizer to use a chat template with")
        return None
    reader = cast(Any, AutoTokenizer if family is None else family.tokenizer)
    tokenizer = reader.from_pretrained(path, config=config, trust_remote_code=False, **hub)
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def _spec(
    path: str,
    tokenizer: PreTrainedTokenizerBase | None,
    of_family: ModelSpec | None,
    given: ModelSpec | Mapping[str, Any] | None,
    *,
    keeps_kv: bool,
    hub: dict,
) -> ModelSpec:
    """The given one; else from dllm.json, else as its family has it, else from the tokenizer, with the given
    fields."""
    if isinstance(given, ModelSpec):
        return given
    file = _file(path, SPEC_FILE, hub)
    if file is not None or of_family is not None:
        known = vars(of_family if file is None else ModelSpec.read(Path(file)))
    else:
        known = _special_ids(tokenizer) | {"kv": keeps_kv}
    fields: dict[str, Any] = known | dict(given or {})
    for name, what in (("mask_id", "a mask token"), ("eos_ids", "an end-of-text token")):
        if name not in fields:
            raise ValueError(f"it has no {SPEC_FILE} and no tokenizer that names {what}; give spec.{name}")
    eos_ids = tuple(fields["eos_ids"])
    return ModelSpec(**{"pad_id": eos_ids[0], **fields, "eos_ids": eos_ids})


def _special_ids(tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
    """The spec's ids that the tokenizer names; BERT's [SEP] ends a text."""
    if tokenizer is None:
        return {}
    eos = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    ids = {"mask_id": tokenizer.mask_token_id, "eos_ids": None if eos is None else (eos,)}
    return {name: value for name, value in {**ids, "pad_id": tokenizer.pad_token_id}.items() if value is not None}


def _load_mix(model: DiffusionLM, path: str, hub: dict) -> None:
    """Reads the learned input mix. Raises ValueError when it is missing or does not fit."""
    assert model.mix is not None
    file = _file(path, MIX_FILE, hub)
    if file is None:
        raise ValueError(f"model {path!r} has no {MIX_FILE}, which its {SPEC_FILE} asks for (mix={model.spec.mix})")
    try:
        model.mix.load_state_dict(load_file(file))
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{file} does not fit model {path!r}: {error}") from error


def _file(path: str, name: str, hub: dict) -> str | None:
    return cached_file(path, name, _raise_exceptions_for_missing_entries=False, **hub)
