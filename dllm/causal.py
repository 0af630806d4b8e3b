"""Autoregressive language models: the baseline that parallel decoding is measured against."""

from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase


class CausalLM(nn.Module):
    """A stock transformers causal LM and its tokenizer, as they are."""

    def __init__(self, backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str = "model") -> None:
        super().__init__()
        self.backbone, self.tokenizer, self.name = backbone, tokenizer, name

    @property
    def device(self) -> torch.device:
        return self.backbone.device


def save_causal(model: CausalLM, folder: Path) -> None:
    """Writes a checkpoint in Hugging Face layout."""
    model.backbone.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
