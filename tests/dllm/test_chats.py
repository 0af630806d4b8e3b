"""Texts and chats become prompts: what was asked is in them, BOS once, and what cannot be rendered is one sentence."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

import dllm
from decoders.generation import encode_template
from dllm.guidance import Guided
from dllm.text import PLAIN_TEMPLATE, encode_piece, encode_text, render_chat

ASKED = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Say hello."}]
LOOP = "{% for m in messages %}<{{ m.role }}>"
PARTS = [
    LOOP
    + "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}{% endfor %}<assistant>",
    LOOP + "{% for c in m.content %}{% if c['type'] == 'text' %}{{ c['text'] }}{% endif %}\n{% endfor %}{% endfor %}",
    LOOP + "{{ m['content'][0]['text'] }}{% endfor %}",
    LOOP + "{{ (m.content | selectattr('type', 'equalto', 'text') | first).text | trim }}{% endfor %}",
    LOOP + "{{ m.content | map(attribute='text') | join }}{% endfor %}",
]
BROKEN = {
    "{{ raise_exception('roles must alternate') }}": "fails on this chat: roles must alternate",
    "{% for m in messages %}{{ m.content }": "unexpected",
    "{% for m in messages %}{{ m.text.strip() }}{% endfor %}": "has no attribute 'text'",
    "{% include 'x' %}": "no loader",
    "{{ ''.__class__.__mro__ }}": "unsafe",
    "{{ messages + 1 }}": "can only concatenate",
    "{{ messages[0] / 0 }}": "unsupported operand",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "recursion",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": "does not end within",
    "{% for i in 'x' * 99999 %}{% for j in range(99999) %}x{% endfor %}{% endfor %}": "does not end within",
    "{{ 'x ' * 300000 }}": "writes 600,000 characters",
    "{{ 'x' * 10**10 }}": "it uses **",
    "{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}": "it uses *",
    "{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * 1 * n.x %}{% endfor %}": "it uses *",
    "{{ 1.5 | round(999999999) }}": "it rounds to a number of places",
    "{{ [1.5] | map('round', 999999999) | list }}": "it rounds to a number of places",
    "{{ 'x' * 10000000000 }}": "more than 1,024 MiB",
    "{{ [0] * 10000000000 }}": "more than 1,024 MiB",
    "{{ range(1000000000) | list }}": "Range too big",
    "{{ '%10000000000d' % 1 }}": "more than 1,024 MiB",
    "{{ '%*d' % (2000000000, 1) }}": "more than 1,024 MiB",
    "{{ '%10000000000d' | format(1) }}": "more than 1,024 MiB",
    "{{ '{:>10000000000}'.format(1) }}": "more than 1,024 MiB",
    "{{ 'x'.center(10000000000) }}": "more than 1,024 MiB",
    "{{ 'x'.ljust(10000000000) ~ 'x'.rjust(10000000000) ~ 'x'.zfill(10000000000) }}": "more than 1,024 MiB",
    "{{ 'x' | center(10000000000) | indent(10000000000) }}": "more than 1,024 MiB",
    "{{ range(99999) | map('center', 99999) | list }}": "fails on this chat: it ",
    "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}": "this chat: it ",
    "{{ [1] | slice(1000000000) | list }}": "does not end within",
    "{{ lipsum(1000000000) }}": "does not end within",
    "{% for m in messages %}<{{ m.role }}>{% endfor %}": "leaves out what the user says ('Say hello.')",
    "{{ messages[0].content }}": "leaves out what the user says",
    "<user>Say hello.": "leaves out what the user says",
    "{% for m in messages %}{{ m.content[:2] }}{% endfor %}": "leaves out what the user says",
}


@pytest.fixture(scope="module")
def tiny() -> dllm.DiffusionLM:
    return dllm.load("tiny")


@pytest.fixture
def tokenizer(tiny: dllm.DiffusionLM, monkeypatch: pytest.MonkeyPatch) -> PreTrainedTokenizerBase:
    assert tiny.tokenizer is not None
    monkeypatch.setattr(tiny.tokenizer, "chat_template", tiny.tokenizer.chat_template)
    return tiny.tokenizer


@pytest.mark.parametrize("template", PARTS)
def test_templates_that_walk_through_parts_are_given_parts(tokenizer: PreTrainedTokenizerBase, template: str) -> None:
    tokenizer.chat_template = template
    shown = render_chat(tokenizer, "mine", ASKED)
    assert "<system>Be short." in shown and "<user>Say hello." in shown
    parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in ASKED]
    assert render_chat(tokenizer, "mine", parts) == shown
    assert encode_text(tokenizer, "mine", ASKED) == tokenizer(shown, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("template", BROKEN)
def test_a_template_that_fails_or_loses_the_question_is_refused(
    tokenizer: PreTrainedTokenizerBase, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dllm.text.MAX_SECONDS", 0.1)
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match="chat template of model 'mine'") as caught:
        encode_text(tokenizer, "mine", ASKED)
    assert BROKEN[template] in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_templates_may_count(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = (
        "{% for m in messages %}{{ ' ' * loop.index }}{{ loop.index * 2 }}* {{ 1.25 | round(1) }}"
        "{{ m.content }}{% endfor %}"
    )
    assert render_chat(tokenizer, "mine", [{"role": "user", "content": "x ** y"}]) == " 2* 1.2x ** y"


def test_words_that_a_template_takes_for_itself_may_go(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content.replace('/no_think', '') | upper | lower }}{% endfor %}"
    )
    assert render_chat(tokenizer, "mine", [{"role": "user", "content": "say hello. /no_think"}]) == "say hello. "


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},
        {"role": "user", "content": 3},
        {"role": "user"},
        {"content": "Say hello."},
        {"role": None, "content": "Say hello."},
        {"role": "user", "content": "half \ud83d"},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "text", "text": None}]},
        {"role": "user", "content": ["Say hello."]},
        {"role": "user", "content": [{"type": "text", "text": "\udc00"}]},
    ],
)
def test_malformed_messages_are_one_sentence(tiny: dllm.DiffusionLM, message: Any) -> None:
    with pytest.raises(ValueError, match=r"; (give|mend) "):
        tiny.encode([ASKED[1], message])


def test_half_a_character_is_no_text(tiny: dllm.DiffusionLM) -> None:
    with pytest.raises(ValueError, match="lone surrogate"):
        tiny.encode("half \ud83d")


def bos_writer() -> PreTrainedTokenizerBase:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "w1": 2, "w2": 3, "?": 4}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="?")


def test_a_text_begins_with_bos_once_where_the_tokenizer_writes_it() -> None:
    tokenizer = bos_writer()
    assert encode_text(tokenizer, "mine", "w1 w2") == [0, 2, 3] == encode_text(tokenizer, "mine", "<s> w1 w2")
    assert encode_text(tokenizer, "mine", "") == [] and encode_piece(tokenizer, "w2") == [3]
    tokenizer.chat_template = PLAIN_TEMPLATE
    assert encode_text(tokenizer, "mine", [{"role": "user", "content": "w1"}]) == [0, 2]
    tokenizer.chat_template = "{{ bos_token }} {{ messages[0].content }}"
    assert encode_text(tokenizer, "mine", [{"role": "user", "content": "w1"}]) == [0, 2]
    tokenizer.chat_template = "{{ messages[0].content }}"  # a template says all that its model wants
    assert encode_text(tokenizer, "mine", [{"role": "user", "content": "w1"}]) == [2]


def test_a_tokenizer_without_bos_writes_none(tiny: dllm.DiffusionLM) -> None:
    assert tiny.encode("Say") == encode_piece(tiny, "Say")


def test_pieces_of_an_answer_have_no_bos(tiny: dllm.DiffusionLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "tokenizer", bos_writer())
    wanted = [2, tiny.spec.mask_id, 3]
    for model in (tiny, Guided(tiny, 1.0)):
        assert model.encode("w1") == [0, 2] and encode_template(model, ["w1", 1, "w2"]) == wanted


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no') }}", "{% for m in messages %}{{ m.content }", "{{ 'x' }}"]
)
def test_a_run_ends_in_a_sentence_before_its_first_forward(cli, tmp_path: Path, template: str) -> None:
    (tmp_path / "own.jinja").write_text(template)
    code, _, err = cli(
        "run", "+model.chat_template=own.jinja", "limit=1", "suite.tasks=[waiting_line/copy]", "out_dir=o"
    )
    assert code == 2 and err.strip().startswith("error: the chat template of model") and "\n" not in err.strip()
    assert not (tmp_path / "o").exists()
