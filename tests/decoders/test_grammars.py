"""Grammars are kept by decoders that write from the left, and refused by others."""

import pytest

import dllm
from decoders import Grammar, LookupDrafts, MaskDrafts, Regex, Verified, generate, generate_verified

pytest.importorskip("llguidance")
NESTED = Grammar('start: "(" inner ")"\ninner: "" | start | "a" inner')
TEXTS = [[{"role": "user", "content": text}] for text in ("Say it.", "Say nothing.", "Copy this.")]


def nests(text: str) -> bool:
    """Whether brackets close in order, whole or cut."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c not in "()a" or depth < 0 or (depth == 0 and i < len(text) - 1):
            return False
    return text[:1] == "("


@pytest.mark.parametrize("drafter", [None, LookupDrafts(4, 2), MaskDrafts(), MaskDrafts("last")])
def test_an_answer_is_what_the_grammar_lets_follow(drafter) -> None:
    model = dllm.load("tiny-draft")
    plain = generate_verified(model, TEXTS, how=Verified(), gen_len=12, constraints=NESTED)
    rows = generate_verified(model, TEXTS, how=Verified(drafter), gen_len=12, constraints=NESTED, batch_size=2)
    assert [row.text for row in rows] == [row.text for row in plain]
    assert all(nests(row.text) for row in rows), [row.text for row in rows]
    assert all(row.text.count("(") == row.text.count(")") for row in rows if row.stopped_by == "eos")


def test_some_rows_are_free() -> None:
    model, how = dllm.load_causal("tiny-ar"), Verified()
    rows = generate_verified(model, TEXTS, how=how, gen_len=8, constraints=[NESTED, None, NESTED])
    assert rows[1] == generate_verified(model, TEXTS[1:2], how=how, gen_len=8)[0]
    assert nests(rows[0].text) and nests(rows[2].text)


def test_what_is_no_grammar_and_who_cannot_keep_one_is_refused() -> None:
    model, how = dllm.load_causal("tiny-ar"), Verified()
    with pytest.raises(ValueError, match=r"of Grammar: .*; mend it"):
        generate_verified(model, TEXTS, how=how, gen_len=8, constraints=Grammar("start: nothing"))
    with pytest.raises(ValueError, match="decode them in two calls"):
        generate_verified(model, TEXTS[:2], how=how, gen_len=8, constraints=[NESTED, Regex("a")])
    with pytest.raises(ValueError, match="a Grammar is kept by decoders that write from left to right alone"):
        generate(dllm.load("tiny"), TEXTS, constraints=NESTED)
