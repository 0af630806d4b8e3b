"""Pictures in prompts: a model of random weights sees them, whatever decodes it; and what shows none refuses them."""

import base64
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import call
from PIL import Image
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessorPil
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig

import dllm
from decoders import Decoder, FixedK, Never, Threshold, Wino, generate
from decoders.loop import decode_queue
from decoders.spread import NO_CACHE
from decoders.types import in_order
from dllm.cache import DelayedCache, WindowCache
from dllm.spec import ModelSpec
from dllm.training import MaskedDiffusion, scratch_vision
from dllm.training.tokenizer import build_tokenizer
from dllm.vision.dimple import DimpleBackbone, DimpleConfig
from dllm.vision.pictures import Picture, is_picture, number_of, rotary_positions
from dllm.vision.seeing import VisionLM
from parallelbench.tasks import Suite
from parallelbench.tasks.base import Sample
from parallelbench.tasks.shapes import COLOURS, Painted, Shapes
from parallelbench.training.mixture import TaskMixture, phrases

pytestmark = pytest.mark.filterwarnings("ignore:a prompt is plain text")  # with columns for a picture

WORDS = ["<pad>", "<eos>", "<mask>", "<start>", "<end>", "<image>", *"abcdefghijklmnopqrstuvwxyz .,:?0123456789-"]
VISION = Qwen2_5_VLVisionConfig(
    depth=2,
    hidden_size=16,
    intermediate_size=24,
    num_heads=2,
    patch_size=14,
    out_hidden_size=20,
    fullatt_block_indexes=[1],
)


def make_vision(seed: int = 0, shift: int = 1) -> VisionLM:
    """A model that reads letters and pictures of 28 pixels a column."""
    config = DimpleConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.6,
        mrope_section=[1, 1, 2],
        vision_config=VISION,
        image_token_id=5,
        vision_start_token_id=3,
        vision_end_token_id=4,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    config.mask_token_id = 2
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = DimpleBackbone(config)
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Split(Regex("<[a-z]+>|."), "isolated")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", mask_token="<mask>"
    )
    fast.add_special_tokens({"additional_special_tokens": ["<start>", "<end>", "<image>"]})
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}:{% endfor %}"
    spec = ModelSpec(2, (1,), 0, shift=shift)
    return VisionLM(backbone, spec, Qwen2VLImageProcessorPil(), fast, "tiny-vision").eval()


def colour(name: str, width: int = 56, height: int = 56) -> Image.Image:
    return Image.new("RGB", (width, height), name)


def chat(*parts: object) -> list[dict[str, Any]]:
    """A message of texts, and of pictures: images, files and data URLs."""
    shown = [
        {"type": "text", "text": part}
        if isinstance(part, str) and not part.startswith("data:")
        else {"type": "image", "image": part}
        for part in parts
    ]
    return [{"role": "user", "content": shown}]


def test_a_picture_is_a_run_of_ids_that_tell_its_place() -> None:
    model = make_vision()
    ids = model.encode(chat("a", colour("red", 84, 56), colour("blue"), "b"))
    assert [one if one < len(WORDS) else "*" for one in ids] == [6, 3, *"*" * 6, 4, 3, *"*" * 4, 4, 7, 35]
    (positions,) = rotary_positions(torch.tensor([ids])).unbind(1)[:1]
    assert positions[:, 2:8].tolist() == [[2] * 6, [2, 2, 2, 3, 3, 3], [2, 3, 4, 2, 3, 4]]
    assert positions[:, 8:].tolist() == [
        [5, 6, 7, 7, 7, 7, 9, 10, 11],
        [5, 6, 7, 7, 8, 8, 9, 10, 11],
        [5, 6, 7, 8, 7, 8, 9, 10, 11],
    ]
    assert ids[2:8] == model.encode(chat(colour("red", 84, 56)))[1:7] != model.encode(chat(colour("pink", 84, 56)))[1:7]
    assert model.decode(ids).count("<image>") == 10


