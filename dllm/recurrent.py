"""Depth-recurrent language models: a few layers applied again and again to the same columns (arXiv 2502.05171).

    e      = prelude(tokens)
    s_0    ~ N(0, 1)
    s_i    = core(adapter[s_{i-1}, e])      i = 1 .. r
    logits = head(coda(s_r))

Prelude, core and coda are stock Llama stacks, each with its own K/V cache. At any depth the core attends to the last
K/V of earlier columns, so a column can be iterated while those before it still move.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoTokenizer, DynamicCache, LlamaConfig, LlamaModel, PreTrainedTokenizerBase

from conf.knobs import Count, Knobs, check
from dllm.checkpoint import ASSETS, prepare, to_dtype
from dllm.protocols import Text
from dllm.text import decode_text, encode_text

CONFIG_FILE, WEIGHTS_FILE = "recurrent.json", "model.safetensors"


@dataclass(frozen=True)
class Depth(Knobs):
    """Layers of prelude, core and coda, and the number of recurrences (r) that generation takes by default."""

    prelude: Count = 1
    core: Count = 2
    coda: Count = 1
    recurrences: Count = 8


@dataclass
class DepthCache:
    """K/V of one text, for each stack."""

    prelude: DynamicCache = field(default_factory=DynamicCache)
    core: DynamicCache = field(default_factory=DynamicCache)
    coda: DynamicCache = field(default_factory=DynamicCache)

    def keep(self, length: int) -> None:
        """Forgets the columns from `length` on."""
        for cache in (self.prelude, self.core, self.coda):
            if cache.get_seq_length() > length:
                cache.crop(length - cache.get_seq_length())


class RecurrentLM(nn.Module):
    """A causal LM of recurrent depth with tied embeddings.

    config: widths, heads and vocabulary of all stacks. Its number of layers is not used.
    """

    def __init__(
        self, config: LlamaConfig, depth: Depth, tokenizer: PreTrainedTokenizerBase, name: str = "recurrent"
    ) -> None:
        super().__init__()
        self.config, self.depth, self.tokenizer, self.name = config, depth, tokenizer, name
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.prelude, self.core, self.coda = (_stack(config, n) for n in (depth.prelude, depth.core, depth.coda))
        self.adapter = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        if not isinstance(eos, int):
            raise ValueError(f"the tokenizer of model {name!r} names no EOS")
        self.eos_ids, self.pad_id, self.max_length = (eos,), pad if isinstance(pad, int) else eos, None

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def encode(self, text: Text) -> list[int]:
        return encode_text(self.tokenizer, self.name, text)

    def decode(self, ids: Sequence[int]) -> str:
        return decode_text(self.tokenizer, ids)

    def identity(self) -> str:
        """What the weights do not say."""
        return repr((self.depth, self.eos_ids, self.tokenizer.chat_template))

    def inject(self, tokens: Int[Tensor, "1 A"], cache: DepthCache | None = None) -> Float[Tensor, "1 A D"]:
        """What each recurrence is given: the prelude's states of the columns behind those in the cache."""
        return _run(self.prelude, self.embed(tokens), cache and cache.prelude)

    def recur(
        self, state: Float[Tensor, "1 A D"], injected: Float[Tensor, "1 A D"], cache: DepthCache | None = None
    ) -> Float[Tensor, "1 A D"]:
        """One pass of the core. Its K/V replaces that of an earlier pass over the same columns."""
        if cache is not None and cache.core.get_seq_length() == cache.prelude.get_seq_length():
            cache.core.crop(-state.shape[1])
        return _run(self.core, self.adapter(torch.cat([state, injected], dim=-1)), cache and cache.core)

    def read(self, state: Float[Tensor, "1 A D"], cache: DepthCache | None = None) -> Float[Tensor, "1 A V"]:
        """Logits for the token behind each column."""
        return _run(self.coda, state, cache and cache.coda) @ self.embed.weight.T

    def noise(self, columns: int, first: int, seed: int) -> Float[Tensor, "1 A D"]:
        """Initial states of columns first .. first + columns - 1. A column's noise depends on the column and the seed
        alone."""
        noise = torch.empty(1, columns, self.config.hidden_size)
        for i in range(columns):
            rng = torch.Generator().manual_seed(seed * 1_000_003 + first + i)
            noise[0, i] = torch.randn(self.config.hidden_size, generator=rng)
        return noise.to(self.device, self.embed.weight.dtype)

    def next_logits(
        self, tokens: Int[Tensor, "B T"], where: Bool[Tensor, "B T"], rng: torch.Generator
    ) -> Float[Tensor, "N V"]:
        """Logits for the token behind each marked column, in reading order, for training. The number of recurrences is
        drawn from 1 .. 2 * default - 1, and the initial states are random."""
        count = int(torch.randint(1, 2 * self.depth.recurrences, (), generator=rng))
        injected = _run(self.prelude, self.embed(tokens), None)
        state = torch.randn(injected.shape, generator=rng)
        for _ in range(count):
            state = _run(self.core, self.adapter(torch.cat([state, injected], dim=-1)), None)
        return _run(self.coda, state, None)[where] @ self.embed.weight.T


def _stack(config: LlamaConfig, layers: int) -> LlamaModel:
    stack = LlamaModel(LlamaConfig(**{**config.to_dict(), "num_hidden_layers": layers}))
    cast(Any, stack).embed_tokens = None  # it is only ever given states
    return stack


def _run(stack: LlamaModel, states: Tensor, cache: DynamicCache | None) -> Tensor:
    return stack(inputs_embeds=states, past_key_values=cache, use_cache=cache is not None).last_hidden_state


def save_recurrent(model: RecurrentLM, folder: Path) -> None:
    """Writes config, weights (safetensors) and tokenizer, for `load_recurrent`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"depth": vars(model.depth), "llama": model.config.to_dict()}
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / WEIGHTS_FILE)
    model.tokenizer.save_pretrained(folder)


def recurrent_folder(name_or_path: str | Path) -> Path | None:
    """The folder of the depth-recurrent model of this name or path, None where there is none."""
    folders = (ASSETS / str(name_or_path), Path(name_or_path))
    return next((folder for folder in folders if (folder / CONFIG_FILE).exists()), None)


def load_recurrent(
    name_or_path: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | str = torch.float32
) -> RecurrentLM:
    """A model that `save_recurrent` wrote, or a shipped one by name, in eval mode.

    Raises ValueError for any other folder, or a device that is not there.
    """
    check(load_recurrent, name_or_path=name_or_path, device=device, dtype=dtype)
    device, _, _ = prepare(device, {})
    folder = recurrent_folder(name_or_path)
    if folder is None:
        raise ValueError(f"cannot load model {str(name_or_path)!r}: it has no {CONFIG_FILE} of a depth-recurrent LM")
    settings = cast(Mapping[str, Any], json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = RecurrentLM(LlamaConfig(**settings["llama"]), Depth(**settings["depth"]), tokenizer, folder.name)
    missing, unexpected = model.load_state_dict(load_file(folder / WEIGHTS_FILE), strict=False)
    if missing or unexpected:
        raise ValueError(f"{folder / WEIGHTS_FILE} does not fit {CONFIG_FILE}: {(missing + unexpected)[0]!r}")
    return model.to(device, to_dtype(dtype)).eval()
