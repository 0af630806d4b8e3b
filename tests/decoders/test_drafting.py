"""Models that are causal but for the columns they draft: what is settled is the causal LM's, whatever is drafted."""

import pytest
import torch
from conftest import BLOCK, EOS, MASK, PAD, make_model

import dllm
from decoders import NO_CACHE, BlockEos, Decoder, FixedK, Prefix, StrictEos, decode
from decoders.loop import decode as run_loop
from dllm import DiffusionLM, ModelSpec
from dllm.adapter import detach, is_attached, layers, merge
from dllm.cache import BlockCache
from dllm.training.drafting import Drafting, _followed_by_eos, draw_anchors, two_pass_hidden
from dllm.training.lora import Lora
from dllm.training.objectives import Batch


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_adapter(seed: int = 0, layers: int = 2) -> DiffusionLM:
    """A context-causal model with a strong random adapter for drafted columns."""
    model = make_model("context_causal", seed, layers)
    Lora(r=3, alpha=6.0, active="drafts").inject(model, seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2, generator=rng(seed))
    return model.eval()


@torch.no_grad()
def greedy_logits(model: DiffusionLM, tokens: torch.Tensor) -> torch.Tensor:
    """The backbone as a causal LM."""
    length = tokens.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril().expand(len(tokens), 1, -1, -1)
    return model.backbone(tokens, attention_mask=mask).logits


def make_batch() -> Batch:
    canvas = torch.randint(0, 40, (3, 30), generator=rng(1))
    prompt_len, text_end = torch.tensor([4, 9, 6]), torch.tensor([20, 30, 14])
    canvas[torch.arange(30) >= text_end[:, None]] = PAD
    return Batch(canvas, prompt_len, text_end, text_end)


@torch.no_grad()
def test_settled_columns_are_the_causal_model_s_bit_for_bit() -> None:
    plain, model = make_model("context_causal"), with_adapter()
    canvas = torch.randint(0, 40, (2, 20), generator=rng(2))
    prompt_len = torch.tensor([3, 7])
    canvas[0, 11:] = MASK
    canvas[1, [16, 18, 19]] = MASK
    drafted, undrafted = model.full_logits(canvas, prompt_len), plain.full_logits(canvas, prompt_len)
    causal = greedy_logits(plain, canvas)
    causal[..., MASK] = float("-inf")
    # column p is predicted by column p - 1. Settled are those up to the first MASK; in row 1 column 15 has to see the
    # token at 17 to predict the MASK at 16
    for row, settled in enumerate((12, 16)):
        assert drafted[row, 1:settled].equal(undrafted[row, 1:settled])
        assert not drafted[row, settled:].equal(undrafted[row, settled:])
        torch.testing.assert_close(drafted[row, 1:settled], causal[row, : settled - 1], atol=1e-5, rtol=1e-5)
    other = canvas.clone()
    other[1, 17] = 3  # what stands behind the first MASK changes no settled column
    assert model.full_logits(other, prompt_len)[1, 1:16].equal(drafted[1, 1:16])
    assert not model.full_logits(other, prompt_len)[1, 16].equal(drafted[1, 16])


@torch.no_grad()
def test_the_column_before_the_first_mask_sees_its_block_s_tokens_and_no_others() -> None:
    model = with_adapter()
    canvas = torch.randint(0, 40, (1, 3 * BLOCK), generator=rng(2))
    canvas[:, BLOCK::2] = MASK  # tokens behind each, in two blocks
    prompt_len, first = torch.tensor([3]), BLOCK  # predicted by the last column of the block before
    before = model.full_logits(canvas, prompt_len)[0, first]
    for column, seen in ((first + 1, True), (2 * BLOCK + 1, False)):
        other = canvas.clone()
        other[0, column] = (other[0, column] + 1) % 40
        assert model.full_logits(other, prompt_len)[0, first].equal(before) is not seen


