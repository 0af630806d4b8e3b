"""What a training starts from: any causal or diffusion LM, with a MASK token where it is to become a diffusion LM."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from tokenizers import AddedToken
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from dllm.adapter import MASK_TOKEN, add_mask, is_attached, merge
from dllm.causal import CausalLM, load_causal
from dllm.checkpoint import find_file, one_sentence, raw_config, read_tokenizer
from dllm.diffusion import load_diffusion
from dllm.families import recognise
from dllm.model import DiffusionLM
from dllm.shipped import ASSETS, SPEC_FILE, check_folder, shipped_models


def start_from(init: str, *, spec: Mapping[str, Any] | None, causal: bool, **options: Any) -> CausalLM | DiffusionLM:
    """The model of a folder, a hub id or a shipped name, to be trained.

    options: as of `dllm.load`. Adapters become part of the weights.

    causal: as an autoregressive LM. Otherwise as a diffusion LM, which needs a MASK token: the one that it or `spec`
    names; else the first row of its embeddings that its tokenizer has no token for; else a row that is added.
    Raises ValueError for what cannot be loaded, and for an adapter that cannot be merged.
    """
    model = _loaded(init, spec, causal, options)
    if is_attached(model):
        merge(model)
    return model


def add_tokens(model: CausalLM | DiffusionLM, phrases: Sequence[str], seed: int) -> None:
    """Makes single tokens of the phrases that the tokenizer spells out. Their embeddings are normal, with the mean and
    standard deviation of those that are there. Raises ValueError for a model whose MASK is no token of its tokenizer,
    and so the id of a new one."""
    tokenizer, backbone = model.tokenizer, model.backbone
    assert tokenizer is not None
    first, added = len(tokenizer), [AddedToken(phrase, normalized=False) for phrase in phrases]
    if isinstance(model, DiffusionLM) and model.spec.mask_id >= first:
        raise ValueError(
            f"model {model.name!r} has MASK after its {first} tokens, where new ones go; set tokenizer=null"
        )
    tokenizer.add_tokens(cast(Any, added))  # its annotation lacks this type
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if len(tokenizer) > backbone.config.vocab_size:
            backbone.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        layers = (backbone.get_input_embeddings(), backbone.get_output_embeddings())
        for weight in {cast(nn.Embedding, layer).weight: None for layer in layers}:  # one, where they are tied
            weight.data[first:].normal_().mul_(weight.data[:first].std()).add_(weight.data[:first].mean(0))


def _loaded(
    init: str, spec: Mapping[str, Any] | None, causal: bool, options: Mapping[str, Any]
) -> CausalLM | DiffusionLM:
    if causal:
        if spec:
            raise ValueError(f"spec={dict(spec)} is for diffusion models, and this objective trains a causal LM")
        return load_causal(init, **options)
    fields, path = dict(spec or {}), str(ASSETS / init) if (ASSETS / init).is_dir() else init
    unmasked = None if "mask_id" in fields else _tokenizer_without_mask(path, init)
    if unmasked is not None:
        special = (unmasked.eos_token_id, unmasked.pad_token_id)
        fields |= {"mask_id": next(i for i in range(3) if i not in special)}
    model = load_diffusion(path, spec=fields or None, **options)
    if not isinstance(model, DiffusionLM):
        raise ValueError(f"model {model.name!r} has an encoder of its own, and no objective here trains such models")
    if unmasked is not None:
        model.spec = replace(model.spec, mask_id=len(unmasked))
        add_mask(model.backbone, cast(PreTrainedTokenizerBase, model.tokenizer), model.spec.mask_id)
    return model


def show_noise(model: DiffusionLM) -> None:
    """Makes a model of masks one of uniform state, in place, so that it can be trained as one: undecided columns show
    any of its tokens, and MASK is an id after them, which it is never given."""
    if not model.spec.noise:
        assert model.tokenizer is not None
        token = len(model.tokenizer)
        if model.tokenizer.mask_token == MASK_TOKEN and model.spec.mask_id == token - 1:
            token = model.spec.mask_id  # it is after all others already
        else:
            add_mask(model.backbone, model.tokenizer, token)
        model.spec = replace(model.spec, mask_id=token, noise=token)


def check_masks(model: DiffusionLM) -> None:
    """Raises ValueError for a model that is never given MASK."""
    if model.spec.noise:
        raise ValueError(
            f"model {model.name!r} is of uniform state and never sees MASK; train it with objective=uniform"
        )


def _tokenizer_without_mask(path: str, name: str) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a checkpoint in which nothing names MASK, else None. Raises ValueError without a tokenizer."""
    check_folder(path)
    with one_sentence(name, shipped_models()):
        raw = raw_config(path, {})
        if find_file(path, SPEC_FILE, {}) is not None or recognise(raw) is not None:
            return None
        tokenizer = read_tokenizer(path, AutoConfig.from_pretrained(path), AutoTokenizer, None, {})
        if tokenizer is None:
            raise ValueError("it has no tokenizer to read data with")
        return tokenizer if tokenizer.mask_token_id is None else None
