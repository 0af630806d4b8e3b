"""Depth-recurrent models of stock Llama stacks: what `scripts/train.py` makes and the package ships."""

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel, PreTrainedTokenizerBase

from dllm.layers import hidden_states
from dllm.recurrent.depth import Depth, Place, RecurrentLM, Stack

CONFIG_FILE, WEIGHTS_FILE = "recurrent.json", "model.safetensors"


class LlamaRecurrentLM(RecurrentLM):
    """A depth-recurrent LM whose stacks end with a norm each, with tied embeddings. Its noise is standard normal.

    config: widths, heads and vocabulary of all stacks. Its number of layers is not used.
    """

    def __init__(
        self, config: LlamaConfig, depth: Depth, tokenizer: PreTrainedTokenizerBase, name: str = "recurrent"
    ) -> None:
        eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        if not isinstance(eos, int):
            raise ValueError(f"the tokenizer of model {name!r} names no EOS")
        pad_id = pad if isinstance(pad, int) else eos
        super().__init__(depth, tokenizer, name, eos_ids=(eos,), pad_id=pad_id, width=config.hidden_size)
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.prelude, self.core, self.coda = (_stack(config, n) for n in (depth.prelude, depth.core, depth.coda))
        self.adapter = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    def run(self, stack: Stack, states: Tensor, place: Place | None, step: int = 0) -> Tensor:
        layers = {"prelude": self.prelude, "core": self.core, "coda": self.coda}[stack]
        if place is None:
            return layers(inputs_embeds=states, use_cache=False).last_hidden_state
        kv = place.cache.of(stack, step).at(place.rows, place.columns)
        return hidden_states(layers, states, place.mask, place.columns, kv)

    def join(self, state: Tensor, injected: Tensor) -> Tensor:
        return self.adapter(torch.cat([state, injected], dim=-1))

    def initial(self, columns: int, rng: torch.Generator) -> Tensor:
        return torch.randn(columns, self.width, generator=rng)


def _stack(config: LlamaConfig, layers: int) -> LlamaModel:
    stack = LlamaModel(LlamaConfig(**{**config.to_dict(), "num_hidden_layers": layers}))
    cast(Any, stack).embed_tokens = None  # it is only ever given states
    return stack


def save_recurrent(model: RecurrentLM, folder: Path) -> None:
    """Writes config, weights (safetensors) and tokenizer, for `load_recurrent`. Raises ValueError for a model of
    another layout."""
    if not isinstance(model, LlamaRecurrentLM):
        raise ValueError(f"a {type(model).__name__} is read, not written; only models of Llama stacks are saved")
    folder.mkdir(parents=True, exist_ok=True)
    config = {"depth": vars(model.depth), "llama": model.config.to_dict()}
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / WEIGHTS_FILE)
    assert model.tokenizer is not None
    model.tokenizer.save_pretrained(folder)
