"""A diffusion language model that sees pictures in its prompts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Qwen2VLImageProcessorPil

from dllm.checkpoint import find_file
from dllm.kv import ColumnCache
from dllm.model import DiffusionLM
from dllm.plan import Plan
from dllm.protocols import Text
from dllm.soft import SoftInput
from dllm.spec import ModelSpec
from dllm.text import encode_text
from dllm.vision.dimple import DimpleBackbone
from dllm.vision.pictures import (
    FIRST,
    KEPT,
    NO_PICTURES,
    Album,
    Gallery,
    Picture,
    gallery,
    groups,
    is_picture,
    number_of,
    read_picture,
    rotary_positions,
)

PROCESSOR_FILE = "preprocessor_config.json"


class VisionLM(DiffusionLM):
    """A DiffusionLM whose chat messages may show pictures: `{"type": "image", "image": PICTURE}` among the parts of
    their content.

    A picture is a run of ids in the prompt (`dllm.vision.pictures`). Its features stand in for the embeddings of these
    columns, so every decoder and cache treats them as it does any other prompt column. The vision half runs once per
    picture, in the first forward of a prompt that shows it, on all the new pictures together. In training it runs in
    each forward.

    Raises ValueError for a spec with a neighbour mix, and for a processor whose patches are not the backbone's.
    """

    backbone: DimpleBackbone

    def __init__(
        self,
        backbone: DimpleBackbone,
        spec: ModelSpec,
        processor: Qwen2VLImageProcessorPil,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str = "model",
        *,
        keys: Mapping[str, str] | None = None,
        entry: torch.device | None = None,
    ) -> None:
        if spec.mix:
            raise ValueError(
                "a model that sees pictures has no neighbour mix, since a picture has no neighbours' words"
            )
        vision = backbone.config.vision_config
        wanted = (vision.patch_size, vision.temporal_patch_size, vision.spatial_merge_size)
        made = (processor.patch_size, processor.temporal_patch_size, processor.merge_size)
        if wanted != made:
            raise ValueError(f"{PROCESSOR_FILE} makes patches of {made}, but the vision half takes {wanted}")
        super().__init__(backbone, spec, tokenizer, name, keys=keys, entry=entry)
        self.processor, self.album = processor, Album()
        self._looked = WeakKeyDictionary[ColumnCache, Gallery]()  # by the K/V of their decode
        self._now: Gallery | None = None

    def identity(self) -> str:
        return f"{super().identity()} {dict(self.processor.size)}"

    def see(self, image: Image.Image) -> list[int]:
        """The ids that show a picture in a prompt of token ids. They hold until 1,024 other pictures were seen."""
        made = self.processor(images=[image], return_tensors="pt")
        _, height, width = made["image_grid_thw"][0].tolist()
        merged = self.processor.merge_size
        return self.album.add(Picture(made["pixel_values"].float(), height // merged, width // merged))

    def encode(self, text: Text) -> list[int]:
        """Token ids of a text or a chat, with the columns of its pictures. Raises ValueError for a picture that cannot
        be read."""
        config, shown = self.backbone.config, list[list[int]]()

        def show(part: Mapping[str, Any]) -> str:
            assert self.tokenizer is not None, "encode_text refuses to go on without one"
            shown.append(self.see(read_picture(part)))
            around = [config.vision_start_token_id, config.image_token_id, config.vision_end_token_id]
            return "".join(self.tokenizer.convert_ids_to_tokens(around))

        ids = encode_text(self.tokenizer, self.name, text, show)
        if ids.count(config.image_token_id) != len(shown):
            raise ValueError(
                f"a prompt has {ids.count(config.image_token_id)} places for its {len(shown)} pictures; leave the "
                f"image token out of its text, and use a chat template that renders each message"
            )
        pictures = iter(shown)
        return [one for token in ids for one in (next(pictures) if token == config.image_token_id else [token])]

    def decode(self, ids: Sequence[int]) -> str:
        return super().decode([self.backbone.config.image_token_id if is_picture(token) else token for token in ids])

    @property
    def id_limit(self) -> int:
        return 2 * FIRST

    def train(self, mode: bool = True) -> "VisionLM":
        self.album.forget_features()
        return super().train(mode)

    def renew_kv(self, kv: ColumnCache | None, rows: Int[Tensor, " N"], prompt_len: Int[Tensor, " N"]) -> None:
        super().renew_kv(kv, rows, prompt_len)
        assert kv is not None
        self._looked.pop(kv, None)

    def logits(
        self,
        canvas: Int[Tensor, "B T"],
        plan: Plan,
        want: Int[Tensor, "R W"],
        *,
        end: Int[Tensor, " B"],
        kv: ColumnCache | None,
        soft: SoftInput | None = None,
    ) -> Float[Tensor, "R W V"]:
        """As `DiffusionLM.logits`. The pictures of the canvas are looked up once, until `renew_kv` says that other
        prompts began."""
        assert kv is not None
        if kv not in self._looked:
            self._looked[kv] = self._look(canvas)
        self._now = self._looked[kv]
        try:
            return super().logits(canvas, plan, want, end=end, kv=kv, soft=soft)
        finally:
            self._now = None

    def _embed(
        self, tokens: Tensor, query: Tensor, end: Tensor, soft: SoftInput | None = None, whole: bool = False
    ) -> Float[Tensor, "R Q D"]:
        embeds = super()._embed(tokens.masked_fill(is_picture(tokens), self.spec.pad_id), query, end, soft, whole)
        shown = self._look(tokens) if self._now is None else self._now
        return shown.hang(embeds, tokens.gather(1, query))

    def _look(self, tokens: Int[Tensor, "R T"]) -> Gallery:
        """The pictures of canvases, with the features of those that were not seen before."""
        numbers = number_of(tokens[is_picture(tokens)]).unique().tolist()
        if not all(number in self.album for number in numbers):
            raise ValueError(f"model {self.name!r} holds a prompt's picture no more; give at most {KEPT} at once")
        pictures = [self.album[number] for number in numbers]
        if not pictures:
            return NO_PICTURES
        if self.training:
            return gallery(pictures, self._features(pictures), tokens.device)
        for group in groups([picture for picture in pictures if picture.features is None]):
            with torch.no_grad():
                parts = self._features(group).split([len(picture) for picture in group])
            for picture, part in zip(group, parts, strict=True):
                picture.features = part.clone()
        return gallery(pictures, torch.cat([p.features for p in pictures if p.features is not None]), tokens.device)

    def _features(self, pictures: Sequence[Picture]) -> Float[Tensor, "F D"]:
        sides = torch.tensor([(picture.rows, picture.columns) for picture in pictures])
        return self.backbone.features(torch.cat([picture.patches for picture in pictures]), sides)

    def _rotary(
        self, tokens: Int[Tensor, "R T"], positions: Int[Tensor, "R T"], query: Int[Tensor, "R Q"]
    ) -> Int[Tensor, "3 R Q"]:
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        return (rotary_positions(tokens) + positions - columns).gather(2, query.expand(3, -1, -1))


def read_processor(path: str, backbone: DimpleBackbone, hub: dict) -> Qwen2VLImageProcessorPil:
    """What turns a picture into patches: the checkpoint's, or one with the vision half's own sizes."""
    file = find_file(path, PROCESSOR_FILE, hub)
    if file is not None:
        return Qwen2VLImageProcessorPil.from_pretrained(Path(file).parent)
    vision = backbone.config.vision_config
    patch, merge = vision.patch_size, vision.spatial_merge_size
    return Qwen2VLImageProcessorPil(patch_size=patch, temporal_patch_size=vision.temporal_patch_size, merge_size=merge)
