"""The 15 corruptions beside their definitions: by scipy and Pillow, by hand, or by what a definition promises."""

import colorsys
import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from vitrail.config import Preprocessing
from vitrail.data.corruptions import NAMES, CorruptedSource, corrupt
from vitrail.data.corruptions.kinds import KINDS
from vitrail.data.corruptions.sampling import moved, plasma, smooth, zoomed
from vitrail.data.corruptions.tables import TABLE, strength
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import ConfigError, DataError

Reals = NDArray[np.float64]
HEIGHT, WIDTH = 21, 34


def picture(height: int = HEIGHT, width: int = WIDTH, channels: int = 3) -> Reals:
    drawn = np.random.default_rng(7).integers(0, 256, (height, width, channels)) / 255
    return ndimage.gaussian_filter(drawn, (1.5, 1.5, 0), mode="wrap")


def run(name: str, image: Reals, numbers: Any, seed: int = 3, scale: float = 1.0) -> Reals:
    return KINDS[name](image, numbers, scale, np.random.default_rng(seed))


def test_noises_have_the_moments_of_their_definitions() -> None:
    image, count = np.full((80, 90, 3), 0.4), 80 * 90 * 3
    noise = run("gaussian_noise", image, 0.08) - image
    assert abs(noise.mean()) < 5 * 0.08 / np.sqrt(count)
    assert noise.std() == pytest.approx(0.08, rel=5 / np.sqrt(2 * count))
    shot = run("shot_noise", image, 25)
    np.testing.assert_allclose(shot * 25, np.rint(shot * 25), atol=1e-9)
    assert shot.mean() == pytest.approx(0.4, abs=5 * np.sqrt(0.4 / 25 / count))
    assert shot.var() == pytest.approx(0.4 / 25, rel=0.1)
    hit = run("impulse_noise", image, 0.17)
    assert {*np.unique(hit)} == {0.0, 0.4, 1.0}
    for value in (0.0, 1.0):
        assert (hit == value).mean() == pytest.approx(0.085, abs=5 * np.sqrt(0.085 / count))


def test_smoothing_is_scipys_at_every_edge() -> None:
    for edge, mode in (("edge", "nearest"), ("symmetric", "reflect"), ("reflect", "mirror")):
        wanted = ndimage.gaussian_filter(picture(), (6.3, 6.3, 0), mode=mode, truncate=3)
        found = smooth(picture(), 6.3, truncate=3, edge=edge)  # pyright: ignore[reportArgumentType]
        np.testing.assert_allclose(found, wanted, atol=1e-12)
    np.testing.assert_allclose(smooth(picture(), 0.05), picture())


@pytest.mark.parametrize("numbers", [(3, 0.1), (10, 0.5), (0.3, 0.4)])
def test_defocus_is_a_smoothed_disk(numbers: tuple[float, float]) -> None:
    radius, alias = numbers
    reach = max(8, int(radius))
    disk = np.array([[x * x + y * y <= radius**2 for x in range(-reach, reach + 1)] for y in range(-reach, reach + 1)])
    kernel = ndimage.gaussian_filter(disk / disk.sum(), alias, mode="mirror", radius=1 if radius <= 8 else 2)
    wanted = np.stack([ndimage.correlate(picture()[..., c], kernel, mode="mirror") for c in range(3)], axis=2)
    np.testing.assert_allclose(run("defocus_blur", picture(), numbers), wanted, atol=1e-12)


def test_glass_exchanges_near_pixels_in_order_between_two_blurs() -> None:
    image = picture(9, 11)
    random = np.random.default_rng(3)
    wanted = ndimage.gaussian_filter(image, (0.9, 0.9, 0), mode="nearest")
    for _ in range(2):
        shifts = random.integers(-2, 2, (5 * 7, 2))
        count = 0
        for row in range(9 - 2, 2, -1):
            for col in range(11 - 2, 2, -1):
                right, down = shifts[count]
                one, other = wanted[row, col].copy(), wanted[row + down, col + right].copy()
                wanted[row, col], wanted[row + down, col + right] = other, one
                count += 1
    wanted = ndimage.gaussian_filter(wanted, (0.9, 0.9, 0), mode="nearest")
    np.testing.assert_allclose(run("glass_blur", image, (0.9, 2, 2)), wanted, atol=1e-12)


