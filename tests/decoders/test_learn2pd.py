"""The learned rules, the oracle and EoTP against dumb loops; what filters refuse."""

from pathlib import Path

import pytest
import torch
from conftest import BLOCK, EOS, MASK, make_model
from torch import Tensor

import dllm
from decoders import NO_CACHE, Agreement, Decoder, Eotp, FixedK, Learn2PD, Never, Oracle, Threshold, decode, generate
from decoders.logits import Logits
from decoders.noise import Noise
from decoders.propose import propose
from decoders.rules.learn2pd import BlockFilter, PositionFilter, save_filter
from decoders.signals import NUM_FEATURES, feature_memory, features, signals
from decoders.testing import SPEC, HashModel, check_decoder
from decoders.types import Shape, View
from dllm import DiffusionLM
from parallelbench.tasks import builtin_tasks

GEN = 16
PARTS = {"gen_len": GEN, "block_len": BLOCK, "cache": NO_CACHE, "stop": Never()}


def block_filter(folder: Path, bias: float, block_len: int = BLOCK) -> str:
    """A filter that says the same of every position."""
    network = BlockFilter(block_len)
    for weight in network.parameters():
        torch.nn.init.zeros_(weight)
    torch.nn.init.constant_(network.fc2.bias, bias)
    save_filter(network, folder, {})
    return str(folder)


def random_filters(folder: Path) -> list[Learn2PD | Agreement]:
    rng = torch.Generator().manual_seed(0)
    for name, network in (("block", BlockFilter(12)), ("position", PositionFilter(8))):
        for weight in network.parameters():
            torch.nn.init.normal_(weight, generator=rng)
        save_filter(network, folder / name, {})
    return [Learn2PD(0.5, str(folder / "block")), Agreement(0.5, str(folder / "position"))]


def test_the_published_filter_has_2112_parameters() -> None:
    assert sum(weight.numel() for weight in BlockFilter(32).parameters()) == 2112


@pytest.mark.parametrize(("bias", "k"), [(-1e9, 1), (1e9, "all")])
def test_a_filter_that_always_says_the_same(tmp_path, prompts, bias: float, k) -> None:
    rule = Learn2PD(0.96, block_filter(tmp_path, bias))
    model = make_model("full")
    assert decode(model, prompts, decoder=Decoder(rule), **PARTS) == decode(
        model, prompts, decoder=Decoder(FixedK(k)), **PARTS
    )


def test_random_filters_keep_the_contract(tmp_path) -> None:
    for rule in random_filters(tmp_path):
        check_decoder(Decoder(rule))


def test_the_filter_reads_decided_positions_and_pads_with_zero(tmp_path) -> None:
    """By hand, in a window shorter than the block whose last column is past the live end."""
    rule = random_filters(tmp_path)[0]
    assert isinstance(rule, Learn2PD)
    logits = torch.randn(1, 6, 40, generator=torch.Generator().manual_seed(1))
    masked = torch.tensor([[True, False, True, True, True, False]])
    live = torch.tensor([[True, True, True, True, True, False]])
    zero = torch.zeros(1, dtype=torch.long)
    view = View(zero.expand(1, 6), masked, live, Logits(logits), zero, Noise(zero, zero), SPEC, zero)
    confidence = [*logits.softmax(-1).amax(-1)[0, :5].tolist(), *[0.0] * 7]
    fc1, fc2 = rule.network.fc1, rule.network.fc2
    hidden = (fc1.weight @ torch.tensor(confidence, dtype=torch.float64) + fc1.bias).clamp(min=0)
    expected = (fc2.weight @ hidden + fc2.bias)[:6].sigmoid() > 0.5
    candidates = propose(view, view.logits, 0.0, "prob")
    memory = rule.init(Shape(1, 6, 40, torch.device("cpu")))
    accepted = [(expected & masked[0]).tolist()]
    assert rule(view, candidates, memory).tolist() == accepted == memory["accepted"].tolist()


def view_of(logits: Tensor, masked: Tensor, step: int) -> View:
    batch = len(logits)
    steps = torch.full((batch,), step)
    return View(
        torch.zeros_like(masked, dtype=torch.long),
        masked,
        torch.ones_like(masked),
        Logits(logits),
        steps,
        Noise(steps, steps),
        SPEC,
        steps * 0,
    )


