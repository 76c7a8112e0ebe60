"""From what a source holds of a sample to an image of the size that a model reads: uint8, C H W."""

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.config.card import Preprocessing
from vitrail.config.recipe import Augmentation
from vitrail.data.decode import Box, OpenImage, Pixels, owned, with_channels
from vitrail.data.transforms import evaluation_image, inception_box, resize
from vitrail.data.transforms.crop import SLOTS
from vitrail.ops.order import Purpose, draws


class TrainTake:
    """Takes what training sees: a random part, or all, resized; its box is a function of (seed, epoch, sample)."""

    def __init__(self, size: tuple[int, int], augmentation: Augmentation, *, seed: int, channels: int = 3) -> None:
        self.size, self.augmentation, self.seed, self.channels = size, augmentation, seed, channels
        self._still = Preprocessing(resize="squash" if augmentation.crop == "squash" else "crop")

    def __call__(self, data: bytes | Pixels, sample: int, epoch: int) -> UInt8[Tensor, "C H W"]:
        """Decode no more than is needed, crop and resize."""
        image = OpenImage(data) if isinstance(data, bytes) else data
        how = self.augmentation.resizing
        if self.augmentation.crop != "inception":
            whole = image if isinstance(image, OpenImage) else to_tensor(image, self.channels)
            return evaluation_image(whole, self.size, self._still, None if how == "antialias" else how, self.channels)
        height, width = (image.height, image.width) if isinstance(image, OpenImage) else image.shape[:2]
        u = draws(np.array([sample]), SLOTS, self.seed, epoch, Purpose.CROP)[0]
        box = inception_box(height, width, u, self.augmentation.crop_area, self.augmentation.aspect)
        least = self.size if how == "antialias" else (0, 0)  # the authors' ways read every pixel
        part = image.pixels(box, least, self.channels) if isinstance(image, OpenImage) else cut(image, box)
        return resize(to_tensor(part, self.channels), self.size, how)


class EvaluationTake:
    """Takes what evaluation sees: the whole image squashed, or its middle."""

    def __init__(self, size: tuple[int, int], preprocessing: Preprocessing, *, channels: int = 3) -> None:
        self.size, self.preprocessing, self.channels = size, preprocessing, channels

    def __call__(self, data: bytes | Pixels, sample: int, epoch: int) -> UInt8[Tensor, "C H W"]:
        """Decode and resize; the same whatever the epoch."""
        image = OpenImage(data) if isinstance(data, bytes) else to_tensor(data, self.channels)
        return evaluation_image(image, self.size, self.preprocessing, None, self.channels)


def cut(pixels: Pixels, box: Box) -> Pixels:
    """Cut a part out of pixels."""
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]


def to_tensor(pixels: Pixels, channels: int) -> UInt8[Tensor, "C H W"]:
    """Give pixels as a tensor of so many channels."""
    return torch.from_numpy(owned(with_channels(pixels, channels))).permute(2, 0, 1)