def test_motion_is_half_a_gaussian_along_a_line() -> None:
    image = np.zeros((9, 9, 1))
    image[4, 4] = 1.0
    weights = np.exp(-(np.arange(5) ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    flat, steep = moved(image, 2, 1.5, 0.0)[..., 0], moved(image, 2, 1.5, 90.0)[..., 0]
    np.testing.assert_allclose(flat[4, 4::-1], weights)
    np.testing.assert_allclose(steep[4::-1, 4], weights)
    slanted = moved(image, 2, 1.5, 45.0)[..., 0]
    places = [4, 3, 2, 1]  # steps of a half and more count: 0, 0.7 and 1.4, 2.1, 2.8
    np.testing.assert_allclose(slanted[places, places], [weights[0], weights[1] + weights[2], *weights[3:]])
    assert np.count_nonzero(slanted) == 4
    np.testing.assert_allclose(run("motion_blur", np.full((7, 8, 3), 0.3), (10, 3)), 0.3)


@pytest.mark.parametrize("factor", [1.0, 1.07, 1.3, 2.5])
def test_zooming_is_scipys_of_the_middle(factor: float) -> None:
    image = picture(32, 32)
    part = int(np.ceil(32 / factor))
    top = (32 - part) // 2
    whole: Any = ndimage.zoom(image[top : top + part, top : top + part], (factor, factor, 1), order=1)
    cut = (len(whole) - 32) // 2
    np.testing.assert_allclose(zoomed(image, factor), whole[cut : cut + 32, cut : cut + 32], atol=1e-9)
    wanted = (image + zoomed(image, 1.0) + zoomed(image, 1.02) + zoomed(image, 1.04)) / 4
    np.testing.assert_allclose(run("zoom_blur", image, (3, 0.02)), wanted)


def slow_plasma(side: int, decay: float, random: np.random.Generator) -> Reals:
    """Squares and diamonds a point at a time, from the same draws."""
    field, step, rough = np.zeros((side, side)), side, 100.0
    while step >= 2:
        half, count = step // 2, side // step
        for kind in ("square", "beside", "below"):
            drawn = random.uniform(-rough, rough, (count, count)) * rough
            for i in range(count):
                for j in range(count):
                    row, col = i * step + half * (kind != "beside"), j * step + half * (kind != "below")
                    around = [(-half, -half), (-half, half), (half, -half), (half, half)]
                    if kind != "square":
                        around = [(-half, 0), (half, 0), (0, -half), (0, half)]
                    near = [field[(row + down) % side, (col + right) % side] for down, right in around]
                    field[row, col] = sum(near) / 4 + drawn[i, j]
        step, rough = half, rough / decay
    field -= field.min()
    return field / field.max()


def test_fog_is_a_rough_field_in_front_of_the_image() -> None:
    field = slow_plasma(16, 1.7, np.random.default_rng(3))
    np.testing.assert_allclose(plasma(16, 1.7, np.random.default_rng(3)), field, atol=1e-9)
    image = picture(11, 14)
    most = image.max()
    wanted = (image + 2.5 * field[:11, :14, None]) * most / (most + 2.5)
    np.testing.assert_allclose(run("fog", image, (2.5, 1.7)), wanted, atol=1e-9)


def test_snow_whitens_and_adds_flakes_and_the_same_turned() -> None:
    image = picture(16, 16)
    gray = image @ [0.299, 0.587, 0.114]
    white = 0.7 * image + 0.3 * np.maximum(image, 1.5 * gray[..., None] + 0.5)
    np.testing.assert_allclose(run("snow", image, (0.1, 0.3, 2, 99, 10, 4, 0.7)), white)  # no flake is so large
    flakes = run("snow", image, (0.55, 0.3, 2.5, 0.5, 4, 2, 0.7)) - white
    np.testing.assert_allclose(flakes, np.rot90(flakes, 2), atol=1e-12)
    assert 0 <= flakes.min() < 0.05 < flakes.max() <= 2


def test_frost_adds_what_is_between_nothing_and_white() -> None:
    image = picture()
    added = run("frost", image, (0.7, 0.5)) - 0.7 * image
    assert 0 < added.min() < 0.3 < added.max() <= 0.5
    assert (added[..., 2] >= added[..., 0]).all()  # ice is blue


def test_brightness_is_added_to_the_value_of_hue_saturation_and_value() -> None:
    image = picture(5, 6)
    image[0, 0], image[1, 1] = 0, (0.9, 0.2, 0.9)
    found = run("brightness", image, 0.3)
    for row in range(5):
        for col in range(6):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[row, col])
            wanted = colorsys.hsv_to_rgb(hue, saturation, min(value + 0.3, 1))
            np.testing.assert_allclose(found[row, col], wanted, atol=1e-12)


def test_contrast_moves_each_channel_to_its_mean() -> None:
    image = np.array([[[0.2, 0.8], [0.4, 0.0]]])
    np.testing.assert_allclose(run("contrast", image, 0.1), [[[0.29, 0.44], [0.31, 0.36]]])


@pytest.mark.parametrize("numbers", [(0, 0.1, 0.08), (0.3, 0.06, 0.0), (0.05, 0.3, 0.06)])
def test_elastic_is_scipys_after_a_map_of_three_points(numbers: tuple[float, float, float]) -> None:
    image, random = picture(), np.random.default_rng(3)
    length, sigma, far = (HEIGHT * part for part in numbers)
    middle, third = np.array([WIDTH // 2, HEIGHT // 2]), HEIGHT // 3
    points = np.array([middle + third, middle + np.array([third, -third]), middle - third], dtype=float)
    there = points + random.uniform(-far, far, (3, 2))
    # x' = a x + b y + c for the three points, inverted by homogeneous matrices; scipy counts rows first.
    matrix = np.vstack([np.c_[there, np.ones(3)].T]).T
    forward = np.vstack([np.linalg.lstsq(np.c_[points, np.ones(3)], there, rcond=None)[0].T, [0, 0, 1]])
    assert matrix.shape == (3, 3)
    back = np.linalg.inv(forward)
    turned = back[[1, 0, 2]][:, [1, 0, 2]]
    moved_image = [ndimage.affine_transform(image[..., c], turned, order=1, mode="mirror") for c in range(3)]
    dx, dy = (
        length * ndimage.gaussian_filter(random.uniform(-1, 1, (HEIGHT, WIDTH)), sigma, mode="reflect", truncate=3)
        for _ in range(2)
    )
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    wanted = [ndimage.map_coordinates(part, (y + dy, x + dx), order=1, mode="reflect") for part in moved_image]
    found = run("elastic_transform", image, numbers)
    np.testing.assert_allclose(found, np.stack(wanted, axis=2), atol=1e-9)


def test_pixels_and_jpeg_are_pillows() -> None:
    image = np.rint(picture() * 255).astype(np.uint8)
    library = Image.fromarray(image)
    small = library.resize((int(WIDTH * 0.4), int(HEIGHT * 0.4)), Image.Resampling.BOX)
    wanted = np.asarray(small.resize((WIDTH, HEIGHT), Image.Resampling.BOX))
    np.testing.assert_array_equal(np.rint(run("pixelate", image / 255, 0.4) * 255), wanted)
    buffer = io.BytesIO()
    library.save(buffer, "JPEG", quality=18)
    found = run("jpeg_compression", image / 255, 18) * 255
    assert np.abs(found - np.asarray(Image.open(buffer))).max() <= 1  # another decoder may round otherwise


def test_zooms_are_those_of_the_published_ranges() -> None:
    ends = {0: ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))}
    ends[1] = ends[2] = ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01))
    for side, published in ends.items():
        for (steps, step), (end, by) in zip(TABLE["zoom_blur"][side], published, strict=True):
            np.testing.assert_allclose(1 + step * np.arange(steps), np.arange(1, end, by))


