"""The analyses of theory: what they write agrees with closed forms, listed answers with scorers, bounds with runs."""

import csv
import json
from pathlib import Path

import pytest
import torch

import dllm
from decoders import NO_CACHE, Decoder, EntropyBound, Never, decode
from dllm.exact import Enumerated, ExactModel
from parallelbench.studies.bounds import accuracy, kl_bound, total_correlation
from parallelbench.studies.ideal import answers, in_tokens
from parallelbench.studies.theory_cells import FirstNames
from parallelbench.tasks import builtin_tasks
from parallelbench.tasks.waiting_line import write_list
from parallelbench.wiring.conf import build_part

COLUMNS = "task,n,k,tau,total_correlation,kl_bound,accuracy_closed,accuracy_ideal,ci_low,ci_high,samples"


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_theory_writes_closed_forms_beside_the_ideal_model(cli, tmp_path: Path) -> None:
    code, out, err = cli("analyze", "theory", "n=3,4", "k=1,2,n", "samples=300", "tiny=4", "out_dir=t")
    assert code == 0, err
    assert "# Theory of parallel decoding" in out
    table = rows(tmp_path / "t" / "theory.csv")
    assert (tmp_path / "t" / "theory.csv").read_text().startswith(COLUMNS)
    assert len(table) == 4 * (3 + 3) * 2
    for row in table:
        task, n, k, tau = row["task"], int(row["n"]), int(row["k"]), int(row["tau"])
        assert float(row["accuracy_closed"]) == pytest.approx(accuracy(task, n, k, tau))
        assert float(row["kl_bound"]) == pytest.approx(kl_bound(task, n, k), abs=1e-6)
        assert float(row["total_correlation"]) == pytest.approx(total_correlation(task, n), abs=1e-6)
        assert float(row["ci_low"]) - 0.06 <= float(row["accuracy_closed"]) <= float(row["ci_high"]) + 0.06
    for row in rows(tmp_path / "t" / "thresholds.csv"):
        assert row["accuracy_ideal"] == row["accuracy_closed"]
    assert {row["k"] for row in rows(tmp_path / "t" / "tiny.csv")} == {"1", "2", "3", "4"}
    assert all((tmp_path / "t" / f"fig2{panel}.png").exists() for panel in "abcde")


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("m=3", "unknown option 'm=3'"),
        ("n=1..4", "2 to 20"),
        ("n=3,21", "2 to 20"),
        ("n=9..3", "empty range"),
        ("k=0", "at least 1"),
        ("k=\N{SUPERSCRIPT TWO}", "at least 1"),
        ("samples=" + "9" * 5000, "give a whole number in [1, 999999]"),
        ("k=11", "k=11 items per step"),
        ("tasks=walk", "unknown task 'walk'"),
        ("samples=none", "samples=none"),
        ("runs", "reads no runs"),
    ],
)
def test_mistakes_cost_one_sentence(cli, argument: str, sentence: str) -> None:
    code, _, err = cli("analyze", "theory", argument)
    assert code == 2 and sentence in err and err.count("\n") == 1


def test_first_names_come_first_and_the_rest_at_once() -> None:
    listed = Enumerated(torch.arange(13)[None], torch.ones(1))
    parts = {"gen_len": 13, "block_len": 13, "cache": NO_CACHE, "stop": Never()}
    (row,) = decode(ExactModel(listed), [[0]], decoder=Decoder(FirstNames(3)), **parts)
    firsts = [row.committed_at[i] for i in (1, 4, 7, 10)]
    assert sorted(firsts) == [0, 0, 0, 1] and {row.committed_at[i] for i in range(13) if i % 3 != 1} == {2}


@pytest.mark.parametrize("operation", ["shuffle", "insert_random", "remove_random", "replace_random"])
def test_listed_answers_are_all_valid_ones(operation: str) -> None:
    task, tokenizer = builtin_tasks()[f"waiting_line/{operation}"], dllm.load("tiny").tokenizer
    for sample in task.samples(4, seed=5):
        texts = [write_list(answer) for answer in answers(operation, sample.data)]
        assert len(set(texts)) == len(texts) and sample.target in texts
        assert all(task.score(sample, text)["score_strict"] == 1 for text in texts)
        listed, ids = in_tokens(answers(operation, sample.data), tokenizer, 32)
        decoded = [tokenizer.decode([ids[token] for token in row]) for row in listed.answers.tolist()]
        assert [text.split(tokenizer.eos_token)[0] for text in decoded] == texts


def test_stored_decoders_are_built_again() -> None:
    config = {
        "_target_": "decoders.Decoder",
        "confidence": "entropy",
        "rule": {"_target_": "decoders.EntropyBound", "gamma": 0.1},
    }
    assert build_part(config) == Decoder(EntropyBound(0.1), confidence="entropy")
    with pytest.raises(ValueError, match="nowhere"):
        build_part({"_target_": "nowhere.Rule"})


def test_frontier_sets_runs_beside_bounds_and_ideal_models(cli, tmp_path: Path) -> None:
    suite = "suite.tasks=[waiting_line/copy,waiting_line/remove_random,waiting_line/shuffle]"
    for k in ("1", "all"):
        code, _, err = cli(
            "run", "decoder=fixed", f"decoder.rule.k={k}", suite, "suite.lengths=[3]", "limit=4", f"out_dir=runs/{k}"
        )
        assert code == 0, err
    code, out, err = cli("analyze", "frontier", "runs", "samples=40", "out_dir=f")
    assert code == 0, err
    assert "# Best possible score" in out and "Above the bound of sampling, by greedy choice" in out
    points = {
        (row["run"].split("=")[1].split()[0], row["task"].split("/")[1], row["model"]): row
        for row in rows(tmp_path / "f" / "frontier.csv")
    }
    assert float(points["1", "shuffle", "ideal"]["score"]) == 1
    assert (
        float(points["1", "shuffle", "ideal"]["nfe"])
        == json.loads((tmp_path / "runs/1/samples.jsonl").read_text().splitlines()[-1])["nfe"]
    )
    # of three people, two places: each place's likeliest person makes a valid list, which sampling would not reach
    assert float(points["all", "remove_random", "ideal"]["score"]) == 1
    assert float(points["all", "remove_random", "ideal"]["bound"]) == pytest.approx(8 / 9)
    assert "waiting_line/copy" not in {row["task"] for row in rows(tmp_path / "f" / "bounds.csv")}
    code, _, err = cli("analyze", "frontier", "runs", "samples=0")
    assert code == 2 and "samples=0" in err
