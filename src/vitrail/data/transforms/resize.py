"""Another size for an image, as the authors' code or others compute it; levels in and out, whole (uint8) or real.

The authors' `vision_transformer` keeps the real numbers that tf.image.resize gives ("gvt", here rounded: at most half a
level away); `big_vision` cuts them off to whole levels ("bv"). Neither antialiases.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Num as Levels  # uint8, or real numbers where there is a range of values
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config.preprocessing import Interpolation, Preprocessing
from vitrail.config.recipe import Augmentation, Resizing
from vitrail.data.decode import OpenImage, Pixels
from vitrail.data.pixels import Range, owned, with_channels
from vitrail.data.transforms.crops import LARGEST
from vitrail.data.transforms.geometry import SLOTS, inception_box, inception_boxes
from vitrail.errors import ShapeError
from vitrail.ops.constants import constant
from vitrail.ops.random import Purpose, draws

How = Resizing | Interpolation | Literal["area"]
LARGE = 1 << 25  # levels of an image above which its channels are done one after the other
SLACK = 2.0**-10  # levels; what is cut off must not fall for the last bit of a sum


@dataclass
class TrainTransform:
    """What training sees of an image: a random part, or all, resized; a function of (seed, epoch, sample)."""

    size: tuple[int, int]
    augmentation: Augmentation
    seed: int
    channels: int = 3
    value_range: Range | None = None

    def __call__(self, data: bytes | Pixels, sample: int, epoch: int) -> Levels[Tensor, "C H W"]:
        """Decode no more than is needed, crop and resize."""
        image = OpenImage(data) if isinstance(data, bytes) else data
        crop, how = self.augmentation.crop, self.augmentation.resizing
        if crop != "inception":
            still = Preprocessing(resize="squash" if crop == "squash" else "crop", value_range=self.value_range)
            return evaluation_image(image, self.size, still, None if how == "antialias" else how, self.channels)
        height, width = (image.height, image.width) if isinstance(image, OpenImage) else image.shape[:2]
        u = draws(np.array([sample]), SLOTS, self.seed, epoch, Purpose.CROP)[0]
        box = inception_box(height, width, u, self.augmentation.crop_area, self.augmentation.aspect)
        if isinstance(image, OpenImage):
            least = self.size if how == "antialias" else (0, 0)  # the authors' ways read every pixel
            part = image.pixels(box, least, self.channels, self.value_range)
        else:
            part = image[box.top : box.top + box.height, box.left : box.left + box.width]
        return resize(to_tensor(part, self.channels), self.size, how)

    def boxes(self, shape: tuple[int, int], samples: NDArray[np.int64], epoch: int) -> NDArray[np.int64] | None:
        """Say what it takes of images of one size, so that `crop_resize` can do it; None where that is another way."""
        config = self.augmentation
        if config.crop != "inception" or config.resizing != "antialias" or max(*shape, *self.size) > LARGEST:
            return None
        u = draws(samples, SLOTS, self.seed, epoch, Purpose.CROP)
        return inception_boxes(*shape, u, config.crop_area, config.aspect).astype(np.int64)


@dataclass
class EvalTransform:
    """What evaluation sees of an image: the whole image squashed, or its middle."""

    size: tuple[int, int]
    preprocessing: Preprocessing
    channels: int = 3

    def __call__(self, data: bytes | Pixels, sample: int, epoch: int) -> Levels[Tensor, "C H W"]:
        """Decode and resize; the same whatever the epoch."""
        image = OpenImage(data) if isinstance(data, bytes) else data
        return evaluation_image(image, self.size, self.preprocessing, None, self.channels)

    def many(self, pixels: Levels[Tensor, "B C H W"]) -> Levels[Tensor, "B C h w"]:
        """Resize images of one size, all at once."""
        return evaluation_image(pixels, self.size, self.preprocessing)


def to_tensor(pixels: Pixels, channels: int) -> Levels[Tensor, "C H W"]:
    """Give pixels as a tensor of so many channels."""
    return torch.from_numpy(owned(with_channels(pixels, channels))).permute(2, 0, 1)


def resize(
    pixels: Levels[Tensor, "*B C H W"], size: tuple[int, int], how: How, *, antialias: bool = True
) -> Levels[Tensor, "*B C h w"]:
    """Resize to (height, width); `antialias` is for interpolations by name, the authors' ways say it themselves."""
    if min(*pixels.shape[-2:], *size) < 1:
        raise ShapeError(f"an image has at least one pixel; got {tuple(pixels.shape[-2:])} to resize to {size}.")
    if tuple(pixels.shape[-2:]) == tuple(size):
        return pixels
    match how:
        case "bv":
            return _kept(_plain(pixels, size, "bilinear"), pixels, _cut_off)
        case "antialias":
            return _antialiased(pixels, size, "bilinear")
        case "gvt":
            return _kept(_plain(pixels, size, "bilinear"), pixels, _rounded)
        case "area":
            return _kept(by_area(pixels, size), pixels, _rounded)
        case "nearest":
            return _like(F.interpolate(_four(pixels), size=size, mode="nearest-exact"), pixels)
        case "bilinear" | "bicubic" | "lanczos":
            if antialias or how == "lanczos":
                return _antialiased(pixels, size, how)
            return _kept(_plain(pixels, size, how), pixels, _rounded)


