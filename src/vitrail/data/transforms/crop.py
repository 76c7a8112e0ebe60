"""Which part of an image is taken: boxes from uniform numbers, on the CPU.

As torchvision's RandomResizedCrop: the area is uniform and the aspect (width / height) log-uniform; TensorFlow's
sample_distorted_bounding_box draws the aspect and then the height uniformly, which favours large areas less. Each of
ten tries has its own numbers; where none fits, the largest central box within the limits of the aspect is taken.
"""

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import Box
from vitrail.errors import ShapeError

TRIES = 10
EACH = 4  # area, aspect, top, left
SLOTS = TRIES * EACH

Reals = NDArray[np.float64]
Wholes = NDArray[np.int64]


def inception_box(height: int, width: int, u: Reals, area: tuple[float, float], aspect: tuple[float, float]) -> Box:
    """Draw a box inside an image from one row of SLOTS numbers, or fewer for fewer tries; the first that fits."""
    _check(u[None], int(min(height, width)))
    low, high = np.log(aspect[0]), np.log(aspect[1])
    for share, slant, down, right in u.reshape(len(u) // EACH, EACH):  # mostly the first: faster than all at once
        target = (area[0] + share * (area[1] - area[0])) * height * width
        ratio = np.exp(low + slant * (high - low))
        tall, wide = int(np.rint(np.sqrt(target / ratio))), int(np.rint(np.sqrt(target * ratio)))
        if 1 <= tall <= height and 1 <= wide <= width:
            return Box(int(down * (height - tall + 1)), int(right * (width - wide + 1)), tall, wide)
    boxes = inception_boxes(np.array([height]), np.array([width]), u[None], area, aspect)
    return Box(*(int(side) for side in boxes[0]))


def inception_boxes(
    heights: Wholes, widths: Wholes, u: Reals, area: tuple[float, float], aspect: tuple[float, float]
) -> Wholes:
    """Draw a box (top, left, height, width) for each image; one row of numbers each."""
    _check(u, int(min(heights.min(), widths.min())) if len(heights) else 1)
    count = len(heights)
    tries = u.reshape(count, u.shape[1] // EACH, EACH)
    rows, cols = heights[:, None], widths[:, None]
    target = (area[0] + tries[:, :, 0] * (area[1] - area[0])) * rows * cols
    low, high = np.log(aspect[0]), np.log(aspect[1])
    ratio = np.exp(low + tries[:, :, 1] * (high - low))
    tall = np.rint(np.sqrt(target / ratio)).astype(np.int64)
    wide = np.rint(np.sqrt(target * ratio)).astype(np.int64)
    fits = (tall >= 1) & (tall <= rows) & (wide >= 1) & (wide <= cols)
    each, first = np.arange(count), fits.argmax(axis=1)
    tall, wide = tall[each, first], wide[each, first]
    top = np.floor(tries[each, first, 2] * (heights - tall + 1)).astype(np.int64)
    left = np.floor(tries[each, first, 3] * (widths - wide + 1)).astype(np.int64)
    found = np.stack([top, left, tall, wide], axis=1)
    return np.where(fits.any(axis=1)[:, None], found, _largest(heights, widths, aspect))


def _check(u: Reals, shortest: int) -> None:
    if u.ndim != 2 or u.shape[1] % EACH or not u.shape[1]:
        raise ShapeError(f"each try of a box takes {EACH} numbers; got an array of {u.shape}.")
    if shortest < 1:
        raise ShapeError("an image has at least one pixel; got a side of 0.")


def middle_box(height: int, width: int, aspect: float = 1.0, share: float = 1.0) -> Box:
    """Take the largest central box of an aspect (width / height), or a share of its sides."""
    if not 0 < share <= 1 or aspect <= 0:
        raise ShapeError(f"share must be above 0 and at most 1, and aspect positive; got {share} and {aspect}.")
    tall, wide = min(height, width / aspect) * share, min(width, height * aspect) * share
    rows, cols = max(round(tall), 1), max(round(wide), 1)
    return Box((height - rows) // 2, (width - cols) // 2, rows, cols)


def _largest(heights: Wholes, widths: Wholes, aspect: tuple[float, float]) -> Wholes:
    """Take the largest central box whose aspect is within limits."""
    tall = np.clip(np.rint(widths / aspect[0]).astype(np.int64), 1, heights)
    wide = np.clip(np.rint(heights * aspect[1]).astype(np.int64), 1, widths)
    return np.stack([(heights - tall) // 2, (widths - wide) // 2, tall, wide], axis=1)
