"""What loading shares between diffusion and autoregressive checkpoints: where the files are, what is read of them, and
one sentence for each way in which they can be wrong. No hub code is run and no pickled weights are read."""

import os
import platform
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils.hub import cached_file

from dllm.spec import SPEC_FILE

ASSETS = Path(__file__).parent / "assets"
FETCHED = ("smollm2", "qwen-coder")  # folders of models/ that dllm.training.fetch makes
HUB = ("revision", "token", "cache_dir", "local_files_only")  # where the files are; config and tokenizer need it too
PLAIN_TEMPLATE = "{{ messages | map(attribute='content') | join('\n') }}"
SPARE = re.compile(r"pooler|seq_relationship|position_ids$|rotary_emb\.inv_freq$")
"""Weights of a checkpoint that its masked or causal LM does without: other heads, and buffers computed anew."""

WHOLE = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Names of the class whose tokenizer.json says all."""

RESCALED = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
)  # settings of models that change logits after the head


def shipped_models() -> list[str]:
    """Names of the diffusion models that come with the package."""
    return sorted(path.parent.name for path in ASSETS.glob(f"*/{SPEC_FILE}"))


def shipped_causal_models() -> list[str]:
    """Names of the autoregressive models that come with the package."""
    return sorted({path.parent.name for path in ASSETS.glob("*/config.json")} - set(shipped_models()))


def check_folder(name: str) -> None:
    """Raises ValueError for a folder of the config that is not there, before it is looked for on the hub, where no id
    begins with models/."""
    if Path(name).parts[:1] == ("models",) and not Path(name).is_dir():
        made = Path(name).name if Path(name).name in FETCHED else None
        how = f"make it: python -m dllm.training.fetch {made} (docs/training.md)" if made else "give one that is"
        raise ValueError(f"the folder {name} is not here; {how}")


def prepare(
    device: torch.device | str, pretrained: Mapping[str, Any]
) -> tuple[torch.device | str, dict[str, Any], dict[str, Any]]:
    """The device ("auto" settled), the arguments of `from_pretrained`, and those of them that say where files are.

    Raises ValueError for a device that is not there, and for an argument that would run hub code or unpickle.
    """
    for name in ("trust_remote_code", "use_safetensors"):
        if name in pretrained:
            raise ValueError(f"{name}={pretrained[name]!r}: hub code is never run and only safetensors are read")
    # from a yaml these are mappings of other types
    pretrained = {name: dict(value) if isinstance(value, Mapping) else value for name, value in pretrained.items()}
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    check_device(device)
    if "quantization_config" in pretrained:  # quantised weights cannot be moved afterwards
        pretrained.setdefault("device_map", {"": device})
    return device, pretrained, {name: pretrained[name] for name in HUB if name in pretrained}


@contextmanager
def one_sentence(name: str, shipped: Sequence[str]) -> Iterator[None]:
    """Turns any error inside into a ValueError of one line. Damaged checkpoints fail in many ways, each its library's
    own."""
    try:
        yield
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        known = ", ".join(shipped) or "none"
        raise ValueError(f"cannot load model {name!r} (shipped models: {known}): {reason}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write a file by, which takes the place of `path` at once when the block has ended and it is on disk. A
    link of that name is not followed, and where the block fails all is as before."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def to_dtype(dtype: torch.dtype | str) -> torch.dtype:
    if isinstance(dtype, str):
        found = vars(torch).get(dtype)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"unknown dtype {dtype!r}; use float32, bfloat16 or float16")
        return found
    return dtype


def warn_of_slow_halves(device: torch.device, dtype: torch.dtype) -> None:
    """Says so where 16-bit numbers are computed without instructions for them: on x86 processors without AVX-512. A
    product took nine times as long as in float32 on one with AVX2."""
    on_x86 = device.type == "cpu" and platform.machine().lower() in ("x86_64", "amd64")
    if on_x86 and dtype.itemsize < 4 and "AVX512" not in torch.backends.cpu.get_cpu_capability():
        warnings.warn(
            f"{str(dtype).removeprefix('torch.')} is several times as slow as float32 on this processor, which has no "
            "instructions for it; where memory allows, use that",
            stacklevel=3,
        )


def check_device(device: torch.device | str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device={str(device)!r} cannot be used here: {reason}; give cpu or auto") from error


def raw_config(path: str, hub: dict) -> dict[str, Any]:
    """config.json as it is."""
    if Path(path).is_dir() and not (Path(path) / "config.json").is_file():
        raise ValueError("the folder has no config.json")
    raw, _ = PreTrainedConfig.get_config_dict(path, **hub)
    if not isinstance(raw, dict):
        raise ValueError(f"its config.json holds a {type(raw).__name__} where an object belongs")
    return raw


def refuse_pickles(path: str) -> None:
    """Raises ValueError for a folder whose weights are pickles, which may run code on loading."""
    folder = Path(path)
    pickles = sorted(file.name for file in folder.glob("*.bin")) if folder.is_dir() else []
    if pickles and not any(folder.glob("*.safetensors")):
        raise ValueError(f"its weights are pickled ({pickles[0]}); only safetensors are read, so convert them first")


def read_backbone(
    path: str,
    kind: type[PreTrainedModel],
    config: PreTrainedConfig,
    dtype: torch.dtype | str,
    keys: Mapping[str, str] | None,
    pretrained: Mapping[str, Any],
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The weights of a checkpoint in a stock class, and what transformers says of them (`check_weights` reads it).

    keys: regular expressions from the checkpoint's weight names to the backbone's. Raises ValueError for pickles.
    """
    refuse_pickles(path)
    return cast(Any, kind).from_pretrained(
        path,
        config=config,
        dtype=to_dtype(dtype),
        key_mapping=dict(keys) if keys else None,
        use_safetensors=True,
        output_loading_info=True,
        **pretrained,
    )


