"""A model made fast for what this machine has: called alike, its card kept, the plain model inside it."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from torch import Tensor

from vitrail.config.check import one_of, whole
from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.models.base import check_images

FastPrecision = Literal["auto", "float32", "bfloat16", "float8", "int8"]
PRECISIONS: tuple[str, ...] = get_args(FastPrecision)
Outputs = tuple[Tensor, Tensor | None]  # representation, and logits where there is a classifier


class FastModel(Model):
    """A model whose passes are those of a faster path; whatever looks inside asks the plain model."""

    def __init__(self, plain: Model, run: Callable[[Tensor], Outputs], *, engine: str, precision: str) -> None:
        super().__init__()
        self.plain, self.run, self.engine, self.precision = plain, run, engine, precision
        self.config, self.card, self.layers = plain.config, plain.card, plain.layers
        self.trained_on = plain.trained_on

    def forward(self, images: Tensor) -> Tensor:
        """Logits; of a model without a classifier, its representation."""
        features, logits = self.outputs(images)
        return features if logits is None else logits

    def represent(self, images: Tensor) -> Tensor:
        """What the linear classifier reads."""
        return self.outputs(images)[0]

    def outputs(self, images: Tensor) -> Outputs:
        """Representation and logits, by the faster path; in the precision of the images."""
        check_images(images, self.config.channels, next(self.plain.parameters()), self.card.preprocessing)
        features, logits = self.run(images)
        return features.to(images.dtype), None if logits is None else logits.to(images.dtype)

    def tokens(self, images: Tensor) -> Tensor:
        """Every token after the last layer, by the plain model."""
        return self.plain.tokens(images)

    def maps_after(self, images: Tensor, wanted: list[int]) -> dict[int, Tensor]:
        """Features on their grid, by the plain model."""
        return self.plain.maps_after(images, wanted)

    def attention_maps(
        self, images: Tensor, layers: int | Sequence[int] | None = None, queries: slice = slice(None)
    ) -> list[Tensor]:
        """Attention weights, by the plain model."""
        return self.plain.attention_maps(images, layers, queries)


def make_fast(
    model: Model,
    *,
    precision: str = "auto",
    batch_size: int | None = None,
    calibrate: Tensor | None = None,
) -> FastModel:
    """Give the model made fast where it is, for batches of this size; `calibrate` is of images that it reads.

    float8 and int8 need images to calibrate with. What this machine has not is refused with what it has.
    """
    one_of("precision", precision, PRECISIONS)
    if batch_size is not None:
        whole("batch_size", batch_size)
    if isinstance(model, FastModel):
        model = model.plain
    device = next(model.parameters()).device
    if device.type == "cuda":
        from vitrail.runtime.gpu import fast_on_gpu

        return fast_on_gpu(model, precision, batch_size, calibrate)
    if device.type == "cpu":
        from vitrail.runtime.cpu import fast_on_cpu

        return fast_on_cpu(model, precision, batch_size, calibrate)
    raise ConfigError(
        f"a model is made fast on a CPU or an NVIDIA GPU; this one is on {device}. Move it: model.to(...)."
    )
