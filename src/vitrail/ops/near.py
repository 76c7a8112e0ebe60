"""Near-copies by what images show: a thumbnail of each, an index of their cosine transforms, and a close look at pairs.

A copy that was encoded again, resized, or cropped by up to 5 % at each edge has the low frequencies of its original,
seen through a window. So every image is looked up as it is and through ten windows. What agrees in the signs of a band
of coefficients, the least certain aside, is compared in all of them; what still agrees is aligned, then compared in
detail.
"""

import math
from functools import cache
from itertools import product

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor

SIDE, COARSE = 16, 4  # of a thumbnail: its brightness, and each of its two color differences
WIDTH = SIDE * SIDE + 2 * COARSE * COARSE  # bytes of a thumbnail
COLORS = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))  # of ITU-R 601
FLAT = 2.0  # levels of deviation: what shows less cannot be told from another
COEFFICIENTS = 64  # of the lowest frequencies
EDGE = 0.05  # of a side that may be cropped away
BANDS = 2  # groups of coefficients whose signs are a key each
SPARSE, FEWEST, MOST = 4, 16, 24  # bits of a key: so many beyond the logarithm of the images, at least, at most
UNSURE = 4  # signs of a key that are looked up either way
BUCKET = 64  # images with one key that are compared; of more, the first
AGREE, LOOSE = 0.65, 5.0  # cosine of the coefficients of a pair that is worth a close look; what it lacks, by details
SHADE, TINT = 16.0, 6.0  # levels by which a near-copy may differ: in mean brightness, and in the 4x4 of its colors
DETAIL = 0.8  # similarity of the details of a near-copy, 1 at most; more where the images of a set are alike anyway
DRAWN, FEW, TIMES = 1024, 20, 4.0  # pairs drawn to find out, images that are too few for that, and what is asked then
STRICTEST = 0.997  # similarity: that of a picture of 28 pixels and its JPEG of quality 30
SAME = 1.0  # levels of deviation between two thumbnails that need no closer look
REACH = 0.13  # of half a side: how far an alignment may move or stretch
BAND = 1 << 24  # levels of an image that are shrunk at a time
ROWS, PAIRS = 1 << 13, 1 << 10  # images, and pairs, at a time


def thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Shrink pixels, H W C of 1 or 3 channels, by area: 16x16 of brightness, then 4x4 of each color difference."""
    rows, cols = (_areas(side) for side in pixels.shape[:2])
    bands = 1 + pixels.size // BAND  # since real numbers take four times the memory
    parts = zip(np.array_split(rows, bands, axis=1), np.array_split(pixels, bands), strict=True)
    flat = sum(np.tensordot(share, part.astype(np.float32), axes=(1, 0)) for share, part in parts)  # 16 W C
    small = np.tensordot(flat, cols, axes=(1, 1))  # 16 C 16
    colors = np.broadcast_to(small, (SIDE, 3, SIDE)).transpose(1, 0, 2).reshape(3, SIDE * SIDE)
    bright, *others = np.array(COLORS, dtype=np.float32) @ colors
    cells = (COARSE, SIDE // COARSE) * 2
    coarse = [other.reshape(cells).mean(axis=(1, 3)).ravel() + 128 for other in others]
    return np.concatenate([bright, *coarse]).round().clip(0, 255).astype(np.uint8)


def near_pairs(thumbnails: NDArray[np.uint8], *, mirrored: bool = False) -> NDArray[np.int64]:
    """Find the pairs of near-copies among thumbnails, N 288: P rows of two numbers, the lower first, in order.

    With `mirrored`, also of images and mirrored ones. What is flat is like nothing else.
    """
    bright = thumbnails[:, : SIDE * SIDE]
    detailed = np.concatenate(
        [bright[at : at + ROWS].std(axis=1) >= FLAT for at in range(0, len(bright), ROWS)] or [[]]
    )
    places = np.flatnonzero(detailed)
    shown = thumbnails[places]
    least = least_similarity(shown)
    found = [_looked_at(shown, shown, candidates(shown, shown, least), least)]
    if mirrored:
        turned = mirror(shown)
        found.append(_looked_at(turned, shown, candidates(turned, shown, least), least))
    return np.unique(places[np.concatenate(found)], axis=0)


def mirror(thumbnails: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn thumbnails left to right."""
    parts = np.split(thumbnails, [SIDE**2, SIDE**2 + COARSE**2], axis=1)
    sides = (SIDE, COARSE, COARSE)
    turned = [
        part.reshape(-1, side, side)[:, :, ::-1].reshape(len(part), -1) for part, side in zip(parts, sides, strict=True)
    ]
    return np.concatenate(turned, axis=1)


