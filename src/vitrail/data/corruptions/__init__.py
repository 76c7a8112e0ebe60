"""The corruptions of ImageNet-C (Hendrycks and Dietterich, 2019), made here: of an image, and of a source of images."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from vitrail.config import Preprocessing
from vitrail.data.corruptions.kinds import KINDS, levels
from vitrail.data.corruptions.tables import NAMES as NAMES, SEVERITIES as SEVERITIES, strength
from vitrail.data.decode import Pixels
from vitrail.data.source import Source
from vitrail.data.transforms.resize import EvalTransform
from vitrail.errors import DataError


def corrupt(pixels: NDArray[np.uint8], name: str, severity: int, *, seed: int = 0) -> NDArray[np.uint8]:
    """Corrupt an image, H W C of 8 bits; what is random is a function of the image, the seed and what is asked."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or not pixels.size:
        raise DataError(
            f"corruptions are of images of 8 bits, H W C; got {pixels.dtype} of {pixels.shape}. "
            "Leave value_range out, or corruptions."
        )
    numbers, scale = strength(name, severity, min(pixels.shape[:2]))
    said = f"{seed}/{name}/{severity}/{pixels.shape}/".encode()
    digest = blake2b(said + np.ascontiguousarray(pixels).tobytes(), digest_size=16).digest()
    random = np.random.default_rng(int.from_bytes(digest))
    return levels(KINDS[name](pixels.astype(np.float64) / 255, numbers, scale, random))


class CorruptedSource(Source):
    """The images of a source as a model reads them in evaluation, corrupted: they are as large as it reads them."""

    def __init__(
        self,
        source: Source,
        name: str,
        severity: int,
        *,
        size: tuple[int, int],
        preprocessing: Preprocessing,
        channels: int = 3,
        seed: int = 0,
    ) -> None:
        strength(name, severity, min(size))  # refuses what there is not
        self.source, self.asked = source, (name, severity, seed)
        self.transform = EvalTransform(size, preprocessing, channels=channels)
        self.class_names = source.class_names
        self._labels = source.labels
        self._fingerprint = f"{source.fingerprint}, {name} {severity} {seed} {size}"

    def read(self, index: int) -> bytes | Pixels:
        """Read, resize and corrupt an image."""
        name, severity, seed = self.asked
        image = self.transform(self.source.read(index), index, 0).permute(1, 2, 0).contiguous().numpy()
        return corrupt(image, name, severity, seed=seed)

    def name(self, index: int) -> str:
        """Name a sample as its source does."""
        return self.source.name(index)
