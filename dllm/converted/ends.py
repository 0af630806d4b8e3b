"""Which ids end a text, by a published config.json."""

from collections.abc import Mapping, Sequence
from typing import Any


def as_ids(value: int | Sequence[int]) -> tuple[int, ...]:
    """One id or several."""
    return (value,) if isinstance(value, int) else tuple(value)


def with_ids(raw: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json with the special ids of a spec where it lacks them. stated: fields of the spec."""
    eos = stated.get("eos_ids")
    ids: dict[str, Any] = {"mask_token_id": stated.get("mask_id"), "pad_token_id": stated.get("pad_id")}
    if eos is not None:
        ids = {"pad_token_id": as_ids(eos)[0], **{name: token for name, token in ids.items() if token is not None}}
        ids["eos_token_id"] = list(as_ids(eos))
    return {**raw, **{name: value for name, value in ids.items() if raw.get(name) is None and value is not None}}


def pad_of(raw: Mapping[str, Any], otherwise: tuple[int, ...]) -> int:
    """The id that fills a batch, which a config may leave out: it is never seen."""
    pad = raw.get("pad_token_id")
    return otherwise[0] if pad is None else pad


def block_of(raw: Mapping[str, Any], name: str, otherwise: int) -> int:
    """Columns of a block, which a config may leave out or null. 0 is no way to leave it out."""
    block = raw.get(name)
    return otherwise if block is None else block


def qwen_eos(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """<|endoftext|> (151643) ends a text, <|im_end|> (151645) a turn; a config names only one of them."""
    eos_ids = as_ids(raw["eos_token_id"])
    return (151643, 151645) if set(eos_ids) <= {151643, 151645} else eos_ids


def raven_eos(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Huginn, a causal LM (`dllm.recurrent`): begin_text (65504), end_text (65505) and end_turn (65508) end an answer,
    whichever of them its config names."""
    eos_ids = as_ids(raw.get("eos_token_id") or 65505)
    return (65504, 65505, 65508) if set(eos_ids) <= {65504, 65505, 65508} else eos_ids
