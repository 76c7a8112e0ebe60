"""How fast photographs become training images: decode, crop at random, flip and scale, beside Pillow alone."""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation
from vitrail.data import decode
from vitrail.data.decode import Box, OpenImage, crop_by_library, encode
from vitrail.data.transforms.finish import scale
from vitrail.data.transforms.geometry import SLOTS, inception_box
from vitrail.data.transforms.resize import TrainTransform
from vitrail.errors import ConfigError
from vitrail.ops.random import Purpose, draws
from vitrail.runtime.machine import one_thread
from vitrail.studies.bench.table import Decode, Opened

GRAIN = 4.0  # levels: at quality 90 a pixel then takes 2.1 bits, as in the files of cameras
SIDE = 224
CONFIG = Augmentation()
TAKE = TrainTransform((SIDE, SIDE), CONFIG, seed=0)


def photograph(height: int, width: int, seed: int) -> bytes:
    """Make a JPEG that costs what a photograph costs: smooth shapes, and the grain of a sensor."""
    generator = np.random.RandomState(seed)
    coarse = torch.from_numpy(generator.uniform(0, 255, (1, 3, height // 16 + 2, width // 16 + 2)))
    smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bicubic")[0].permute(1, 2, 0).numpy()
    noise = generator.normal(0, GRAIN, smooth.shape)
    return encode((smooth + noise).clip(0, 255).astype(np.uint8), "JPEG", quality=90)


def open_decoding(work: Decode) -> Opened:
    """Make photographs; every repeat crops each of them elsewhere."""
    if work.by == "simplejpeg" and decode._simplejpeg() is None:
        raise ConfigError("simplejpeg is not installed. pip install simplejpeg")
    take: Callable[[bytes, int, int], Tensor] = _by_library if work.by == "Pillow" else _ours
    photographs = [photograph(work.height, work.width, seed) for seed in range(work.count)]
    turn = 0

    def once() -> dict[str, float]:
        nonlocal turn
        decode.use_simplejpeg(allowed=work.by == "simplejpeg")
        try:
            with one_thread():
                start = time.process_time()
                for sample, data in enumerate(photographs):
                    take(data, sample, turn)
                spent = time.process_time() - start
        finally:
            decode.use_simplejpeg(allowed=True)
        turn += 1
        return {"value": 1e3 * spent / len(photographs)}

    once()
    turn = 0  # the same crops by every way
    return Opened(once=once)


def _ours(data: bytes, sample: int, epoch: int) -> Tensor:
    image = TAKE(data, sample, epoch)
    return scale((image.flip(2) if _flips(sample, epoch) else image)[None], Preprocessing())


def _by_library(data: bytes, sample: int, epoch: int) -> Tensor:
    pixels = crop_by_library(data, _box(data, sample, epoch), (SIDE, SIDE))
    pixels = pixels[:, ::-1] if _flips(sample, epoch) else pixels
    return scale(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None], Preprocessing())


def _box(data: bytes, sample: int, epoch: int) -> Box:
    image = OpenImage(data)
    u = draws(np.array([sample]), SLOTS, 0, epoch, Purpose.CROP)[0]
    return inception_box(image.height, image.width, u, CONFIG.crop_area, CONFIG.aspect)


def _flips(sample: int, epoch: int) -> bool:
    return bool(draws(np.array([sample]), 1, 0, epoch, Purpose.FLIP)[0, 0] < 0.5)
