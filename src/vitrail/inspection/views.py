"""A model to look into, and images as it reads them, with the pixels to show beside; and which images to show."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Num
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.config import Grid, Preprocessing
from vitrail.config.outputs import LabelOutputs, NumberOutputs
from vitrail.data.decode import ImageError, OpenImage, Pixels
from vitrail.data.source import Source
from vitrail.data.transforms.finish import scale
from vitrail.data.transforms.resize import EvalTransform
from vitrail.errors import ConfigError, DataError, ShapeError
from vitrail.models import Model, ViT, eval_mode
from vitrail.ops.metrics import log_probabilities
from vitrail.runtime.reporter import SILENT, Reporter

SHARP = 384  # pixels of the longer side of an image that is shown, where it has so many
AT_ONCE = 16  # images that are looked at
SEARCHED = 32  # images that are searched for mistakes at once


def unwrap(model: nn.Module) -> Model:
    """Give the model behind torch.compile and data-parallel wrappers."""
    inside = model
    while not isinstance(inside, Model):
        wrapped = getattr(inside, "_orig_mod", None) or getattr(inside, "module", None)
        if not isinstance(wrapped, nn.Module):
            raise ConfigError(f"expected a model of Vitrail; got {type(model).__name__}. Take vitrail.load.")
        inside = wrapped
    return inside


def with_attention(model: nn.Module) -> ViT:
    """Give the Vision Transformer or hybrid behind a model; refuse what has no attention."""
    inside = unwrap(model)
    if not isinstance(inside, ViT):
        raise ConfigError(f"a {type(inside).__name__} has no attention to show. Take a Vision Transformer or a hybrid.")
    return inside


def to_model(model: Model, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
    """Move images to the model's device and precision; refuse anything that is no batch of images."""
    check_pictures(images)
    weight = next(model.parameters())
    return images.to(weight.device, weight.dtype)


def check_pictures(images: Tensor) -> None:
    """Refuse anything that is no batch of images."""
    if images.ndim != 4 or not images.is_floating_point():
        raise ShapeError(
            f"expected images as floats, B C H W, scaled as the model reads them; got {images.dtype} of shape "
            f"{tuple(images.shape)}. Take views_of, or add the axis that is missing."
        )
    if not len(images):
        raise ShapeError("there are no images to look at; give one at least.")


def check_weights(model: Model) -> None:
    """Refuse a model whose weights are not all numbers: every picture of it would be empty."""
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise ConfigError(
                f"{name!r} holds numbers that are not finite: the model has diverged. Take another checkpoint."
            )


class Views(NamedTuple):
    """Images as a model reads them: pixels before scaling, and after."""

    pixels: Num[Tensor, "B C H W"]
    images: Float[Tensor, "B C H W"]
    names: Sequence[str]
    labels: Sequence[str | None]  # what they are, where it is known
    verdicts: Sequence[bool | None] = ()  # whether the answer is right, where something else than the label says it
    sharp: Sequence[Num[Tensor, "C h w"]] = ()  # the same parts of the images, sharper, where they are to be shown

    @property
    def pictures(self) -> Sequence[Num[Tensor, "C h w"]]:
        """The images to show."""
        return self.sharp or list(self.pixels)


def views_of(
    model: Model, source: Source, numbers: Sequence[int], *, sharp: bool = False
) -> tuple[Views, list[int], list[str]]:
    """Decode and resize images as the model reads them; give the numbers of those that could be, and why others not.

    `sharp` keeps the same parts of the images at their own sharpness too, to be shown.
    """
    config, preprocessing = model.config, model.card.preprocessing
    take = EvalTransform(config.image_size, preprocessing, channels=config.channels)
    pixels, pictures, kept, bad = [], [], [], []
    for number in numbers:
        try:
            data = source.read(number)
            pixels.append(take(data, number, 0))
            if sharp:
                larger = sharper_size(data, config.image_size, preprocessing)
                pictures.append(pixels[-1] if larger is None else replace(take, size=larger)(data, number, 0))
            kept.append(number)
        except ImageError as error:
            bad.append(f"{source.name(number)}: {error}")
    if not kept:
        raise DataError(f"none of the {len(bad)} images can be decoded: {bad[0] if bad else 'there is none'}.")
    stacked = torch.stack(pixels)
    labels = source.labels_of(np.array(kept))
    names = [source.class_names[label] if label >= 0 else None for label in labels.tolist()]
    views = Views(stacked, scale(stacked, preprocessing), [source.name(number) for number in kept], names)
    return views._replace(sharp=pictures), kept, bad


def sharper_size(data: bytes | Pixels | OpenImage, size: Grid, preprocessing: Preprocessing) -> Grid | None:
    """Give the size at which the part of an image that a model reads has its own pixels, or as many as are shown."""
    image = OpenImage(data) if isinstance(data, bytes) else data
    own = (image.height, image.width) if isinstance(image, OpenImage) else image.shape[:2]
    ratios = [side * preprocessing.crop_share / goal for side, goal in zip(own, size, strict=True)]
    finer = max(ratios) if preprocessing.resize == "squash" else min(ratios)
    factor = min(finer, SHARP / max(size))
    return None if factor <= 1 else (round(size[0] * factor), round(size[1] * factor))


def spread(count: int, wanted: int) -> NDArray[np.int64]:
    """Choose so many of a source's images, evenly over all of it, so that classes in turn are all seen."""
    return np.unique(np.linspace(0, count - 1, min(count, wanted)).round().astype(np.int64))


def choose_images(
    model: Model, source: Source, count: int, search: int, report: Reporter = SILENT
) -> tuple[list[int], list[int]]:
    """Choose images spread over the source; of those with labels, up to half are mistakes that the model is sure of."""
    wrong: list[int] = []
    if search and has_classes_of(model, source) and (source.labels >= 0).any():
        with report.working("searching for confident mistakes"):
            wrong = surest_mistakes(model, source, spread(len(source), search).tolist())[: max(count // 2, 1)]
    others = [number for number in spread(len(source), count).tolist() if number not in wrong]
    return [*wrong, *others][:count], wrong


def has_classes_of(model: Model, source: Source) -> bool:
    """Tell whether the data's classes are the model's, by their names or, where it has none, by their number."""
    names = model.card.class_names
    if source.targets is not None or isinstance(model.card.outputs, LabelOutputs | NumberOutputs):
        return False
    return model.config.classes == len(source.class_names) and names in (None, tuple(source.class_names))


def surest_mistakes(model: Model, source: Source, numbers: Sequence[int]) -> list[int]:
    """Give the numbers of images with labels whose first answer is wrong, the most confident first."""
    found: list[tuple[float, int]] = []
    labeled = [number for number in numbers if source.labels[number] >= 0]
    for start in range(0, len(labeled), SEARCHED):
        try:
            views, kept, _ = views_of(model, source, labeled[start : start + SEARCHED])
        except DataError:  # none of these can be decoded; others may
            continue
        with eval_mode(model):
            shares = log_probabilities(model(to_model(model, views.images)), model.card.temperature).exp()
        sure, answer = shares.max(dim=1)
        wrong = (answer.cpu() != torch.from_numpy(source.labels[kept])).tolist()
        found += [(-share, number) for share, number, bad in zip(sure.tolist(), kept, wrong, strict=True) if bad]
    return [number for _, number in sorted(found)]