@pytest.mark.parametrize(
    "decoder", [Decoder(FixedK(1)), Decoder(FixedK(2), confidence="entropy"), Decoder(Prefix(0.5))]
)
def test_by_confidence_cached_is_uncached_and_a_batch_is_its_rows(decoder: Decoder) -> None:
    """The column before a block may have been drafted in it, and is settled when the next one is entered."""
    model, prompts = with_adapter(), [[5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15, 16, 17, 18, 19, 20]]
    parts = {"gen_len": 5 * BLOCK, "decoder": decoder, "stop": BlockEos()}
    for block_len in (BLOCK, BLOCK // 2):
        none = decode(model, prompts, block_len=block_len, cache=NO_CACHE, **parts)
        kept = decode(model, prompts, block_len=block_len, cache=BlockCache(), **parts)
        alone = [decode(model, [prompt], block_len=block_len, cache=BlockCache(), **parts)[0] for prompt in prompts]
        assert [row.token_ids for row in none] == [row.token_ids for row in kept] == [row.token_ids for row in alone]


def test_a_token_at_a_time_from_the_left_is_greedy_decoding() -> None:
    plain, model = make_model("context_causal"), with_adapter()
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15, 16]]
    shared = {
        "gen_len": 24,
        "block_len": BLOCK,
        "decoder": Decoder(FixedK(1), confidence="left_to_right"),
        "stop": StrictEos(),
    }
    none = decode(model, prompts, cache=NO_CACHE, **shared)
    block = decode(model, prompts, cache=BlockCache(), **shared)
    assert [row.token_ids for row in none] == [row.token_ids for row in block]
    for prompt, row in zip(prompts, none, strict=True):
        tokens = list(prompt)
        for _ in range(24):
            logits = greedy_logits(plain, torch.tensor([tokens]))[0, -1]
            logits[MASK] = float("-inf")
            tokens.append(int(logits.argmax()))
            if tokens[-1] == EOS:
                break
        answer = tokens[len(prompt) :]
        assert row.token_ids == (answer[:-1] if answer[-1] == EOS else answer)


@torch.no_grad()
def test_an_open_gate_is_peft_s_own_forward() -> None:
    model = with_adapter()
    assert model.gate is not None
    for layer in layers(model).values():
        x = torch.randn(2, 7, layer.in_features, generator=rng(4))
        where = torch.rand(2, 7, generator=rng(5)) < 0.5
        plain, adapted = layer.get_base_layer()(x), type(layer).forward(layer, x)  # pyright: ignore
        model.gate.open_at(where)
        torch.testing.assert_close(layer.forward(x), torch.where(where[..., None], adapted, plain))  # pyright: ignore
        for first in (0, 3, 7):
            model.gate.open_at(first)
            expected = torch.cat([plain[:, :first], adapted[:, first:]], 1)
            torch.testing.assert_close(layer.forward(x), expected)  # pyright: ignore


@torch.no_grad()
def test_training_sees_what_decoding_sees() -> None:
    model, batch = with_adapter(), make_batch()
    anchor = torch.tensor([[5, 10, 15]] * 3)
    group = torch.tensor([[[9, MASK, 7, MASK]] * 3] * 3)
    clean, hidden = two_pass_hidden(model, batch.canvas, anchor, group, grad=False)
    whole = model.full_logits(batch.canvas, batch.prompt_len)
    torch.testing.assert_close(model.head(clean)[:, :-1], whole[:, 1:], atol=1e-4, rtol=1e-4)
    for row in range(3):
        for place, start in enumerate((5, 10, 15)):
            canvas = torch.cat([batch.canvas[row, : start + 1], group[row, place]])[None]
            one_block = DiffusionLM(model.backbone, ModelSpec(MASK, (EOS,), PAD, 1, 64, context_causal=True)).eval()
            one_block.gate, one_block.mask_embedding = model.gate, model.mask_embedding
            expected = one_block.full_logits(canvas, torch.tensor([4]))[0, -3:]  # the first MASK and all behind it
            found = model.head(hidden[row, place][None])[0, :3]
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_the_loss_is_none_where_drafts_cannot_differ() -> None:
    """Where all clean tokens and MASK look alike, a draft behind an anchor is what the clean stream has there."""
    model, batch = make_model("context_causal"), make_batch()
    loss = Drafting(groups=(3,), group_weights=(1.0,))(model, batch, rng(3))
    assert loss.item() > 0.01
    batch.canvas[:] = 7  # all clean columns alike: only MASK can make a difference
    embed = model.backbone.get_input_embeddings().weight
    with torch.no_grad():
        embed[MASK] = embed[7]
    same = Drafting(groups=(1,), group_weights=(1.0,), kl=1.0)(model, batch, rng(3))
    assert same.item() < 1e-5


