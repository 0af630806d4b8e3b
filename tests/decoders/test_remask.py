"""Revisions, schedules that take tokens back, and soft steps."""

from dataclasses import replace

import pytest
import torch
from conftest import BLOCK, MASK, make_model
from test_decoders import make_view, random_view
from transformers import LlamaConfig, LlamaForCausalLM

from decoders import (
    NO_CACHE,
    ConfidenceDrop,
    Decoder,
    FixedK,
    LeftRun,
    LoopMdm,
    MaskGit,
    Never,
    ReMdm,
    RunningConfidence,
    SelfDoubt,
    Slerp,
    Smoothing,
    Threshold,
    TokenEdit,
    Wino,
    decode,
)
from decoders.rules.remasking import NarrowOut
from decoders.testing import HashModel
from decoders.types import Shape, Update, View
from dllm import DiffusionLM, ModelSpec
from dllm.cache import BlockCache, WindowCache
from dllm.soft import Soft


def decode_hash(decoder: Decoder, gen_len: int = 16, block_len: int = 16, **options):
    """One prompt on the made-up model; returns the row and each step's (masks before, update)."""
    steps: list[tuple[View, Update]] = []
    row = decode(
        HashModel(),
        [[1, 2, 3]],
        gen_len=gen_len,
        block_len=block_len,
        decoder=decoder,
        cache=NO_CACHE,
        stop=Never(),
        on_step=lambda state, view, update: steps.append((view, update)),
        **options,
    )[0]
    return row, steps


@pytest.mark.parametrize(
    ("masks", "steps", "mode", "counts"),
    [
        (16, 4, "linear", [4, 4, 4, 4]),
        (32, 7, "linear", [5, 5, 4, 5, 4, 5, 4]),
        (8, 4, "pow2", [1, 1, 3, 3]),
        (8, 16, "cosine", [1, 0, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1, 1, 1]),  # and an idle last step
        (64, 4, "pow0.5", [32, 14, 10, 8]),
    ],
)
def test_maskgit_schedules(masks: int, steps: int, mode: str, counts: list[int]) -> None:
    row, seen = decode_hash(Decoder(MaskGit(steps, mode)), masks, masks)
    assert [int(update.write.sum()) for _, update in seen] == counts
    assert row.nfe == len(counts) and row.stopped_by == "length"


def test_running_confidence_keeps_the_schedules_number_masked() -> None:
    schedule = MaskGit(5, "linear")
    row, seen = decode_hash(Decoder(FixedK("all"), revise=RunningConfidence(schedule)))
    left = [int(view.masked.sum()) for view, _ in seen]
    assert left == [16, 12, 9, 6, 3] and row.nfe == 5
    taken_back = sum(
        int((update.write & (update.tokens == view.spec.mask_id) & ~view.masked).sum()) for view, update in seen
    )
    assert taken_back > 0  # else the test shows nothing


def test_the_loop_adds_its_extra_steps_and_redoes_its_tokens() -> None:
    shared = {"steps": 8, "extra": 3, "redo": 2, "after": 6}
    row, seen = decode_hash(Decoder(LoopMdm(**shared)))
    assert row.nfe == 11 and row.stopped_by == "length"
    assert [int(view.masked.sum()) for view, _ in seen] == [16, 14, 12, 10, 8, 6, 6, 6, 6, 4, 2]
    at_end = {**shared, "after": 28}  # after the last scheduled step: the filled block is opened again
    row, _ = decode_hash(Decoder(LoopMdm(**at_end)))
    assert row.nfe == 11 and row.stopped_by == "length"