def test_signals_and_features_by_hand() -> None:
    rng = torch.Generator().manual_seed(2)
    width, views = 5, []
    for step in range(3):
        logits = 2 * torch.randn(2, width, 12, generator=rng)
        logits[:, 3] = logits[:, 1] + 0.1 * torch.randn(2, 12, generator=rng)  # twins are likely
        views.append(view_of(logits, torch.rand(2, width, generator=rng) < 0.8, step))
    memory = feature_memory(Shape(2, width, 12, torch.device("cpu")))
    stable = torch.zeros(2, width)
    for view in views:
        s, p = signals(view), view.logits.values.softmax(-1)
        x = features(s, memory)
        for row in range(2):
            best = p[row].argmax(-1).tolist()
            masks = [i for i in range(width) if view.masked[row, i]]
            for i in range(width):
                others = [j for j in masks if j != i and i in masks]
                expected = (
                    max((float(p[row, j, best[i]]) for j in others if best[j] != best[i]), default=0),
                    max((float(p[row, i, best[j]]) for j in others if best[j] != best[i]), default=0),
                    max((1 - float(p[row, j, best[j]]) for j in others if best[j] == best[i]), default=0),
                )
                got = [float(value[row, i]) for value in (s.rival, s.rivalled, s.twin)]
                assert got == pytest.approx(expected, abs=1e-6)
                entropy = torch.distributions.Categorical(probs=p[row]).entropy()
                surer = sum(float(entropy[j]) for j in masks if entropy[j] < entropy[i])
                assert float(x[row, i, 3]) == pytest.approx(1 + float(torch.tensor(surer + 1e-6).log()) / 7, abs=1e-4)
                left = next((d for d in range(i + 1) if not view.masked[row, i - d]), i + 1)
                assert float(x[row, i, 8].mul(3).expm1()) == pytest.approx(left, abs=1e-4)
                before = views[int(view.step[row]) - 1].logits.values[row, i].argmax() if view.step[row] else None
                stable[row, i] = stable[row, i] + 1 if before == best[i] else 0
                assert float(x[row, i, 7].mul(3).expm1()) == pytest.approx(float(stable[row, i]), abs=1e-4)
    assert x.shape[-1] == NUM_FEATURES


@torch.inference_mode()
def textbook_oracle(model: DiffusionLM, prompt: list[int], reference: list[int]) -> tuple[list[int], int]:
    """Slices, batch 1, no cache."""
    canvas, nfe = torch.tensor([prompt + [MASK] * GEN]), 0
    for block in range(GEN // BLOCK):
        columns = range(len(prompt) + block * BLOCK, len(prompt) + (block + 1) * BLOCK)
        while masks := [c for c in columns if canvas[0, c] == MASK]:
            prob, token = model.full_logits(canvas, torch.tensor([len(prompt)]))[0].softmax(-1).max(-1)
            nfe += 1
            right = [c for c in masks if token[c] == reference[c - len(prompt)]]
            for column in right or [max(masks, key=lambda c: float(prob[c]))]:
                canvas[0, column] = token[column]
    return canvas[0, len(prompt) :].tolist(), nfe


@pytest.mark.parametrize("kind", ["full", "shifted"])
def test_the_oracle_is_the_textbook_one(kind: str, prompts) -> None:
    model = make_model(kind)
    slow = decode(model, prompts, decoder=Decoder(FixedK(1)), **PARTS)
    fast = decode(model, prompts, decoder=Decoder(Oracle()), **PARTS)
    assert fast == decode(model, prompts, decoder=Decoder(Oracle()), reference=[r.token_ids for r in slow], **PARTS)
    assert fast == [decode(model, [prompt], decoder=Decoder(Oracle()), **PARTS)[0] for prompt in prompts]
    for prompt, one, row in zip(prompts, slow, fast, strict=True):
        reference = one.token_ids + [EOS] * (GEN - len(one.token_ids))
        tokens, nfe = textbook_oracle(model, prompt, reference)
        assert (row.token_ids, row.nfe) == (tokens[: tokens.index(EOS)] if EOS in tokens else tokens, nfe)
    assert sum(row.nfe for row in fast) < sum(row.nfe for row in slow)


@torch.inference_mode()
def textbook_eotp(model: DiffusionLM, prompt: list[int], scope: str, tau: float) -> tuple[list[int], int, int]:
    """One token per forward, a canvas that is really cut; slices, batch 1, no cache."""
    canvas, start, nfe, queried = torch.tensor([prompt + [MASK] * GEN]), len(prompt), 0, 0
    while start < canvas.shape[1]:
        stop = min(start + BLOCK, canvas.shape[1])
        masks = [c for c in range(start, stop) if canvas[0, c] == MASK]
        if not masks:
            start += BLOCK
            continue
        prob, token = model.full_logits(canvas, torch.tensor([len(prompt)]))[0].softmax(-1).max(-1)
        nfe, queried = nfe + 1, queried + canvas.shape[1]
        column = max(masks, key=lambda c: float(prob[c]))
        canvas[0, column] = token[column]
        committed = [c for c in range(start, stop) if canvas[0, c] == EOS]
        seen = range(start, stop) if scope == "window" else range(start, canvas.shape[1])
        expected = [c for c in seen if canvas[0, c] == MASK and token[c] == EOS and prob[c] >= tau]
        if committed:
            canvas = canvas[:, : committed[0] + 1]
        elif scope != "committed" and expected:
            canvas = canvas[:, : max(expected, key=lambda c: float(prob[c])) + 1]
    answer = canvas[0, len(prompt) :].tolist()
    return answer[: answer.index(EOS)] if EOS in answer else answer, nfe, queried


@pytest.mark.parametrize("tau", [0.0, 0.3])
@pytest.mark.parametrize("scope", ["committed", "window", "query"])
@pytest.mark.parametrize("kind", ["full", "shifted"])
def test_eotp_is_the_textbook_one(kind: str, scope, tau: float) -> None:
    model, cuts = make_model(kind, seed=4), 0
    rng = torch.Generator().manual_seed(5)
    prompts = [torch.randint(0, 45, (n,), generator=rng).tolist() for n in (5, 11, 3, 8, 6, 4, 7, 9)]
    parts = PARTS | {"stop": Eotp(scope, tau, order="committed")}
    for prompt, row in zip(prompts, decode(model, prompts, decoder=Decoder(FixedK(1)), **parts), strict=True):
        assert (row.token_ids, row.nfe, row.queried) == textbook_eotp(model, prompt, scope, tau)
        cuts += row.stopped_by == "eos"
    assert cuts, "no row was cut; choose another seed"


def test_eotp_looks_beyond_the_window_only_where_it_says() -> None:
    """An EOS expected in the second block cuts the canvas in the first step of the first, or does not."""

    class Ahead(HashModel):
        def _logits(self, canvas: Tensor, want: Tensor, end: Tensor) -> Tensor:
            logits = super()._logits(canvas, want, end)
            logits[..., SPEC.eos_ids[0]] = torch.where(want == 12, 50.0, -50.0)
            return logits

    lengths = {}
    for scope in ("committed", "window", "query"):
        rows = decode(
            Ahead(), [[1, 2, 3]], decoder=Decoder(FixedK(1)), **PARTS | {"stop": Eotp(scope, order="committed")}
        )
        lengths[scope] = (len(rows[0].token_ids), rows[0].queried)
    assert lengths["committed"][0] == lengths["window"][0] == lengths["query"][0] == 9
    assert lengths["query"][1] < lengths["window"][1]
    assert lengths["window"] == lengths["committed"]  # its first step in that block commits the EOS
    assert Eotp() == Eotp("query", 0.0, "published")
    (row,) = decode(Ahead(), [[1, 2, 3]], decoder=Decoder(FixedK(1)), **PARTS | {"stop": Eotp()})
    assert (len(row.token_ids), row.queried) == lengths["query"], "by default an expected EOS cuts"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: Learn2PD(filter="nowhere"), "'nowhere' is neither a shipped filter .*learn2pd-tiny.* nor"),
        (lambda folder: Learn2PD(filter="agreement-tiny"), "not a filter of this rule"),
        (lambda folder: Agreement(filter="learn2pd-tiny"), "not a filter of this rule"),
        (lambda folder: Learn2PD(1.5), "tau=1.5"),
        (lambda folder: Eotp("query", 2.0), "tau=2"),
    ],
)
def test_bad_settings_are_refused(tmp_path, make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path)


