"""Colours against PIL, level by level."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from vitrail.data.transforms import color

FACTORS = (0.0, 0.1, 0.7, 1.0, 1.9, 2.8)


def photographs(count: int) -> Tensor:
    """Smooth colours with noise, each of another range."""
    rows, cols = torch.meshgrid(torch.linspace(0, 1, 29), torch.linspace(0, 1, 37), indexing="ij")
    base = torch.stack([rows, cols, rows * cols])
    reach = torch.linspace(0.3, 1, count)[:, None, None, None]
    return ((base * reach + 0.05 * torch.randn(count, 3, 29, 37)).clamp(0, 1) * 255).to(torch.uint8)


def to_pil(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def distance(made: Tensor, expected: list[Image.Image]) -> int:
    stacked = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in expected])
    return int((made.int() - stacked.int()).abs().max())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (color.brightness, ImageEnhance.Brightness),
        (color.contrast, ImageEnhance.Contrast),
        (color.saturation, ImageEnhance.Color),
        (color.sharpness, ImageEnhance.Sharpness),
    ],
)
def test_enhancements_are_pils(ours: Callable[..., Tensor], theirs: type) -> None:
    images = photographs(len(FACTORS))
    made = ours(images, torch.tensor(FACTORS))
    assert made.dtype == torch.uint8
    expected = [theirs(to_pil(image)).enhance(factor) for image, factor in zip(images, FACTORS, strict=True)]
    assert distance(made, expected) <= 1
    assert torch.equal(made[3], images[3])  # a factor of 1


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (color.autocontrast, ImageOps.autocontrast),
        (color.equalize, ImageOps.equalize),
        (color.invert, ImageOps.invert),
        (color.grayscale, lambda image: ImageOps.grayscale(image).convert("RGB")),
    ],
)
def test_operations_without_a_parameter_are_pils(
    ours: Callable[..., Tensor], theirs: Callable[..., Image.Image]
) -> None:
    images = photographs(5)
    images[4] = 77  # one level: nothing to stretch or to spread
    images[3, 1, 0, 0] = 255
    assert distance(ours(images), [theirs(to_pil(image)) for image in images]) <= (ours is color.autocontrast)


def test_posterize_is_pils() -> None:
    images = photographs(8)
    bits = torch.arange(1, 9)
    expected = [ImageOps.posterize(to_pil(image), int(bit)) for image, bit in zip(images, bits, strict=True)]
    assert distance(color.posterize(images, bits), expected) == 0
    assert (color.posterize(images, torch.zeros(8, dtype=torch.int64)) == 0).all()


def test_solarize_is_pils() -> None:
    images = photographs(5)
    thresholds = torch.tensor([0, 1, 128, 255, 256])
    expected = [ImageOps.solarize(to_pil(image), int(at)) for image, at in zip(images, thresholds, strict=True)]
    assert distance(color.solarize(images, thresholds), expected) == 0


def test_solarize_add_adds_to_what_is_dark() -> None:
    images = torch.tensor([0, 100, 127, 128, 255], dtype=torch.uint8).expand(2, 1, 1, 5)
    made = color.solarize_add(images, torch.tensor([110, 165]))
    assert made.flatten(1).tolist() == [[110, 210, 237, 128, 255], [165, 255, 255, 128, 255]]


def gaussian(image: np.ndarray, deviation: float, axis: int) -> np.ndarray:
    places = np.arange(-30, 31)
    taps = np.exp(-0.5 * (places / deviation) ** 2)
    padded = np.pad(image, [(30, 30) if each == axis else (0, 0) for each in range(3)], mode="edge")
    return np.apply_along_axis(lambda line: np.convolve(line, taps / taps.sum(), "valid"), axis, padded)


def test_blur_is_a_gaussian() -> None:
    images = photographs(4)
    deviations = (0.1, 0.7, 1.3, 2.0)
    made = color.blur(images, torch.tensor(deviations), 2.0).double()
    for one, image, deviation in zip(made, images, deviations, strict=True):
        expected = gaussian(gaussian(image.numpy().astype(float), deviation, 1), deviation, 2)
        assert np.abs(one.numpy() - expected).max() <= 1.3


def test_blur_is_pils_where_its_boxes_are_enough() -> None:
    images = photographs(4)
    images = color.blur(images, torch.full((4,), 2.0), 2.0)  # PIL's stand for a Gaussian on what is not all noise
    deviations = (0.5, 1.0, 1.5, 2.0)
    made = color.blur(images, torch.tensor(deviations), 2.0)
    blurred = [to_pil(image).filter(ImageFilter.GaussianBlur(d)) for image, d in zip(images, deviations, strict=True)]
    assert distance(made, blurred) <= 3
    inner = [image.crop((3, 3, 34, 26)) for image in blurred]  # its boxes go on otherwise past the edge
    assert distance(made[..., 3:26, 3:34], inner) <= 2
    assert torch.equal(color.blur(images, torch.full((4,), 0.05), 2.0), images)
    flat = torch.full((1, 3, 2, 3), 255, dtype=torch.uint8)  # smaller than the kernel
    assert torch.equal(color.blur(flat, torch.tensor([2.0]), 2.0), flat)


def test_other_numbers_of_channels_are_averaged() -> None:
    images = torch.tensor([10, 21], dtype=torch.uint8)[None, :, None, None].expand(1, 2, 3, 5)
    assert (color.grayscale(images) == 16).all()
    one = torch.randint(0, 256, (2, 1, 5, 7), dtype=torch.uint8)
    assert torch.equal(color.grayscale(one), one)


def test_an_image_comes_out_the_same_in_any_batch() -> None:
    images, factor = photographs(7), torch.linspace(0.2, 2.9, 7)
    for operation in (color.brightness, color.contrast, color.saturation, color.sharpness):
        alone = torch.cat([operation(images[i : i + 1], factor[i : i + 1]) for i in range(7)])
        assert torch.equal(operation(images, factor), alone)
    alone = torch.cat([color.blur(images[i : i + 1], factor[i : i + 1], 3.0) for i in range(7)])
    assert torch.equal(color.blur(images, factor, 3.0), alone)
