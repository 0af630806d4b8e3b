"""Questions about pictures of shapes on a 3x3 grid: how many, in which colour, and where.

Pictures and wording are our own. No cell holds two shapes, and what a question is about is there once, or is counted.
"""

import base64
import io
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from PIL import Image, ImageDraw

from parallelbench.tasks.base import Draw, Drawn, Sample

KINDS = ("circle", "square", "triangle")
COLOURS = {"red": "#d02020", "green": "#20a040", "blue": "#2040d0", "yellow": "#f0d020", "black": "#101010"}
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")
CELL, MARGIN = 56, 9  # pixels
QUESTIONS = {
    "count": "How many {kind}s are in the picture? Answer with a digit only.",
    "colour": "Which colour is the {kind}? Answer with one word only: red, green, blue, yellow or black.",
    "position": (
        "Where is the {colour} {kind}? Answer with two words only: top, middle or bottom, and left, centre or right."
    ),
}
ANSWERS = {
    "count": {str(number) for number in range(10)},
    "colour": set(COLOURS),
    "position": {*ROWS, *COLUMNS},
}
Shape = tuple[str, str, int, int]  # kind, colour, row, column


@dataclass(frozen=True)
class Shapes(Drawn):
    """A picture of two to five shapes, and a question about it: `count`, `colour` or `position`."""

    asks: Literal["count", "colour", "position"]
    version: str = "1"

    @property
    def name(self) -> str:
        return f"vision/{self.asks}"

    def samples(self, limit: int, seed: int) -> list[Sample]:
        return [replace(sample, gen_len=8) for sample in super().samples(limit, seed)]

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """`score` reads the words or digits that can answer the question, whatever is around them;
        `score_strict` wants the answer alone."""
        words = re.findall(r"\d+|[a-z]+", completion.lower().replace("center", "centre"))
        found = [word for word in words if word in ANSWERS[self.asks] or word.isdigit()]
        strict = completion.strip() == sample.target
        return {"score": float(" ".join(found) == sample.target), "score_strict": float(strict)}

    def draw(self, rng: random.Random, index: int) -> Draw:
        """Shapes, a question about them, and its answer."""
        cells = rng.sample(list(product(range(3), range(3))), rng.randint(2, 5))
        shapes = [(rng.choice(KINDS), rng.choice(list(COLOURS)), row, column) for row, column in cells]
        kind, colour, row, column = shapes[0]
        if self.asks == "count":
            kind = rng.choice(KINDS)
            target = str(sum(shape[0] == kind for shape in shapes))
        elif self.asks == "colour":
            shapes = [shapes[0], *(shape for shape in shapes[1:] if shape[0] != kind)]
            target = colour
        else:
            shapes = [shapes[0], *(shape for shape in shapes[1:] if shape[:2] != (kind, colour))]
            target = f"{ROWS[row]} {COLUMNS[column]}"
        question = QUESTIONS[self.asks].format(kind=kind, colour=colour)
        return Draw(question, {"shapes": shapes}, target, instance=f"{question} {shapes}", picture=Painted(shapes))


@dataclass(frozen=True)
class Painted:
    """Shapes as a picture."""

    shapes: Sequence[Shape]

    def image(self) -> Image.Image:
        """On white."""
        picture = Image.new("RGB", (3 * CELL, 3 * CELL), "white")
        brush: Any = ImageDraw.Draw(picture)
        for kind, colour, row, column in self.shapes:
            left, top = column * CELL + MARGIN, row * CELL + MARGIN
            right, bottom = left + CELL - 2 * MARGIN, top + CELL - 2 * MARGIN
            if kind == "triangle":
                brush.polygon([((left + right) // 2, top), (left, bottom), (right, bottom)], fill=COLOURS[colour])
            else:
                draw = brush.ellipse if kind == "circle" else brush.rectangle
                draw((left, top, right, bottom), fill=COLOURS[colour])
        return picture

    def url(self) -> str:
        """As text, which a chat message can hold."""
        file = io.BytesIO()
        self.image().save(file, "PNG")
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def vision_tasks() -> dict[str, Shapes]:
    """The tasks by name."""
    tasks = [Shapes("count"), Shapes("colour"), Shapes("position")]
    return {task.name: task for task in tasks}