@pytest.mark.parametrize(
    "cache",
    [NO_CACHE, WindowCache(None, None, freeze_prompt=True), WindowCache(0, None), WindowCache(0, 0), DelayedCache()],
)
def test_rows_with_and_without_pictures_decode_as_they_do_alone(cache: Any) -> None:
    model = make_vision()
    prompts = [chat("what is ", colour("red"), "?"), chat("what is ", colour("blue", 84, 56), "?"), "text"]
    parts: Any = {"decoder": Decoder(Threshold(0.5)), "cache": cache, "stop": Never(), "gen_len": 8, "block_len": 4}
    together = generate(model, prompts, **parts)
    alone = [generate(model, [prompt], **parts)[0] for prompt in prompts]
    assert [(row.token_ids, row.nfe) for row in together] == [(row.token_ids, row.nfe) for row in alone]
    assert together[0].token_ids != together[1].token_ids


def test_kept_columns_of_a_picture_are_what_they_were() -> None:
    """A window cache that computes all columns anew in each step decodes as no cache does."""
    model, prompt = make_vision(), chat(colour("red", 112, 84), " what?")
    same = [
        generate(model, [prompt], decoder=Decoder(FixedK(2)), cache=cache, gen_len=12, block_len=12)[0].token_ids
        for cache in (NO_CACHE, WindowCache(0, 0, refresh_every=1))
    ]
    assert same[0] == same[1]


def test_shadow_columns_are_where_their_columns_are() -> None:
    """Behind a picture a column's number is not its position. With nothing else to see, a shadow is its column."""
    model = make_vision(shift=0)
    canvas = torch.tensor([[*model.encode(chat(colour("red", 84, 56), "a")), 2, 2]])
    length, prompt_len = canvas.shape[1], torch.tensor([canvas.shape[1] - 2])
    end, want = torch.tensor([length]), torch.tensor([[length - 1]])
    plain, shadow = model.shadow_logits(canvas, want, prompt_len, end)
    torch.testing.assert_close(plain, model.full_logits(canvas, prompt_len, end)[:, -1:])
    torch.testing.assert_close(shadow, plain)
    prompts = [chat("what is ", colour("red"), "?"), chat(colour("blue", 84, 56)), "text"]
    parts: Any = {"decoder": Decoder(Wino()), "gen_len": 8, "block_len": 4}
    together = generate(model, prompts, **parts)
    assert [row.token_ids for row in together] == [generate(model, [p], **parts)[0].token_ids for p in prompts]


