"""Library use: all kinds of prompts, and what comes back."""

import warnings

import pytest
from conftest import make_model

import dllm
from decoders import Decoder, FixedK, Never, Wino, generate
from dllm.guidance import Guided
from parallelbench.tasks import builtin_tasks


@pytest.fixture(scope="module")
def tiny() -> dllm.DiffusionLM:
    return dllm.load("tiny")


def test_texts_messages_and_ids_are_the_same_prompt(tiny: dllm.DiffusionLM) -> None:
    content = builtin_tasks()["waiting_line/copy"].samples(1, seed=0)[0].messages[0]["content"]
    text = f"<user>{content}<assistant>"
    ids = tiny.tokenizer(text, add_special_tokens=False)["input_ids"]
    outputs = generate(tiny, [text, [{"role": "user", "content": content}], ids])
    assert outputs[0] == outputs[1] == outputs[2]
    assert outputs[0].text.startswith('["') and outputs[0].stopped_by == "eos"


def test_a_plain_text_to_a_model_of_chats_warns_once(tiny: dllm.DiffusionLM) -> None:
    with pytest.warns(UserWarning, match="a prompt is plain text, to which no chat template is applied") as told:
        generate(tiny, ["hello", "again"], gen_len=8, block_len=8)
    assert len(told) == 1
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for text in ("hello", "again"):
            generate(tiny, [text], gen_len=8, block_len=8)
    assert len(told) == 1
    generate(dllm.load("tiny", chat_template="plain"), ["hello"], gen_len=8, block_len=8)  # it is not asked for a chat


def test_costs_are_consistent(tiny: dllm.DiffusionLM) -> None:
    prompts = [s.messages for s in builtin_tasks()["waiting_line/sort"].samples(5, seed=0)]
    for output in generate(tiny, prompts, decoder=Decoder(FixedK(2)), stop=Never(), batch_size=2):
        assert output.nfe == 16 and output.stopped_by == "length"
        assert output.tokens_per_forward == len(output.token_ids) / 16
        assert sorted(set(output.committed_at)) == list(range(16)) and len(output.committed_at) == 32
        assert tiny.spec.eos_ids[0] not in output.token_ids
        assert output.queried > 16 * 32


def test_a_model_without_tokenizer_takes_ids() -> None:
    model = make_model("full")
    (output,) = generate(model, [[1, 2, 3]], gen_len=8, block_len=8)
    assert output.text == "" and output.nfe >= 1
    with pytest.raises(ValueError, match="no tokenizer; give prompts as token ids"):
        generate(model, ["hello"], gen_len=8, block_len=8)


def test_messages_need_a_chat_template(tiny: dllm.DiffusionLM, monkeypatch) -> None:
    monkeypatch.setattr(tiny.tokenizer, "chat_template", None)
    with pytest.raises(ValueError, match='no chat template; load the model with chat_template="plain"'):
        generate(tiny, [[{"role": "user", "content": "hello"}]])


def test_one_prompt_is_not_a_list_of_prompts(tiny: dllm.DiffusionLM) -> None:
    with pytest.raises(ValueError, match="one prompt was given; put it into a list"):
        generate(tiny, "<user>hello")


def test_guidance_offers_no_look_without_a_token(tiny: dllm.DiffusionLM) -> None:
    with pytest.raises(ValueError, match="this kind of model cannot do"):
        generate(Guided(tiny, 1.0), ["<user>hello"], decoder=Decoder(Wino()))


@pytest.mark.parametrize("prompt", ["", [], [{"role": "user", "content": " "}]])
def test_empty_prompts_are_refused(tiny: dllm.DiffusionLM, prompt) -> None:
    with pytest.raises(ValueError, match="prompt 1 is empty; give at least one token"):
        generate(tiny, ["<user>", prompt])
