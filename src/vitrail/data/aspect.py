"""Batches of images of many shapes: each whole, at its own aspect ratio, as its patches beside those of the others."""

from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor

from vitrail.config import Preprocessing
from vitrail.data.decode import OpenImage, Pixels
from vitrail.data.feed import STILL, Loader, Reading
from vitrail.data.source import Batch, Source
from vitrail.data.transforms.finish import BatchTransform, scale
from vitrail.data.transforms.resize import evaluation_image
from vitrail.ops.packing import fit_grid, pack_patches


@dataclass
class AspectTransform:
    """The whole image in at most so many patches, at its own aspect ratio as far as whole patches let it."""

    patch: int
    patches: int
    preprocessing: Preprocessing
    channels: int = 3

    def __call__(self, data: bytes | Pixels, sample: int, epoch: int) -> Num[Tensor, "C H W"]:
        """Decode and resize; the same whatever the epoch."""
        image = OpenImage(data) if isinstance(data, bytes) else data
        shape = (image.height, image.width) if isinstance(image, OpenImage) else (image.shape[0], image.shape[1])
        rows, cols = fit_grid(*shape, self.patches)
        whole = replace(self.preprocessing, resize="squash", crop_share=1.0)
        return evaluation_image(image, (rows * self.patch, cols * self.patch), whole, None, self.channels)

    def join(self, images: list[Num[Tensor, "C _ _"]]) -> dict[str, Any]:
        """Give the images of a batch as all their patches, and the grid of each."""
        empty = torch.empty(0, self.patch**2 * self.channels, dtype=torch.uint8)
        grids = [(image.shape[1] // self.patch, image.shape[2] // self.patch) for image in images]
        patches = pack_patches(images, self.patch) if images else empty
        return {"images": patches, "grids": np.array(grids, dtype=np.int64).reshape(len(images), 2)}


@dataclass
class PatchTransform(BatchTransform):
    """Scales the patches of a batch; nothing is random."""

    patch: int

    def augment(self, batch: Batch) -> Batch:
        """Leave it as it is."""
        return batch

    def __call__(self, batch: Batch, *, augmented: bool = False) -> Batch:
        """Give float patches."""
        return batch._replace(images=scale_patches(batch.images, self.preprocessing, self.patch))


def scale_patches(patches: Num[Tensor, "N PPC"], preprocessing: Preprocessing, patch: int) -> Float[Tensor, "N PPC"]:
    """Turn levels into the numbers that a model reads, as `scale` does of images."""
    channels = patches.shape[1] // patch**2
    pictures = patches.unflatten(1, (patch, patch, channels)).permute(0, 3, 1, 2)  # N C P P, as it lies
    return scale(pictures, preprocessing).permute(0, 2, 3, 1).flatten(1)


def aspect_feed(
    source: Source,
    patch: int,
    patches: int,
    *,
    preprocessing: Preprocessing,
    channels: int = 3,
    **options: Unpack[Reading],
) -> Loader:
    """Feed every image once, in the source's order, as patches: at most so many of each."""
    transform = AspectTransform(patch, patches, preprocessing, channels)
    after = PatchTransform(STILL, preprocessing, len(source.class_names), 0, patch)
    return Loader(source, transform, after=after, shuffle=False, **options)
