"""Segment and detect as work of the engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Num
from torch import Tensor

from vitrail.data.decode import OpenImage, Pixels
from vitrail.data.transforms.annotated import squashed
from vitrail.data.transforms.resize import evaluation_image
from vitrail.models.dense_heads import Prediction
from vitrail.runtime.dense import DenseAnswer, answers_of, dense_task
from vitrail.serve.models import Served

MOST = 64  # images at once


class Seen(NamedTuple):
    """What a model says of an image, and the image itself, to draw over."""

    answer: DenseAnswer
    pixels: Pixels


@dataclass(frozen=True)
class Find:
    """Segment or detect."""

    served: Served
    most = MOST

    @property
    def tokens(self) -> int:
        """Of an image."""
        return self.served.tokens

    def decode(self, data: bytes) -> tuple[Num[Tensor, "C H W"], Pixels]:
        """Decode an image for the model, whole, and as it is."""
        config, image = self.served.model.config, self.served.open(data)
        read_as = squashed(self.served.model.card.preprocessing)
        pixels = evaluation_image(image, config.image_size, read_as, None, config.channels)
        return pixels, OpenImage(data).picture()

    def compute(self, images: Sequence[tuple[Tensor, Pixels]]) -> list[Seen]:
        """Ask the model once for all."""
        model, batch = self.served.model, self.served.scale([pixels for pixels, _ in images])
        task = dense_task(model)
        assert task is not None
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=self.served.precision == "bfloat16"):
            said = Prediction(*model(batch))
        sizes = [(picture.shape[0], picture.shape[1]) for _, picture in images]
        answers = answers_of(said, sizes, task, (batch.shape[2], batch.shape[3]))
        return [Seen(answer, picture) for answer, (_, picture) in zip(answers, images, strict=True)]
