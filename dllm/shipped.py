"""Names of models: those that come with the package, and what a name can be said to be before anything is loaded."""

import os
from difflib import get_close_matches
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from dllm.validation import shown

SPEC_FILE = "dllm.json"
ASSETS = Path(__file__).parent / "assets"
IN_THE_REPOSITORY = ("smollm2-ar", "smollm2-block", "smollm2-draft", "tiny-dparallel", "tiny-uniform")
"""Shipped models that are in the repository's assets and, for their size, not in the wheel."""

FETCHED = ("smollm2", "qwen-coder")  # folders of models/ that dllm.training.fetch makes


def check_spelling(name: str) -> None:
    """Raises ValueError for what is nearly the name of a shipped model."""
    shipped = sorted({*IN_THE_REPOSITORY, *(path.name for path in ASSETS.iterdir())})
    near = get_close_matches(name.replace("_", "-"), shipped, 1, cutoff=0.8)
    if near and name not in shipped and "/" not in name and not Path(name).exists():
        raise ValueError(f"unknown model {name!r}; did you mean {near[0]!r}?")


def shipped_models() -> list[str]:
    """Names of the diffusion models that come with the package."""
    return sorted(path.parent.name for path in ASSETS.glob(f"*/{SPEC_FILE}"))


def shipped_causal_models() -> list[str]:
    """Names of the autoregressive models that come with the package."""
    return sorted({path.parent.name for path in ASSETS.glob("*/config.json")} - set(shipped_models()))


def check_folder(name: str) -> None:
    """Raises ValueError for a folder that does not exist, before it is looked for on the hub, which takes a minute
    where it is out of reach. An id of the hub is OWNER/NAME; one that is in its cache may be a name alone."""
    parts = Path(name).parts
    if os.path.exists(name) or os.path.isdir(ASSETS / name):
        return
    if name in IN_THE_REPOSITORY:
        raise ValueError(
            f"the weights of {name} are in the repository and not in the installed wheel; clone it and install it by "
            f"`pip install -e .`, or give the path of its folder dllm/assets/{name}"
        )
    if parts[:1] == ("models",):
        made = parts[-1] in FETCHED
        how = f"make it: python -m dllm.training.fetch {parts[-1]} (docs/training.md)" if made else "give one that is"
        raise ValueError(f"the folder {name} is not here; {how}")
    is_path = name.startswith((".", "~", "/", "\\")) or len(parts) > 2 or name.endswith(("/", ".gguf"))
    beside = len(parts) < 2 or Path(parts[0]).is_dir()
    if is_path or (beside and not _is_cached(name)):
        known = ", ".join(sorted({*shipped_models(), *shipped_causal_models()}))
        raise ValueError(
            f"cannot load model {shown(name)}: there is no such folder; give a folder, OWNER/NAME on the hub, or a "
            f"shipped model ({known})"
        )


def _is_cached(name: str) -> bool:
    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # no id at all
        return False