def connected(pairs: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Number the groups that pairs connect: each of `count` samples has the lowest number in its group."""
    lowest = np.arange(count)
    while True:
        before = lowest.copy()
        ends = lowest[pairs].min(axis=1)
        np.minimum.at(lowest, pairs[:, 0], ends)
        np.minimum.at(lowest, pairs[:, 1], ends)
        lowest = lowest[lowest]
        if np.array_equal(lowest, before):
            return lowest


def candidates(queries: NDArray[np.uint8], thumbnails: NDArray[np.uint8], least: float = DETAIL) -> NDArray[np.int64]:
    """Give pairs that may be near-copies: rows (query, thumbnail) of other numbers, each pair once."""
    agree = max(AGREE, 1 - LOOSE * (1 - least))
    count = len(thumbnails)
    if count < 2:
        return np.zeros((0, 2), dtype=np.int64)
    bits = int(np.clip(np.ceil(np.log2(count)) + SPARSE, FEWEST, MOST))
    bright = (_bright(thumbnails[at : at + ROWS]) for at in range(0, count, ROWS))
    kept = np.concatenate([_coefficients(some, 0) for some in bright])
    tables = [_Table(_keys(kept[:, band : BANDS * bits : BANDS].T > 0), bits) for band in range(BANDS)]
    coarse = np.round(kept * 127).astype(np.int8)  # a quarter of the memory
    del kept
    found = [np.zeros((0, 2), dtype=np.int64)]
    for at in range(0, len(queries), ROWS):
        some = _bright(queries[at : at + ROWS])
        for view in range(len(_windows())):
            values = _coefficients(some, view)
            columns = np.ascontiguousarray(values.T)
            for band, table in enumerate(tables):
                rows, numbers = table.look_up(columns[band : BANDS * bits : BANDS])
                other = rows + at != numbers
                rows, numbers = rows[other], numbers[other]
                cosines = np.einsum("nk,nk->n", values[rows], coarse[numbers].astype(np.float32)) / 127
                near = cosines >= agree
                found.append(np.stack([rows[near] + at, numbers[near].astype(np.int64)], axis=1))
    return np.unique(np.concatenate(found), axis=0)


class _Table:
    """Numbers of images by key, for looking up many keys at once."""

    def __init__(self, keys: NDArray[np.int64], bits: int) -> None:
        counts = np.bincount(keys, minlength=1 << bits)
        self.taken = counts > 0
        self.counts = np.minimum(counts, BUCKET).astype(np.int8)
        self.starts = np.cumsum(counts, dtype=np.int32) - counts.astype(np.int32)
        self.numbers = np.argsort(keys, kind="stable").astype(np.int32)

    def look_up(self, values: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Give columns and the numbers of images whose keys are theirs, with any of the unsure signs turned."""
        keys, unsure = _keys(values > 0), _unsure(values)
        wanted = np.empty((1 << UNSURE, len(keys)), dtype=np.int64)
        for number, row in enumerate(wanted):  # a Gray code: every set of signs, by turning one more at a time
            if number:
                keys ^= unsure[(number & -number).bit_length() - 1]
            row[:] = keys
        wanted = wanted.ravel()
        places = np.flatnonzero(self.taken[wanted])
        taken = wanted[places]
        counts = self.counts[taken].astype(np.int64)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(places % len(keys), counts), self.numbers[np.repeat(self.starts[taken], counts) + within]


def _keys(signs: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Read columns of signs as numbers, the first sign the lowest bit."""
    weights = (1 << np.arange(len(signs))).astype(np.float32)  # of up to 24 bits: exact
    return (weights @ signs.astype(np.float32)).astype(np.int64)


def _unsure(values: NDArray[np.float32]) -> list[NDArray[np.int64]]:
    """Give the bits of a key whose values are the nearest to 0, the nearest first: a mask for each column."""
    # The bits of a float order as it does, but for the sign; the last five make room for the place.
    packed = values.view(np.int32) & 0x7FFFFFE0 | np.arange(len(values), dtype=np.int32)[:, None]
    masks = []
    for _ in range(UNSURE):
        least = packed.min(axis=0)
        np.putmask(packed, packed == least, np.iinfo(np.int32).max)
        masks.append(np.int64(1) << (least & 31).astype(np.int64))
    return masks


def _bright(thumbnails: NDArray[np.uint8]) -> NDArray[np.float32]:
    return thumbnails[:, : SIDE * SIDE].astype(np.float32)


def _coefficients(bright: NDArray[np.float32], view: int) -> NDArray[np.float32]:
    """Give the lowest frequencies of thumbnails through a window, each as likely to be large: rows of length 1."""
    values = bright @ _projections()[view].T
    values /= _lengths(values) / COEFFICIENTS**0.5
    np.clip(values, -1, 1, out=values)  # so that no one of them decides
    values /= _lengths(values)
    return values


def _lengths(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.sqrt(np.einsum("nk,nk->n", values, values)).clip(min=1e-6)[:, None]


@cache
def _projections() -> list[NDArray[np.float32]]:
    """Give the matrix of each window: 64 coefficients of a cosine transform, by frequency, from 256 of brightness."""
    places = np.arange(SIDE)
    waves = np.cos(np.pi * (places + 0.5) * places[:, None] / SIDE)  # frequency by place
    pairs = sorted(product(range(SIDE), repeat=2), key=lambda pair: (pair[0] ** 2 + pair[1] ** 2, pair))
    pairs = pairs[1 : COEFFICIENTS + 1]
    # A photograph's amplitudes fall with the frequency; where one of the two is 0, its wave is longer by root 2.
    weights = [math.hypot(*pair) / (2**0.5 if 0 in pair else 1) for pair in pairs]
    made = []
    for rows, cols in _windows():
        down, across = (waves @ _taps(torch.tensor([window]))[0].numpy() for window in (rows, cols))
        matrix = [weight * np.outer(down[u], across[v]).ravel() for weight, (u, v) in zip(weights, pairs, strict=True)]
        made.append(np.stack(matrix).astype(np.float32))
    return made


@cache
def _windows() -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """List windows by (shift, stretch) of rows and columns: all, a little less, less, and without one or two edges."""
    whole, low, high = (0.0, 0.0), (EDGE, -EDGE), (-EDGE, -EDGE)
    corners = [(down, across) for down in (low, high) for across in (low, high)]
    edges = [(whole, low), (whole, high), (low, whole), (high, whole)]
    less, least = (0.0, -EDGE), (0.0, -2 * EDGE)
    return [(whole, whole), (less, less), (least, least), *corners, *edges]


def _looked_at(
    queries: NDArray[np.uint8], thumbnails: NDArray[np.uint8], pairs: NDArray[np.int64], least: float
) -> NDArray[np.int64]:
    """Keep the pairs that are near-copies, the lower number first."""
    kept = [pairs[at : at + PAIRS] for at in range(0, len(pairs), PAIRS)]
    kept = [some[is_near(queries[some[:, 0]], thumbnails[some[:, 1]], least)] for some in kept]
    return np.sort(np.concatenate([pairs[:0], *kept]), axis=1)


def least_similarity(thumbnails: NDArray[np.uint8]) -> float:
    """Say how similar near-copies must be in a set of thumbnails: more where nine of ten pairs drawn are alike anyway.

    Faces that look ahead and trousers on white are alike without being copies; photographs of all things are not.
    """
    if len(thumbnails) < FEW:
        return DETAIL
    drawn = np.random.default_rng(0).integers(0, len(thumbnails), (DRAWN, 2))
    one, two = (_brightness(torch.from_numpy(thumbnails[each])) for each in drawn[drawn[:, 0] != drawn[:, 1]].T)
    usual = float(torch.maximum(_similarity(one, two), _similarity(two, one)).quantile(0.9).clamp(0, 0.9))
    return min(float(np.tanh(max(np.arctanh(DETAIL), TIMES * np.arctanh(usual)))), STRICTEST)


def is_near(first: NDArray[np.uint8], second: NDArray[np.uint8], least: float = DETAIL) -> NDArray[np.bool_]:
    """Tell which rows of two arrays of thumbnails are near-copies of each other."""
    one, two = (torch.from_numpy(each.astype(np.float32)) for each in (first, second))
    apart = one - two
    found = apart.square().mean(dim=1).sqrt() <= SAME
    bright, colors = apart[:, : SIDE * SIDE], apart[:, SIDE * SIDE :]
    alike = (bright.mean(dim=1).abs() <= SHADE) & (colors.square().mean(dim=1).sqrt() <= TINT)
    (open_pairs,) = torch.nonzero(alike & ~found, as_tuple=True)
    one, two = (_brightness(each[open_pairs]) for each in (one, two))
    found[open_pairs] = torch.maximum(_similarity(one, two), _similarity(two, one)) >= least
    return found.numpy()


def _brightness(thumbnails: Shaped[Tensor, "N 288"]) -> Float[Tensor, "N 16 16"]:
    """Give the brightness of thumbnails, smoothed."""
    return _smoothed(thumbnails[:, : SIDE * SIDE].float().unflatten(1, (SIDE, SIDE)))


def _similarity(image: Float[Tensor, "N 16 16"], other: Float[Tensor, "N 16 16"]) -> Float[Tensor, " N"]:
    """Say how alike the details are after the image was moved and stretched onto the other: 1 where they are equal."""
    moved = _moved(image, _alignment(image, other))
    one, two = ((each - _smoothed(_smoothed(each)))[:, 1:-1, 1:-1].flatten(1) for each in (moved, other))
    both = (one.square() + two.square()).sum(dim=1)
    return 1 - (one - two).square().sum(dim=1) / both.clamp(min=1e-6)


def _alignment(image: Float[Tensor, "N 16 16"], other: Float[Tensor, "N 16 16"]) -> Float[Tensor, "N 4"]:
    """Find the shift and stretch of columns and rows that explain the other best: least squares, in two steps."""
    found, slope = image.new_zeros(len(image), 4), _slopes()
    places = _places()
    for _ in range(2):
        moved = _moved(image, found)
        across, down = moved @ slope.T, slope @ moved
        parts = (moved, torch.ones_like(moved), across, across * places, down, down * places[:, None])
        inputs = torch.stack(parts, dim=1).flatten(2)  # N 6 256
        scale = inputs.square().sum(dim=2).clamp(min=1e-3).rsqrt()
        inputs = inputs * scale[:, :, None]
        products = inputs @ inputs.mT + 1e-3 * torch.eye(len(parts))
        solved = torch.linalg.solve(products, inputs @ other.flatten(1)[:, :, None])[..., 0] * scale
        found = (found + solved[:, 2:] / solved[:, :1].clamp(min=0.3)).clamp(-REACH, REACH)
    return found


def _moved(image: Float[Tensor, "N 16 16"], by: Float[Tensor, "N 4"]) -> Float[Tensor, "N 16 16"]:
    return _taps(by[:, 2:]) @ image @ _taps(by[:, :2]).mT


def _taps(by: Float[Tensor, "N 2"]) -> Float[Tensor, "N 16 16"]:
    """Give matrices that interpolate along a side, at places that are shifted and stretched; edges go on."""
    wanted = (_places() + by[:, :1] + by[:, 1:] * _places() + 1) * SIDE / 2 - 0.5
    return (1 - (wanted.clamp(0, SIDE - 1)[:, :, None] - torch.arange(SIDE)).abs()).clamp(min=0)


def _places() -> Float[Tensor, " 16"]:
    return (torch.arange(SIDE) + 0.5) / SIDE * 2 - 1


@cache
def _slopes() -> Float[Tensor, "16 16"]:
    """Give the matrix of differences along a side: of both neighbors, at an edge of one."""
    made = torch.zeros(SIDE, SIDE)
    for place in range(SIDE):
        low, high = max(place - 1, 0), min(place + 1, SIDE - 1)
        made[place, high] += SIDE / 2 / (high - low)
        made[place, low] -= SIDE / 2 / (high - low)
    return made


@cache
def _smoothing() -> Float[Tensor, "16 16"]:
    made = torch.zeros(SIDE, SIDE)
    for place in range(SIDE):
        for near, weight in ((place - 1, 0.25), (place, 0.5), (place + 1, 0.25)):
            made[place, min(max(near, 0), SIDE - 1)] += weight
    return made


def _smoothed(images: Float[Tensor, "N 16 16"]) -> Float[Tensor, "N 16 16"]:
    return _smoothing() @ images @ _smoothing().T


@cache
def _areas(side: int) -> NDArray[np.float32]:
    """Give the weights of the pixels of a side in each of 16 equal stretches of it."""
    edges, pixels = np.linspace(0, side, SIDE + 1), np.arange(side)
    shared = np.minimum(pixels + 1, edges[1:, None]) - np.maximum(pixels, edges[:-1, None])
    return (shared.clip(min=0) * (SIDE / side)).astype(np.float32)
