"""Packed arrays: all images of a source decoded once, at one size, in a file that is mapped into memory."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitrail.config.check import LARGEST_SIDE, as_size, number, whole
from vitrail.data.decode import ImageError, OpenImage, Pixels, with_channels
from vitrail.data.source import Source, check_limit
from vitrail.data.sources.memory import checked_labels, checked_names
from vitrail.data.transforms.resize import resize
from vitrail.errors import ConfigError, DataError
from vitrail.files import (
    SUMS,
    fingerprint_of,
    new_folder,
    open_regular,
    read_json,
    read_regular,
    verify_sums,
    write_sums,
)
from vitrail.files.reading import LARGEST_HEADER, array_header

CARD, IMAGES, LABELS = "packed.json", "images.npy", "labels.npy"
FORMAT, VERSION = "vitrail packed images", 1
LARGEST_CARD = 64 << 20  # bytes; names of very many classes
AGAIN = "Pack it again."


@dataclass(frozen=True)
class PackReport:
    """What was packed: how many images, and which were left out with the reason."""

    count: int
    skipped: list[tuple[str, str]] = field(default_factory=list)


class PackedSource(Source):
    """The images of a packed folder, mapped: only what is read is in memory, and every process shares it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(os.path.abspath(folder))
        card = _read_card(self.folder)
        verify_sums(self.folder, [CARD, LABELS])
        try:
            self._shape = (
                whole("count", card["count"]),
                whole("height", card["height"], most=LARGEST_SIDE),
                whole("width", card["width"], most=LARGEST_SIDE),
                whole("channels", card["channels"], most=3),
            )
            self.class_names = checked_names(card["class_names"], least=0)
            self.packed_from = str(card["source"])
            self._labels = checked_labels(
                _read_labels(self.folder / LABELS, self._shape[0]), self._shape[0], len(self.class_names), least=-1
            )
        except (ConfigError, DataError, KeyError, TypeError, ValueError, OSError) as error:
            raise DataError(f"{self.folder} is damaged: {error!s}. {AGAIN}") from error
        self._mapped: NDArray[np.uint8] | None = self._map()
        self._fingerprint = fingerprint_of(
            str(self._shape), self.packed_from, self._labels, "\0".join(self.class_names)
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return self._shape[1:]

    def read(self, index: int) -> Pixels:
        """Give a copy of an image's pixels."""
        return np.array(self._pixels[self._within(index)])

    def read_many(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Give a copy of the pixels of several images."""
        return np.asarray(self._pixels[indices])

    @property
    def _pixels(self) -> NDArray[np.uint8]:
        if self._mapped is None:
            self._mapped = self._map()
        return self._mapped

    def name(self, index: int) -> str:
        """Give the folder and the number of an image."""
        return f"{self.folder.name} {index}"

    def _map(self) -> NDArray[np.uint8]:
        path = self.folder / IMAGES
        try:
            with open_regular(path) as file:
                shape, columns_first, dtype, start = array_header(file.read(LARGEST_HEADER))
                if shape != self._shape or dtype != np.uint8 or columns_first:
                    raise DataError(f"{path} must hold bytes of shape {self._shape}, as {CARD} says. {AGAIN}")
                return np.memmap(file, np.uint8, "r", start, shape)
        except (OSError, ValueError, OverflowError) as error:
            raise DataError(f"{path} cannot be mapped: {error}. {AGAIN}") from error

    def __getstate__(self) -> dict[str, Any]:
        # A mapping would be pickled with all its pixels.
        return {**self.__dict__, "_mapped": None}


def pack(
    source: Source,
    folder: str | os.PathLike[str],
    image_size: int | tuple[int, int],
    *,
    overwrite: bool,
    channels: int = 3,
    bad_image_limit: float = 0.01,
    progress: Callable[[int, int], None] | None = None,
) -> PackReport:
    """Decode every image, squash it to one size and write the packed folder; what cannot be decoded is left out.

    Past `bad_image_limit`, a share of the images, it stops and nothing is written. `progress` is told how many images
    are done, and of how many.
    """
    size = as_size(image_size)
    if channels not in (1, 3):
        raise ConfigError(f"channels must be 1 or 3; got {channels!r}.")
    if not 0 <= number("bad_image_limit", bad_image_limit) <= 1:
        raise ConfigError(f"bad_image_limit must be a share of the images, from 0 to 1; got {bad_image_limit!r}.")
    if not len(source):
        raise DataError("expected a source with images to pack; it has none.")
    with new_folder(folder, overwrite=overwrite, ours=(CARD, IMAGES, LABELS, SUMS), mark=CARD) as temporary:
        return _write(source, temporary, (*size, channels), bad_image_limit, progress)


def squash(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize to exactly (height, width), bilinear and antialiased."""
    if pixels.shape[:2] == size:
        return pixels
    image = torch.tensor(pixels).permute(2, 0, 1)  # C H W
    return resize(image, size, "antialias").permute(1, 2, 0).numpy()  # H W C


def _write(
    source: Source, folder: Path, shape: tuple[int, int, int], limit: float, progress: Callable[[int, int], None] | None
) -> PackReport:
    kept: list[int] = []
    report = PackReport(0)
    # Written, not mapped: a mapping ends the process where the disk is full.
    with open(folder / IMAGES, "wb") as file:
        _write_header(file, (len(source), *shape))
        start = file.tell()
        for index in range(len(source)):
            try:
                file.write(np.ascontiguousarray(_pixels(source.read(index), shape)).data)
                kept.append(index)
            except ImageError as error:
                report.skipped.append((source.name(index), str(error)))
                check_limit(report.skipped, len(report.skipped), len(source), limit)
            if progress is not None:
                progress(index + 1, len(source))
        file.seek(0)
        _write_header(file, (len(kept), *shape))
        assert file.tell() == start, "the header of .npy leaves room for any number of rows"
    if not kept:
        name, reason = report.skipped[0]
        raise DataError(f"none of {len(source)} images can be decoded; the first, {name}: {reason}. Check the source.")
    np.save(folder / LABELS, source.labels[kept])
    card = {"format": FORMAT, "version": VERSION, "count": len(kept)}
    card |= dict(zip(("height", "width", "channels"), shape, strict=True))
    card |= {"class_names": source.class_names, "source": source.fingerprint}
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    write_sums(folder)
    return PackReport(len(kept), report.skipped)


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})


