"""Structure in the canvas: fixed tokens, infilling, lengths per row, and what they must not change."""

import pytest
import torch
from conftest import BLOCK, EOS, MASK, SPECS, make_model
from reference import full_logits
from test_loop import CACHES, DECODERS, STOPS, block_len

import dllm
from decoders import NO_CACHE, Decoder, FixedK, Never, StrictEos, Threshold, decode, generate
from decoders.loop import DecodedRow
from dllm import DiffusionLM
from dllm.cache import WindowCache
from parallelbench.run.generator import DiffusionGenerator, Request, fitting_prompt_len
from parallelbench.tasks import Suite
from parallelbench.tasks.waiting_line import parse_strict, write_list

TEMPLATES = [
    [7, MASK, MASK, 9, MASK, MASK, MASK, 11, 12],
    [MASK] * 5 + [3] * 14 + [MASK] * 3,  # a whole window of fixed tokens between its masks
    [3] * 13 + [MASK] * 4,
    [MASK, 5] * 9,
]


def run(model: DiffusionLM, prompts, templates, decoder: str, cache: str, stop: str = "never") -> list[DecodedRow]:
    parts = {"decoder": DECODERS[decoder], "cache": CACHES[cache], "stop": STOPS[stop]}
    return decode(model, prompts, templates=templates, block_len=block_len(cache), **parts)


@pytest.mark.parametrize("decoder", DECODERS)
def test_fixed_tokens_stay_whatever_decodes(decoder: str, prompts) -> None:
    i = list(DECODERS).index(decoder)
    kind, cache = list(SPECS)[i % len(SPECS)], list(CACHES)[i % 8]
    model, kept = make_model(kind), []

    def keep(state, view, update) -> None:
        kept.append(state.canvas.clone())

    parts = {"decoder": DECODERS[decoder], "cache": CACHES[cache], "stop": Never(), "on_step": keep}
    rows = decode(model, prompts, templates=TEMPLATES, block_len=BLOCK, **parts)
    assert kept
    for canvas in kept:
        for line, prompt, template in zip(canvas.tolist(), prompts, TEMPLATES, strict=True):
            response = line[len(prompt) : len(prompt) + len(template)]
            assert [t for t, wanted in zip(response, template, strict=True) if wanted != MASK] == [
                t for t in template if t != MASK
            ]
    for row, template in zip(rows, TEMPLATES, strict=True):
        assert [at >= 0 for at in row.committed_at] == [wanted == MASK for wanted in template]
        assert row.stopped_by == "length"


