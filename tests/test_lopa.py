"""Lookahead over states: a textbook version of it decodes the same, in any batch and with every cache that it takes."""

import numpy as np
import pytest
import torch
from conftest import EOS, make_model

from decoders import BanEos, Decoder, EntropyBound, Eotp, FixedK, Never, Threshold, decode, decode_lookahead
from decoders.loop import NO_CACHE
from dllm.cache import BlockCache, CacheStrategy, DelayedCache, WindowCache
from dllm.plan import Plan

DUAL = WindowCache(0, 0)
GEN_LENS = [16, 5, 16, 9]


def textbook(
    model, prompt: list[int], gen_len: int, block_len: int, branches: int, tau: float, cut: bool = False
) -> tuple[list[int], int]:
    """One row of a bidirectional model, one forward of one state after the other. cut: behind the first EOS."""
    mask, start, canvas, nfe = model.spec.mask_id, len(prompt), prompt + [model.spec.mask_id] * gen_len, 0
    for first in range(start, start + gen_len, block_len):
        block = range(first, min(first + block_len, len(canvas)))
        expected: list[tuple[int, int]] = []
        while any(canvas[i] == mask for i in block):
            nfe += 1
            best = None
            for extra in [None, *expected]:
                tried = list(canvas)
                if extra is not None:
                    tried[extra[0]] = extra[1]
                plan = Plan.of(np.array([0]), np.ones((1, len(tried)), bool), True)
                end, columns = torch.tensor([len(tried)]), torch.arange(len(tried))[None]
                kv = model.new_kv(torch.tensor([start]), len(tried))
                with torch.inference_mode():
                    logits = model.logits(torch.tensor([tried]), plan, columns, end=end, kv=kv)[0].float()
                prob, token = logits.softmax(-1).max(-1)
                left = [i for i in block if tried[i] == mask]
                mean = sum(prob[i].item() for i in left) / len(left) if left else 1.0
                if best is None or mean > best[0] + 1e-7:
                    best = mean, tried, left, prob, token
            _, canvas, left, prob, token = best
            surest = [max(left, key=lambda i: prob[i].item())] if left else []
            sure = [i for i in left if prob[i] >= tau] or surest
            for i in sure:
                canvas[i] = int(token[i])
            if cut and EOS in canvas[start:]:
                canvas = canvas[: canvas.index(EOS, start) + 1]
                block = range(first, min(block.stop, len(canvas)))
            rest = sorted((i for i in left if i not in sure and i in block), key=lambda i: -prob[i].item())
            expected = [(i, int(token[i])) for i in rest[:branches]]
    text = canvas[start:]
    return text[: text.index(EOS) if EOS in text else None], nfe


def test_it_is_the_textbook_version(prompts: list[list[int]]) -> None:
    model = make_model("full")
    how = {"block_len": 8, "cache": NO_CACHE, "stop": Never(), "decoder": Decoder(Threshold(0.6))}
    for branches in (1, 3):
        rows = decode_lookahead(model, prompts, gen_len=GEN_LENS, branches=branches, **how)
        wanted = [textbook(model, p, n, 8, branches, 0.6) for p, n in zip(prompts, GEN_LENS, strict=True)]
        assert [(row.token_ids, row.nfe) for row in rows] == wanted
    assert sum(row.nfe for row in rows) < sum(row.nfe for row in decode(model, prompts, gen_len=GEN_LENS, **how))


def test_nothing_is_tried_behind_an_eos_that_cuts_the_row(prompts: list[list[int]]) -> None:
    model, stop = make_model("full"), Eotp("committed", order="committed")
    how = {"gen_len": 16, "block_len": 16, "cache": NO_CACHE, "decoder": Decoder(Threshold(0.6)), "branches": 4}
    many = [[*prompt, extra] for prompt in prompts for extra in range(12)]
    wanted = [textbook(model, prompt, 16, 16, 4, 0.6, cut=True) for prompt in many]
    rows = decode_lookahead(model, many, stop=stop, **how)
    assert [(row.token_ids, row.nfe) for row in rows] == wanted
    assert wanted != [textbook(model, prompt, 16, 16, 4, 0.6) for prompt in many]


@pytest.mark.parametrize(
    ("kind", "cache"), [("mixed", NO_CACHE), ("full", DUAL), ("shifted_block_causal", BlockCache())]
)
def test_a_row_is_the_same_alone(kind: str, cache: CacheStrategy, prompts: list[list[int]]) -> None:
    model, decoder = make_model(kind), Decoder(EntropyBound(0.5), confidence="entropy", temperature=0.7)
    how = {"branches": 2, "block_len": 8, "cache": cache, "stop": Never(), "decoder": decoder}
    rows = decode_lookahead(model, prompts, gen_len=GEN_LENS, **how)
    assert rows[2:] == decode_lookahead(model, prompts[2:], gen_len=GEN_LENS[2:], **how)
    assert all(row.stopped_by == "length" and model.spec.mask_id not in row.token_ids for row in rows)


def test_without_a_choice_it_is_decode(prompts: list[list[int]]) -> None:
    model = make_model("full")
    how = {"gen_len": 16, "block_len": 8, "cache": DUAL, "stop": Never(), "decoder": Decoder(FixedK("all"))}
    assert decode_lookahead(model, prompts, branches=3, **how) == decode(model, prompts, **how)


def test_what_states_cannot_be_compared_for_is_refused(prompts: list[list[int]]) -> None:
    def refused(message: str, **parts: object) -> None:
        given = {"branches": 2, "gen_len": 8, "block_len": 8, "decoder": Decoder(Threshold()), "cache": NO_CACHE}
        with pytest.raises(ValueError, match=message):
            decode_lookahead(make_model("full"), prompts, **given | {"stop": Never()} | parts)

    refused("branches=0", branches=0)
    refused("takes a rule, its confidence", decoder=Decoder(Threshold(), transforms=(BanEos(),)))
    refused("depends on the steps before", cache=DelayedCache())
    refused("looks at predictions", stop=Eotp())
