"""Training data: rows of files, packed and by length, never what the benchmark asks."""

import json
from pathlib import Path

import pytest
import torch

from dllm.training.objectives import Batch, NextToken
from dllm.training.scratch import scratch_causal
from dllm.training.tokenizer import build_tokenizer
from parallelbench.tasks import Suite
from parallelbench.tasks.base import TRAIN_SEED_MIN, is_held_out
from parallelbench.tasks.mathematics import Gsm8k
from parallelbench.tasks.prompts import Prompts
from parallelbench.training.mixture import TaskMixture, phrases
from parallelbench.training.sources import ByLength, Mixed, Rows
from parallelbench.training.trajectories import TrainSplit, train_tasks

TOKENIZER = build_tokenizer(phrases())
PAIRS = [(f"What is {i} + 1?", f"It is {i + 1}.") for i in range(200)]


@pytest.fixture(autouse=True)
def cached_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def pairs(path: Path) -> str:
    return write(path, [{"question": q, "answer": a} for q, a in PAIRS])


def texts(batch: Batch) -> list[tuple[str, str]]:
    """Prompt and answer of each row, through the tokenizer and back."""
    found = []
    for row, start, end in zip(batch.canvas, batch.prompt_len, batch.text_end, strict=True):
        found.append((TOKENIZER.decode(row[:start].tolist()), TOKENIZER.decode(row[start:end].tolist())))
    return found


