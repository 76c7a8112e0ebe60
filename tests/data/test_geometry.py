"""Maps against PIL, and crops against cropping and resizing one by one."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.transforms import geometry


def smooth(count: int, height: int = 41, width: int = 59) -> Tensor:
    rows, cols = torch.meshgrid(torch.arange(height) / 9, torch.arange(width) / 11, indexing="ij")
    waves = torch.stack([rows.sin() * cols.cos(), (rows + cols).cos(), (rows - cols).sin()])
    shift = torch.linspace(0.6, 1, count)[:, None, None, None]
    return ((waves * shift + 1) * 127).to(torch.uint8)


def to_pil(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def from_pil(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def all_maps() -> np.ndarray:
    none = np.zeros(2)
    return np.concatenate(
        [
            geometry.rotations(np.array([33.0, -71.0]), 41, 59),
            geometry.shears(np.array([0.3, -0.45]), none),
            geometry.shears(none, np.array([0.3, -0.45])),
            geometry.translations(np.array([7.0, -11.3]), none),
            geometry.translations(none, np.array([5.0, -8.7])),
        ]
    )


def test_maps_are_pils() -> None:
    maps = all_maps()
    images = smooth(len(maps))
    made = geometry.affine(images, torch.from_numpy(maps).float())
    how = Image.Resampling.NEAREST
    for one, image, numbers in zip(made, images, maps, strict=True):
        picture = to_pil(image).transform((59, 41), Image.Transform.AFFINE, list(numbers), how, fillcolor=(128,) * 3)
        off = (one.int() - from_pil(picture).int()).abs()
        assert (off <= 1).float().mean() > 0.995  # at the edge, and where a place falls between two pixels
        assert (one == 128).all(dim=0).any()


def test_rotation_is_counter_clockwise_about_the_middle() -> None:
    image = smooth(1)
    made = geometry.affine(image, torch.from_numpy(geometry.rotations(np.array([30.0]), 41, 59)).float())
    off = (made[0].int() - from_pil(to_pil(image[0]).rotate(30, fillcolor=(128,) * 3)).int()).abs()
    assert (off <= 1).float().mean() > 0.99
    square = torch.randint(0, 256, (1, 3, 7, 7), dtype=torch.uint8)
    quarter = geometry.affine(square, torch.from_numpy(geometry.rotations(np.array([90.0]), 7, 7)).float())
    assert torch.equal(quarter, square.rot90(dims=(2, 3)))


def test_a_translation_moves_whole_pixels_and_fills_with_gray() -> None:
    image = smooth(1)
    moved = geometry.affine(image, torch.from_numpy(geometry.translations(np.array([4.0]), np.array([-3.0]))).float())
    assert torch.equal(moved[..., :-3, 4:], image[..., 3:, :-4])
    assert (moved[..., -3:, :] == 128).all()
    assert (moved[..., :4] == 128).all()


def test_a_shear_leaves_the_first_row_and_slants_the_rest() -> None:
    image = smooth(1)
    slanted = geometry.affine(image, torch.from_numpy(geometry.shears(np.array([0.5]), np.zeros(1))).float())
    assert torch.equal(slanted[..., 0, :], image[..., 0, :])
    assert torch.equal(slanted[..., 20, :-10], image[..., 20, 10:])


def test_a_cutout_fills_its_box_and_nothing_else() -> None:
    images = smooth(2)
    made = geometry.cutout(images, torch.tensor([[3.0, 5, 7, 11], [-4, 50, 10, 20]]), fill=9)
    expected = images.clone()
    expected[0, :, 3:10, 5:16] = 9
    expected[1, :, :6, 50:] = 9
    assert torch.equal(made, expected)


def test_a_flip_mirrors_the_marked() -> None:
    images = smooth(3)
    made = geometry.flip(images, torch.tensor([0, 1, 0]))
    assert torch.equal(made[1], images[1].flip(2))
    assert torch.equal(made[::2], images[::2])
