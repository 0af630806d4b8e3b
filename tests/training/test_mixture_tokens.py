"""Words and wordings as tokens, and the mixtures of tasks that are trained on."""

from dataclasses import replace

import pytest
import torch

import dllm
from dllm.training.start import add_tokens
from dllm.training.tokenizer import build_tokenizer
from parallelbench.tasks import builtin_tasks, text_tasks
from parallelbench.tasks.base import TRAIN_SEED_MIN, train_draw
from parallelbench.training.mixture import TaskMixture, phrases

ASKED = "Repeat the queue below exactly as it is."


def test_words_of_the_text_tasks_and_fixed_texts_of_wordings_become_tokens():
    known = phrases(templates=(0, 2), text_draws=200)
    draws = [train_draw(task, TRAIN_SEED_MIN, i) for task in text_tasks().values() for i in range(200)]
    written = "\n".join(f"{draw.prompt}\n{draw.target}" for draw in draws)
    assert " Milan" in written and {"nMilan", " Milan"}.isdisjoint(known)  # names are tokens of their own
    assert any(text.startswith(ASKED) for text in known)
    assert not any("Copy it without" in text for text in known)  # wording 1
    assert {" the", " a", " I"} <= set(known)
    assert all(word in written for word in known[known.index(" I") :])  # words are sorted, behind all else
    tokenizer = build_tokenizer(known)
    for name, task in {**builtin_tasks(), **text_tasks()}.items():
        draw = train_draw(task, TRAIN_SEED_MIN, 0)
        for text in (draw.target, draw.worded(2).prompt):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.decode(ids) == text
            assert len(ids) < 0.6 * len(text) or name.startswith("puzzle")


def test_added_tokens_change_nothing_for_the_old_ones():
    old, new = dllm.load("tiny"), dllm.load("tiny")
    first = len(old.tokenizer)
    full = " Draw a zebra on the quay."
    add_tokens(new, [full, *(f" zebra{i}" for i in range(100))], seed=0)
    assert len(new.tokenizer) == new.vocab_size > first
    prompt = '["Ada Bach"]\nThese people wait at the service desk. Write the line exactly as it stands.'
    assert new.encode(prompt) == old.encode(prompt)
    assert len(new.encode(full)) == 1 and len(old.encode(full)) > 4
    canvas, prompt_len = torch.tensor([[7, 30, 40, old.spec.mask_id]]), torch.tensor([2])
    logits = new.full_logits(canvas, prompt_len)
    torch.testing.assert_close(logits[..., :first], old.full_logits(canvas, prompt_len))
    table = new.backbone.get_input_embeddings().weight
    assert table is new.backbone.get_output_embeddings().weight
    table = table.detach()
    assert 0.8 < float(table[first:].std() / table[:first].std()) < 1.2


def test_a_mixture_draws_wordings_and_widths():
    tokenizer = build_tokenizer(phrases(templates=(0, 1, 2, 3)))
    mixture = TaskMixture(
        {"waiting_line/copy": 1.0},
        batch_size=4,
        response_lens=(8, 16, 24, 32, 64),
        least_lens=(0, 32),
        templates=(1, 3),
        long_share=0.0,
    )
    stream = mixture.open(tokenizer)
    batches = [stream.batch(step) for step in range(12)]
    widths = [set((batch.end - batch.prompt_len).tolist()) for batch in batches]
    assert {min(width) >= 32 for width in widths} == {True, False}
    assert set.union(*widths) <= {8, 16, 24, 32, 64}
    texts = [
        tokenizer.decode(row[:n]) for batch in batches for row, n in zip(batch.canvas, batch.prompt_len, strict=True)
    ]
    assert (
        {"Task: copy" in text for text in texts}
        == {"outside the bakery" not in text for text in texts}
        == {True, False}
    )
    for batch in batches:
        for row, begin, end in zip(batch.canvas, batch.prompt_len, batch.text_end, strict=True):
            people = tokenizer.decode(row[begin : end - 1])
            assert people in tokenizer.decode(row[:begin])


@pytest.mark.parametrize(
    ("knob", "message"),
    [
        ({"templates": (0, 4)}, "task 'waiting_line/copy' has no wording 4; give 0 to 3"),
        ({"least_lens": (0, 64), "response_lens": (8, 32)}, "least_lens=\\[0, 64\\] exceed"),
        ({"least_lens": None}, "least_lens=None of TaskMixture; give a list"),
        ({"batch_size": 0}, "batch_size=0 of TaskMixture; give a whole number"),
    ],
)
def test_what_no_batch_could_be_made_of_is_refused(knob, message):
    with pytest.raises(ValueError, match=message):
        TaskMixture({"waiting_line/copy": 1.0}, **knob)


def test_tokens_are_refused_for_wordings_that_are_not_there_and_where_mask_stands():
    with pytest.raises(ValueError, match="wording 9"):
        phrases(templates=(9,))
    model = dllm.load("tiny")
    model.spec = replace(model.spec, mask_id=len(model.tokenizer))
    with pytest.raises(ValueError, match="has MASK after its 2397 tokens"):
        add_tokens(model, [" house"], seed=0)
