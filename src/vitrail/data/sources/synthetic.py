"""Scenes of coloured shapes, drawn when they are asked for: every property is known, and none tells another."""

from dataclasses import dataclass
from math import ceil, floor, pi
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vitrail.config.check import as_size, one_of, whole
from vitrail.data.decode import Pixels
from vitrail.data.source import Source
from vitrail.errors import ConfigError
from vitrail.files import fingerprint_of
from vitrail.ops.random import GOLDEN, mix

Task = Literal["shape", "colour", "cell", "count", "orientation"]
Mask = NDArray[np.bool_]
Reals = NDArray[np.float64]
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
COLORS = {
    "red": (225, 45, 45),
    "green": (45, 190, 45),
    "blue": (60, 60, 235),
    "yellow": (215, 205, 40),
    "magenta": (215, 50, 215),
    "cyan": (40, 205, 205),
}
GRID = 4  # cells a side
SECTORS = 8  # of orientation
MOST = 6  # shapes in a scene
CLASSES: dict[Task, tuple[str, ...]] = {
    "shape": SHAPES,
    "colour": tuple(COLORS),
    "cell": tuple(f"row {cell // GRID + 1}, column {cell % GRID + 1}" for cell in range(GRID * GRID)),
    "count": tuple(str(count) for count in range(1, MOST + 1)),
    "orientation": tuple(f"{360 * sector // SECTORS} degrees" for sector in range(SECTORS)),
}
SMALLEST_SIDE = 16  # pixels
LARGE, SMALL = 0.47, 0.34  # radius of the first shape and of the others, in cells
FINE = 4  # samples a pixel, along each side
STAR = 0.45  # inner radius of a star, as a share of the outer


@dataclass(frozen=True)
class Scene:
    """An image and all that is in it; shapes are alike, the first is the largest and its cell is the scene's.

    Masks hold what is at least half covered; boxes are their (top, left, height, width).
    """

    pixels: Pixels
    shape: str
    color: str
    cell: int
    count: int
    orientation: int
    masks: Mask  # M H W
    boxes: NDArray[np.int64]  # M 4


class SyntheticSource(Source):
    """Scenes by number: each is a function of the seed and its number alone; `task` says what of it is the label."""

    def __init__(self, count: int, image_size: int | tuple[int, int], *, seed: int, task: Task = "shape") -> None:
        one_of("task", task, get_args(Task))
        self.height, self.width = as_size(image_size)
        if min(self.height, self.width) < SMALLEST_SIDE:
            raise ConfigError(f"image_size must be {SMALLEST_SIDE} pixels a side or more; got {image_size!r}.")
        self.seed = whole("seed", seed, least=0, most=2**63 - 1)
        self.task: Task = task
        self.class_names = CLASSES[task]
        self._labels = _values(self.seed, task, np.arange(whole("count", count)))
        self._fingerprint = fingerprint_of(f"synthetic 1 {self.seed} {count} {self.height} {self.width} {task}")

    def read(self, index: int) -> Pixels:
        """Draw a scene."""
        return self.scene(index).pixels

    def name(self, index: int) -> str:
        """Give the seed and the number of a scene."""
        return f"scene {index} of seed {self.seed}"

    def scene(self, index: int) -> Scene:
        """Draw a scene, with all that is known of it."""
        at = np.array([self._within(index)])
        shape, color, cell, fewer, sector = (int(_values(self.seed, task, at)[0]) for task in CLASSES)
        random = np.random.Generator(np.random.Philox(key=np.array([self.seed, index], dtype=np.uint64)))
        canvas = _background(self.height, self.width, random)
        others = np.argsort(random.random(GRID * GRID))
        cells = [cell, *others[others != cell][:fewer].tolist()]
        turn = (sector + random.uniform(-0.35, 0.35)) * 2 * pi / SECTORS
        paint = np.array(COLORS[tuple(COLORS)[color]]) * random.uniform(0.9, 1.0)
        masks = np.zeros((len(cells), self.height, self.width), dtype=np.bool_)
        for mask, where, size in zip(masks, cells, [LARGE] + [SMALL] * fewer, strict=True):
            _draw(canvas, mask, SHAPES[shape], paint, where, size, turn, random)
        boxes = np.array([_box(mask) for mask in masks], dtype=np.int64)
        pixels = np.rint(canvas.clip(0, 255)).astype(np.uint8)
        return Scene(pixels, SHAPES[shape], tuple(COLORS)[color], cell, fewer + 1, sector, masks, boxes)


