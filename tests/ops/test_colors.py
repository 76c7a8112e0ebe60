"""Colours as classes, against a slow reference for every one of them."""

import pytest
import torch

from vitrail.errors import ShapeError
from vitrail.ops.masking import COLORS, class_colors, color_classes, mean_colors, small_colors


def slow_class(red: int, green: int, blue: int) -> int:
    """The three highest bits of each byte, as bits."""
    return int(f"{red:08b}"[:3] + f"{green:08b}"[:3] + f"{blue:08b}"[:3], 2)


def test_every_level_of_every_channel_has_its_class() -> None:
    for level in range(256):
        for channel in range(3):
            color = [37, 200, 90]
            color[channel] = level
            assert color_classes(torch.tensor(color).float()).item() == slow_class(*color)


def test_every_class_has_its_color_and_every_color_its_class() -> None:
    colors = class_colors()
    assert colors.shape == (COLORS, 3)
    assert color_classes(colors).tolist() == list(range(COLORS))
    for number, color in enumerate(colors.tolist()):
        assert slow_class(*(int(level) for level in color)) == number


def test_levels_that_were_scaled_and_scaled_back_keep_their_class() -> None:
    levels = torch.arange(256.0)[:, None].expand(-1, 3)
    for mean, deviation in ((0.5, 0.5), (0.485, 0.229), (0.1307, 0.3081)):
        back = ((levels / 255 - mean) / deviation * deviation + mean) * 255
        torch.testing.assert_close(color_classes(back), color_classes(levels), atol=0, rtol=0)


def test_the_class_of_a_patch_is_that_of_its_mean() -> None:
    levels = torch.randint(0, 256, (2, 3, 8, 12)).float()
    found = mean_colors(levels, 4)
    assert found.shape == (2, 6)
    for image in range(2):
        for patch in range(6):
            row, col = patch // 3 * 4, patch % 3 * 4
            mean = [float(levels[image, channel, row : row + 4, col : col + 4].mean()) for channel in range(3)]
            assert found[image, patch].item() == slow_class(*(int(level) for level in mean))


@pytest.mark.parametrize("patch", [4, 8, 6, 16])
def test_small_patches_are_means_of_what_each_covers(patch: int) -> None:
    levels = torch.randint(0, 256, (2, 3, patch, 2 * patch)).float()
    found = small_colors(levels, patch)
    assert found.shape == (2, 2, 16)
    for place in range(16):
        bounds = []
        for cell in (place // 4, place % 4):
            bounds.append((cell * patch // 4, -(-(cell + 1) * patch // 4)))
        (top, bottom), (left, right) = bounds
        part = levels[1, :, top:bottom, patch + left : patch + right].mean(dim=(1, 2))
        assert found[1, 1, place].item() == slow_class(*(int(level) for level in part.tolist()))


@pytest.mark.usefixtures("untyped")
def test_gray_images_have_no_color() -> None:
    with pytest.raises(ShapeError, match="a colour is red, green and blue; got 1 channels"):
        color_classes(torch.zeros(2, 1))
