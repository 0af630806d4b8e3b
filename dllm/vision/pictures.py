"""Pictures of chat messages, and how a prompt of token ids shows them.

A picture is in a prompt as columns of a grid, row by row. Each column has an id beyond every vocabulary, which
tells the picture (a hash of its patches), the row and the column:

    bit 60      always 1
    bits 22-59  the picture
    bits 11-21  the row
    bits 0-10   the column

So a canvas says all that its rotary positions need, whichever rows are moved, copied or decoded together; equal
pictures have equal ids, and random numbers that are made of a prompt stay the same.
"""

import base64
import binascii
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image, UnidentifiedImageError
from torch import Tensor

FIRST = 1 << 60
SIDE = 11  # bits of a row or a column
TOGETHER = 1 << 14  # patches that the vision half is given at once; a larger picture is seen alone
KEPT = 1024  # pictures that a model holds; the one not shown for the longest time goes first
DATA_URL = "data:image/"


@dataclass
class Picture:
    """patches: `[P, D]` as the vision half takes them. rows, columns: of its grid in a prompt. features: `[rows *
    columns, width]`, once they are computed."""

    patches: Float[Tensor, "P D"]
    rows: int
    columns: int
    number: int = field(init=False)
    features: Float[Tensor, "N W"] | None = None

    def __post_init__(self) -> None:
        if max(self.rows, self.columns) >= 1 << SIDE:
            raise ValueError(f"a picture of {self.rows} x {self.columns} columns; give one below {1 << SIDE} a side")
        shape = f"{self.rows} {self.columns}".encode()
        digest = hashlib.blake2b(self.patches.contiguous().numpy().tobytes() + shape, digest_size=8).digest()
        self.number = int.from_bytes(digest, "big") >> (64 - (60 - 2 * SIDE))

    @property
    def ids(self) -> list[int]:
        """The columns of a prompt that show it."""
        first = FIRST | self.number << 2 * SIDE
        return [first | row << SIDE | column for row in range(self.rows) for column in range(self.columns)]

    def __len__(self) -> int:
        return self.rows * self.columns


class Album(dict[int, Picture]):
    """The pictures that prompts of late have shown, by their numbers."""

    def add(self, picture: Picture) -> list[int]:
        """The ids of its columns."""
        self[picture.number] = self.pop(picture.number, picture)
        while len(self) > KEPT:
            del self[next(iter(self))]
        return picture.ids

    def forget_features(self) -> None:
        """They were those of other weights."""
        for picture in self.values():
            picture.features = None


@dataclass(frozen=True)
class Gallery:
    """The pictures of some canvases, looked up on their device.

    numbers: of the pictures, in ascending order.
    first: the place of each one's first column in `features`.
    width: columns of a row of each one's grid.
    """

    numbers: Int[Tensor, " N"]
    first: Int[Tensor, " N"]
    width: Int[Tensor, " N"]
    features: Float[Tensor, "F D"]

    def hang(self, embeds: Float[Tensor, "R Q D"], ids: Int[Tensor, "R Q"]) -> Float[Tensor, "R Q D"]:
        """Embeddings of columns with the features of those that are pictures' in their place."""
        if not len(self.numbers):
            return embeds
        shown = is_picture(ids)
        which = torch.searchsorted(self.numbers, number_of(ids)).clamp(max=len(self.numbers) - 1)
        place = self.first[which] + row_of(ids) * self.width[which] + column_of(ids)
        return torch.where(shown[..., None], self.features[place.where(shown, 0)].to(embeds), embeds)


NO_NUMBERS = torch.empty(0, dtype=torch.long)
NO_PICTURES = Gallery(NO_NUMBERS, NO_NUMBERS, NO_NUMBERS, torch.empty(0, 0))


def gallery(pictures: Sequence[Picture], features: Float[Tensor, "F D"], device: torch.device) -> Gallery:
    """Of pictures in ascending order of their numbers, with the features of one after another."""
    numbers, sizes, width = (
        torch.tensor(list(values), device=device)
        for values in zip(*((picture.number, len(picture), picture.columns) for picture in pictures), strict=True)
    )
    return Gallery(numbers, sizes.cumsum(0) - sizes, width, features.to(device))


def groups(pictures: Sequence[Picture]) -> Iterator[list[Picture]]:
    """Of at most `TOGETHER` patches each, or of one picture."""
    group, patches = list[Picture](), 0
    for picture in pictures:
        if group and patches + len(picture.patches) > TOGETHER:
            yield group
            group, patches = [], 0
        group.append(picture)
        patches += len(picture.patches)
    if group:
        yield group


def is_picture(ids: Any) -> Any:
    """Whether an id, or each of a tensor, is a picture's column."""
    return ids >= FIRST


def number_of(ids: Any) -> Any:
    """The picture that an id, or each of a tensor, belongs to."""
    return (ids - FIRST) >> 2 * SIDE


def row_of(ids: Any) -> Any:
    return (ids >> SIDE) & ((1 << SIDE) - 1)


def column_of(ids: Any) -> Any:
    return ids & ((1 << SIDE) - 1)


def rotary_positions(tokens: Int[Tensor, "R T"]) -> Int[Tensor, "3 R T"]:
    """Time, height and width of each column (Qwen2-VL, arXiv 2409.12191). In text all three count on. A picture takes
    one time; its height and width count its grid; text after it continues after the largest of them:

        column   0  1  (0,0) (0,1) (0,2) (1,0) (1,1) (1,2)  8  9
        time     0  1    2     2     2     2     2     2    5  6
        height   0  1    2     2     2     3     3     3    5  6
        width    0  1    2     3     4     2     3     4    5  6
    """
    shown = is_picture(tokens)
    row, column = (torch.where(shown, part(tokens), 0) for part in (row_of, column_of))
    begins = ~shown | (row + column == 0)  # text, or the first column of a picture
    is_last = torch.cat([begins[:, 1:], torch.ones_like(begins[:, :1])], 1)
    step = torch.where(shown, (torch.maximum(row, column) + 1) * is_last, 1)
    time = step.cumsum(1) - step
    return torch.stack([time, time + row, time + column])


def read_picture(part: Mapping[str, Any]) -> Image.Image:
    """The picture of a message's part `{"type": "image", "image": PICTURE}`: a PIL image, a file's name, or the text
    of a data URL. Raises ValueError for any other, and for one that cannot be read."""
    given = part.get("image", part.get("path"))
    if isinstance(given, Image.Image):
        return given.convert("RGB")
    if given is None:
        raise ValueError('a message has an image without a picture; give {"type": "image", "image": FILE}')
    name = str(given) if len(str(given)) <= 80 else f"{str(given)[:77]}..."
    try:
        if str(given).startswith(DATA_URL):
            given = io.BytesIO(base64.b64decode(str(given).partition("base64,")[2], validate=True))
        with Image.open(given) as image:
            return image.convert("RGB")
    except (OSError, ValueError, AttributeError, binascii.Error, UnidentifiedImageError, Image.DecompressionBombError):
        raise ValueError(
            f"the picture {name!r} cannot be read; give an image file, a PIL image or a data URL"
        ) from None
