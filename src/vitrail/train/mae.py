"""Masked autoencoding as an objective (He et al., 2022)."""

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config.objective import MaskedAutoencoder
from vitrail.data.loader import Batch
from vitrail.models import Model
from vitrail.models.mae import MaskedAutoencoderModel
from vitrail.ops import patchify
from vitrail.ops.constants import upload
from vitrail.ops.masking import choose_visible, take
from vitrail.train.masked import draw_patches, pixel_losses
from vitrail.train.objective import Losses, suitable

EPSILON = 1e-6  # of a patch's variance


class MaskedAutoencoding:
    """Hides patches by the sample's own random numbers, and asks for their pixels."""

    counts = False

    def __init__(self, model: Model, objective: MaskedAutoencoder, *, seed: int) -> None:
        self.encoder, self.objective, self.seed = suitable(model, objective), objective, seed
        self.module: nn.Module = MaskedAutoencoderModel(self.encoder, objective, seed=seed)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The images, and which patches are seen and which are not: a function of (seed, epoch, sample)."""
        parted = choose_visible(draw_patches(self.encoder, batch, self.seed, 1), self.objective.masked)
        return (batch.images, *(upload(places, batch.images.device) for places in parted))

    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> Losses:
        """Compare with the pixels of the hidden patches alone; each image's mean."""
        images, _, hidden = inputs
        wanted = take(patchify(images.float(), self.encoder.config.stem.stride), hidden)
        return pixel_losses(outputs, standardized(wanted) if self.objective.normalized else wanted)


def standardized(patches: Float[Tensor, "B M P"]) -> Float[Tensor, "B M P"]:
    """Give every patch with mean 0 and deviation 1, all its channels together."""
    mean, deviation = scale_of(patches)
    return (patches - mean) / deviation


def scale_of(patches: Float[Tensor, "B M P"]) -> tuple[Float[Tensor, "B M 1"], Float[Tensor, "B M 1"]]:
    """Give the mean and the deviation of every patch."""
    return patches.mean(dim=2, keepdim=True), (patches.var(dim=2, keepdim=True) + EPSILON).sqrt()