def _pixels(data: bytes | Pixels, shape: tuple[int, int, int]) -> Pixels:
    height, width, channels = shape
    if isinstance(data, bytes):
        pixels = OpenImage(data).pixels(least=(height, width), channels=channels)
    else:
        pixels = with_channels(data, channels)
    return squash(pixels, (height, width))


def _read_labels(path: Path, count: int) -> NDArray[Any]:
    """Read the labels of so many images, and never more."""
    data = read_regular(path, most=LARGEST_HEADER + 8 * count)
    shape, _, dtype, start = array_header(data)
    if shape != (count,) or dtype.kind not in "iu":
        raise DataError(f"labels must be {count:,} whole numbers; got {dtype} of shape {shape}.")
    return np.frombuffer(data, dtype, count, start)


def _read_card(folder: Path) -> dict[str, Any]:
    path = folder / CARD
    try:
        card = read_json(path, most=LARGEST_CARD)
    except OSError as error:
        raise DataError(
            f"expected a folder of packed images; {path} cannot be read: {error.strerror or error}. Check the path."
        ) from error
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}. {AGAIN}") from error
    if not isinstance(card, dict) or card.get("format") != FORMAT or card.get("version") != VERSION:
        found = (card.get("format"), card.get("version")) if isinstance(card, dict) else card
        raise DataError(f"{path} must say {(FORMAT, VERSION)}; it says {found!r:.200}. {AGAIN}")
    return card
