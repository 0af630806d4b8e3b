"""Rotary settings of a published config.json, in the form that transformers 5 writes."""

from collections.abc import Mapping
from typing import Any

from dllm.validation import shown

LASTING = ("default", "linear", "yarn", "llama3")
"""Kinds whose frequencies are the same for every length of a canvas."""


def rope_of(raw: Mapping[str, Any], theta: float | None = None) -> dict[str, Any]:
    """`rope_parameters`, or what `rope_scaling` and `rope_theta` say of it. theta: where nothing names it; None where
    something must.

    Raises ValueError for two that contradict each other, and for frequencies that change with the length: a column's
    K/V would depend on when it was computed, and its logits on the batch.
    """
    found: dict[str, Any] = {}
    base = {"rope_theta": raw["rope_theta"]} if raw.get("rope_theta") is not None else {}
    for place, given in (("rope_parameters", raw.get("rope_parameters")), ("rope_scaling", raw.get("rope_scaling"))):
        if not isinstance(given, Mapping | None):
            raise ValueError(f"{place}={shown(given)} is no mapping")
        given = dict(given or {})
        kind = given.pop("type", None)
        for name, value in {**({} if kind is None else {"rope_type": kind}), **given}.items():
            if isinstance(value, Mapping):
                raise ValueError(f"{place} has {name}={shown(value)}; rotary positions of one kind are read")
            if found.setdefault(name, value) != value:
                raise ValueError(f"{place} says {name}={shown(value)} and {shown(found[name])}; leave one out")
    for name, value in base.items():
        if found.setdefault(name, value) != value:
            raise ValueError(f"{name}={shown(value)}, and rope_parameters says {shown(found[name])}; leave one out")
    if found.setdefault("rope_type", "default") not in LASTING:
        raise ValueError(
            f"rope_type={shown(found['rope_type'])} of its rotary positions; {', '.join(LASTING)} are read"
        )
    if "rope_theta" not in found:
        found["rope_theta"] = raw["rope_theta"] if theta is None else theta
    return found
