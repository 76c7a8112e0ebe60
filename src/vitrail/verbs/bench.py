"""`vitrail.bench`: how fast images become what a model reads, beside the image library by itself, in one run."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.config.card import Preprocessing
from vitrail.config.recipe import Augmentation
from vitrail.data import decode
from vitrail.data.decode import Box, OpenImage, crop_by_library, encode
from vitrail.data.feed import TrainTransform
from vitrail.data.transforms import inception_box, scale
from vitrail.data.transforms.geometry import SLOTS
from vitrail.errors import ConfigError
from vitrail.ops.random import Purpose, draws
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.runtime.text import text_table

SIZES = {"500x375": (375, 500, 40), "2000x1500": (1500, 2000, 8)}  # height, width, photographs
GRAIN = 4.0  # levels: at quality 90 a pixel then takes 2.1 bits, as in the files of cameras
SIDE, REPEATS = 224, 5
CONFIG = Augmentation()


class Speed(NamedTuple):
    """Milliseconds of CPU time an image, the median of five runs, and how often it goes into the library's."""

    photographs: str
    way: str
    milliseconds: float
    low: float
    high: float
    ratio: float


def photograph(height: int, width: int, seed: int) -> bytes:
    """Make a JPEG that costs what a photograph costs: smooth shapes, and the grain of a sensor."""
    generator = np.random.RandomState(seed)
    coarse = torch.from_numpy(generator.uniform(0, 255, (1, 3, height // 16 + 2, width // 16 + 2)))
    smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bicubic")[0].permute(1, 2, 0).numpy()
    noise = generator.normal(0, GRAIN, smooth.shape)
    return encode((smooth + noise).clip(0, 255).astype(np.uint8), "JPEG", quality=90)


@dataclass(frozen=True)
class Bench:
    """Speeds of the same run; it prints as a table."""

    speeds: tuple[Speed, ...]

    def document(self) -> list[dict[str, Any]]:
        """Give the speeds as plain values, for JSON."""
        return [speed._asdict() for speed in self.speeds]

    def __str__(self) -> str:
        rows = [
            (name, way, f"{middle:.2f}", f"{low:.2f} to {high:.2f}", f"{ratio:.2f}")
            for name, way, middle, low, high, ratio in self.speeds
        ]
        title = "Decode, random crop to 224, flip and scale: CPU time an image on one core, median of 5"
        return "\n".join(text_table(title, ("photographs", "way", "ms", "least to most", "ratio"), rows))


def bench(what: str = "data", *, report: Reporter = SILENT) -> Bench:
    """Measure how fast this machine is; ratios are of CPU time, on one core, medians of five, in one run.

    `data`, which is all there is: decode, crop at random to 224, flip and scale, with each decoder and with Pillow.
    """
    if what != "data":
        raise ConfigError(f"there is a bench of data; got {what!r}.")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Bench(tuple(speed for name in SIZES for speed in _measure(name, report)))
    finally:
        torch.set_num_threads(threads)


def _measure(name: str, report: Reporter) -> list[Speed]:
    height, width, count = SIZES[name]
    with report.working(f"making {count} photographs of {name}"):
        photographs = [photograph(height, width, seed) for seed in range(count)]
    ways: dict[str, Callable[[bytes, int, int], Tensor]] = {"Pillow, bicubic": _by_library, "vitrail": _ours}
    fast = decode._simplejpeg()
    if fast is not None:
        ways["vitrail with simplejpeg"] = _ours
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for run in range(REPEATS + 1):
        for way, take in ways.items():
            decode.use_simplejpeg(allowed=way.endswith("simplejpeg"))
            start = time.process_time()
            for sample, data in enumerate(photographs):
                take(data, sample, run)
            spent[way].append((time.process_time() - start) * 1000 / count)
        report.progress(f"decoding photographs of {name}", run, REPEATS)
    decode.use_simplejpeg(allowed=True)
    base = statistics.median(spent["Pillow, bicubic"][1:])
    return [
        Speed(name, way, middle := statistics.median(times[1:]), min(times[1:]), max(times[1:]), base / middle)
        for way, times in spent.items()
    ]


_TAKE = TrainTransform((SIDE, SIDE), CONFIG, seed=0)


def _ours(data: bytes, sample: int, epoch: int) -> Tensor:
    image = _TAKE(data, sample, epoch)
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
