"""Images as a model reads them, with the pixels to show beside."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.data.decode import ImageError
from vitrail.data.source import Source
from vitrail.data.take import EvaluationTake
from vitrail.data.transforms import scale
from vitrail.errors import DataError
from vitrail.inspection.study import Views
from vitrail.models import Model


def views_of(model: Model, source: Source, numbers: Sequence[int]) -> tuple[Views, list[int], list[str]]:
    """Decode and resize images as the model reads them; give the numbers of those that could be, and why others not."""
    config, preprocessing = model.config, model.card.preprocessing
    take = EvaluationTake(config.image_size, preprocessing, channels=config.channels)
    pixels, kept, bad = [], [], []
    for number in numbers:
        try:
            pixels.append(take(source.read(number), number, 0))
            kept.append(number)
        except ImageError as error:
            bad.append(f"{source.name(number)}: {error}")
    if not kept:
        raise DataError(f"none of the {len(bad)} images can be decoded: {bad[0] if bad else 'there is none'}.")
    stacked = torch.stack(pixels)
    labels = source.labels_of(np.array(kept))
    names = [source.class_names[label] if label >= 0 else None for label in labels.tolist()]
    views = Views(stacked, scale(stacked, preprocessing), [source.name(number) for number in kept], names)
    return views, kept, bad


def spread(count: int, wanted: int) -> NDArray[np.int64]:
    """Choose so many of a source's images, evenly over all of it, so that classes in turn are all seen."""
    return np.unique(np.linspace(0, count - 1, min(count, wanted)).round().astype(np.int64))