@pytest.mark.parametrize("kind", ["cap", "rescale", "conf"])
def test_remdm_makes_its_steps_and_keeps_the_marginals(kind: str) -> None:
    shared = {"steps": 10, "kind": kind, "eta": 0.3}
    decoder = Decoder(ReMdm(**shared))
    left, taken_back = torch.zeros(10), 0
    for seed in range(60):
        row, seen = decode_hash(decoder, 32, 32, seed=seed)
        assert row.nfe == 10 and row.stopped_by == "length"
        left += torch.tensor([float(view.masked.sum()) for view, _ in seen])
        taken_back += sum(int((update.write & ~view.masked).sum()) for view, update in seen)
    assert taken_back > 0
    if kind != "conf":  # sigma moves mass both ways and leaves the masked fraction 1 - t; conf is an approximation
        torch.testing.assert_close(left / 60 / 32, 1 - torch.arange(10) / 10, atol=0.03, rtol=0)


def test_remdm_without_remasking_never_takes_back() -> None:
    shared = {"steps": 6, "eta": 0.0}
    decoder = Decoder(ReMdm(**shared))
    _, seen = decode_hash(decoder)
    assert not any((update.write & ~view.masked).any() for view, update in seen)


def test_confidence_drop_takes_back_the_largest_losses_and_makes_progress() -> None:
    part = ConfidenceDrop(mu=2.0)
    memory = part.init(Shape(1, 6, 10, torch.device("cpu")))
    memory["confidence"][0, :4] = torch.tensor([0.9, 0.9, 0.9, 0.01])
    logits = torch.full((1, 6, 10), -2.0)
    logits[0, torch.arange(4), 0] = torch.tensor([3.0, -1.0, 1.0, 3.0])  # present tokens are 0
    view = make_view(logits, torch.tensor([[False] * 4 + [True] * 2]))
    write = view.masked
    update = part(view, propose_all(view), write, memory)
    back = update.write & (update.tokens == view.spec.mask_id)
    assert back.tolist() == [[False, True, False, False, False, False]]  # 2 commits, so 1 back: the largest loss
    one = torch.tensor([[False] * 5 + [True]])
    assert not (part(view, propose_all(view), one, memory).write & ~view.masked).any()  # 1 commit: none back


def propose_all(view: View):
    from decoders.propose import propose

    return propose(view, view.logits, 0.0, "prob")


def test_wino_takes_back_what_its_shadow_doubts_least_likely_first() -> None:
    view = random_view(1, (1, 6, 10))
    masked = torch.tensor([[False] * 3 + [True] * 3])
    view = replace(view, masked=masked, shadow=torch.tensor([[0.95, 0.2, 0.3, 0.0, 0.0, 0.0]]))
    for new, last, expected in ((3, 3, [1, 2]), (3, 2, [1]), (2, 3, [1, 2]), (1, 3, []), (2, 1, [])):
        write = torch.zeros_like(masked)
        write[0, 3 : 3 + new] = True
        memory = {"last": torch.tensor([last])}
        update = NarrowOut(Wino(keep=0.9))(view, propose_all(view), write, memory)
        assert memory["last"].tolist() == [new]
        back = (update.write & (update.tokens == view.spec.mask_id))[0].nonzero()[:, 0].tolist()
        assert back == expected


def test_wide_in_has_a_limit() -> None:
    for masks, expected in ((30, 20), (20, 14), (6, 5), (3, 3)):
        logits = torch.tensor([9.0, 0.0]).expand(1, 30, 2)
        view = make_view(logits, torch.arange(30)[None] < masks)
        assert Wino(0.6)(view, propose_all(view), {}).sum() == expected


def one_layer(mix: int) -> DiffusionLM:
    """In one layer no other column can carry a hidden token to its shadow."""
    sizes = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(**sizes, num_hidden_layers=1, num_key_value_heads=2, initializer_range=0.6)
        model = DiffusionLM(LlamaForCausalLM(config), ModelSpec(MASK, (46,), 45, mix=mix)).eval()
    if model.mix is not None:
        model.mix.reset_(0.5, torch.Generator().manual_seed(0))
    return model