def test_only_the_adapter_learns_and_it_learns_to_draft(tmp_path) -> None:
    model, batch = make_model("context_causal"), make_batch()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lora = Lora(r=4, alpha=8.0, active="drafts")
    lora.inject(model, 0)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert "mask_embedding" in trained and all("lora_" in name or name == "mask_embedding" for name in trained)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    objective, losses = Drafting(groups=(3,), group_weights=(1.0,), reveal=0.3), []
    for step in range(60):
        loss = objective(model, batch, rng(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    for name, tensor in model.state_dict().items():
        plain = name.replace("base_layer.", "")
        assert plain not in before or tensor.equal(before[plain])
    lora.save(model, tmp_path, "base")
    again = make_model("context_causal")
    dllm.adapter.attach(again, tmp_path)
    canvas = torch.tensor([[3, 4, 5, 6, MASK, 9, MASK, MASK, MASK]])
    with torch.no_grad():
        assert again.full_logits(canvas, torch.tensor([2])).equal(model.full_logits(canvas, torch.tensor([2])))
    with pytest.raises(ValueError, match="active at drafted columns only and cannot be merged"):
        merge(again)
    detach(again)
    assert not is_attached(again) and again.gate is None
    with pytest.raises(ValueError, match=r"is for drafted columns and full has none"):
        dllm.adapter.attach(make_model("full"), tmp_path)


def test_a_forward_without_the_first_mask_leaves_the_column_before_it_settled(monkeypatch) -> None:
    """`first_token` ends a block in a forward of its own, whose K/V stays: it has seen no token of the next block."""
    model, given = with_adapter(), [MASK] * 3 * BLOCK
    given[2], given[5], given[BLOCK + 3] = 3, 9, 4
    logits, gaps = model.logits, list[float]()

    def checked(canvas, plan, want, **parts):
        found = logits(canvas, plan, want, **parts)
        if (canvas == MASK).any() and bool((plan.query == int((canvas[0] == MASK).int().argmax())).any()):
            whole = model.full_logits(canvas, torch.tensor([BLOCK]), parts["end"]).gather(
                1, want[..., None].expand(-1, -1, found.shape[-1])
            )
            gaps.append((found - whole).nan_to_num(neginf=0.0).abs().max().item())
        return found

    monkeypatch.setattr(model, "logits", checked)
    parts = {"block_len": BLOCK, "decoder": Decoder(FixedK(1)), "cache": BlockCache(first_token=True)}
    run_loop(model, [[5] * BLOCK], templates=[given], stop=BlockEos(), **parts)
    assert len(gaps) > 10 and max(gaps) < 1e-4


@pytest.mark.parametrize("shift", [0, 1])
def test_groups_that_show_tokens_are_as_decoding_has_them(shift: int, monkeypatch) -> None:
    """With shift 1 the column before the first MASK is drafted too, and nothing is shown that the row does not have."""
    model, batch, seen = make_model("context_causal"), make_batch(), []
    model = DiffusionLM(model.backbone, ModelSpec(MASK, (EOS,), PAD, shift, BLOCK, context_causal=True))
    batch.canvas[0, 19] = EOS  # row 0 goes on with EOS; the others end where nobody knows what follows

    def groups_seen(model, canvas, anchor, drafted, grad):
        seen.append((anchor, drafted))
        return two_pass_hidden(model, canvas, anchor, drafted, grad)

    monkeypatch.setattr("dllm.training.drafting.two_pass_hidden", groups_seen)
    for step in range(20):
        Drafting(groups=(5,), group_weights=(1.0,), reveal=0.7)(model, batch, rng(step))
    shows = 0
    for anchor, drafted in seen:
        for row, end in enumerate(batch.text_end.tolist()):
            for start, group in zip(anchor[row].tolist(), drafted[row].tolist(), strict=True):
                tokens = [(start + 1 + place, token) for place, token in enumerate(group) if token != MASK]
                assert all(token == (batch.canvas[row, column] if column < end else EOS) for column, token in tokens)
                assert row == 0 or all(column < end for column, _ in tokens)
                if tokens:
                    shows += 1
                    assert len(tokens) > shift and group[shift] == MASK and (group[0] != MASK) == bool(shift)
                    assert start + shift >= batch.prompt_len[row] - 1
    assert shows > 100


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(("tv", "kl", "label"), [(1.0, 0.0, 0.0), (0.5, 1.0, 0.25)])
def test_the_loss_is_a_walk_over_the_groups(shift: int, tv: float, kl: float, label: float, monkeypatch) -> None:
    """Column by column: the clean stream's distribution where nothing behind is shown, else the text's token."""
    model, batch, seen, decay = with_adapter(), make_batch(), [], 0.7
    model = DiffusionLM(model.backbone, ModelSpec(MASK, (EOS,), PAD, shift, BLOCK, context_causal=True))
    batch.canvas[0, 19] = EOS

    def recorded(model, canvas, anchor, drafted, grad):
        seen.append((anchor, drafted, *two_pass_hidden(model, canvas, anchor, drafted, grad)))
        return seen[-1][2:]

    monkeypatch.setattr("dllm.training.drafting.two_pass_hidden", recorded)
    kinds = set()
    for step in range(8):
        objective = Drafting(tv, kl, label, decay, groups=(5,), group_weights=(1.0,), anchors=6, reveal=0.6)
        loss = objective(model, batch, rng(step)).item()
        anchors, groups, clean, hidden = seen.pop()
        of_clean, drafts = (model.head(states).float().log_softmax(-1) for states in (clean, hidden))
        total, weights = 0.0, 0.0
        for row, text_end in enumerate(batch.text_end.tolist()):
            eos = batch.canvas[row, text_end - 1] == EOS
            for group, anchor in enumerate(anchors[row].tolist()):
                shown = {anchor + 1 + place for place in range(5) if groups[row, group, place] != MASK}
                for place in range(5):
                    target = anchor + 1 + place + shift
                    if target in shown or (target >= text_end and not eos):
                        continue
                    token = batch.canvas[row, target] if target < text_end else EOS
                    log_q = drafts[row, group, place]
                    kind = "label" if target >= text_end or max(shown, default=-1) > target else "clean"
                    hard = -log_q[token].item()
                    if kind == "clean":
                        log_p = of_clean[row, target - 1]
                        gap = log_p.exp() - log_q.exp()
                        divergence = (log_p.exp() * (log_p - log_q)).nan_to_num().sum().item()
                        loss_here = tv * 0.5 * gap.abs().sum().item() + kl * divergence + label * hard
                    else:
                        loss_here = (tv + kl + label) * hard
                    total += decay**place * loss_here
                    weights += decay**place
                    kinds.add((kind, bool(shown)))
        assert loss == pytest.approx(total / weights, rel=1e-4)
    assert kinds == {("label", False), ("label", True), ("clean", False), ("clean", True)}


@pytest.mark.parametrize("reveal", [0.0, 1.0])
def test_behind_a_text_that_ends_with_eos_all_is_eos(reveal: float) -> None:
    """Whatever the canvas holds there; where the text does not end with EOS, nobody knows what follows."""
    model, batch = with_adapter(), make_batch()
    batch.canvas[torch.arange(3), batch.text_end - 1] = EOS
    objective = Drafting(tv=0.0, kl=0.0, label=1.0, groups=(8,), group_weights=(1.0,), reveal=reveal)
    plain = objective(model, batch, rng(3)).item()
    batch.canvas[torch.arange(30) >= batch.text_end[:, None]] = 5  # what the canvas holds there does not matter
    assert objective(model, batch, rng(3)).item() == plain
    text, end = _followed_by_eos(batch, [EOS], 9)
    assert end.equal(batch.text_end + 9) and all(
        (text[row, e - 1 :] == EOS).all() for row, e in enumerate(batch.text_end)
    )
    batch.canvas[1, batch.text_end[1] - 1] = 5
    assert _followed_by_eos(batch, [EOS], 9)[1].equal(batch.text_end + torch.tensor([9, 0, 9]))


def test_anchors_are_the_columns_that_predict_text() -> None:
    batch = make_batch()
    anchors = draw_anchors(batch, 40, rng())
    for row, (prompt_len, text_end) in enumerate(zip(batch.prompt_len.tolist(), batch.text_end.tolist(), strict=True)):
        assert set(anchors[row].tolist()) == set(range(prompt_len - 1, text_end - 1))


def test_drafts_by_confidence_and_from_the_left_end_with_every_column_decided() -> None:
    model = with_adapter()
    for rule in (FixedK(3), Prefix(0.6)):
        (row,) = run_loop(
            model,
            [[1, 2, 3, 4, 5]],
            gen_len=16,
            block_len=BLOCK,
            decoder=Decoder(rule),
            cache=BlockCache(),
            stop=BlockEos(),
        )
        assert MASK not in row.token_ids


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tv": 0.0, "kl": 0.0}, "weights that are not all 0"),
        ({"causal": -1.0}, "causal=-1.0"),
        ({"decay": 0.0}, "decay=0.0"),
        ({"groups": [2]}, "each a weight"),
        ({"reveal": 1.5}, "reveal=1.5"),
        ({"anchors": 0}, "anchors=0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        Drafting(**settings)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"set spec.block"):
        ModelSpec(MASK, (EOS,), PAD, context_causal=True)
    with pytest.raises(ValueError, match=r"set spec.context_causal=true"):
        Lora(active="drafts").inject(make_model("block_causal"), 0)
    with pytest.raises(ValueError, match=r"has no drafted columns"):
        Drafting()(make_model("block_causal"), make_batch(), rng())
