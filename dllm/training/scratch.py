"""A small diffusion LM with random weights on a stock Llama backbone, to be trained from scratch."""

from typing import cast

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from dllm.model import DiffusionLM
from dllm.spec import ModelSpec


def scratch_llama(
    tokenizer: PreTrainedTokenizerBase,
    *,
    width: int = 128,
    layers: int = 5,
    heads: int = 4,
    mlp_width: int = 384,
    rope_theta: float = 1000.0,
    max_positions: int = 256,
    response_position: int | None = 64,
    mix_std: float = 0.8,
    embed_std: float = 0.3,
    seed: int = 0,
    name: str = "scratch",
) -> DiffusionLM:
    """A bidirectional model with a neighbour mix; the tokenizer must name mask, EOS and PAD."""
    mask_id, eos_id, pad_id = tokenizer.mask_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    assert isinstance(mask_id, int) and isinstance(eos_id, int) and isinstance(pad_id, int)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=mlp_width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos_id,
    )
    spec = ModelSpec(mask_id, (eos_id,), pad_id, response_position=response_position, mix=1)
    with torch.random.fork_rng():  # transformers initialises from the global generator
        torch.manual_seed(seed)
        model = DiffusionLM(LlamaForCausalLM(config), spec, tokenizer, name)
    assert model.mix is not None
    rng = torch.Generator().manual_seed(seed)
    model.mix.reset_(mix_std, rng)
    # the usual 0.02 lets tied embeddings grow one common direction first; the final norm keeps the logits
    # near unit scale
    backbone = cast(LlamaForCausalLM, model.backbone)
    torch.nn.init.normal_(backbone.model.embed_tokens.weight, std=embed_std, generator=rng)
    torch.nn.init.constant_(backbone.model.norm.weight, embed_std)
    return model