@torch.no_grad()
def test_a_shadow_sees_the_rest_of_the_canvas_and_all_shadows() -> None:
    """In one layer: as if its column stood behind the canvas as one of as many MASKs, at their positions."""
    model = one_layer(0)
    canvas = torch.randint(0, 45, (1, 12), generator=torch.Generator().manual_seed(1))
    want, prompt_len, end = torch.arange(4, 9)[None], torch.tensor([4]), torch.tensor([10])
    plain, shadow = model.shadow_logits(canvas, want, prompt_len, end)
    torch.testing.assert_close(plain, model.full_logits(canvas, prompt_len, end)[:, 4:9])
    for i, column in enumerate(range(4, 9)):
        seen = [at for at in range(10) if at != column]
        ids = torch.cat([canvas[:, seen], torch.full((1, 5), MASK)], 1)
        positions = torch.tensor([[*seen, *range(4, 9)]])
        mask = torch.ones(1, 1, 14, 14, dtype=torch.bool)
        logits = model.backbone(input_ids=ids, position_ids=positions, attention_mask=mask).logits[:, len(seen) + i]
        logits[..., MASK] = float("-inf")
        torch.testing.assert_close(shadow[:, i], logits)


@pytest.mark.parametrize("mix", [0, 1])
@torch.no_grad()
def test_a_shadow_does_not_see_its_token_but_others_do(mix: int) -> None:
    model = one_layer(mix)
    canvas = torch.randint(0, 45, (1, 16), generator=torch.Generator().manual_seed(1))
    want, prompt_len, end = torch.arange(8, 16)[None], torch.tensor([8]), torch.tensor([16])
    other = canvas.clone()
    other[:, 10] = (canvas[:, 10] + 1) % 45
    before, after = (model.shadow_logits(c, want, prompt_len, end)[1] for c in (canvas, other))
    torch.testing.assert_close(before[:, 2], after[:, 2])
    assert all(not torch.equal(before[:, i], after[:, i]) for i in range(8) if i != 2)


@pytest.mark.parametrize("kind", ["full", "mixed", "block_causal"])
@torch.no_grad()
def test_shadows_do_not_disturb_the_canvas(kind: str) -> None:
    model = make_model(kind)
    canvas = torch.randint(0, 45, (2, 16), generator=torch.Generator().manual_seed(1))
    want, prompt_len, end = torch.arange(8, 16).expand(2, 8), torch.tensor([8, 8]), torch.tensor([16, 12])
    plain, _ = model.shadow_logits(canvas, want, prompt_len, end)
    torch.testing.assert_close(plain, model.full_logits(canvas, prompt_len, end)[:, 8:])


def test_a_shadow_needs_an_unshifted_uncached_model(prompts) -> None:
    options = {"gen_len": BLOCK, "block_len": BLOCK, "stop": Never(), "decoder": Decoder(Wino())}
    with pytest.raises(ValueError, match="cache=none"):
        decode(make_model("full"), prompts, cache=WindowCache(0, 0), **options)
    with pytest.raises(ValueError, match="without token shift"):
        decode(make_model("shifted"), prompts, cache=NO_CACHE, **options)


def test_edits_replace_tokens_and_end() -> None:
    row, seen = decode_hash(Decoder(FixedK("all"), revise=TokenEdit(tau=0.0, post=3)))
    assert row.nfe == 4  # filled at once, then 3 looks, each of which may change something
    assert all(
        (update.tokens == view.logits.top[1])[update.write].all() for view, update in seen
    )  # edits are the model's favourites
    calm, _ = decode_hash(Decoder(FixedK("all"), revise=TokenEdit(tau=1.0, post=16)))
    assert calm.nfe == 2  # one look after filling changes nothing
    none, _ = decode_hash(Decoder(FixedK("all"), revise=TokenEdit(tau=0.0, post=0)))
    assert none.nfe == 1


