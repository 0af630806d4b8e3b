"""Which ids end a text, by a published config.json."""

from collections.abc import Mapping
from typing import Any


def as_ids(value: int | list[int]) -> tuple[int, ...]:
    """One id or several."""
    return tuple(value) if isinstance(value, list) else (value,)


def qwen_eos(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """<|endoftext|> (151643) ends a text, <|im_end|> (151645) a turn; a config names only one of them."""
    eos_ids = as_ids(raw["eos_token_id"])
    return (151643, 151645) if set(eos_ids) <= {151643, 151645} else eos_ids


def raven_eos(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Huginn, a causal LM (`dllm.recurrent`): begin_text (65504), end_text (65505) and end_turn (65508) end an answer,
    whichever of them its config names."""
    eos_ids = as_ids(raw.get("eos_token_id") or 65505)
    return (65504, 65505, 65508) if set(eos_ids) <= {65504, 65505, 65508} else eos_ids
