"""What corruptions are made of: smoothing, zooming, moving, and rough fields; images are H W C, from 0 to 1."""

from functools import lru_cache
from math import ceil, cos, radians, sin
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Reals = NDArray[np.float64]
# What lies beyond an edge: its last pixel; the pixels inside, the last one too, or without it.
Edge = Literal["edge", "symmetric", "reflect"]


def smooth(image: Reals, sigma: float, *, truncate: float = 4.0, edge: Edge = "edge") -> Reals:
    """Blur by a Gaussian that ends after `truncate` deviations."""
    rows, cols = (smoothing(side, sigma, truncate, edge) for side in image.shape[:2])
    return np.einsum("ij,jkc,lk->ilc", rows, image, cols, optimize=True)


@lru_cache(maxsize=64)
def smoothing(side: int, sigma: float, truncate: float, edge: Edge) -> Reals:
    """Give the matrix that blurs one axis."""
    radius = int(truncate * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / max(sigma, 1e-12)) ** 2)
    places = np.pad(np.arange(side), radius, mode=edge)
    matrix = np.zeros((side, side))
    for shift, weight in enumerate(weights / weights.sum()):
        np.add.at(matrix, (np.arange(side), places[shift : shift + side]), weight)
    return matrix


def filtered(image: Reals, kernel: Reals) -> Reals:
    """Correlate every channel with a square kernel of an odd side; beyond an edge is what is inside it."""
    half, (height, width) = len(kernel) // 2, image.shape[:2]
    padded = np.pad(image, ((half, half), (half, half), (0, 0)), mode="reflect")
    sides = padded.shape[:2]
    waves = np.fft.rfft2(padded, axes=(0, 1)) * np.fft.rfft2(kernel, sides).conj()[:, :, None]
    found: Reals = np.fft.irfft2(waves, sides, axes=(0, 1))[:height, :width]
    return found


def zoomed(image: Reals, factor: float) -> Reals:
    """Enlarge the middle to the whole, between the nearest pixels of each axis."""
    above, below, down = zooming(image.shape[0], factor)
    before, after, right = zooming(image.shape[1], factor)
    rows: Reals = image[above] * (1 - down)[:, None, None] + image[below] * down[:, None, None]
    return rows[:, before] * (1 - right)[:, None] + rows[:, after] * right[:, None]


@lru_cache(maxsize=256)
def zooming(side: int, factor: float) -> tuple[NDArray[np.int64], NDArray[np.int64], Reals]:
    """Give between which two pixels of an axis those of its enlarged middle lie, and how far from the first.

    Both ends of the middle stay its ends, and too much is cut off.
    """
    part = ceil(side / factor)
    start, long = (side - part) // 2, max(round(part * factor), side)
    cut = (long - side) // 2
    places: Reals = np.arange(cut, cut + side, dtype=np.float64) * ((part - 1) / max(long - 1, 1))
    below = np.minimum(places.astype(np.int64), max(part - 2, 0))
    return start + below, start + np.minimum(below + 1, part - 1), places - below


def moved(image: Reals, radius: float, sigma: float, angle: float) -> Reals:
    """Blur along a line from each pixel on: half a Gaussian, pixel by pixel; an edge's last pixel goes on."""
    steps = np.arange(2 * ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    down, right = (np.ceil(steps * part - 0.5).astype(int) for part in (sin(radians(angle)), cos(radians(angle))))
    height, width = image.shape[:2]
    found = np.zeros_like(image)
    for weight, rows, cols in zip(weights / weights.sum(), down, right, strict=True):
        chosen = np.clip(np.arange(height) + rows, 0, height - 1), np.clip(np.arange(width) + cols, 0, width - 1)
        found += weight * image[np.ix_(*chosen)]
    return found


def taken(image: Reals, rows: Reals, cols: Reals, *, edge: Edge) -> Reals:
    """Take an image at other places, H W each, between the four pixels about each."""
    height, width = image.shape[:2]
    top, left = np.floor(rows).astype(int), np.floor(cols).astype(int)
    down, right = (rows - top)[..., None], (cols - left)[..., None]
    above, below = folded(top, height, edge), folded(top + 1, height, edge)
    before, after = folded(left, width, edge), folded(left + 1, width, edge)
    upper = image[above, before] * (1 - right) + image[above, after] * right
    lower = image[below, before] * (1 - right) + image[below, after] * right
    return upper * (1 - down) + lower * down


def folded(places: NDArray[np.int64], side: int, edge: Edge) -> NDArray[np.int64]:
    """Fold places beyond an axis back into it."""
    if edge == "edge" or side == 1:
        return np.clip(places, 0, side - 1)
    if edge == "symmetric":
        inside = np.mod(places, 2 * side)
        return np.where(inside < side, inside, 2 * side - 1 - inside)
    inside = np.mod(places, 2 * side - 2)
    return np.where(inside < side, inside, 2 * side - 2 - inside)


def plasma(side: int, decay: float, random: Generator) -> Reals:
    """Draw a rough field from 0 to 1 by diamonds and squares, which goes round at its edges; the side is a power of 2.

    Each new point is the mean of its four neighbors and a number up to a roughness, which falls by `decay` when the
    step is halved.
    """
    field, step, rough = np.zeros((side, side)), side, 100.0

    def between(total: Reals) -> Reals:
        return total / 4 + rough * random.uniform(-rough, rough, total.shape)

    while step >= 2:
        half = step // 2
        corners = field[::step, ::step]
        square = corners + np.roll(corners, -1, axis=0)
        field[half::step, half::step] = between(square + np.roll(square, -1, axis=1))
        centers = field[half::step, half::step]
        field[::step, half::step] = between(
            centers + np.roll(centers, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        )
        field[half::step, ::step] = between(
            centers + np.roll(centers, 1, axis=1) + corners + np.roll(corners, -1, axis=0)
        )
        step, rough = half, rough / decay
    field -= field.min()
    return field / max(field.max(), 1e-12)


def rough_field(image: Reals, decay: float, random: Generator) -> Reals:
    """Draw a rough field for an image, H W 1."""
    height, width = image.shape[:2]
    side = 1 << max(height - 1, width - 1, 1).bit_length()
    return plasma(side, decay, random)[:height, :width, None]