def edited(wanted: list[int], **how: bool) -> tuple[list[int], bool]:
    """The window 4 4 EOS 4 after a step of a model that wants other tokens there, and whether the row is held."""
    logits = torch.nn.functional.one_hot(torch.tensor([wanted]), 10) * 20.0
    view = make_view(logits, torch.zeros(1, 4, dtype=torch.bool))
    view = replace(view, tokens=torch.tensor([[4, 4, view.spec.eos_ids[0], 4]]))
    part = TokenEdit(0.5, **how)
    update = part(view, propose_all(view), view.masked, part.init(Shape(1, 4, 10, torch.device("cpu"))))
    return torch.where(update.write, update.tokens, view.tokens)[0].tolist(), bool(update.hold)


def test_edits_behind_an_eos_are_left_out_and_what_stands_behind_an_edit_is_masked_on_request() -> None:
    spec = make_view(torch.zeros(1, 4, 10)).spec
    eos, mask = spec.eos_ids[0], spec.mask_id
    assert edited([4, 4, eos, 5]) == ([4, 4, eos, 5], True)
    assert edited([4, 4, eos, 5], past_eos=False) == ([4, 4, eos, 4], False)
    assert edited([4, 5, eos, 5], remask=True) == ([4, 5, mask, mask], False)
    assert edited([4, 4, eos, 5], remask=True) == ([4, 4, eos, 5], True)  # nothing stands behind it
    assert edited([4, 4, eos, 5], past_eos=False, remask=True) == ([4, 4, eos, 4], False)
    for past_eos in (True, False):  # the EOS gives way too
        assert edited([4, 5, 5, 5], past_eos=past_eos) == ([4, 5, 5, 5], True)


def test_soft_steps_of_no_weight_change_nothing(model: DiffusionLM, prompts) -> None:
    options = {"gen_len": 16, "block_len": BLOCK, "cache": NO_CACHE, "stop": Never()}
    plain = decode(model, prompts, decoder=Decoder(Threshold(0.6)), **options)
    for soft in (Smoothing(0.0, 0.0, 0.0), Slerp(0.0, 2)):
        assert decode(model, prompts, decoder=Decoder(Threshold(0.6), soft=soft), **options) == plain
    for soft in (Smoothing(1.0, 0.0, 1.0), Slerp(0.9, 2)):
        assert decode(model, prompts, decoder=Decoder(Threshold(0.6), soft=soft), **options) != plain


def test_soft_embeddings_have_their_definitions() -> None:
    embedding = torch.nn.Embedding(6, 4)
    table = embedding.weight.detach()
    weights = torch.rand(1, 2, 6)
    with torch.no_grad():
        added = Soft(weights, torch.full((1, 2), 0.3)).embed(embedding, table[5])
        torch.testing.assert_close(added, table[5] + 0.3 * (weights @ table))
        tokens = torch.tensor([[[1, 2], [3, 4]]])
        chosen = weights.gather(-1, tokens)
        mixture = (chosen[..., None] * table[tokens]).sum(2)
        turned = Soft(chosen, torch.full((1, 2), 1.0), tokens, "slerp").embed(embedding, table[5])
        torch.testing.assert_close(turned, table[5].norm() * torch.nn.functional.normalize(mixture, dim=-1))
        half = Soft(chosen, torch.full((1, 2), 0.5), tokens, "slerp").embed(embedding, table[5])
        torch.testing.assert_close(half.norm(dim=-1), table[5].norm().expand(1, 2))
        cosine = torch.nn.functional.cosine_similarity
        torch.testing.assert_close(cosine(half, table[5], dim=-1), cosine(half, mixture, dim=-1))
        between = Soft(chosen, torch.tensor([[0.25, 0.0]]), tokens, "lerp").embed(embedding, table[5])
        point = 0.75 * table[5] + 0.25 * mixture[0, 0]
        norm = 0.75 * table[5].norm() + 0.25 * mixture[0, 0].norm()
        torch.testing.assert_close(between[0, 0], point / point.norm() * norm)
        torch.testing.assert_close(between[0, 1], table[5])


