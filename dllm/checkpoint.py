"""What loading shares between diffusion and autoregressive checkpoints: where the files are, what is read of them, and
one sentence for each way in which they can be wrong. No hub code is run and no pickled weights are read."""

import logging
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

from dllm.converted.storage import check_counts, check_plain, check_tokenizer, held, unstacked, unwrapped, weight_files

HUB = ("revision", "token", "cache_dir", "local_files_only")  # where the files are; config and tokenizer need it too
ELSEWHERE = {"variant", "subfolder", "state_dict"}  # arguments by which weights are in other files
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


def prepare(
    device: torch.device | str, pretrained: Mapping[str, Any]
) -> tuple[torch.device | str, dict[str, Any], dict[str, Any]]:
    """The device ("auto" settled), the arguments of `from_pretrained`, and those of them that say where files are.

    Raises ValueError for a device that does not exist, and for an argument that would run hub code or unpickle.
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
        known = f" (shipped models: {', '.join(shipped)})" if shipped and not Path(name).is_dir() else ""
        raise ValueError(f"cannot load model {name!r}{known}: {reason}") from error


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
        if not isinstance(found, torch.dtype) or not found.is_floating_point:
            raise ValueError(f"dtype={dtype!r} is none that a model computes in; use float32, bfloat16 or float16")
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
    folder = Path(path)
    if folder.suffix == ".gguf" or folder.is_file():
        raise ValueError("it is a file; give the folder of a checkpoint with config.json and safetensors")
    if folder.is_dir() and not (folder / "config.json").is_file():
        weight_files(folder)
        raise ValueError("the folder has no config.json; give one that holds a config.json and its *.safetensors")
    raw, _ = PreTrainedConfig.get_config_dict(path, **hub)
    if not isinstance(raw, dict):
        raise ValueError(f"its config.json holds a {type(raw).__name__} where an object belongs")
    check_counts(raw)
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
    dtype: torch.dtype,
    keys: Mapping[str, str] | None,
    pretrained: Mapping[str, Any],
    device: torch.device | str,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The weights of a checkpoint in a stock class, and what transformers says of them (`check_weights` reads it).

    keys: regular expressions from the checkpoint's weight names to the backbone's.
    device: where the weights go, each as it is read, so that the CPU's memory need not hold them all. A `device_map`
        in `pretrained` replaces it.

    Raises ValueError for pickles.
    """
    refuse_pickles(path)
    keys, more = dict(keys or {}), dict(pretrained)
    if torch.device(device).type != "cpu":
        more.setdefault("device_map", {"": device})
    folder = Path(path)
    if folder.is_dir() and not ELSEWHERE & set(pretrained):
        files = weight_files(folder)
        tensors = held(files)
        if not vars(config).get("quantization_config"):
            check_plain(tensors)
        keys = unwrapped(tensors, kind.base_model_prefix) | keys
        more["state_dict"] = unstacked(files, tensors)
    for part in (config, config.get_text_config()):
        part.return_dict = True  # whatever its config.json says
    with _named_faults():
        backbone, info = cast(Any, kind).from_pretrained(
            path if more.get("state_dict") is None else None,
            config=config,
            dtype=dtype,
            key_mapping=keys or None,
            use_safetensors=True,
            output_loading_info=True,
            **{"ignore_mismatched_sizes": True, **more},  # `check_weights` names them
        )
    if not any(map(info.get, ("missing_keys", "mismatched_keys"))):  # else some were never set
        check_finite(backbone)
    return backbone, info


def check_finite(backbone: torch.nn.Module) -> None:
    """Raises ValueError, naming them, for weights that hold NaN or infinity. Those that are quantised or offloaded are
    not looked at."""
    for name, tensor in backbone.named_parameters():
        plain = tensor.is_floating_point() and tensor.itemsize > 1 and not tensor.is_meta
        if plain and tensor.numel() and not torch.stack(tensor.detach().aminmax()).isfinite().all():
            raise ValueError(f"its {name!r} holds NaN or infinity; mend the checkpoint")


@contextmanager
def _named_faults() -> Iterator[None]:
    """Takes the table of faults that transformers logs, and names the first one where an error speaks of it."""
    logger, tables = logging.getLogger("transformers.modeling_utils"), list[str]()

    def keep(record: logging.LogRecord) -> bool:
        tables.extend([record.getMessage()] * (table := "LOAD REPORT" in record.getMessage()))
        return not table

    logger.addFilter(keep)
    try:
        yield
    except RuntimeError as error:
        lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in "".join(tables).splitlines()]
        fault = next((line for line in lines if "CONVERSION" in line), None)
        if fault is None:
            raise
        raise ValueError(f"its weights do not fit its config.json: {fault.partition('|')[0].strip()!r}") from error
    finally:
        logger.removeFilter(keep)


def check_weights(name: str, info: dict) -> None:
    """Raises ValueError when weights are missing or of another shape, or when the model would leave some out."""
    mismatched: list[tuple[str, Any, Any]] = sorted(info.get("mismatched_keys", []))
    for key, stored, wanted in mismatched:
        raise ValueError(
            f"cannot load model {name!r}: it holds {key!r} of shape {tuple(stored)}, and its config.json means "
            f"{tuple(wanted)}: it is another model's config, or the weights are stored in another form"
        )
    missing = sorted(info["missing_keys"])
    unexpected = sorted(key for key in info["unexpected_keys"] if not SPARE.search(key))
    if missing:
        why = f"it has {unexpected[0]!r}, of another layout" if unexpected else "its files are incomplete"
        raise ValueError(f"model {name!r} lacks {len(missing)} weights, first {missing[0]!r}; {why}")
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
    file = find_file(path, "tokenizer.json", hub)
    if file is not None:
        check_tokenizer(Path(file))
    if file is None and not find_file(path, "tokenizer_config.json", hub):
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