def test_a_picture_is_seen_once_and_forgotten_late(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = make_vision(), []
    features = model.backbone.features
    monkeypatch.setattr(model.backbone, "features", lambda *picture: seen.append(1) or features(*picture))
    prompts = [chat(colour("red"), "a"), chat(colour("red"), "b")]
    generate(model, prompts, gen_len=4, block_len=4)
    generate(model, prompts, gen_len=4, block_len=4, batch_size=1)
    assert len(seen) == 1
    monkeypatch.setattr("dllm.vision.pictures.KEPT", 1)
    monkeypatch.setattr(model.backbone, "features", lambda *picture: pytest.fail("a forward was made"))
    with pytest.raises(ValueError, match="model 'tiny-vision' holds a prompt's picture no more; give at most"):
        generate(model, [chat(colour("blue")), chat(colour("pink"))], gen_len=4, block_len=4)


def test_pictures_are_looked_up_once_for_the_prompts_of_a_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later steps wait for nothing; the vision half runs on all new pictures together, as on each alone."""
    model, prompts = make_vision(), [chat(colour(name), "a") for name in ("red", "blue", "pink")]
    looks, look = [], model._look
    monkeypatch.setattr(model, "_look", lambda tokens: looks.append(len(tokens)) or look(tokens))
    rows = generate(model, prompts, gen_len=8, block_len=4)
    assert looks == [3] and all(row.nfe > 1 for row in rows)
    pictures = [
        model.album[number] for number in number_of(torch.tensor([model.encode(p)[1] for p in prompts])).tolist()
    ]
    for picture in pictures:
        alone = model.backbone.features(picture.patches, torch.tensor([(picture.rows, picture.columns)]))
        assert picture.features is not None and torch.allclose(alone, picture.features, atol=1e-5)
    queued = decode_queue(
        model,
        [model.encode(prompt) for prompt in prompts],
        slots=2,
        gen_len=8,
        block_len=4,
        decoder=Decoder(Threshold(0.9)),
        cache=NO_CACHE,
        stop=Never(),
    )
    assert [row.token_ids for row in in_order(queued)] == [
        row.token_ids
        for row in generate(model, prompts, gen_len=8, block_len=4, decoder=Decoder(Threshold(0.9)), stop=Never())
    ]


def test_training_on_shapes_reaches_the_vision_half() -> None:
    model = scratch_vision(build_tokenizer(phrases(templates=[], pictures=True)), width=16, layers=1, mlp_width=16)
    mixture = TaskMixture({"vision/count": 1.0, "vision/position": 1.0}, batch_size=4, response_lens=[8])
    stream = mixture.open(model.tokenizer)  # type: ignore[arg-type]
    batch = replace(stream, encode=model.encode).batch(0)
    assert batch.canvas.shape[1] < 40 and is_picture(batch.canvas).sum(1).tolist() == [9] * 4
    losses = [MaskedDiffusion()(model.eval(), batch, torch.Generator().manual_seed(0)) for _ in range(2)]
    kept = [model.album[number].features for number in number_of(batch.canvas[is_picture(batch.canvas)]).tolist()]
    assert all(features is not None and not features.requires_grad for features in kept)
    loss = MaskedDiffusion()(model.train(), batch, torch.Generator().manual_seed(0))
    loss.backward()
    assert losses[0] == losses[1] and torch.allclose(loss, losses[0], atol=1e-5)
    assert float(model.backbone.visual.patch_embed.proj.weight.grad.norm()) > 0
    assert all(picture.features is None for picture in model.album.values())
    with pytest.raises(ValueError, match=r"show pictures, which these data cannot hold; leave them out"):
        stream.batch(0)
    with pytest.raises(ValueError, match="'tiny' reads text alone"):
        replace(stream, encode=dllm.load("tiny").encode).batch(0)


def test_shapes_have_one_wording() -> None:
    with pytest.raises(ValueError, match=r"task 'vision/count' has one wording; leave suite\.templates out"):
        Suite(["vision/count"], templates=[1]).build()


def test_a_saved_model_sees_the_same(tmp_path: Path) -> None:
    model, prompt = make_vision(), chat(colour("red"), "what?")
    model.processor.size["longest_edge"] = 28 * 28 * 2
    dllm.save(model, tmp_path)
    dllm.save(dllm.load(tmp_path), tmp_path / "twice")  # type: ignore[arg-type]
    assert dllm.load(tmp_path / "twice").encode(prompt) == model.encode(prompt)
    again = dllm.load(tmp_path)
    assert isinstance(again, VisionLM) and again.identity() == model.identity()
    assert again.encode(prompt) == model.encode(prompt)
    rows = [generate(one, [prompt], gen_len=8, block_len=8)[0].token_ids for one in (model, again)]
    assert rows[0] == rows[1]
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "vision_config"}))
    with pytest.raises(ValueError, match="has no 'vision_config', which its family needs"):
        dllm.load(tmp_path)


def test_pictures_come_as_files_and_as_text(tmp_path: Path) -> None:
    model, painted = make_vision(), Painted([("circle", "red", 0, 0)])
    picture = painted.image()
    picture.save(tmp_path / "a.png")
    ways = [picture, tmp_path / "a.png", painted.url()]
    assert len({tuple(model.encode(chat(way))) for way in ways}) == 1
    part = {"type": "image", "path": str(tmp_path / "a.png")}
    assert model.encode([{"role": "user", "content": [part]}]) == model.encode(chat(picture))
    kept = model.see(picture)
    assert all(map(is_picture, kept)) and generate(model, [[6, *kept, 7]], gen_len=4, block_len=4)[0].nfe > 0


def bad_png() -> str:
    file = io.BytesIO()
    colour("red").save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()[:60]).decode()}"


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (lambda: chat(Path("no/such/file.png")), "picture 'no/such/file.png' cannot be read"),
        (lambda: chat(Path(__file__)), "test_vision.py' cannot be read"),
        (lambda: chat(bad_png()), "cannot be read"),
        (lambda: [{"role": "user", "content": [{"type": "image"}]}], "an image without a picture"),
        (
            lambda: [{"role": "user", "content": [{"type": "video", "video": "a"}]}],
            "give parts of the type text or image",
        ),
        (lambda: chat("what is <image>?"), "1 places for its 0 pictures"),
    ],
)
def test_what_is_no_picture_is_refused(prompt: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        make_vision().encode(prompt())
    assert "\n" not in str(refused.value)


def test_text_models_refuse_pictures_and_join_texts(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    model = dllm.load("tiny")
    with pytest.raises(ValueError, match="'tiny' reads text alone, but a message shows an image"):
        model.encode(chat("a", colour("red")))
    assert model.encode(chat("a ", "b")) == model.encode([{"role": "user", "content": "a b"}])
    code, _, error = call(monkeypatch, capsys, "run", "suite=vision", "limit=1", f"out_dir={tmp_path / 'run'}")
    assert code == 2 and "reads text alone" in error and not (tmp_path / "run").exists()


def test_shapes_are_scored_by_their_answers() -> None:
    for task in Suite(["vision/count", "vision/colour", "vision/position"]).build():
        assert isinstance(task, Shapes)
        samples = task.samples(8, 0)
        assert samples[:5] == task.samples(5, 0) != task.samples(5, 1)[:5]
        assert len({sample.target for sample in samples}) > 2
        for sample in samples:
            assert task.score(sample, sample.target) == {"score": 1, "score_strict": 1}
            assert task.score(sample, f"It is {sample.target}.") == {"score": 1, "score_strict": 0}
            others = {other.target for other in samples} - {sample.target}
            assert not any(task.score(sample, other)["score"] for other in [*others, "", f"{sample.target} 7 red left"])


def test_shapes_are_painted_where_they_are_said_to_be() -> None:
    sample: Sample = Shapes("position").samples(1, 3)[0]
    image = next(part for part in sample.messages[0]["content"] if part["type"] == "image")["image"]
    with Image.open(io.BytesIO(base64.b64decode(image.partition("base64,")[2]))) as picture:
        colours: Any = picture.convert("RGB").getpixel
        middles = {(r, c): colours((56 * c + 28, 56 * r + 28)) for r in range(3) for c in range(3)}
    said = {(row, column): bytes.fromhex(COLOURS[name][1:]) for _, name, row, column in sample.data["shapes"]}
    assert {cell: bytes(pixel) for cell, pixel in middles.items() if pixel != (255, 255, 255)} == said


def test_a_run_sees_shapes_and_keeps_a_template(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    dllm.save(make_vision(), tmp_path / "model")
    arguments = ["run", "model=local", f"model.name_or_path={tmp_path / 'model'}", "suite=vision", "limit=1"]
    arguments += ['template=["it is ",4,"."]', "block_length=null", "decoder=dimple", "cache=prefill", "traces=1"]
    code, _, error = call(monkeypatch, capsys, *arguments, f"out_dir={tmp_path / 'run'}")
    assert code == 0, error
    records = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert len(records) == 3 and all(record["completion"].replace(" ", "").startswith("itis") for record in records)
    assert all(record["prompt"].startswith("[image]") for record in records)
    code, _, error = call(monkeypatch, capsys, *arguments[:5], "template=[it]", f"out_dir={tmp_path / 'no'}")
    assert code == 2 and "no MASK" in error and not (tmp_path / "no").exists()


def test_a_picture_of_too_many_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="2048 x 1 columns; give one below 2048"):
        Picture(torch.zeros(1, 3), 2048, 1)
