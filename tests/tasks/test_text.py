"""Text tasks: sources pass the grammar checker, scores see what is said, published scores equal hand-computed values,
absent backends are one sentence and never a zero."""

import json
import math
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import samples

from parallelbench.records.record import read_run
from parallelbench.tasks import Sample, Suite, Task, WordsToSentence, text_tasks
from parallelbench.tasks.text import measures as tm
from parallelbench.tasks.text.grammar import HARPER, LinkGrammar, grammar_backend

TASKS = text_tasks()
UNRELATED = "The weather was so nice that nobody stayed inside."
SMALL = ["limit=1", "suite=text", "suite.tasks=[text/words_to_sentence_easy,text/paraphrase]", "decoder.rule.tau=0.1"]


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]


def test_sources_and_targets_pass_the_default_checker(task: Task) -> None:
    drawn = task.samples(25, seed=1)
    assert len({sample.messages[0]["content"] for sample in drawn}) == 25
    for sample in drawn:
        texts = [sample.target, *sample.data.get("references", ()), sample.data.get("text", sample.target)]
        for text in texts:
            assert HARPER.check(text) == [] and not tm.has_doubled_word(text), text
            assert text.isascii() and text.replace("\n", "").isprintable()


def test_targets_score_high_and_other_texts_nothing(task: Task) -> None:
    drawn = task.samples(10, seed=2)
    scores = [task.score(sample, sample.target) for sample in drawn]
    assert sum(score["score_strict"] for score in scores) / 10 >= (0.65 if task.name == "text/paraphrase" else 1)
    for sample in drawn:
        unrelated = task.score(sample, UNRELATED)
        assert unrelated["score"] <= 0.2 and unrelated["grammar"] == 1
        assert all(0 <= value <= 1 for value in unrelated.values())
        assert set(task.score(sample, "").values()) == set(task.score(sample, " \n").values()) == {0.0}


def test_a_copy_is_no_paraphrase() -> None:
    task = TASKS["text/paraphrase"]
    for sample in task.samples(10, seed=3):
        text = sample.data["text"]
        for copy in (text, text.upper(), f"Here it is: {text}", f"{text} {text}", text.replace(",", "")):
            assert task.score(sample, copy)["score"] <= 0.35 * (copy == text.replace(",", "") != text), copy


def test_dialogues_have_three_to_eight_turns_and_summaries_follow_them() -> None:
    lengths = set()
    for sample in TASKS["text/summary"].samples(60, seed=4):
        turns = sample.data["text"].split("\n")
        lengths.add(len(turns))
        speakers = {turn.split(":")[0] for turn in turns}
        assert len(speakers) == 2 and any(name in sample.target for name in speakers)
    assert lengths <= set(range(3, 9)) and len(lengths) >= 5


def words_sample(*words: str) -> tuple[WordsToSentence, Sample]:
    task = WordsToSentence("easy")
    return task, Sample("x", task.name, [], {"words": list(words)}, "")


@pytest.mark.parametrize(
    ("answer", "inclusion", "score"),
    [
        ("Dogs like to chase every cat.", 0, 1),  # an inflected word
        ("The dog wants to concatenate strings.", 1, 0),  # a part of another word
        ("The dog barked at the cat.", 1, 1),
        ("the dog and a cat", 1, 0),  # a list
        ("The dog slept.", 0, 0),
        ("The dog barked at the the cat.", 1, 0),
        ("The cat cat barked at the dog.", 1, 0),  # which Harper lets pass
    ],
)
def test_words_count_as_words(answer: str, inclusion: int, score: int) -> None:
    task, sample = words_sample("dog", "cat")
    scores = task.score(sample, answer)
    assert (scores["inclusion"], scores["score"]) == (inclusion, score)
    assert scores["score_published"] == inclusion * scores["grammar"]


def test_strict_wants_one_bare_sentence() -> None:
    task, sample = words_sample("dog", "cat")
    good = "The dog barked at the cat."
    assert task.score(sample, good)["score_strict"] == 1
    for text in (f"Sentence: {good}\n", f"{good} It ran away.", good[:-1]):
        assert task.score(sample, text)["score"] == 1 and task.score(sample, text)["score_strict"] == 0


def test_published_bleu_by_hand() -> None:
    source = "The cat sat on the mat."  # seven tokens: 13a splits the full stop
    assert tm.bleu(source, source) == pytest.approx(1)
    near = "The cat sat on the rug."  # precisions 6/7, 4/6, 3/5, 2/4
    assert tm.bleu(near, source) == pytest.approx((6 / 7 * 4 / 6 * 3 / 5 * 2 / 4) ** 0.25)
    short = "The cat sat on"  # all precisions 1, brevity penalty exp(1 - 7/4)
    assert tm.bleu(short, source) == pytest.approx(math.exp(1 - 7 / 4))
    assert tm.bleu("The dog sat on the rug .", source) == 0  # no 4-gram in common and no smoothing