def check_weights(name: str, info: dict) -> None:
    """Raises ValueError when weights are missing, or when the model would leave some out."""
    missing = sorted(info["missing_keys"])
    if missing:
        raise ValueError(f"model {name!r} lacks {len(missing)} weights, first {missing[0]!r}; its files are incomplete")
    unexpected = sorted(key for key in info["unexpected_keys"] if not SPARE.search(key))
    if unexpected:
        raise ValueError(
            f"model {name!r} has {len(unexpected)} weights that its architecture has no place for, first "
            f"{unexpected[0]!r}; it is another architecture than its config.json says, or another family"
        )


def first_device(backbone: PreTrainedModel) -> torch.device | None:
    """Where canvases of a model in several places belong: with its first part on a GPU, else on the CPU."""
    places = vars(backbone).get("hf_device_map", {}).values()
    if len(places) < 2:  # accelerate leaves a model in one place alone
        return None
    gpus = [place for place in places if str(place) not in ("cpu", "disk")]
    return torch.device(gpus[0] if gpus else "cpu")


def read_tokenizer(
    path: str, config: PreTrainedConfig, reader: Any, chat_template: str | None, hub: dict
) -> PreTrainedTokenizerBase | None:
    """The checkpoint's tokenizer, None where it has none. Raises ValueError for a chat template that it cannot have."""
    template = None
    if chat_template is not None:
        file = Path(chat_template)
        if chat_template != "plain" and not (file.suffix == ".jinja" and file.is_file()):
            raise ValueError(f"chat_template={chat_template!r} is neither 'plain' nor a .jinja file")
        template = PLAIN_TEMPLATE if chat_template == "plain" else file.read_text(encoding="utf-8")
    if not any(find_file(path, name, hub) for name in ("tokenizer.json", "tokenizer_config.json")):
        if template is not None:
            raise ValueError("it has no tokenizer to use a chat template with")
        return None
    if get_tokenizer_config(path, **hub).get("tokenizer_class") in WHOLE:
        reader = PreTrainedTokenizerFast  # a family's own class would build another from the same vocabulary
    told = {} if reader is PreTrainedTokenizerFast else {"config": config}  # it would keep it, and could not be saved
    tokenizer = reader.from_pretrained(path, trust_remote_code=False, **told, **hub)
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def find_file(path: str, name: str, hub: dict) -> str | None:
    return cached_file(path, name, _raise_exceptions_for_missing_entries=False, **hub)