def resize_small(
    pixels: Levels[Tensor, "*B C H W"], side: int, how: How, *, antialias: bool = True
) -> Levels[Tensor, "..."]:
    """Resize so that the shorter side is `side` and the shape stays; "bv" goes by area where that makes it smaller."""
    height, width = pixels.shape[-2:]
    factor = side / min(height, width)
    size = max(round(height * factor), 1), max(round(width * factor), 1)
    if how == "bv" and factor < 1:
        return _kept(by_area(pixels, size), pixels, _cut_off)
    return resize(pixels, size, how, antialias=antialias)


def by_area(pixels: Levels[Tensor, "*B C H W"], size: tuple[int, int]) -> Float[Tensor, "*B C h w"]:
    """Average over what each new pixel covers, fractions of pixels included, as TensorFlow's ResizeArea."""
    bands = pixels.split(max(LARGE // 8 // pixels[..., 0].numel(), 1), dim=-1)  # of columns: each takes much memory
    parts = [_cover(band.to(torch.float64).transpose(-1, -2), size[0]).transpose(-1, -2) for band in bands]
    tall = torch.cat(parts, dim=-1)
    return _cover(tall, size[1]).to(torch.float32)


def middle(pixels: Levels[Tensor, "*B C H W"], size: tuple[int, int]) -> Levels[Tensor, "*B C h w"]:
    """Cut out the middle."""
    top, left = (pixels.shape[-2] - size[0]) // 2, (pixels.shape[-1] - size[1]) // 2
    if min(top, left) < 0:
        raise ShapeError(f"a middle of {size} does not fit into {tuple(pixels.shape[-2:])}.")
    return pixels[..., top : top + size[0], left : left + size[1]]


def evaluation_image(
    image: OpenImage | Pixels | Levels[Tensor, "*B C H W"],
    size: int | tuple[int, int],
    preprocessing: Preprocessing,
    resizing: Resizing | None = None,
    channels: int = 3,
) -> Levels[Tensor, "*B C h w"]:
    """Make what a model evaluates: squashed or by its shorter side, then the middle `crop_share` of it.

    `resizing` overrides the interpolation. The authors' vision_transformer squashes ("gvt"); big_vision's few-shot
    evaluation is a squash to 256 and a middle of 224 ("bv", size 224, crop_share 224 / 256).
    """
    goal = (size, size) if isinstance(size, int) else size
    before = round(goal[0] / preprocessing.crop_share), round(goal[1] / preprocessing.crop_share)
    how: How = resizing or preprocessing.interpolation
    # An antialiased image may be decoded smaller first; the others would read other pixels.
    faithful = how in ("gvt", "bv") or not preprocessing.antialias
    if isinstance(image, OpenImage):
        least = (0, 0) if faithful else (2 * max(before), 2 * max(before))
        image = image.pixels(least=least, channels=channels, value_range=preprocessing.value_range)
    pixels = to_tensor(image, channels) if isinstance(image, np.ndarray) else image
    antialias = preprocessing.antialias
    if preprocessing.resize == "squash":
        return middle(resize(pixels, before, how, antialias=antialias), goal).contiguous()
    pixels = _without_ends(pixels, goal)
    height, width = pixels.shape[-2:]  # of which the goal, of whatever shape, must be covered on both axes
    side = math.ceil(min(height, width) * max(before[0] / height, before[1] / width) - 1e-6)
    return middle(resize_small(pixels, side, how, antialias=antialias), goal).contiguous()


def _without_ends(pixels: Levels[Tensor, "*B C H W"], goal: tuple[int, int]) -> Levels[Tensor, "*B C h w"]:
    """Cut the far ends of a very long image, which no middle reads: resized whole they would take much memory."""
    height, width = pixels.shape[-2:]
    rows, cols = (math.ceil(8 * width * goal[0] / goal[1]), math.ceil(8 * height * goal[1] / goal[0]))
    return middle(pixels, (min(height, rows), min(width, cols)))


def _four(pixels: Tensor) -> Tensor:
    return pixels.flatten(0, -4) if pixels.ndim > 3 else pixels[None]


def _like(made: Tensor, pixels: Tensor) -> Tensor:
    return made.unflatten(0, pixels.shape[:-3]) if pixels.ndim > 3 else made[0]


def _by_channel(work: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    """Do something with an image; with a large one by channel, since real numbers take four times its memory."""
    if pixels.numel() < LARGE:
        return work(pixels)
    return torch.cat([work(part) for part in pixels.split(1, dim=-3)], dim=-3)


def _plain(pixels: Tensor, size: tuple[int, int], mode: Interpolation) -> Tensor:
    """Interpolate between the nearest pixels, half-pixel centres, without antialiasing, in float32."""

    def work(part: Tensor) -> Tensor:
        return F.interpolate(part.to(torch.float32), size=size, mode=mode, align_corners=False)

    return _like(_by_channel(work, _four(pixels)), pixels)


def _antialiased(pixels: Tensor, size: tuple[int, int], mode: Interpolation) -> Tensor:
    """Interpolate over all that a new pixel covers; whole numbers throughout on the CPU, as the image libraries do."""
    if mode == "lanczos":  # which torch has since 2.13 alone
        rows, cols = (_lanczos(*sides, pixels.device) for sides in zip(pixels.shape[-2:], size, strict=True))

        def work(part: Tensor) -> Tensor:
            return torch.einsum("ri,...ij,cj->...rc", rows, part.to(rows.dtype), cols)

        return _kept(_by_channel(work, pixels), pixels, _rounded)
    four = _four(pixels)
    if pixels.device.type != "cpu":
        four = four.to(torch.float32)
    made = F.interpolate(four, size=size, mode=mode, antialias=True, align_corners=False)
    return _like(made if made.dtype == pixels.dtype else _rounded(made), pixels)


@constant
def _lanczos(old: int, new: int, device: torch.device) -> Float[Tensor, "new old"]:
    """Give the share of every old pixel in every new one: a sinc, windowed by a sinc three times as wide."""
    step = max(old / new, 1.0)
    middles = (torch.arange(new, dtype=torch.float64, device=device) + 0.5) * (old / new)
    far = (torch.arange(old, dtype=torch.float64, device=device) + 0.5 - middles[:, None]) / step
    shares = torch.where(far.abs() < 3, torch.sinc(far) * torch.sinc(far / 3), torch.zeros_like(far))
    return (shares / shares.sum(dim=1, keepdim=True)).to(torch.float32)


def _cover(pixels: Float[Tensor, "... n"], new: int) -> Float[Tensor, "... new"]:
    """Average the last axis over equal stretches: differences of its running sum, linear between the pixels."""
    old = pixels.shape[-1]
    running = F.pad(pixels.cumsum(-1), (1, 0))  # ... n+1
    edges = torch.arange(new + 1, dtype=torch.float64, device=pixels.device) * (old / new)
    low = edges.floor().clamp(max=old - 1).to(torch.int64)
    at = running[..., low] + (edges - low) * pixels[..., low]
    return at.diff(dim=-1) * (new / old)


def _rounded(real: Tensor) -> Tensor:
    return real.round().clamp(0, 255).to(torch.uint8)


def _kept(real: Tensor, pixels: Tensor, kind: Callable[[Tensor], Tensor]) -> Tensor:
    """Make whole levels of what was made of whole ones; of real ones nothing is lost."""
    return real if pixels.is_floating_point() else kind(real)


def _cut_off(real: Tensor) -> Tensor:
    return (real + SLACK).clamp(0, 255).to(torch.uint8)