def test_published_rouge_by_hand() -> None:
    scores = tm.rouge("the dogs barked loudly", "a dog barked")  # stems dog, bark in common; 4 and 3 words
    assert scores["rouge1"] == scores["rougeL"] == pytest.approx(4 / 7)
    assert scores["rouge2"] == pytest.approx(2 / 5)


def test_long_and_strange_completions_score_quickly(task: Task) -> None:
    sample = task.samples(1, seed=0)[0]
    for text in ("the " * 2500, "a" * 10_000, '"' * 10_000, f"{sample.target} " * 80, "\x00\ud7ff [MASK] <eos>"):
        began = time.process_time()
        scores = task.score(sample, text)
        assert all(0 <= value <= 1 for value in scores.values()) and time.process_time() - began < 20


def test_harper_says_nothing_on_stdout(capfd: pytest.CaptureFixture) -> None:
    for text in ("She like swim.", "I enjoy to swim every days.", UNRELATED):
        HARPER.check(text)
    assert capfd.readouterr().out == ""


class FakeLanguageTool(BaseHTTPRequestHandler):
    """Answers as a LanguageTool server whose only rule is that a text ends with a full stop."""

    def do_GET(self) -> None:
        self._answer([{"name": "English", "code": "en", "longCode": "en-US"}])

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        match = {
            "message": "no full stop",
            "shortMessage": "",
            "replacements": [],
            "offset": 0,
            "length": 1,
            "context": {"text": "x", "offset": 0, "length": 1},
            "sentence": "x",
            "rule": {"id": "STOP", "issueType": "grammar", "category": {"id": "G", "name": "G"}},
        }
        text = next(part for part in form.split("&") if part.startswith("text="))
        matches = [] if text.endswith((".", "%3F")) else [match]
        self._answer({"software": {"name": "LanguageTool", "version": "6.6"}, "matches": matches})

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    pytest.importorskip("language_tool_python")
    http = HTTPServer(("127.0.0.1", 0), FakeLanguageTool)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


def test_a_languagetool_server_is_asked_and_named(server: str) -> None:
    backend = grammar_backend(server)
    assert (backend.name, backend.version) == ("languagetool", "6.6")
    assert backend.check("A sentence.") == [] and backend.check("A sentence") == ["no full stop"]
    assert Suite(["text/summary"], grammar=server).build()[0].version == "1+languagetool-6.6"


def test_runs_are_scored_again_by_another_checker(cli, tmp_path: Path, server: str) -> None:
    assert cli("run", *SMALL, "out_dir=here")[0] == 0
    before = samples(tmp_path / "here")
    code, _, err = cli("score", "here", f"grammar={server}")
    assert code == 0, err
    after = samples(tmp_path / "here")
    changed = ("scores", "task_version")
    assert [{k: v for k, v in r.items() if k not in changed} for r in before] == [
        {k: v for k, v in r.items() if k not in changed} for r in after
    ]
    assert {r["task_version"] for r in after} == {"1+languagetool-6.6"}
    info = read_run(tmp_path / "here").info
    assert set(info["identity"]["tasks"].values()) == {"1+languagetool-6.6"}
    assert info["status"] == "done" and "grammar" in info["metrics"]["text/paraphrase"]
    code, _, err = cli("run", *SMALL, "out_dir=here")
    assert code == 2 and "task versions" in err
    assert cli("score", "here")[0] == 0 and samples(tmp_path / "here") == before


def test_absent_backends_are_refused_before_anything_is_written(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("run", *SMALL, "out_dir=here")
    kept = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("LTP_PATH", str(tmp_path / "downloads"))
    has_client, has_bertscore = (find_spec(name) is not None for name in ("language_tool_python", "bert_score"))
    for name, message in (
        ("languagetool", "lacks Java" if has_client else "needs language-tool-python"),
        ("link_grammar", "needs the program link-parser"),
        ("http://127.0.0.1:9", "no LanguageTool answers at http" if has_client else "needs language-tool-python"),
        ("perfect", "unknown grammar='perfect'; give one of harper, languagetool"),
    ):
        for arguments in (
            ["run", *SMALL, f"suite.grammar={name}", "out_dir=never"],
            ["score", "here", f"grammar={name}"],
        ):
            code, out, err = cli(*arguments)
            assert code == 2 and out == "" and message in err and len(err.strip().splitlines()) == 1
    code, _, err = cli("run", *SMALL, "suite.bertscore=/nowhere/roberta-large", "out_dir=never")
    assert (
        code == 2 and ("cannot load bertscore=/nowhere/roberta-large" if has_bertscore else "needs bert-score") in err
    )
    assert not (tmp_path / "never").exists()
    assert kept == {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}


def test_link_grammar_sees_missing_words() -> None:
    try:
        backend = grammar_backend("link_grammar")
    except ValueError:
        pytest.skip("link-parser is not installed")
    assert isinstance(backend, LinkGrammar)
    assert backend.check("The dog ran to the park.\nIt was late.") == []
    assert len(backend.check("He the of and to. The dog ran. !help")) == 1
