"""How strong each corruption is at its five severities, by the images that it was published for (ImageNet-C).

Hendrycks and Dietterich (2019) have one table for ImageNet's images of 224 pixels, and others for Tiny-ImageNet's of 64
and CIFAR's of 32. An image has the table of the nearest of these sides, and lengths in pixels grow with its own.
"""

from collections.abc import Sequence
from math import log
from typing import Any

from vitrail.config.check import one_of, whole
from vitrail.config.given import SEVERITIES as SEVERITIES

NAMES = ("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur")
NAMES += ("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression")
SIDES = (224, 64, 32)

# Of each corruption, for each of the sides, at each severity.
TABLE: dict[str, tuple[Sequence[Any], Sequence[Any], Sequence[Any]]] = {
    # The deviation of the noise.
    "gaussian_noise": ((0.08, 0.12, 0.18, 0.26, 0.38), (0.04, 0.08, 0.12, 0.15, 0.18), (0.04, 0.06, 0.08, 0.09, 0.10)),
    # Photons of white.
    "shot_noise": ((60, 25, 12, 5, 3), (250, 100, 50, 30, 15), (500, 250, 100, 75, 50)),
    # The share of the numbers that become black or white.
    "impulse_noise": ((0.03, 0.06, 0.09, 0.17, 0.27), (0.01, 0.02, 0.05, 0.08, 0.14), (0.01, 0.02, 0.03, 0.05, 0.07)),
    # The radius of the disk, and the deviation of what smooths it.
    "defocus_blur": (
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    ),
    # The deviation of the blur, the farthest that pixels go, and how often.
    "glass_blur": (
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    ),
    # The radius, and the deviation.
    "motion_blur": (
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    ),
    # Steps, and the factor from one to the next. Published as `arange(1, 1.11, 0.01)`, which rounding gives 1.11 too.
    "zoom_blur": (
        ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
        ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
        ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
    ),
    # The layer's mean and deviation, its zoom, its threshold, radius and deviation of its motion, and what stays.
    "snow": (
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    # What stays of the image, and how much frost is added.
    "frost": (
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    ),
    # How much fog is added, and how its roughness falls.
    "fog": (
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    ),
    # What is added to the value of hue, saturation and value.
    "brightness": ((0.1, 0.2, 0.3, 0.4, 0.5), (0.1, 0.2, 0.3, 0.4, 0.5), (0.05, 0.1, 0.15, 0.2, 0.3)),
    # What stays of the distance to the mean.
    "contrast": ((0.4, 0.3, 0.2, 0.1, 0.05), (0.4, 0.3, 0.2, 0.1, 0.05), (0.75, 0.5, 0.4, 0.3, 0.15)),
    # In sides of the image (of 244 pixels for those of 224): the length of the shifts, their deviation, and how far
    # three points are moved.
    "elastic_transform": (
        tuple(
            tuple(244 / 224 * part for part in parts)
            for parts in ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
        ),
        ((0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    # What stays of the sides.
    "pixelate": ((0.6, 0.5, 0.4, 0.3, 0.25), (0.9, 0.8, 0.7, 0.6, 0.5), (0.95, 0.9, 0.85, 0.75, 0.65)),
    # The quality.
    "jpeg_compression": ((25, 18, 15, 10, 7), (65, 58, 50, 40, 25), (80, 65, 58, 50, 40)),
}


def strength(name: str, severity: int, side: int) -> tuple[Any, float]:
    """Give a corruption's numbers for images of a side, and what lengths in pixels are multiplied by."""
    one_of("corruption", name, NAMES)
    whole("severity", severity, most=len(SEVERITIES))
    nearest = min(SIDES, key=lambda other: abs(log(side / other)))
    return TABLE[name][SIDES.index(nearest)][severity - 1], side / nearest
