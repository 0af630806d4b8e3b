"""Where labels of points stand, so that none covers a point, another label or what else is drawn."""

from collections.abc import Sequence

Box = tuple[float, float, float, float]  # left, bottom, right, top, in pixels

SIDES = ((1.0, 0.6), (-1.0, 0.6), (1.0, -0.6), (-1.0, -0.6), (0.0, 1.0), (0.0, -1.0), (1.0, 0.0), (-1.0, 0.0))
RINGS = (1.0, 1.8, 3.0, 4.5)  # of heights of a label away, nearest first


def place(
    points: Sequence[tuple[float, float]], sizes: Sequence[tuple[float, float]], taken: Sequence[Box], within: Box
) -> list[Box | None]:
    """A box for each label of the given size next to its point, None where there is no room in reach. taken: boxes that
    nothing may cover, those of the points among them."""
    covered, boxes = list(taken), []
    for (x, y), (width, height) in zip(points, sizes, strict=True):
        candidates = (_box(x, y, width, height, side, ring) for ring in RINGS for side in SIDES)
        free = (box for box in candidates if _inside(box, within) and not any(_touch(box, other) for other in covered))
        box = next(free, None)
        boxes.append(box)
        covered += [] if box is None else [box]
    return boxes


def _box(x: float, y: float, width: float, height: float, side: tuple[float, float], ring: float) -> Box:
    """Its nearest edge or corner is `ring` heights away from the point."""
    across, up = side
    left = x + across * ring * height - (width if across < 0 else 0 if across > 0 else width / 2)
    bottom = y + up * ring * height - height / 2
    return left, bottom, left + width, bottom + height


def _inside(box: Box, within: Box) -> bool:
    return box[0] >= within[0] and box[1] >= within[1] and box[2] <= within[2] and box[3] <= within[3]


def _touch(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