def test_an_image_has_the_table_of_the_nearest_side_and_lengths_grow_with_it() -> None:
    assert strength("defocus_blur", 3, 224) == ((6, 0.5), 1.0)
    assert strength("defocus_blur", 3, 384) == ((6, 0.5), 384 / 224)
    assert strength("defocus_blur", 3, 64) == ((1.5, 0.1), 1.0)
    assert strength("defocus_blur", 3, 32) == ((0.5, 0.6), 1.0)
    assert strength("jpeg_compression", 5, 28)[0] == 40
    assert TABLE.keys() == {*NAMES} == KINDS.keys()
    assert all(len(numbers) == 5 for sides in TABLE.values() for numbers in sides)
    blurred = [run("defocus_blur", picture(), (3, 0.1), scale=2), run("defocus_blur", picture(), (6, 0.1))]
    np.testing.assert_allclose(blurred[0], blurred[1])


@pytest.mark.parametrize("name", NAMES)
def test_every_corruption_is_a_function_of_the_image_and_the_seed_and_gets_worse(name: str) -> None:
    image = np.rint(picture(32, 32) * 255).astype(np.uint8)
    found = [corrupt(image, name, severity) for severity in (1, 5)]
    assert np.array_equal(corrupt(image.copy(), name, 5), found[1])
    assert found[1].dtype == np.uint8
    assert found[1].shape == image.shape
    drawn = ("noise", "glass", "motion", "snow", "frost", "fog", "elastic")
    assert np.array_equal(corrupt(image, name, 5, seed=1), found[1]) == (not any(word in name for word in drawn))
    far = [np.abs(each.astype(int) - image).mean() for each in found]
    # The first elastic one moves all of the image, and the worst frost hides more and brightens less.
    assert far[1] > far[0] or name in ("elastic_transform", "frost")
    for channels in (1, 2):
        assert corrupt(image[..., :channels], name, 3).shape == (32, 32, channels)


def test_a_source_gives_images_as_the_model_reads_them_and_corrupted() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (3, 40, 30, 3), dtype=np.uint8)
    base = MemorySource(pixels, np.array([0, 1, 1]), ("a", "b"))
    cut = Preprocessing(resize="crop", crop_share=0.8)
    source = CorruptedSource(base, "contrast", 5, size=(16, 12), preprocessing=cut)
    read = source.read(1)
    assert isinstance(read, np.ndarray)
    assert read.shape == (16, 12, 3)
    plain = source.transform(pixels[1], 1, 0).permute(1, 2, 0).numpy()
    assert np.array_equal(read, corrupt(plain, "contrast", 5))
    assert source.labels.tolist() == [0, 1, 1]
    assert source.name(2) == base.name(2)
    assert source.fingerprint != base.fingerprint
    with pytest.raises(ConfigError, match="corruption must be one of 'gaussian_noise'"):
        CorruptedSource(base, "rain", 1, size=(16, 12), preprocessing=cut)
    with pytest.raises(ConfigError, match="severity must be a whole number"):
        corrupt(plain, "fog", 6)
    with pytest.raises(DataError, match="images of 8 bits"):
        corrupt(np.zeros((3, 3, 3), np.float32), "fog", 1)  # pyright: ignore[reportArgumentType]
