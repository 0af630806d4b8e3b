"""Loading and saving checkpoints in Hugging Face layout: config, safetensors, tokenizer, and `dllm.json` with the
model's spec.

No hub code is ever run. A folder or hub repository without `dllm.json` works if its tokenizer names mask and EOS, or
with `spec=`.
"""

from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file

from dllm.families import FAMILIES
from dllm.model import DiffusionLM
from dllm.spec import SPEC_FILE, ModelSpec

ASSETS = Path(__file__).parent / "assets"
MIX_FILE = "mix.safetensors"


def shipped_models() -> list[str]:
    """Names of the checkpoints that come with the package."""
    return sorted(path.parent.name for path in ASSETS.glob(f"*/{SPEC_FILE}"))


def load(
    name_or_path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str = torch.float32,
    spec: ModelSpec | None = None,
) -> DiffusionLM:
    """A shipped model by name ("tiny"), or any checkpoint by folder or hub id, in eval mode.

    device: a torch device, or "auto" for a GPU where there is one.

    Raises ValueError, naming what is missing, when the checkpoint is absent, incomplete, corrupt, or has no spec.
    """
    source = ASSETS / str(name_or_path) if str(name_or_path) in shipped_models() else name_or_path
    path = str(source)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if isinstance(dtype, str):
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise ValueError(f"unknown dtype {dtype!r}; use float32, bfloat16 or float16")
        dtype = cast(torch.dtype, getattr(torch, dtype))
    try:
        raw, _ = PreTrainedConfig.get_config_dict(path)
        family = FAMILIES.get(raw.get("model_type", ""))
        config = AutoConfig.from_pretrained(path, trust_remote_code=False) if family is None else family.config(raw)
        config.is_causal = False
        loader = cast(Any, AutoModelForCausalLM if family is None else MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
        keys = dict(family.keys) if family else None
        loaded = loader.from_pretrained(path, config=config, dtype=dtype, key_mapping=keys, output_loading_info=True)
        backbone, info = cast(tuple[PreTrainedModel, dict], loaded)
        has_tokenizer = any(_file(path, name) for name in ("tokenizer.json", "tokenizer_config.json"))
        tokenizer = None
        if has_tokenizer:
            reader = cast(Any, AutoTokenizer if family is None else family.tokenizer)
            tokenizer = reader.from_pretrained(path, config=config, trust_remote_code=False)
        spec = spec or _read_spec(path, tokenizer, None if family is None else family.spec(raw))
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as error:
        known = ", ".join(shipped_models()) or "none"
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(f"cannot load model {str(name_or_path)!r} (shipped models: {known}): {reason}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise ValueError(
            f"model {str(name_or_path)!r} lacks {len(missing)} weights, first {missing[0]!r}; its files are incomplete"
        )
    model = DiffusionLM(backbone, spec, tokenizer, name=Path(str(name_or_path)).name)
    if model.mix is not None:
        mix_file = _file(path, MIX_FILE)
        if mix_file is None:
            raise ValueError(
                f"model {str(name_or_path)!r} has no {MIX_FILE}, which its {SPEC_FILE} asks for (mix={spec.mix})"
            )
        try:
            model.mix.load_state_dict(load_file(mix_file))
        except (SafetensorError, RuntimeError) as error:
            raise ValueError(f"{mix_file} does not fit model {str(name_or_path)!r}: {error}") from error
        model.mix.to(dtype)
    return model.to(device).eval()


def save(model: DiffusionLM, folder: Path) -> None:
    """Writes a checkpoint that `load` reads back, safetensors only."""
    folder.mkdir(parents=True, exist_ok=True)
    model.backbone.save_pretrained(folder)
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
    if model.mix is not None:
        save_file(model.mix.state_dict(), folder / MIX_FILE)
    model.spec.save(folder)


def _read_spec(path: str, tokenizer: PreTrainedTokenizerBase | None, of_family: ModelSpec | None) -> ModelSpec:
    """From dllm.json, else as its family has it, else from the tokenizer."""
    file = _file(path, SPEC_FILE)
    if file is not None:
        return ModelSpec.read(Path(file))
    if of_family is not None:
        return of_family
    mask, eos, pad = (getattr(tokenizer, f"{name}_token_id", None) for name in ("mask", "eos", "pad"))
    if not isinstance(mask, int) or not isinstance(eos, int):
        raise ValueError(
            f"{path} has no {SPEC_FILE} and no tokenizer that names mask and EOS; pass spec=ModelSpec(...)"
        )
    return ModelSpec(mask, (eos,), pad if isinstance(pad, int) else eos)


def _file(path: str, name: str) -> str | None:
    return cached_file(path, name, _raise_exceptions_for_missing_entries=False)
