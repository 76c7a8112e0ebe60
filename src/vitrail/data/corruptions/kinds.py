"""The 15 corruptions of ImageNet-C by their definitions: of an image H W C from 0 to 1, its numbers, and randomness.

Frost is the one that differs: its definition adds photographs of frost, and here it is drawn.
"""

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
from numpy.random import Generator

from vitrail.data.corruptions.sampling import (
    Reals,
    filtered,
    moved,
    rough_field,
    smooth,
    taken,
    zoomed,
)
from vitrail.data.decode import decode, encode, resize_by_boxes

Kind = Callable[[Reals, Any, float, Generator], Reals]  # the third: what lengths in pixels are multiplied by
SMALLEST_DISK = 8  # pixels about a disk's center, at least
LUMA = np.array([0.299, 0.587, 0.114])
ICE = np.array([0.86, 0.94, 1.0])  # the color of frost


def gaussian_noise(image: Reals, deviation: float, scale: float, random: Generator) -> Reals:
    """Add normal noise to every number."""
    return image + random.normal(0.0, deviation, image.shape)


def shot_noise(image: Reals, photons: float, scale: float, random: Generator) -> Reals:
    """Count photons (Poisson), so many of which are white."""
    return random.poisson(image * photons) / photons


def impulse_noise(image: Reals, amount: float, scale: float, random: Generator) -> Reals:
    """Make this share of all numbers black or white, each as often."""
    hit, white = random.random(image.shape) < amount, random.random(image.shape) < 0.5
    return np.where(hit, white.astype(np.float64), image)


def defocus_blur(image: Reals, numbers: tuple[float, float], scale: float, random: Generator) -> Reals:
    """Spread every pixel over a disk, whose edge is smoothed."""
    radius, alias = numbers[0] * scale, numbers[1]
    reach = max(SMALLEST_DISK, ceil(radius))
    steps = np.arange(-reach, reach + 1)
    disk = (steps[:, None] ** 2 + steps**2 <= radius**2).astype(np.float64)
    half = 1 if radius <= SMALLEST_DISK else 2  # of what smooths: 3 or 5 pixels
    weights = np.exp(-(np.arange(-half, half + 1) ** 2) / (2 * alias**2))
    weights /= weights.sum()
    kernel = filtered(disk[:, :, None] / disk.sum(), np.outer(weights, weights))[:, :, 0]
    return filtered(image, kernel)


def glass_blur(image: Reals, numbers: tuple[float, int, int], scale: float, random: Generator) -> Reals:
    """Blur, exchange pixels with near ones, from the last to the first, and blur again."""
    sigma, farthest, times = numbers[0] * scale, max(round(numbers[1] * scale), 1), numbers[2]
    height, width = image.shape[:2]
    order = list(range(height * width))
    rows, cols = np.arange(height - farthest, farthest, -1), np.arange(width - farthest, farthest, -1)
    ones = (rows[:, None] * width + cols).ravel()
    for _ in range(times):
        right, down = random.integers(-farthest, farthest, (len(ones), 2)).T
        for one, other in zip(ones.tolist(), (ones + down * width + right).tolist(), strict=True):
            order[one], order[other] = order[other], order[one]
    blurred = smooth(image, sigma)
    return smooth(blurred.reshape(height * width, -1)[order].reshape(blurred.shape), sigma)


def motion_blur(image: Reals, numbers: tuple[float, float], scale: float, random: Generator) -> Reals:
    """Blur along a line at an angle of -45 to 45 degrees."""
    return moved(image, numbers[0] * scale, numbers[1] * scale, random.uniform(-45, 45))


def zoom_blur(image: Reals, numbers: tuple[int, float], scale: float, random: Generator) -> Reals:
    """Mix the image with its enlargements."""
    steps, factor = numbers
    return (image + sum(zoomed(image, 1 + step * factor) for step in range(steps))) / (steps + 1)


