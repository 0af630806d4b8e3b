"""What configs of most families have in common."""

from collections.abc import Mapping
from typing import Any

from dllm.converted.rotary import rope_of
from dllm.validation import shown

Config = Mapping[str, Any]


def only(raw: Config, **published: object) -> None:
    """Raises ValueError for a field with a value that no published checkpoint of the family has."""
    for name, value in published.items():
        if raw.get(name, value) not in (value, None):
            raise ValueError(f"{name}={shown(raw[name])}, which no published checkpoint of this family has ({value!r})")


def shared(raw: Config, *more: str, theta: float | None = 10000.0) -> dict[str, Any]:
    """The fields that have the same names everywhere. Those for which transformers has a default may be left out.

    theta: base of the rotary frequencies where the config leaves it out, which is what the authors' class then takes.
    """
    needed = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads".split()
    optional = ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "head_dim", *more)
    only(raw, rope_scaling=None, use_sliding_window=False, hidden_act="silu")
    rope = rope_of(raw, theta)
    same = {name: raw[name] for name in needed} | {name: raw[name] for name in optional if raw.get(name) is not None}
    tied = raw.get("tie_word_embeddings", False)
    return same | {"rope_parameters": rope, "tie_word_embeddings": tied, "bos_token_id": None, "eos_token_id": None}
