"""Masked LMs as denoisers: stock logits, rows that do not see each other, soft inputs, and what they refuse.

The tests on published weights need DLLM_ANTIBERTY, the wheel `pip download --no-deps antiberty==0.1.3` or its unpacked
folder.
"""

import os
import runpy
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    ConvBertConfig,
    EsmConfig,
    FNetConfig,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

import dllm
from decoders import Decoder, FixedK, Smoothing, Threshold, generate
from dllm import DiffusionLM, ModelSpec
from dllm.cache import WindowCache
from dllm.encoder import EncoderLM
from dllm.plan import Plan
from dllm.soft import Soft, SoftInput

PAD, CLS, SEP, MASK, VOCAB = 0, 1, 2, 3, 40
SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
REST = {"num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.3, "pad_token_id": PAD}
STOCK = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SIZES, **REST)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**SIZES, **REST)),
    "modernbert": lambda: ModernBertForMaskedLM(
        ModernBertConfig(**SIZES, **REST, local_attention=8, bos_token_id=CLS, eos_token_id=SEP, cls_token_id=CLS)
    ),
}


@pytest.fixture(params=STOCK)
def stock(request: pytest.FixtureRequest) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return STOCK[request.param]().eval()


@pytest.fixture
def folder(stock: PreTrainedModel, tmp_path: Path) -> Path:
    stock.save_pretrained(tmp_path)
    vocab = {"[PAD]": PAD, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK} | {f"w{i}": i for i in range(4, VOCAB)}
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w4"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(tmp_path)
    return tmp_path


def whole(batch: int, length: int) -> Plan:
    columns = torch.arange(length).expand(batch, -1)
    return Plan(torch.arange(batch), columns, torch.full((batch,), length), all_rows=True)


@torch.no_grad()
def test_logits_are_the_stock_models(stock: PreTrainedModel, folder: Path) -> None:
    model = dllm.load(folder)
    assert isinstance(model, EncoderLM) and model.spec == ModelSpec(MASK, (SEP,), PAD, kv=False)
    canvas, end = torch.randint(4, VOCAB, (2, 12)), torch.tensor([12, 7])
    want = torch.tensor([[4, 5, 6], [2, 3, 4]])
    got = model.logits(canvas, whole(2, 12), want, end=end, kv=model.new_kv(torch.tensor([1, 1]), 12))
    for row in range(2):
        expected = stock(input_ids=canvas[row : row + 1, : end[row]]).logits[0, want[row]]
        expected[:, MASK] = float("-inf")
        torch.testing.assert_close(got[row], expected, rtol=1e-5, atol=1e-5)
    full = model.full_logits(canvas, torch.tensor([1, 1]), end)
    torch.testing.assert_close(full.gather(1, want[..., None].expand(-1, -1, VOCAB)), got)


@torch.no_grad()
def test_rows_do_not_see_each_other(folder: Path) -> None:
    model, decoder = dllm.load(folder), Decoder(Threshold(0.2))
    prompts = [[CLS, 5, 6], [CLS], [CLS, 7, 8, 9, 10, 11, 12], [CLS, 4, 9]]
    together = generate(model, prompts, decoder=decoder, gen_len=16, block_len=8)
    alone = [generate(model, [prompt], decoder=decoder, gen_len=16, block_len=8)[0] for prompt in prompts]
    assert together == alone
    assert len({row.nfe for row in together}) > 1
    assert all(MASK not in row.token_ids for row in together)


@torch.no_grad()
def test_soft_inputs_take_the_place_of_mask(stock: PreTrainedModel, folder: Path) -> None:
    model = dllm.load(folder)
    canvas = torch.tensor([[CLS, 5, MASK, MASK, 6, 7]])
    want, end = torch.tensor([[2, 3]]), torch.tensor([6])
    weights = torch.zeros(1, 2, VOCAB)
    weights[0, 0, 9] = 1.0
    soft = SoftInput(Soft(weights, torch.tensor([[0.5, 0.5]])), want, torch.tensor([[True, False]]))
    table = stock.get_input_embeddings().weight
    embeds = table[canvas]
    embeds[0, 2] = table[MASK] + 0.5 * table[9]
    expected = stock(inputs_embeds=embeds).logits[:, 2:4]
    got = model.logits(canvas, whole(1, 6), want, end=end, kv=None, soft=soft)
    plain = model.logits(canvas, whole(1, 6), want, end=end, kv=None)
    others = torch.arange(VOCAB) != MASK
    torch.testing.assert_close(got[..., others], expected[..., others], rtol=1e-5, atol=1e-5)
    assert (got - plain)[..., others].abs().max() > 1e-2


def test_what_an_encoder_cannot_do_is_refused(folder: Path) -> None:
    model = dllm.load(folder)
    with pytest.raises(ValueError, match="is an encoder and keeps no K/V"):
        generate(model, [[CLS]], cache=WindowCache(0, 0), gen_len=8, block_len=8)
    with pytest.raises(ValueError, match="takes no shadow columns"):
        model.shadow_logits(torch.tensor([[CLS, MASK]]), torch.tensor([[1]]), torch.tensor([1]), torch.tensor([2]))
    for fields in ({"kv": True}, {"shift": 1}, {"block": 4}, {"mix": 1}, {"response_position": 8}):
        with pytest.raises(ValueError, match="a masked LM keeps no K/V"):
            dllm.load(folder, spec=fields)


