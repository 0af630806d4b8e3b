"""Autoregressive language models: the baseline that parallel decoding is measured against."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dllm.adapter import attach_all
from dllm.checkpoint import (
    ASSETS,
    RESCALED,
    check_weights,
    find_file,
    first_device,
    one_sentence,
    prepare,
    raw_config,
    read_backbone,
    read_tokenizer,
    shipped_causal_models,
    shipped_models,
)
from dllm.protocols import Text
from dllm.spec import SPEC_FILE
from dllm.text import decode_text, encode_text
from knobs import check


class CausalLM(nn.Module):
    """A stock transformers causal LM and its tokenizer.

    Of its own generation settings only the special ids are kept: with sampling or repetition penalties, decoding would
    not be greedy.

    eos_ids: what its generation settings or its tokenizer call the end of a text.
    entry: where prompts belong when the backbone is spread over several devices.
    max_length: number of positions that it has, None for no known limit.

    Raises ValueError when nothing names EOS.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "model",
        *,
        entry: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.tokenizer, self.name, self.entry = backbone, tokenizer, name, entry
        settings = backbone.generation_config
        given = None if settings is None else settings.eos_token_id
        named = [*(given if isinstance(given, list) else [given]), tokenizer.eos_token_id]
        self.eos_ids = tuple(dict.fromkeys(cast(int, eos) for eos in named if eos is not None))
        if not self.eos_ids:
            raise ValueError(f"neither generation_config.json nor the tokenizer of model {name!r} names EOS")
        pad = tokenizer.pad_token_id
        self.pad_id = pad if isinstance(pad, int) else self.eos_ids[0]
        backbone.generation_config = GenerationConfig(eos_token_id=list(self.eos_ids), pad_token_id=self.pad_id)

    @property
    def device(self) -> torch.device:
        return self.entry or self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.dtype

    @property
    def vocab_size(self) -> int:
        return self.backbone.config.vocab_size

    def encode(self, text: Text) -> list[int]:
        return encode_text(self.tokenizer, self.name, text)

    def decode(self, ids: Sequence[int]) -> str:
        return decode_text(self.tokenizer, ids)

    @property
    def max_length(self) -> int | None:
        """Rotary positions never end. Learned ones do."""
        config = self.backbone.config
        return None if vars(config).get("rope_parameters") else getattr(config, "max_position_embeddings", None)

    def next_logits(
        self, tokens: Int[Tensor, "B T"], where: Bool[Tensor, "B T"], rng: torch.Generator
    ) -> Float[Tensor, "N V"]:
        """Logits for the token behind each marked column, in reading order, for training."""
        head = self.backbone.get_output_embeddings()
        if head is None or any(vars(self.backbone.config).get(name) not in (None, 1) for name in RESCALED):
            return self.backbone(input_ids=tokens, use_cache=False).logits[where]
        hidden = self.backbone.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        return head(hidden[where])  # the other columns' logits would cost more than the layers

    def identity(self) -> str:
        """What the weights do not say."""
        return repr((self.eos_ids, self.tokenizer.chat_template))


def load_causal(
    name_or_path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str = torch.float32,
    chat_template: str | None = None,
    adapter: str | Path | Sequence[str | Path] | None = None,
    **pretrained: Any,
) -> CausalLM:
    """A shipped autoregressive model by name, or any causal LM of transformers by folder or hub id, in eval mode.

    The arguments are those of `dllm.load`, which loads diffusion models too. Raises ValueError, naming what is wrong,
    when the device is not there; when the checkpoint is absent, incomplete or corrupt; when it is a diffusion or masked
    LM or has no tokenizer; and when it would need hub code or pickled weights.
    """
    check(load_causal, name_or_path=name_or_path, device=device, dtype=dtype, chat_template=chat_template)
    check(load_causal, adapter=adapter)
    name = str(name_or_path)
    path = str(ASSETS / name if name in (*shipped_causal_models(), *shipped_models()) else name_or_path)
    device, pretrained, hub = prepare(device, pretrained)
    with one_sentence(name, shipped_causal_models()):
        config = _config(path, hub)
        kind = cast(type[PreTrainedModel], MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
        backbone, info = read_backbone(path, kind, config, dtype, None, pretrained)
        tokenizer = read_tokenizer(path, config, AutoTokenizer, chat_template, hub)
        if tokenizer is None:
            raise ValueError("it has no tokenizer to read prompts with")
    check_weights(name, info)
    placed = "device_map" in pretrained
    entry = first_device(backbone) if placed else None
    model = CausalLM(backbone, tokenizer, Path(name).name, entry=entry)
    attach_all(model, adapter)
    return model.eval() if placed else model.to(device).eval()


def save_causal(model: CausalLM, folder: Path) -> None:
    """Writes a checkpoint in Hugging Face layout. Its config says that it is causal, because its tokenizer may name a
    MASK."""
    model.backbone.config.is_causal = True
    model.backbone.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


def _config(path: str, hub: dict) -> PreTrainedConfig:
    """A causal LM's config. Raises ValueError for any other model's."""
    raw = raw_config(path, hub)
    if find_file(path, SPEC_FILE, hub) is not None or raw.get("is_causal") is False:
        raise ValueError("it is a diffusion model; load it with dllm.load (model=tiny or model=local)")
    config = AutoConfig.from_pretrained(path, **hub) if raw.get("model_type") in CONFIG_MAPPING else None
    looks_ahead = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not raw.get("is_decoder")
    if config is None or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or looks_ahead or config.is_encoder_decoder:
        raise ValueError(f"architecture {raw.get('model_type')!r} is not a causal LM of transformers")
    return config
