"""Sizes against slow references, pixel by pixel in plain Python, and against PIL."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitrail.config import Preprocessing
from vitrail.data.decode import OpenImage
from vitrail.data.transforms.resize import How, evaluation_image, resize, resize_small
from vitrail.errors import ShapeError

SIZES = [((11, 17), (5, 7)), ((5, 7), (11, 17)), ((13, 6), (4, 19)), ((1, 9), (3, 2)), ((7, 7), (7, 3))]


def pixels(height: int, width: int, channels: int = 3) -> Tensor:
    return torch.randint(0, 256, (channels, height, width), dtype=torch.uint8)


def bilinear_line(line: list[float], new: int) -> list[float]:
    made = []
    for place in range(new):
        at = (place + 0.5) * len(line) / new - 0.5
        low = math.floor(at)
        left, right = (line[min(max(tap, 0), len(line) - 1)] for tap in (low, low + 1))
        made.append(left + (right - left) * (at - low))
    return made


def triangle_line(line: list[float], new: int) -> list[float]:
    made, scale = [], len(line) / new
    for place in range(new):
        center = (place + 0.5) * scale
        taps = [max(0.0, 1 - abs(tap + 0.5 - center) / max(scale, 1)) for tap in range(len(line))]
        made.append(sum(tap * level for tap, level in zip(taps, line, strict=True)) / sum(taps))
    return made


def area_line(line: list[float], new: int) -> list[float]:
    made, scale = [], len(line) / new
    for place in range(new):
        start, end = place * scale, (place + 1) * scale
        taps = [max(0.0, min(end, tap + 1) - max(start, tap)) for tap in range(len(line))]
        made.append(sum(tap * level for tap, level in zip(taps, line, strict=True)) / scale)
    return made


LINES = {"antialias": triangle_line, "bilinear": triangle_line, "gvt": bilinear_line, "bv": bilinear_line}
LINES["area"] = area_line


def reference(image: Tensor, size: tuple[int, int], how: str) -> Tensor:
    made = np.apply_along_axis(lambda line: LINES[how](list(line), size[0]), 1, image.numpy().astype(float))
    return torch.from_numpy(np.apply_along_axis(lambda line: LINES[how](list(line), size[1]), 2, made))


@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("how", ["antialias", "bilinear", "gvt", "area"])
def test_sizes_change_as_the_reference_says(how: How, old: tuple[int, int], new: tuple[int, int]) -> None:
    image = pixels(*old)
    made = resize(image, new, how)
    assert made.dtype == torch.uint8
    # Antialiasing is computed in whole levels, axis by axis; the others are rounded once.
    most = 1.01 if how in ("antialias", "bilinear") else 0.501
    assert (made - reference(image, new, how)).abs().max() <= most


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_big_vision_cuts_levels_off(old: tuple[int, int], new: tuple[int, int]) -> None:
    image = pixels(*old)
    behind = reference(image, new, "bv") - resize(image, new, "bv")
    assert behind.min() >= -0.002
    assert behind.max() < 1


def test_the_shorter_side_goes_by_area_only_where_it_shrinks() -> None:
    image = pixels(12, 17)
    smaller = resize_small(image, 5, "bv")
    assert smaller.shape == (3, 5, 7)
    behind = reference(image, (5, 7), "area") - smaller
    assert behind.min() >= -0.002
    assert behind.max() < 1
    assert torch.equal(resize_small(image, 24, "bv"), resize(image, (24, 34), "bv"))


@pytest.mark.parametrize(
    ("how", "filtering"), [("bilinear", 2), ("bicubic", 3), ("lanczos", 1), ("nearest", 0)], ids=str
)
def test_interpolations_are_the_image_librarys(how: How, filtering: int) -> None:
    image = pixels(37, 23) // 2 + 64  # no overshoot is cut off, which each library does between other axes
    made = resize(image, (11, 29), how)
    expected = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((29, 11), Image.Resampling(filtering))
    assert (made.int() - torch.from_numpy(np.array(expected)).permute(2, 0, 1).int()).abs().max() <= 1


@pytest.mark.parametrize("how", ["antialias", "gvt", "bv", "area", "nearest", "bicubic"])
def test_a_batch_is_its_images(how: How) -> None:
    images = torch.stack([pixels(9, 13) for _ in range(5)])
    made = resize(images, (6, 4), how)
    assert made.shape == (5, 3, 6, 4)
    assert all(torch.equal(one, resize(image, (6, 4), how)) for one, image in zip(made, images, strict=True))
    flat = torch.full((2, 1, 9, 13), 201, dtype=torch.uint8)
    assert (resize(flat, (6, 4), how) == 201).all()


def test_plain_bicubic_is_another_thing() -> None:
    image = pixels(31, 31)
    assert not torch.equal(resize(image, (8, 8), "bicubic", antialias=False), resize(image, (8, 8), "bicubic"))
    assert torch.equal(resize(image, (8, 8), "bilinear", antialias=False), resize(image, (8, 8), "gvt"))


def test_the_authors_evaluation_squashes() -> None:
    image = pixels(19, 31)
    assert torch.equal(evaluation_image(image, 8, Preprocessing(), "gvt"), resize(image, (8, 8), "gvt"))
    assert torch.equal(evaluation_image(image, 8, Preprocessing()), resize(image, (8, 8), "antialias"))


def test_the_few_shot_evaluation_squashes_to_256_and_takes_the_middle_224() -> None:
    image = pixels(300, 311)
    made = evaluation_image(image, 224, Preprocessing(crop_share=224 / 256), "bv")
    assert torch.equal(made, resize(image, (256, 256), "bv")[:, 16:240, 16:240])


def test_a_crop_keeps_the_shape() -> None:
    image = pixels(40, 66)
    made = evaluation_image(image, 14, Preprocessing(resize="crop", crop_share=0.875))
    assert torch.equal(made, resize(image, (16, 26), "antialias")[:, 1:15, 6:20])
    for size in ((9, 21), (21, 9)):
        assert evaluation_image(image, size, Preprocessing(resize="crop")).shape == (3, *size)


def test_encoded_images_arrays_and_tensors_are_taken() -> None:
    image = pixels(25, 18)
    buffer = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, "PNG")
    expected = evaluation_image(image, 7, Preprocessing())
    assert torch.equal(evaluation_image(OpenImage(buffer.getvalue()), 7, Preprocessing()), expected)
    frozen = image.permute(1, 2, 0).numpy().copy()
    frozen.flags.writeable = False
    assert torch.equal(evaluation_image(frozen, 7, Preprocessing()), expected)


def test_empty_sizes_are_refused() -> None:
    with pytest.raises(ShapeError, match="at least one pixel"):
        resize(pixels(3, 5), (0, 4), "gvt")
