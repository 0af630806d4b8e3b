"""Tasks whose answers are sentences, and the measures that score them."""

from importlib import import_module
from typing import Any


def library(module: str) -> Any:
    """A library that scores text. Raises ValueError where the extra `text` is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"text is scored with {module.split('.')[0]}, which is not here; pip install 'dllm-parallelbench[text]'"
        ) from error