def test_dmax_commits_from_the_left_and_decides_all_anew() -> None:
    logits = torch.zeros(1, 5, 10)
    for position, (token, logit) in enumerate([(1, 9.0), (2, 8.0), (3, 0.5), (4, 9.0), (5, 9.0)]):
        logits[0, position, token] = logit
    masked = torch.tensor([[False, True, True, True, True]])  # token 0 stands on the first position
    decoder = Decoder(LeftRun(0.9), revise=TokenEdit(0.0, 4, settled=0.9), soft=SelfDoubt())
    view = make_view(logits, masked)
    update = decoder.step(view, decoder.init(Shape(1, 5, 10, logits.device)))
    assert (
        torch.where(update.write, update.tokens, view.tokens).tolist() == [[1, 2, 0, 0, 0]] and update.hold is not None
    )
    assert update.write.tolist() == [[True, True, False, False, False]] and update.soft is not None
    torch.testing.assert_close(update.soft.amount, logits.double().softmax(-1).amax(-1), rtol=1e-6, atol=0)
    assert update.soft.at == "decided"
    none = make_view(logits, masked & (torch.arange(5) > 1))
    assert decoder.step(none, decoder.init(Shape(1, 5, 10, logits.device))).write.tolist()[0][2:] == [
        True,
        False,
        False,
    ]
    logits[0, 2, 3] = 9.0
    sure = make_view(logits, masked)
    for step, stays in ((3, True), (4, False)):  # the last of as many forwards in all as the block has columns
        decoder = Decoder(LeftRun(0.9), revise=TokenEdit(0.0, None))
        memory = decoder.init(Shape(1, 5, 10, logits.device))
        hold = decoder.step(make_view(logits, masked, step=step), memory).hold
        assert hold is not None and hold.tolist() == [stays]
    for settled, stays in ((0.9, False), (1.0, True)):  # the block is full; every token is this sure, or not
        decoder = Decoder(LeftRun(0.9), revise=TokenEdit(0.0, 4, settled=settled))
        hold = decoder.step(sure, decoder.init(Shape(1, 5, 10, logits.device))).hold
        assert hold is not None and hold.tolist() == [stays]


def test_decided_positions_show_what_the_model_thought_of_them(prompts) -> None:
    """And a cache that is exact stays so; in float64, since soft inputs amplify roundings on random weights."""
    model = make_model("block_causal")
    model.backbone.double()
    options = {"gen_len": 16, "block_len": BLOCK, "stop": Never()}
    hard = Decoder(LeftRun(0.5), revise=TokenEdit(0.0, 3))
    soft = replace(hard, soft=SelfDoubt())
    plain, exact = (decode(model, prompts, decoder=soft, cache=cache, **options) for cache in (NO_CACHE, BlockCache()))
    assert [row.token_ids for row in plain] == [row.token_ids for row in exact]
    assert [row.token_ids for row in plain] != [
        row.token_ids for row in decode(model, prompts, decoder=hard, cache=NO_CACHE, **options)
    ]


@pytest.mark.usefixtures("as_a_user_has_it")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ConfidenceDrop(0.5), "mu=0.5"),
        (lambda: Wino(keep=1.5), "keep=1.5"),
        (lambda: Wino(0.0), "tau=0.0"),
        (lambda: TokenEdit(-0.1), "tau=-0.1"),
        (lambda: MaskGit(0), "steps=0"),
        (lambda: MaskGit(4, "sine"), "mode='sine'"),
        (lambda: LoopMdm(redo=0), "redo=0"),
        (lambda: ReMdm(kind="cup"), "kind='cup'"),
        (lambda: ReMdm(eta=2.0), "eta=2.0"),
        (lambda: Smoothing(-0.1), "start=-0.1"),
        (lambda: Slerp(1.5), "amount=1.5"),
    ],
)
def test_impossible_knobs_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
