"""One `load` for every kind of model that a folder may hold."""

from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, AutoTokenizer

from dllm.causal import load_causal
from dllm.checkpoint import HUB, find_file, raw_config, read_tokenizer
from dllm.diffusion import load_diffusion
from dllm.families import recognise
from dllm.guidance import Guided
from dllm.recurrent import is_recurrent, load_recurrent, recurrent_folder
from dllm.shipped import (
    SPEC_FILE,
    check_folder,
    check_spelling,
    shipped_causal_models,
    shipped_models,
)
from dllm.validation import NonNegative, at_home, check

OF_DIFFUSION = ("spec", "family", "config", "adapter", "compile", "guidance")


def load(name_or_path: str | Path, *, guidance: NonNegative | None = None, **options: Any) -> Any:
    """A shipped model by name ("tiny"), or any checkpoint by folder or hub id, in eval mode. Returns the kind that it
    is: a `DiffusionLM`, a `CausalLM` or a `RecurrentLM`.

    guidance: scale of classifier-free guidance for a diffusion model, which then becomes a `Guided`.
    options: those of `load_diffusion`. Autoregressive models take device, dtype, chat_template and what is for
        transformers; recurrent ones take device, dtype and where their files are. Giving spec, family or adapter says
        that a diffusion model is meant, unless config.json says that the model is recurrent.

    Raises ValueError as `load_diffusion` does, for options of another kind of model, and, before the hub is asked, for
    a name that is nearly a shipped model's and a folder that does not exist.
    """
    check(load, name_or_path=name_or_path, guidance=guidance)
    name_or_path, options = at_home(name_or_path), at_home(options)
    check_spelling(str(name_or_path))
    check_folder(str(name_or_path))
    kind = _kind(name_or_path, options)
    if kind == "diffusion":
        model = load_diffusion(name_or_path, **options)
        return model if guidance is None else Guided(model, guidance)
    given = options if guidance is None else {**options, "guidance": guidance}
    taken = ("device", "dtype", *HUB)
    wrong = [name for name in given if name in OF_DIFFUSION or (kind == "recurrent" and name not in taken)]
    if wrong:
        raise ValueError(
            f"{wrong[0]}={given[wrong[0]]!r} is not for model {str(name_or_path)!r}, which is "
            f"{'autoregressive' if kind == 'causal' else 'depth-recurrent'}; leave it out"
        )
    return (load_causal if kind == "causal" else load_recurrent)(name_or_path, **options)


def _kind(name_or_path: str | Path, options: dict[str, Any]) -> str:
    """What config.json and the tokenizer say. A checkpoint that cannot be read counts as a diffusion model, because
    loading it then says what is wrong."""
    name = str(name_or_path)
    if name in shipped_causal_models():
        return "causal"
    if recurrent_folder(name_or_path) is not None:
        return "recurrent"
    if name in shipped_models():
        return "diffusion"
    hub = {key: options[key] for key in HUB if key in options}
    try:
        raw = raw_config(name, hub)
        if is_recurrent(raw):
            return "recurrent"
        if any(key in options for key in ("spec", "family", "config", "adapter")):
            return "diffusion"
        return "causal" if _is_causal(name, raw, hub) else "diffusion"
    except Exception:  # files made by others break their readers in many ways
        return "diffusion"


def _is_causal(path: str, raw: dict[str, Any], hub: dict[str, Any]) -> bool:
    """Whether it is a causal LM of transformers that belongs to no family, and either says that it is causal or has a
    tokenizer without MASK."""
    if raw.get("model_type") not in CONFIG_MAPPING:
        return False
    config = CONFIG_MAPPING[raw["model_type"]]
    looks_ahead = config in MODEL_FOR_MASKED_LM_MAPPING and not raw.get("is_decoder")
    if config not in MODEL_FOR_CAUSAL_LM_MAPPING or looks_ahead:
        return False
    if find_file(path, SPEC_FILE, hub) is not None or raw.get("is_causal") is False or recognise(raw, None) is not None:
        return False
    tokenizer = read_tokenizer(path, config.from_dict(raw), AutoTokenizer, None, hub)
    return tokenizer is not None and (raw.get("is_causal") is True or tokenizer.mask_token_id is None)
