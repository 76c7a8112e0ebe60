"""Next-pixel prediction over a palette as an objective (iGPT, Chen et al., 2020)."""

from contextlib import closing

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config.objective import NextPixels
from vitrail.config.recipe import Training
from vitrail.data.feed import train_feed
from vitrail.data.loader import Batch
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.models import Model
from vitrail.models.pixels import NextPixelModel
from vitrail.ops.palette import make_palette, nearest
from vitrail.runtime.group import gathered
from vitrail.train.masked import class_losses
from vitrail.train.objective import Losses, suitable

PIXELS = 1 << 16  # of the training images, that make a palette
TOGETHER = 64  # images that are read at once for it


class NextPixelPrediction:
    """Turns images into colours of a palette, and asks for each from those before it."""

    counts = True

    def __init__(self, model: Model, objective: NextPixels, palette: Float[Tensor, "K C"]) -> None:
        self.encoder = suitable(model, objective)
        self.module: nn.Module = NextPixelModel(self.encoder, palette)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The number of every pixel's colour."""
        assert isinstance(self.module, NextPixelModel)
        pixels = batch.images.permute(0, 2, 3, 1)  # B H W C
        palette = gathered(self.module.palette.detach())
        return (nearest(pixels.flatten(0, 2), palette).unflatten(0, pixels.shape[:3]),)

    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> Losses:
        """Compare at every pixel, the first too; each image's mean."""
        return class_losses(outputs, inputs[0].flatten(1))


def palette_of(source: Source, model: Model, training: Training) -> Float[Tensor, "K C"]:
    """Make the palette of the first training images, in the numbers that the model reads; for all processes alike."""
    assert isinstance(training.objective, NextPixels)
    config = model.config
    feed = train_feed(
        source,
        config.image_size,
        batch=TOGETHER,
        augmentation=training.augmentation,
        preprocessing=model.card.preprocessing,
        seed=training.seed,
        channels=config.channels,
        bad_image_limit=training.bad_image_limit,
    )
    found: list[Tensor] = []
    with closing(feed.epoch(0)) as batches:
        for batch in batches:
            found.append(batch.images.permute(0, 2, 3, 1).flatten(0, 2))  # BHW C
            if sum(len(part) for part in found) >= PIXELS:
                break
    pixels = torch.cat(found) if found else torch.empty(0)
    if not len(pixels):
        raise DataError("no image of the first epoch could be decoded, and the palette is made of them.")
    chosen = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(training.seed))[:PIXELS]
    return make_palette(pixels[chosen], training.objective.colors, seed=training.seed)