@torch.no_grad()
def test_canvases_are_as_long_as_the_positions(stock: PreTrainedModel, folder: Path) -> None:
    model = dllm.load(folder)
    limit = 64 - (PAD + 1 if isinstance(stock, RobertaForMaskedLM) else 0)  # RoBERTa counts on from the padding's
    assert model.max_length == limit
    assert generate(model, [[CLS]], gen_len=limit - 1, block_len=limit - 1)[0].token_ids
    with pytest.raises(ValueError, match=rf"{limit + 1} columns is too long for .*, which has {limit} positions"):
        generate(model, [[CLS]], gen_len=limit, block_len=limit)


@pytest.mark.parametrize("config", [FNetConfig(**SIZES), ConvBertConfig(**SIZES, **REST, embedding_size=32)])
def test_an_encoder_that_mixes_columns_otherwise_is_refused(tmp_path: Path, config: PreTrainedConfig) -> None:
    with torch.random.fork_rng():
        AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="cannot be used as a denoiser: what is past a row's end"):
        dllm.load(tmp_path, spec=ModelSpec(MASK, (SEP,), PAD, kv=False))


def test_an_encoder_that_drops_mask_takes_no_soft_inputs(tmp_path: Path) -> None:
    config = EsmConfig(**SIZES, **REST, mask_token_id=MASK, token_dropout=True, position_embedding_type="rotary")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    model = dllm.load(tmp_path, spec=ModelSpec(MASK, (SEP,), PAD, kv=False))
    assert len(generate(model, [[CLS]], gen_len=8, block_len=8)[0].token_ids) > 0
    with pytest.raises(ValueError, match="so it takes no soft inputs"):
        generate(model, [[CLS]], decoder=Decoder(Threshold(), soft=Smoothing()), gen_len=8, block_len=8)


def test_it_saves_and_loads(folder: Path, tmp_path: Path) -> None:
    model = dllm.load(folder)
    dllm.save(model, tmp_path / "again")
    canvas, prompt_len = torch.randint(4, VOCAB, (1, 9)), torch.tensor([2])
    again = dllm.load(tmp_path / "again")
    assert again.full_logits(canvas, prompt_len).equal(model.full_logits(canvas, prompt_len))


def test_heads_that_a_masked_lm_lacks_are_left_out(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        BertForPreTraining(BertConfig(**SIZES, **REST)).save_pretrained(tmp_path)
    model = dllm.load(tmp_path, spec=ModelSpec(MASK, (SEP,), PAD, kv=False))
    assert not any("pooler" in name or "seq_relationship" in name for name in model.state_dict())


AMINO_ACIDS = set("ACDEFGHIKLMNPQRSTVWY")
TRASTUZUMAB_VH = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRY"
    "ADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS"
)


@pytest.fixture(scope="module")
def antiberty(tmp_path_factory: pytest.TempPathFactory) -> DiffusionLM:
    source = os.environ.get("DLLM_ANTIBERTY")
    if source is None:
        pytest.skip("DLLM_ANTIBERTY names no antiberty wheel or folder")
    folder = tmp_path_factory.mktemp("antiberty")
    script = Path(__file__).parents[2] / "examples" / "decode_antibody.py"
    runpy.run_path(str(script))["convert"](Path(source), folder)
    return dllm.load(folder)


def complete(model: DiffusionLM, start: str) -> str:
    """118 amino acids decoded two at a time, the surest first."""
    assert model.tokenizer is not None
    prompt = model.tokenizer.convert_tokens_to_ids(["[CLS]", *start])
    length = 118 - len(start)
    with torch.no_grad():
        (row,) = generate(model, [prompt], decoder=Decoder(FixedK(2)), gen_len=length, block_len=length)
    assert row.nfe == -(-length // 2)
    return start + row.text.replace(" ", "")


def test_published_weights_write_antibodies(antiberty: DiffusionLM) -> None:
    """Both conserved cysteines' surroundings, and the last strand, are where every variable domain has them."""
    light, heavy = complete(antiberty, ""), complete(antiberty, "EVQL")
    assert set(light) <= AMINO_ACIDS and len(light) == 118
    assert light[:4] in ("QSAL", "QSVL", "QAVL") and "YYC" in light[80:95] and light.endswith("GGGTKLTVL")
    assert set(heavy) <= AMINO_ACIDS
    assert "YYC" in heavy[85:100] and "WVRQ" in heavy[30:42] and heavy.endswith("TVSS")


def test_published_weights_restore_a_known_antibody(antiberty: DiffusionLM) -> None:
    assert antiberty.tokenizer is not None
    ids = torch.tensor([antiberty.tokenizer.convert_tokens_to_ids(["[CLS]", *TRASTUZUMAB_VH, "[SEP]"])])
    right = []
    for seed in range(10):
        hidden = torch.randperm(120, generator=torch.Generator().manual_seed(seed))[:18] + 1  # 15 %
        canvas = ids.clone()
        canvas[0, hidden] = antiberty.spec.mask_id
        with torch.no_grad():
            best = antiberty.full_logits(canvas, torch.tensor([1]))[0, hidden].argmax(-1)
        right.append((best == ids[0, hidden]).float().mean())
    assert torch.stack(right).mean() >= 0.7