def snow(image: Reals, numbers: tuple[float, ...], scale: float, random: Generator) -> Reals:
    """Whiten the image, and add flakes that move, and the same turned about."""
    mean, deviation, zoom, threshold, radius, sigma, stays = numbers
    flakes = zoomed(random.normal(mean, deviation, (*image.shape[:2], 1)), max(zoom * scale, 1.0))
    flakes = np.clip(np.where(flakes < threshold, 0.0, flakes), 0, 1)
    flakes = moved(flakes, radius * scale, sigma * scale, random.uniform(-135, -45))
    white = np.maximum(image, 1.5 * gray(image) + 0.5)
    return stays * image + (1 - stays) * white + flakes + np.rot90(flakes, 2)


def frost(image: Reals, numbers: tuple[float, float], scale: float, random: Generator) -> Reals:
    """Add frost: fine ridges of ice on thin ice, drawn, in the place of photographs of it."""
    thin = rough_field(image, 2.0, random)
    ridges = 1 - np.abs(2 * rough_field(image, 1.5, random) - 1)
    ice = 0.25 + 0.25 * thin + 0.5 * ridges**4
    return numbers[0] * image + numbers[1] * ice * (ICE if image.shape[2] == 3 else 1.0)


def fog(image: Reals, numbers: tuple[float, float], scale: float, random: Generator) -> Reals:
    """Add a rough field, and scale the sum to the image's largest number."""
    most, (amount, decay) = image.max(), numbers
    fogged = image + amount * rough_field(image, decay, random)
    return fogged * most / (most + amount)


def brightness(image: Reals, amount: float, scale: float, random: Generator) -> Reals:
    """Add to the largest of a pixel's channels, its value, up to 1; hue and saturation stay."""
    value = image.max(axis=2, keepdims=True)
    lit = np.minimum(value + amount, 1)
    return np.where(value > 0, image * (lit / np.where(value > 0, value, 1)), lit)


def contrast(image: Reals, share: float, scale: float, random: Generator) -> Reals:
    """Move every number towards its channel's mean."""
    mean = image.mean(axis=(0, 1), keepdims=True)
    return (image - mean) * share + mean


def elastic_transform(image: Reals, numbers: tuple[float, float, float], scale: float, random: Generator) -> Reals:
    """Move three points, and all others with them; then shift every pixel by a smooth field."""
    height, width = image.shape[:2]
    length, sigma, far = (part * min(height, width) for part in numbers)
    middle, third = np.array([width, height]) // 2, min(height, width) // 3
    before = np.array([middle + third, middle + np.array([third, -third]), middle - third], dtype=np.float64)
    after = before + random.uniform(-far, far, before.shape)
    back = np.linalg.solve(np.c_[after, np.ones(3)], before)  # from where a pixel is to where it was: x, y, 1
    y, x = np.mgrid[:height, :width].astype(np.float64)
    old = np.stack([x, y, np.ones_like(x)], axis=2) @ back
    image = taken(image, old[..., 1], old[..., 0], edge="reflect")
    shifts = [
        length * smooth(random.uniform(-1, 1, (height, width, 1)), sigma, truncate=3, edge="symmetric")[..., 0]
        for _ in range(2)
    ]
    return taken(image, y + shifts[1], x + shifts[0], edge="symmetric")


def pixelate(image: Reals, share: float, scale: float, random: Generator) -> Reals:
    """Make it smaller, and as large as it was, by boxes."""
    height, width = image.shape[:2]
    small = resize_by_boxes(levels(image), (max(int(height * share), 1), max(int(width * share), 1)))
    return resize_by_boxes(small, (height, width)) / 255.0


def jpeg_compression(image: Reals, quality: int, scale: float, random: Generator) -> Reals:
    """Write it as a JPEG of low quality, and read that; other than three channels one by one."""
    parts = [image] if image.shape[2] == 3 else [image[:, :, place, None] for place in range(image.shape[2])]
    return np.concatenate(
        [decode(encode(levels(part), "JPEG", quality), channels=part.shape[2]) / 255.0 for part in parts], axis=2
    )


def gray(image: Reals) -> Reals:
    """Give the lightness of every pixel, H W 1: of three channels by how bright they look."""
    return (image @ LUMA)[..., None] if image.shape[2] == 3 else image.mean(axis=2, keepdims=True)


def levels(image: Reals) -> Any:  # noqa: ANN401
    """Give the nearest of 256 levels."""
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)


KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        *(gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur, zoom_blur, snow, frost),
        *(fog, brightness, contrast, elastic_transform, pixelate, jpeg_compression),
    )
}