@pytest.mark.parametrize("every_stop", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("decoder", ["fixed1", "threshold", "credit", "edit", "klass", "rcr"])
def test_templates_decode_alike_batched_and_alone(decoder: str, cache: str, every_stop: bool, prompts) -> None:
    """The fast ones hold every decoder with every cache and with every stop rule."""
    i = list(DECODERS).index(decoder) + list(CACHES).index(cache)
    model = make_model("shifted_block_causal" if "block" in cache else "mixed" if decoder == "klass" else "shifted")
    for stop in STOPS if every_stop else [list(STOPS)[i % len(STOPS)]]:
        together = run(model, prompts, TEMPLATES, decoder, cache, stop)
        alone = [run(model, [p], [t], decoder, cache, stop)[0] for p, t in zip(prompts, TEMPLATES, strict=True)]
        assert together == alone


@pytest.mark.parametrize("kind", ["block_causal", "shifted_block_causal"])
@pytest.mark.parametrize("decoder", ["fixed1", "threshold", "credit"])
def test_skipped_blocks_leave_the_block_cache_exact(kind: str, decoder: str, prompts) -> None:
    model = make_model(kind)
    exact, plain = (run(model, prompts, TEMPLATES, decoder, cache) for cache in ("block", "none"))
    assert [(r.token_ids, r.committed_at, r.nfe) for r in exact] == [
        (r.token_ids, r.committed_at, r.nfe) for r in plain
    ]


def test_filled_windows_cost_no_forward(prompts) -> None:
    model = make_model("full")
    rows = run(model, prompts, TEMPLATES, "all", "none")
    windows = [sum(MASK in template[i : i + BLOCK] for i in range(0, len(template), BLOCK)) for template in TEMPLATES]
    assert [row.nfe for row in rows] == windows == [1, 2, 2, 3]


def test_infilling_sees_the_suffix(prompts) -> None:
    """The first forward's choice is the argmax of a plain forward over prefix, masks and suffix."""
    model, suffix = make_model("full"), [5, 9, 33]
    template = [*[MASK] * 4, *suffix]
    (row,) = decode(
        model,
        prompts[:1],
        templates=[template],
        block_len=BLOCK,
        decoder=Decoder(FixedK("all")),
        cache=NO_CACHE,
        stop=Never(),
    )
    start = len(prompts[0])
    expected = full_logits(model, [*prompts[0], *template])[start : start + 4].argmax(-1).tolist()
    assert row.token_ids == [*expected, *suffix]
    assert (row.num_tokens, row.tokens_per_forward) == (4, 4.0)


@pytest.mark.parametrize("stop", STOPS)
def test_a_given_eos_behind_the_text_ends_it(stop: str, prompts) -> None:
    template = [5, MASK, MASK, 9, EOS, EOS]
    (row,) = run(make_model("full"), prompts[:1], [template], "fixed1", "none", stop)
    assert len(row.token_ids) == 4 and row.token_ids[3] == 9 and row.num_tokens == row.nfe == 2


def test_a_form_leaves_the_items_of_a_list_to_be_decoded() -> None:
    tiny = dllm.load("tiny")
    generator = DiffusionGenerator(tiny, Decoder(FixedK(1)), NO_CACHE, StrictEos(), 32)
    (task,) = Suite(["waiting_line/reverse"], infill=2).build()
    samples = task.samples(2, 0)  # of three and four people
    assert [sample.form for sample in samples] == [write_list(["[MASK][MASK]"] * n) for n in (3, 4)]
    requests = [Request(sample.messages, 32, sample.form) for sample in samples]
    assert len({generator.prompt_len(request) for request in requests}) == 2
    for sample, out in zip(samples, generator(requests), strict=True):
        people = parse_strict(out.text)
        assert people is not None and out.nfe == out.num_tokens == 2 * len(people) == 2 * len(sample.data["people"])
        assert task.score(sample, out.text) == {"score": 1, "score_strict": 1} and len(out.committed_at) == 32
    assert task.version == "1-infill2"  # so that reports do not mix it with the task alone

    filled = requests[1]
    with pytest.raises(ValueError, match="takes 13 tokens; give gen_length=13 or more"):
        generator.prompt_len(Request(filled.messages, 12, filled.form))
    with pytest.raises(ValueError, match=r"template and suite\.infill both say"):
        DiffusionGenerator(tiny, Decoder(FixedK(1)), NO_CACHE, StrictEos(), None, template="[MASK].").prompt_len(filled)
    with pytest.raises(ValueError, match=r"suite\.infill needs a decoder of the denoising loop"):
        fitting_prompt_len(tiny, filled)
    with pytest.raises(ValueError, match=r"suite\.infill=2 of task 'puzzle/sudoku_n4', whose answers are no lists"):
        Suite(["puzzle/sudoku_n4"], infill=2).build()[0].samples(1, 0)
    with pytest.raises(ValueError, match="infill=0"):
        Suite(["waiting_line/copy"], infill=0)


def test_an_eos_before_fixed_tokens_ends_nothing() -> None:
    """A model that always says EOS: behind the last fixed token it ends the row, before it does not."""
    model = make_model("full")
    model.backbone.lm_head.weight.data.zero_()
    model.backbone.lm_head.weight.data[EOS] = 1.0
    head = model.backbone.lm_head
    head.forward = lambda hidden: (
        torch.nn.functional.one_hot(torch.tensor(EOS), 48).float().expand(*hidden.shape[:2], 48) * 9
    )
    template = [MASK, MASK, 7, MASK, MASK, MASK, MASK]
    parts = {"block_len": BLOCK, "cache": NO_CACHE, "decoder": Decoder(FixedK(1), confidence="left_to_right")}
    (row,) = decode(model, [[1, 2]], templates=[template], stop=StrictEos(), **parts)
    assert (row.token_ids, row.stopped_by, row.nfe) == ([EOS, EOS, 7], "eos", 3)
    assert row.num_tokens == 2
    (row,) = decode(model, [[1, 2]], gen_len=BLOCK, stop=StrictEos(), **parts)
    assert (row.token_ids, row.stopped_by, row.nfe) == ([], "eos", 1)


@pytest.mark.parametrize("cache", CACHES)
def test_lengths_of_their_own_change_no_row(cache: str, prompts) -> None:
    kind = "shifted_block_causal" if "block" in cache else "full"
    model, lengths = make_model(kind), [3, 17, 8, 30]
    parts = {"block_len": BLOCK, "decoder": DECODERS["threshold"], "cache": CACHES[cache], "stop": StrictEos()}
    together = decode(model, prompts, gen_len=lengths, **parts)
    alone = [decode(model, [p], gen_len=[n], **parts)[0] for p, n in zip(prompts, lengths, strict=True)]
    assert together == alone
    assert [len(row.committed_at) for row in together] == lengths


def test_a_budget_of_forwards_is_the_rows_own(prompts) -> None:
    """A decoder that remasks may be given up; how soon must not depend on a longer neighbour."""
    model = make_model("full")
    parts = {"block_len": BLOCK, "decoder": DECODERS["saber"], "cache": NO_CACHE, "stop": Never()}
    together = decode(model, prompts[:2], gen_len=[4, 32], **parts)
    assert together[0] == decode(model, prompts[:1], gen_len=[4], **parts)[0]


def test_templates_of_text() -> None:
    import dllm

    model = dllm.load("tiny")
    prompt = [
        {"role": "user", "content": '["Ada Bach", "Ben Cole", "Eva Frost"]\nThese people wait at the service desk.'}
    ]
    (out,) = generate(model, [prompt], templates=[['["', 2, '", "', 2, '"]']], decoder=Decoder(Threshold(0.9)))
    assert out.text.startswith('["') and out.text.endswith('"]') and '", "' in out.text
    assert out.num_tokens == 4 < len(out.token_ids)
    assert out.tokens_per_forward == out.num_tokens / out.nfe
    (same,) = generate(model, [prompt], templates=['["[MASK][MASK]", "[MASK][MASK]"]'], decoder=Decoder(Threshold(0.9)))
    assert same == out


def test_structure_saves_forwards_over_the_same_model(prompts) -> None:
    """Dimple's structure priors: fewer tokens to decode, so fewer forwards at one token per step."""
    model = make_model("full")
    parts = {"block_len": BLOCK, "decoder": Decoder(FixedK(1)), "stop": Never()}
    for cache in (NO_CACHE, WindowCache(0, 0)):
        free = decode(model, prompts, gen_len=[len(t) for t in TEMPLATES], cache=cache, **parts)
        fixed = decode(model, prompts, templates=TEMPLATES, cache=cache, **parts)
        assert [row.nfe for row in fixed] == [t.count(MASK) for t in TEMPLATES]
        assert all(a.nfe < b.nfe for a, b in zip(fixed, free, strict=True))
