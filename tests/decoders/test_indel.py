"""Editing that moves tokens, against the same in plain Python on one row, and what it refuses."""

from typing import Any

import pytest
import torch
from conftest import call, make_model

import dllm
from decoders import Decoder, FixedK, InDel, Never, decode
from decoders.decode_job import check_parts
from decoders.logits import Logits
from decoders.noise import Noise
from decoders.spread import NO_CACHE
from decoders.testing import HashModel
from decoders.types import Shape, View
from dllm.spec import ModelSpec

MASK, DELETE, SPLIT, VOCAB = 9, 8, 7, 10
SPEC = ModelSpec(MASK, (6,), 6, delete_id=DELETE, split_id=SPLIT)


class Plain:
    """One row of one window, step by step on lists."""

    def __init__(self, how: InDel, tokens: list[int], live: list[bool]) -> None:
        self.how, self.tokens, self.live = how, tokens, live
        self.former = [here and token == MASK for token, here in zip(tokens, live, strict=True)]
        self.post, self.steps, self.states, self.written, self.done = 0, 0, [], [], False

    def step(self, prob: torch.Tensor) -> None:
        columns = [i for i, here in enumerate(self.live) if here]
        masks = [i for i in columns if self.tokens[i] == MASK]
        waiting = [i for i in masks if self.former[i]]
        self.steps += 1
        self.post += not waiting
        last = self.post >= self.how.budget if self.how.budget else not waiting
        last = last or self.steps > len(self.tokens) + self.how.budget
        best = prob.argmax(1).tolist()
        sure = [float(prob[i, best[i]]) for i in range(len(self.tokens))]
        number = 1 + len(masks) - len(waiting)
        above = [i for i in masks if sure[i] > self.how.tau]
        chosen = above if len(above) >= number else sorted(masks, key=lambda i: (-sure[i], i))[:number]
        if not self.how.budget and set(waiting) <= set(chosen):
            last = True
        if last or not waiting:
            chosen = masks
        edits = [i for i in columns if i not in masks and best[i] != self.tokens[i] and sure[i] > self.how.edit]
        write = sorted({*chosen, *edits})
        if last:
            for i in write:
                best[i] = max(
                    (v for v in range(VOCAB) if v not in (MASK, DELETE, SPLIT)), key=lambda v: float(prob[i, v])
                )
        changing = [i for i in write if best[i] != self.tokens[i]]
        if self.tokens in self.states and changing and not last:
            place = min(changing, key=lambda i: (sure[i], i))
            gone = {MASK, *(chosen[place] for chosen in self.written if place in chosen)}
            best[place] = max((v for v in range(VOCAB) if v not in gone), key=lambda v: float(prob[place, v]))
        self.states.append(list(self.tokens))
        self.written.append({i: best[i] for i in write})
        made: list[tuple[int, bool]] = []
        for i in columns:
            token = best[i] if i in write else self.tokens[i]
            if token == SPLIT:
                made += [(MASK, False), (self.tokens[i], self.former[i])]
            elif token != DELETE:
                made.append((token, self.former[i]))
        made += [(MASK, False)] * len(columns)
        for i, (token, mark) in zip(columns, made, strict=False):
            self.tokens[i], self.former[i] = token, mark
        self.done = last or not write


@pytest.mark.parametrize("how", [InDel(0.5, 0.0, 4), InDel(0.3, 0.2, 2), InDel(0.9, 0.5, 0), InDel(0.6, 0.1, 16)])
def test_steps_are_those_of_plain_python(how: InDel) -> None:
    rng, width, moved, repeated = torch.Generator().manual_seed(1), 6, 0, 0
    for trial in range(12):
        live = torch.ones(2, width, dtype=torch.bool)
        live[:, trial % 3] = trial % 2 == 0  # a token between is fixed
        tokens = torch.where(live, MASK, 3)
        rows = [Plain(how, row.tolist(), here.tolist()) for row, here in zip(tokens, live, strict=True)]
        decoder = Decoder(FixedK("all"), revise=how)
        memory: Any = None
        table = torch.randn(3, width, VOCAB, generator=rng) * 3
        table[..., MASK] = float("-inf")
        for step in range(width + how.budget + 2):
            # few different windows and few different logits, so that windows come back
            logits = torch.stack([table[(sum(row.tokens) + step // 4) % 3] for row in rows])
            steps = torch.full((2,), step)
            tokens = torch.tensor([row.tokens for row in rows])
            now = live & ~torch.tensor([row.done for row in rows])[:, None]
            noise = Noise(torch.arange(2), steps)
            view = View(tokens, now & (tokens == MASK), now, Logits(logits), steps, noise, SPEC, steps * 0)
            memory = memory or decoder.init(shape_of(view))
            update = decoder.step(view, memory)
            assert update.hold is not None
            for i, row in enumerate(rows):
                if not row.done:
                    repeated += row.tokens in row.states
                    row.step(logits[i].softmax(-1))
                    moved += any(token in (DELETE, SPLIT) for token in row.written[-1].values())
                    assert torch.where(update.write, update.tokens, tokens)[i].tolist() == row.tokens
                    assert bool(update.hold[i]) is not row.done
            if all(row.done for row in rows):
                break
        assert all(row.done and not {MASK, DELETE, SPLIT} & set(row.tokens) for row in rows)
    assert moved > 5 and (repeated > 0 or how.budget < 16)


def shape_of(view: View) -> Any:
    batch, window, vocab = view.logits.shape
    return Shape(batch, window, vocab, view.logits.device)


def test_it_ends() -> None:
    decoder = Decoder(FixedK("all"), revise=InDel(0.2, 0.0, 5))
    (row,) = decode(HashModel(), [[1, 2, 3]], gen_len=24, block_len=12, decoder=decoder, cache=NO_CACHE, stop=Never())
    assert row.stopped_by == "length" and row.nfe <= 2 * (12 + 5 + 1)
    assert not {35, 36, 39} & set(row.token_ids)


def test_a_model_without_the_tokens_is_refused(monkeypatch: Any, capsys: Any, tmp_path: Any) -> None:
    decoder = Decoder(FixedK("all"), revise=InDel())
    with pytest.raises(ValueError, match="needs a model with DELETE and SPLIT tokens; give"):
        check_parts(make_model("full"), decoder, NO_CACHE)
    folder = tmp_path / "run"
    code, _, error = call(monkeypatch, capsys, "run", "decoder=indel", "limit=1", f"out_dir={folder}")
    assert code == 2 and "DELETE and SPLIT" in error and not folder.exists()
    with pytest.raises(ValueError, match="split_id=90 is outside the vocabulary"):
        dllm.DiffusionLM(make_model("full").backbone, ModelSpec(47, (46,), 45, delete_id=1, split_id=90))
