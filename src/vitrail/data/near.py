"""Thumbnails of a source's images, from which near-copies are found: made once, kept on disk by what each image is."""

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import ImageError, OpenImage, Pixels
from vitrail.data.source import Source
from vitrail.errors import CheckpointError
from vitrail.files import cache_folder, fingerprint_of, hashes as files, read_arrays, replacing, writing
from vitrail.ops.near import SIDE, WIDTH, thumbnail

FORMAT = 1  # of the files; another number forgets them all
LARGEST = 200_000  # images among which near-copies are looked for unasked


class Thumbnails:
    """A row for each sample of a source, zeros where there is none, with the hash of the image that it was made of."""

    def __init__(self, source: Source) -> None:
        self.rows = np.zeros((len(source), WIDTH), dtype=np.uint8)
        self.hashes = np.zeros((len(source), files.WIDTH), dtype=np.uint8)
        self.path = cache_folder() / "near" / f"{fingerprint_of(f'{FORMAT}', source.fingerprint)}.npz"
        self.changed = False
        with suppress(OSError, ValueError, KeyError):
            held = read_arrays(self.path)
            rows, hashes = held["rows"], held["hashes"]
            if (rows.shape, hashes.shape) == (
                self.rows.shape,
                self.hashes.shape,
            ) and rows.dtype == hashes.dtype == np.uint8:
                self.rows, self.hashes = rows, hashes

    def has(self, index: int, found: bytes) -> bool:
        """Tell whether the row of a sample is of the image with this hash."""
        return self.hashes[index].tobytes() == found

    def make(self, index: int, found: bytes, data: bytes | Pixels, made: NDArray[np.uint8] | None = None) -> None:
        """Make the row of a sample, of the image as it was read, unless it is there, or was `made` of another."""
        if self.has(index, found):
            return
        self.rows[index], self.hashes[index] = (
            make_thumbnail(data) if made is None else made,
            np.frombuffer(found, dtype=np.uint8),
        )
        self.changed |= isinstance(data, bytes)  # pixels need no decoding: what is made of them is not worth a file

    def save(self) -> None:
        """Keep all rows for the next look; what the disk refuses is not kept."""
        if self.changed:
            with suppress(CheckpointError), writing(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(self.path) as temporary:
                    np.savez(temporary, rows=self.rows, hashes=self.hashes)
            self.changed = False


def make_thumbnail(data: bytes | Pixels) -> NDArray[np.uint8]:
    """Make a thumbnail of an image, a JPEG decoded small; zeros where it cannot be decoded or is no picture."""
    try:
        pixels = OpenImage(data).picture(least=(2 * SIDE, 2 * SIDE)) if isinstance(data, bytes) else data
    except ImageError:
        return np.zeros(WIDTH, dtype=np.uint8)
    return thumbnail(pixels) if pixels.shape[2] in (1, 3) and pixels.size else np.zeros(WIDTH, dtype=np.uint8)
