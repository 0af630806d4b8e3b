"""Loading depth-recurrent models: those of `save_recurrent`, and Huginn as published."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from dllm.checkpoint import (
    check_finite,
    check_weights,
    one_sentence,
    prepare,
    raw_config,
    read_backbone,
    read_tokenizer,
    to_dtype,
)
from dllm.converted.storage import check_counts, refuse_quantised
from dllm.recurrent.depth import Depth, RecurrentLM
from dllm.recurrent.llama import CONFIG_FILE, WEIGHTS_FILE, LlamaRecurrentLM
from dllm.recurrent.raven import RavenBackbone, RavenConfig, RavenLM
from dllm.shipped import ASSETS
from dllm.validation import check


def recurrent_folder(name_or_path: str | Path) -> Path | None:
    """The folder that `save_recurrent` wrote of this name or path, None where there is none."""
    folders = (ASSETS / str(name_or_path), Path(name_or_path))
    return next((folder for folder in folders if (folder / CONFIG_FILE).exists()), None)


def is_recurrent(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json is Huginn's."""
    return raw.get("model_type") == RavenConfig.model_type


def load_recurrent(
    name_or_path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str = torch.float32,
    **hub: Any,
) -> RecurrentLM:
    """A model that `save_recurrent` wrote, a shipped one by name, or Huginn by folder or hub id, in eval mode.

    hub: revision, token, cache_dir and local_files_only, for what is on the hub.

    Raises ValueError for any other folder, or a device that does not exist.
    """
    check(load_recurrent, name_or_path=name_or_path, device=device, dtype=dtype)
    device, pretrained, hub = prepare(device, hub)
    folder = recurrent_folder(name_or_path)
    if folder is None:
        return _raven(str(name_or_path), dtype, pretrained, hub, device).to(device).eval()
    with one_sentence(str(folder), ["tiny-recurrent"]):
        settings = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        if not isinstance(settings, dict) or not all(isinstance(settings.get(key), dict) for key in ("llama", "depth")):
            raise ValueError(f"its {CONFIG_FILE} says nothing of llama or depth")
        check_counts(settings)
        config, depth = LlamaConfig(**settings["llama"]), Depth(**settings["depth"])
        tokenizer = read_tokenizer(str(folder), config, AutoTokenizer, None, {})
        if tokenizer is None:
            raise ValueError("it has no tokenizer.json")
        model = LlamaRecurrentLM(config, depth, tokenizer, folder.name)
        missing, unexpected = model.load_state_dict(load_file(folder / WEIGHTS_FILE), strict=False)
        if missing or unexpected:
            raise ValueError(f"{WEIGHTS_FILE} does not fit {CONFIG_FILE}: {(missing + unexpected)[0]!r}")
        check_finite(model)
    return model.to(device, to_dtype(dtype)).eval()


def _raven(
    path: str, dtype: torch.dtype | str, pretrained: Mapping[str, Any], hub: dict[str, Any], device: torch.device | str
) -> RavenLM:
    with one_sentence(path, ["tiny-recurrent"]):
        if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
            raise ValueError(f"it has no {CONFIG_FILE} of a depth-recurrent LM, and no config.json")
        raw = raw_config(path, hub)
        if not is_recurrent(raw):
            raise ValueError(f"it has no {CONFIG_FILE} and is no {RavenConfig.model_type}: no depth-recurrent LM")
        refuse_quantised(raw, stock=False)
        config = RavenConfig.from_dict(raw)
        config.check()
        config.check_fields(raw)
        backbone, info = read_backbone(path, RavenBackbone, config, to_dtype(dtype), None, pretrained, device)
        tokenizer = read_tokenizer(path, config, PreTrainedTokenizerFast, None, hub)
    check_weights(path, info)
    return RavenLM(cast(RavenBackbone, backbone), tokenizer, Path(path).name)