def _values(seed: int, task: Task, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give a property of scenes: every run of as many scenes as it has values has each of them once, shuffled."""
    count = len(CLASSES[task])
    blocks, places = indices // count, indices % count
    keys = _scramble(np.uint64(seed), np.uint64(1 + get_args(Task).index(task)))
    keys = _scramble(keys, (blocks[:, None] * count + np.arange(count)).astype(np.uint64))
    return np.argsort(keys, axis=1)[np.arange(len(indices)), places].astype(np.int64)


def _scramble(seed: np.uint64 | NDArray[np.uint64], number: np.uint64 | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix two numbers to one that looks random (SplitMix64: Steele, Lea and Flood, 2014)."""
    return mix(np.atleast_1d(seed) ^ (np.atleast_1d(number) * GOLDEN))


def _background(height: int, width: int, random: np.random.Generator) -> Reals:
    """Draw a grey texture: waves in two directions and grain."""
    rows, cols = np.arange(height)[:, None] / height, np.arange(width) / width
    texture = np.full((height, width), random.uniform(85, 155))
    for _ in range(2):
        down, across = random.uniform(-6, 6, 2)
        texture += random.uniform(6, 16) * np.sin(2 * pi * (down * rows + across * cols + random.random()))
    texture += random.uniform(-12, 12, (height, width))
    return np.repeat(texture[:, :, None], 3, axis=2)


def _draw(
    canvas: Reals,
    mask: Mask,
    shape: str,
    paint: Reals,
    cell: int,
    size: float,
    turn: float,
    random: np.random.Generator,
) -> None:
    """Paint one shape inside its cell, bright where it points to and dark behind, and mark what it covers."""
    height, width = mask.shape
    tall, wide = height / GRID, width / GRID
    radius = size * min(tall, wide)
    middle_row, middle_col = (
        (place + 0.5) * side + random.uniform(-1, 1) * (side / 2 - radius)
        for place, side in ((cell // GRID, tall), (cell % GRID, wide))
    )
    top, bottom = max(floor(middle_row - radius), 0), min(ceil(middle_row + radius), height)
    left, right = max(floor(middle_col - radius), 0), min(ceil(middle_col + radius), width)
    fine = (np.arange(max(bottom - top, right - left) * FINE) + 0.5) / FINE
    y = ((top - middle_row + fine[: (bottom - top) * FINE]) / radius)[:, None]
    x = (left - middle_col + fine[: (right - left) * FINE]) / radius
    ahead, aside = x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)
    inside = _inside(shape, ahead, aside)
    window = (bottom - top, FINE, right - left, FINE)
    cover = inside.reshape(window).mean(axis=(1, 3))
    light = (0.675 + 0.325 * ahead[FINE // 2 :: FINE, FINE // 2 :: FINE]).clip(0.35, 1)
    part = canvas[top:bottom, left:right]
    part += cover[:, :, None] * (light[:, :, None] * paint - part)
    mask[top:bottom, left:right] = cover >= min(0.5, cover.max())  # a thin shape on few pixels may cover none by half


def _inside(shape: str, x: Reals, y: Reals) -> Mask:
    """Say which points are inside a shape of radius one that points along x."""
    far = x * x + y * y
    match shape:
        case "circle":
            return far <= 1
        case "ring":
            return (far <= 1) & (far >= 0.3)
        case "square":
            return np.maximum(abs(x), abs(y)) <= 0.7
        case "cross":
            return (np.minimum(abs(x), abs(y)) <= 0.28) & (np.maximum(abs(x), abs(y)) <= 0.95) & (far <= 1)
        case "triangle":
            return (x >= -0.5) & (x + 3**0.5 * abs(y) <= 1)
        case _:
            return _in_star(x, y)


def _in_star(x: Reals, y: Reals) -> Mask:
    """Say which points are inside a star of five tips: in each tenth of a turn, on the inner side of one edge."""
    tenth = pi / 5
    angle = abs((np.arctan2(y, x) + tenth) % (2 * tenth) - tenth)  # from the nearest tip
    far = np.sqrt(x * x + y * y)
    across, along = far * np.sin(angle), far * np.cos(angle)
    tip_to_notch = STAR * np.sin(tenth), STAR * np.cos(tenth) - 1.0
    return across * tip_to_notch[1] - (along - 1.0) * tip_to_notch[0] >= 0


def _box(mask: Mask) -> tuple[int, int, int, int]:
    rows, cols = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(rows[0]), int(cols[0]), int(rows[-1] - rows[0] + 1), int(cols[-1] - cols[0] + 1)
