"""Near-copies: planted ones are found, distinct images are not, and the index finds what comparing all pairs finds."""

import numpy as np
import pytest
from copies import copies, picture
from numpy.typing import NDArray

from vitrail.data.decode import decode
from vitrail.ops.near import WIDTH, _Table, connected, is_near, mirror, near_pairs, thumbnail

PICTURES = 40


@pytest.fixture(scope="module")
def originals() -> NDArray[np.uint8]:
    return np.stack([thumbnail(picture(seed)) for seed in range(PICTURES)])


@pytest.fixture(scope="module")
def planted() -> dict[str, NDArray[np.uint8]]:
    made = [copies(picture(seed)) for seed in range(PICTURES)]
    return {kind: np.stack([thumbnail(decode(each[kind])) for each in made]) for kind in made[0]}


def test_a_thumbnail_is_the_mean_of_each_cell() -> None:
    pixels = picture(0, 80, 112)
    found = thumbnail(pixels)
    assert (found.shape, found.dtype) == ((WIDTH,), np.uint8)
    luma = pixels @ np.array([0.299, 0.587, 0.114])
    blue = pixels @ np.array([-0.168736, -0.331264, 0.5]) + 128
    np.testing.assert_allclose(found[:256], luma.reshape(16, 5, 16, 7).mean((1, 3)).ravel(), atol=0.51)
    np.testing.assert_allclose(found[256:272], blue.reshape(4, 20, 4, 28).mean((1, 3)).ravel(), atol=0.51)
    gray = thumbnail(pixels[:, :, :1])
    np.testing.assert_allclose(gray[:256], pixels[:, :, 0].reshape(16, 5, 16, 7).mean((1, 3)).ravel(), atol=0.51)
    assert (gray[256:] == 128).all()
    assert thumbnail(np.full((3, 5, 3), 7, np.uint8))[0] == 7  # smaller than a thumbnail


def test_every_kind_of_copy_is_found_and_nothing_else(
    originals: NDArray[np.uint8], planted: dict[str, NDArray[np.uint8]]
) -> None:
    assert near_pairs(originals).tolist() == []
    for kind, thumbnails in planted.items():
        pairs = near_pairs(np.concatenate([originals, thumbnails]))
        assert [number for pair in pairs.tolist() if (number := pair[0]) != pair[1] - PICTURES] == [], kind
        assert len(pairs) >= 0.95 * PICTURES, kind


def test_the_index_finds_what_comparing_all_pairs_finds(
    originals: NDArray[np.uint8], planted: dict[str, NDArray[np.uint8]]
) -> None:
    every = np.concatenate([originals, *planted.values()])
    first, second = np.triu_indices(len(every), 1)
    all_pairs = np.stack([first, second], axis=1)
    wanted = all_pairs[is_near(every[first], every[second])]
    found = {tuple(pair) for pair in near_pairs(every).tolist()}
    assert found <= {tuple(pair) for pair in wanted.tolist()}
    assert len(found) >= 0.98 * len(wanted)
    assert len(wanted) > 10 * PICTURES


def test_mirrored_copies_are_found_where_they_are_asked_for(originals: NDArray[np.uint8]) -> None:
    turned = np.stack([thumbnail(picture(seed)[:, ::-1]) for seed in range(PICTURES)])
    np.testing.assert_allclose(mirror(originals).astype(int), turned.astype(int), atol=1)
    both = np.concatenate([originals, turned])
    assert near_pairs(both).tolist() == []
    assert near_pairs(both, mirrored=True).tolist() == [[number, number + PICTURES] for number in range(PICTURES)]


def test_flat_images_are_like_nothing_else() -> None:
    random = np.random.default_rng(0)
    flat = [np.full((40, 40, 3), level, np.uint8) for level in (0, 0, 90, 91, 255)]
    noisy = [random.integers(100, 104, (40, 40, 3), dtype=np.uint8) for _ in range(20)]
    faint = np.broadcast_to(np.linspace(90, 94, 40).astype(np.uint8)[:, None], (40, 40, 3))  # as of a lens, in each
    assert near_pairs(np.stack([thumbnail(each) for each in [*flat, *noisy, faint, faint]])).tolist() == []


def test_a_key_is_looked_up_with_its_four_least_certain_signs_either_way() -> None:
    random = np.random.default_rng(3)
    values = random.normal(size=(19, 256)).astype(np.float32)
    kept = values > 0
    least = np.argsort(np.abs(values), axis=0)
    for column in range(256):
        turned = [place for place in range(4) if column >> place & 1]  # every set of the four, sixteen times
        kept[least[turned, column], column] ^= True
    kept[least[4, 17], 17] ^= True  # the fifth is certain
    keys = (kept * (1 << np.arange(19))[:, None]).sum(axis=0)
    rows, numbers = _Table(keys, 19).look_up(values)
    assert np.bincount(rows[rows == numbers], minlength=256).tolist() == [int(column != 17) for column in range(256)]
    assert all(
        bin(int(keys[number]) ^ int(keys[row])).count("1") <= 9 for row, number in zip(rows, numbers, strict=True)
    )


def test_images_that_are_alike_anyway_must_be_more_alike_to_be_copies() -> None:
    """One scene in every image, a small thing of its own in each: none is a copy, until it is encoded again."""
    scene = picture(0).astype(int)
    alike = [(0.8 * scene + 0.2 * picture(seed)).astype(np.uint8) for seed in range(1, 61)]
    thumbnails = np.stack([thumbnail(each) for each in alike])
    assert is_near(thumbnails[:1], thumbnails[1:2]).all()  # among photographs of all things it would be one
    assert near_pairs(thumbnails).tolist() == []
    again = np.stack([thumbnail(decode(copies(each)["quality 30"])) for each in alike[:10]])
    found = near_pairs(np.concatenate([thumbnails, again])).tolist()
    assert found == [[number, number + 60] for number in range(10)]


def test_few_or_no_images_have_no_pairs() -> None:
    assert near_pairs(np.zeros((0, WIDTH), np.uint8)).shape == (0, 2)
    assert near_pairs(thumbnail(picture(0))[None]).shape == (0, 2)


def test_pairs_connect_groups() -> None:
    pairs = np.array([[4, 6], [2, 4], [1, 5], [6, 8]])
    assert connected(pairs, 9).tolist() == [0, 1, 2, 3, 2, 1, 2, 7, 2]
    assert connected(pairs[:0], 3).tolist() == [0, 1, 2]