def test_every_row_once_an_epoch_and_none_of_the_benchmark_s(tmp_path: Path) -> None:
    stream = Rows(pairs(tmp_path / "rows.jsonl"), prompt="question", batch_size=10).open(TOKENIZER)
    trained = [pair for pair in PAIRS if not is_held_out(pair[0])]
    assert 0 < len(PAIRS) - len(trained) == stream.about()["held_out_rows"]
    batches = [stream.batch(step) for step in range(2 * len(trained) // 10)]
    seen = [answer for batch in batches for _, answer in texts(batch)]
    first = sorted(answer.removesuffix("<eos>") for answer in seen[: len(trained)])
    assert first == sorted(answer for _, answer in trained)
    assert seen[: len(trained)] != seen[len(trained) :]  # another order
    assert all(stream.batch(3).canvas.equal(batches[3].canvas) for _ in range(2))
    held_out = [q for batch in stream.validation(100) for q, _ in texts(batch)]
    assert len(held_out) == len(PAIRS) - len(trained)
    assert all(any(q in prompt for q, _ in PAIRS if is_held_out(q)) for prompt in held_out)


def test_chats_learn_their_last_answer(tmp_path: Path) -> None:
    chat = [
        {"role": "user", "content": "What is 1 + 1?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "And 2 + 2?"},
        {"role": "assistant", "content": "Four."},
    ]
    stream = Rows(write(tmp_path / "c.jsonl", [{"chat": chat}] * 3), messages="chat", batch_size=1).open(TOKENIZER)
    ((prompt, answer),) = texts(stream.batch(0))
    assert answer == "Four.<eos>" and "And 2 + 2?" in prompt and "Two." in prompt


def test_plain_text_is_cut_into_rows(tmp_path: Path) -> None:
    rows = [{"text": f"Line {i} of a longer text."} for i in range(60)]
    stream = Rows(write(tmp_path / "t.jsonl", rows), text="text", max_length=32, batch_size=2).open(TOKENIZER)
    batch = stream.batch(0)
    assert batch.canvas.shape == (2, 32) and batch.prompt_len.tolist() == [0, 0] and batch.text_end.tolist() == [32, 32]
    model = scratch_causal(TOKENIZER, width=16, layers=1, heads=2, mlp_width=16)
    assert NextToken()(model, batch, torch.Generator()).isfinite()


def test_packed_rows_stand_one_after_another(tmp_path: Path) -> None:
    source = pairs(tmp_path / "rows.jsonl")
    rows = Rows(source, prompt="question", max_length=64, pack=128, pack_to=8, batch_size=2)
    stream, single = rows.open(TOKENIZER), Rows(source, prompt="question").open(TOKENIZER)
    assert stream.about()["rows"] == single.about()["rows"] and len(stream.train) < len(single.train) / 2
    batch = stream.batch(0)
    assert batch.packed is not None and batch.canvas.shape == (2, 128)
    for row, packed in zip(batch.canvas, batch.packed, strict=True):
        starts = (packed & ~packed.roll(1)).nonzero()[:, 0].tolist()
        answers = TOKENIZER.decode(row[packed].tolist()).split("<eos>")[:-1]
        assert len(answers) == len(starts) > 1 and all(
            (f"What is {a[6:-1]}", a)[1] in dict(PAIRS).values() for a in answers
        )
    model = scratch_causal(TOKENIZER, width=16, layers=1, heads=2, mlp_width=16)
    loss = NextToken()(model, batch, torch.Generator())
    log_p = model.backbone(batch.canvas).logits.log_softmax(-1)
    target = batch.packed
    nll = -log_p[:, :-1].gather(2, batch.canvas[:, 1:, None])[..., 0]
    expected = [nll[i][target[i, 1:]].mean() for i in range(2)]
    torch.testing.assert_close(loss, sum(expected) / 2)
    with pytest.raises(ValueError, match=r"set data.pack=null"):
        _ = batch.response


def test_a_window_s_rows_by_length_are_its_rows(tmp_path: Path) -> None:
    data = Mixed(
        {
            "tasks": TaskMixture({"waiting_line/copy": 1.0, "text/summary": 1.0}, batch_size=3, response_lens=None),
            "rows": Rows(pairs(tmp_path / "rows.jsonl"), prompt="question", batch_size=2),
        }
    )
    stream = data.open(TOKENIZER)
    by_length = ByLength(stream, 4, TOKENIZER.pad_token_id)
    plain = [pair for step in range(4, 8) for pair in texts(stream.batch(step))]
    ordered = [pair for step in range(4, 8) for pair in texts(by_length.batch(step))]
    assert data.batch_size == 5 and sorted(plain) == sorted(ordered) and plain != ordered
    ends = [by_length.batch(step).end.tolist() for step in range(4, 8)]
    together = [end for batch in ends for end in sorted(batch)]
    assert together == sorted(together)
    assert all(batch == sorted(batch)[::2] + sorted(batch)[1::2] for batch in ends)  # both halves have all lengths


def test_validation_of_the_tasks_is_what_is_never_trained_on() -> None:
    stream = TaskMixture({"waiting_line/sort": 1.0}, batch_size=8, response_lens=None).open(TOKENIZER)
    for batch, held_out in ((stream.batch(0), False), (stream.validation(1)[0], True)):
        for prompt, _ in texts(batch):
            asked = prompt[prompt.index("[") : prompt.index("only.") + 5]
            assert is_held_out(asked) == held_out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": "query"}, "has no column 'query'; choose data.prompt= from question, answer"),
        ({"max_length": 8}, r"more than data.max_length=8; raise it"),
        ({"max_length": 8, "too_long": "drop"}, "none of them can be trained on"),
        ({"source": "none.jsonl"}, r"data.source=none.jsonl is not a file"),
        ({"source": "nobody/nothing"}, r"data.source=nobody/nothing cannot be read"),
        ({"messages": "m", "text": "t"}, "give one of them"),
        ({"streamed": True}, r"data.limit rows; give it"),
        ({"batch_size": 0}, r"batch_size=0 of Rows; give a whole number in \[1, 1e6\]"),
        ({"pack": 100}, "a packed canvas takes"),
    ],
)
def test_bad_rows_are_one_sentence(tmp_path: Path, settings: dict, message: str) -> None:
    arguments = {"source": pairs(tmp_path / "rows.jsonl"), "prompt": "question", **settings}
    with pytest.raises(ValueError, match=message):
        Rows(**arguments).open(TOKENIZER)


def test_trajectories_come_from_rows_that_are_not_the_benchmark_s(tmp_path: Path) -> None:
    source = write(tmp_path / "gsm.jsonl", [{"question": q, "answer": f"{a} #### 1"} for q, a in PAIRS])
    (split,) = train_tasks(Suite([Gsm8k(source)]))
    found = split.samples(20, TRAIN_SEED_MIN)
    assert len(found) == 20 and not any(is_held_out(sample.messages[0]["content"]) for sample in found)
    with pytest.raises(ValueError, match=r"reads the split 'test' of openai/gsm8k, which is the benchmark's"):
        TrainSplit(Gsm8k()).samples(20, TRAIN_SEED_MIN)
    prompts = Prompts(source, prompt="question")
    kept = TrainSplit(prompts).samples(5, TRAIN_SEED_MIN)
    assert prompts.score(kept[0], "anything")["score"] == 1
    checked = Prompts(source, prompt="question", answer="answer", check="number")
    sample = checked.samples(1, 0)[0]
    assert checked.score(sample, "So it is 1.")["score"] == 1 and checked.score(sample, "It is 7")["score"] == 0
    with pytest.raises(ValueError, match="name their column with answer="):
        Prompts(source, check="number")
    for key, columns in (("prompt", {}), ("answer", {"prompt": "question", "answer": "reply"})):
        with pytest.raises(ValueError, match=rf"no field '\w+'; choose suite.tasks.N.{key}= from question, answer"):
            Prompts(source, **columns).samples(2, 0)


def test_a_message_names_the_setting_of_the_task_that_lacks_a_column(cli, tmp_path: Path) -> None:
    pairs(tmp_path / "rows.jsonl")
    tasks = [
        f"{{_target_: parallelbench.Prompts, source: rows.jsonl, name: {n}, prompt: {n}}}" for n in ("question", "ask")
    ]
    code, _, err = cli("run", "suite=prompts", f"suite.tasks=[{','.join(tasks)}]", "limit=2", "out_dir=never")
    assert code == 2 and "no field 'ask'; choose suite.tasks.1.prompt= from question, answer" in err
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("packing", [{}, {"pack": 64, "pack_to": 8}])
def test_an_answer_that_was_cut_learns_no_end(tmp_path: Path, packing: dict) -> None:
    """Packed or not, and a whole one beside it does. Answers without any room are dropped."""
    rows = [{"prompt": f"Say {i}.", "answer": "wordy " * (1 + 30 * (i % 2))} for i in range(40)]
    rows.append({"prompt": "long " * 40, "answer": "x"})
    made = Rows(write(tmp_path / "r.jsonl", rows), max_length=48, too_long="cut", batch_size=8, **packing)
    stream = made.open(TOKENIZER)
    shown = [TOKENIZER.decode(row.tolist()) for step in range(5) for row in stream.batch(step).canvas]
    answers = [text.split("<eos>")[0] for row in shown for text in row.split("<assistant>")[1:]]
    ends = [text.startswith("<eos>") for row in shown for text in row.replace("wordy ", "").split("<assistant>")[1:]]
    assert {answer for answer, end in zip(answers, ends, strict=True) if end} == {"wordy "}
    cut = [row["answer"] for row in stream.encoded if not row["ends"]]
    assert len(cut) == 20 and {
        len(row["prompt"]) + len(row["answer"]) for row in stream.encoded if not row["ends"]
    } == {48}
    assert True in ends and False in ends
    batch = stream.batch(0)
    if batch.packed is None:
        last = batch.canvas.gather(1, batch.text_end[:, None] - 1)[:, 0] == TOKENIZER.eos_token_id
        whole = batch.text_end - batch.prompt_len < 20
        assert last.equal(whole) and batch.end.equal(batch.text_end)
