"""Autoregressive models of many families in the loop that verifies drafts: they write what transformers' `generate`
does, alone, beside others and in refilled slots."""

from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from decoders import NO_CACHE, StrictEos, Verified, generate_verified
from decoders.types import in_order
from decoders.verified.rounds import verify, verify_queue
from dllm.causal import CausalLM, CausalStream
from parallelbench.methods.autoregressive import Autoregressive

VOCAB, EOS, GEN_LEN, WINDOW = 64, (1, 2, 3, 4), 12, 6
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.6, "bos_token_id": None,
    "eos_token_id": EOS[0], "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_chunk_size": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {"head_dim": 8},
    "gemma2": {**MIXED, "head_dim": 8, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 3.0},
    "gemma3_text": {**MIXED, "head_dim": 8, "query_pre_attn_scalar": 8},
    "granite": {"logits_scaling": 3.0},
    "cohere": {"logit_scale": 0.3},
    "mistral": {"sliding_window": WINDOW},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "falcon": {"alibi": True},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "mamba": {"state_size": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 4, "n_groups": 2, "chunk_size": 4},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "lfm2": {"full_attn_idxs": [1]},
}
PROMPTS = [[5 + (7 * row + 3 * place) % 59 for place in range(n)] for row, n in enumerate((5, 11, 3, 1, 8, 20, 2))]


def make(model_type: str, **settings: Any) -> CausalLM:
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w0")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = CONFIG_MAPPING[model_type](**{**SIZES, **settings})
        backbone = AutoModelForCausalLM.from_config(config).eval()
    backbone.generation_config = GenerationConfig(eos_token_id=list(EOS))
    return CausalLM(backbone, tokenizer, model_type)


family = cache(lambda name: make(name, **FAMILIES[name]))


@cache
def expected(name: str, row: int) -> list[int]:
    """What transformers writes for this prompt alone, up to its first EOS, which is there."""
    ids, model = torch.tensor(PROMPTS[row : row + 1]), family(name)
    settings = GenerationConfig(do_sample=False, eos_token_id=list(EOS), pad_token_id=0, max_new_tokens=GEN_LEN)
    return model.backbone.generate(ids, generation_config=settings)[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("slots", [1, 2, len(PROMPTS)])
@pytest.mark.parametrize("name", FAMILIES)
def test_text_and_costs_are_those_of_transformers(name: str, slots: int) -> None:
    stream, number = CausalStream(family(name), drafts=False), len(PROMPTS)
    assert stream.is_exact()
    rows = in_order(verify_queue(stream, Verified(), PROMPTS, [GEN_LEN] * number, [0] * number, slots))
    for place, row in enumerate(rows):
        text = expected(name, place)
        ended = text[-1] in EOS
        assert row.token_ids == (text[:-1] if ended else text)
        assert (row.nfe, row.queried) == (len(text), len(PROMPTS[place]) + len(text) - 1)
        assert row.committed_at == [*range(len(text)), *[-1] * (GEN_LEN - len(text))]
        assert row.stopped_by == ("eos" if ended else "length")


def test_the_families_write_texts_that_differ_and_end_apart() -> None:
    """So that the test above can fail."""
    texts = [[expected(name, place) for place in range(len(PROMPTS))] for name in FAMILIES]
    assert len({str(rows) for rows in texts}) == len(texts)
    assert sum(len({len(text) for text in rows}) > 1 for rows in texts) > len(texts) / 2


def test_no_slot_waits_and_no_cache_grows() -> None:
    """A slot is refilled in the next turn, and columns that none of its rows sees leave the cache."""
    model, kept = family("llama"), list[int]()
    stream, gen_lens = CausalStream(model, drafts=False), [12, 1, 1, 1, 12, 1, 12] * 3
    stream.eos_ids = (VOCAB,)  # which is never written

    def watch(_module: object, _args: object, given: dict[str, Any]) -> None:
        if "past_key_values" in given:
            kept.append(given["past_key_values"].get_seq_length())

    hook = model.backbone.register_forward_pre_hook(watch, with_kwargs=True)
    live = [len(turn.live) for turn in verify_queue(stream, Verified(), PROMPTS * 3, gen_lens, [0] * 21, 2)]
    hook.remove()
    assert sum(live) == sum(gen_lens) and live == sorted(live, reverse=True) and live[-1] > 0
    assert live.count(1) < 12  # the last row's, when no prompt is left
    assert max(kept) < max(map(len, PROMPTS)) + max(gen_lens)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("openai-gpt", {"n_embd": 32, "n_layer": 2, "n_head": 4}),  # keeps nothing
        ("rwkv", {"attention_hidden_size": 32}),  # states of a kind of its own
        (
            "recurrent_gemma",
            {"lru_width": 32, "attention_window_size": WINDOW, "num_hidden_layers": 3},
        ),  # in its layers
    ],
)
def test_what_keeps_its_state_elsewhere_is_refused(name: str, settings: dict[str, Any]) -> None:
    parts = {"cache": NO_CACHE, "stop": StrictEos(), "block_len": None, "seed": 0}
    with pytest.raises(ValueError, match=f"model '{name}' .*; use a model"):
        Autoregressive().bind(make(name, **settings), **parts)


def test_a_text_alone_is_that_of_the_public_call() -> None:
    model = family("mistral")
    generations = generate_verified(model, PROMPTS, how=Verified(), gen_len=GEN_LEN, batch_size=2)
    rows = verify(CausalStream(model, drafts=False), Verified(), PROMPTS, [GEN_LEN] * 7, [0] * 7)
    assert [one.token_ids for one in generations] == [row.token_ids for row in rows]