def test_a_filter_of_another_block_is_refused(tmp_path, cli, prompts) -> None:
    with pytest.raises(ValueError, match=r"block_length=8, but the filter .* blocks of 4"):
        decode(make_model("full"), prompts, decoder=Decoder(Learn2PD(filter=block_filter(tmp_path, 0, 4))), **PARTS)
    code, _, err = cli("run", "decoder=learn2pd", "gen_length=64", "block_length=64", "limit=1")
    assert code == 2 and "trained on blocks of 32" in err and len(err.strip().splitlines()) == 1


def test_other_weights_are_another_run(tmp_path) -> None:
    first, second = (Decoder(Learn2PD(filter=block_filter(tmp_path, bias))).identity for bias in (0.0, 1.0))
    assert first != second and Decoder(FixedK(1)).identity == ""


def test_shipped_filters_are_faster_than_a_careful_threshold_and_as_good() -> None:
    model, forwards = dllm.load("tiny"), {}
    samples = [
        s for name in ("waiting_line/reverse", "puzzle/sudoku_n4") for s in builtin_tasks()[name].samples(20, 77)
    ]
    tasks = builtin_tasks()
    for name, rule in (("threshold", Threshold(0.98)), ("learn2pd", Learn2PD()), ("agreement", Agreement())):
        outs = generate(model, [s.messages for s in samples], decoder=Decoder(rule), stop=Never())
        score = sum(tasks[s.task].score(s, o.text)["score"] for s, o in zip(samples, outs, strict=True))
        forwards[name] = sum(out.nfe for out in outs)
        assert score >= 0.9 * len(samples), name
    assert max(forwards["learn2pd"], forwards["agreement"]) <= forwards["threshold"]
