"""A2D and Nemotron-Labs-Diffusion: causal LMs of transformers, trained on to look both ways.

Their config.json is that of the causal LM, with another model_type and a few fields that are about training.
"""

from collections.abc import Callable, Mapping
from typing import Any

from transformers import Ministral3Config, PreTrainedConfig

from dllm.converted.ends import as_ids, block_of, pad_of, qwen_eos
from dllm.converted.fields import of_class
from dllm.converted.rotary import rope_of
from dllm.spec import ModelSpec

Config = Mapping[str, Any]
NOT_ITS_OWN = ("model_type", "architectures", "auto_map", "bos_token_id", "eos_token_id", "pad_token_id")
ROTARY = ("rope_parameters", "rope_scaling", "rope_theta")


def _own(raw: Config, stock: PreTrainedConfig) -> dict[str, Any]:
    """The fields of the stock class, but for those that are of its wrapper or are read apart."""
    return {name: value for name, value in of_class(raw, stock).items() if name not in (*NOT_ITS_OWN, *ROTARY)}


def a2d_config(kind: type[PreTrainedConfig]) -> Callable[[Config], PreTrainedConfig]:
    """A2D models (github.com/ZHZisZZ/dllm; OPDLM, arXiv 2606.06712) are those of a stock class, bidirectional."""

    def config(raw: Config) -> PreTrainedConfig:
        if raw.get("use_sliding_window"):
            raise ValueError("use_sliding_window=true, which no published checkpoint of this family has (false)")
        return kind.from_dict(_own(raw, kind()) | {"rope_parameters": rope_of(raw, 10000.0)})

    return config


def a2d_spec(mask_id: int | None) -> Callable[[Config], ModelSpec]:
    """Row i predicts token i. mask_id: where the config has none, the first id after the vocabulary of the causal LM;
    None where the config must name it.

    Blocks are not in the config. Models that were trained with some (bd3lm: 32, OPDLM: 4) want `spec.block`. The
    authors' samplers pad the prompt on the left to whole blocks, so that one ends with it.
    """

    def spec(raw: Config) -> ModelSpec:
        mask = raw["mask_token_id"] if mask_id is None else raw.get("mask_token_id") or mask_id
        eos_ids = qwen_eos(raw)
        return ModelSpec(mask, eos_ids, pad_of(raw, eos_ids), prompt_grid=True)

    return spec


def nemotron_config(raw: Config) -> Ministral3Config:
    """Nemotron-Labs-Diffusion (arXiv 2607.05722) is Ministral 3."""
    if raw.get("sliding_window") is not None:
        raise ValueError(f"sliding_window={raw['sliding_window']}: local attention is not supported")
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return Ministral3Config(**{**_own(raw, Ministral3Config()), **ids, "rope_parameters": rope_of(raw)})


def nemotron_spec(raw: Config) -> ModelSpec:
    """Row i predicts token i, the context is causal, and blocks begin where the prompt ends. Deviation: within a block,
    tokens before its first MASK do not look ahead."""
    eos = as_ids(raw["eos_token_id"])
    block = block_of(raw, "block_size", 32)
    return ModelSpec(raw["mask_token_id"], eos, pad_of(raw, eos), block=block, context_causal=True, prompt_grid=True)
