"""A file is done when its own engine gives what the model gives: at three batch sizes and three image sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.config.preprocessing import Preprocessing
from vitrail.data.transforms.finish import scale
from vitrail.errors import CheckpointError
from vitrail.exports.graph_outputs import outputs_of
from vitrail.models import Model, eval_mode
from vitrail.runtime.engines import EngineModel

BATCHES = (1, 2, 5)
# The largest difference of any logit or feature that a file may have: absolute in float32; in float16 of the largest
# number itself, since 11 bits of each are kept. int8 is held to the loss on labelled images instead.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}


@dataclass(frozen=True, kw_only=True)
class Verified:
    """How far an engine is from the model: the largest difference, of numbers up to `scale`."""

    difference: float
    scale: float
    batches: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]

    def allowed(self, precision: str, unit: float = 1.0) -> float | None:
        """Give the largest difference that is allowed, of numbers of this size; none where another measure decides."""
        allowed = TOLERANCE.get(precision)
        return allowed if allowed is None else allowed * (unit if precision == "float32" else self.scale)


def verify(
    model: Model, engine: EngineModel, sizes: Sequence[tuple[int, int]], precision: str, unit: float = 1.0
) -> Verified:
    """Compare at every batch and size; a file that differs too much is refused: by more than rounding of its `unit`."""
    difference = largest = 0.0
    for size in sizes:
        images = _images(model.card.preprocessing, model.config.channels, size)
        with eval_mode(model), torch.inference_mode():
            wanted = outputs_of(model, images)
        for batch in BATCHES:
            found = engine.given(images[:batch])
            for ours, theirs in zip(wanted, found, strict=True):
                if theirs.shape != ours[:batch].shape or not theirs.isfinite().all():
                    raise CheckpointError(
                        f"the exported graph gives {tuple(theirs.shape)} for {batch} images of {size[0]}x{size[1]}, "
                        f"where the model gives {tuple(ours[:batch].shape)}, or numbers that are not finite. It was "
                        "not kept."
                    )
                difference = max(difference, float((theirs - ours[:batch]).abs().max()))
                largest = max(largest, float(ours.abs().max()))
    verified = Verified(difference=difference, scale=largest, batches=BATCHES, sizes=tuple(sizes))
    allowed = verified.allowed(precision, unit)
    if allowed is not None and difference > allowed:
        raise CheckpointError(
            f"the exported graph differs from the model by {difference:.2e}, and {precision} may differ by "
            f"{allowed:.2e}. It was not kept."
        )
    return verified


def _images(how: Preprocessing, channels: int, size: tuple[int, int]) -> Tensor:
    """Draw images of all levels, the same each time, as a model reads them."""
    generator = torch.Generator().manual_seed(size[0] * 65_537 + size[1])
    coarse = torch.rand((max(BATCHES), channels, 5, 7), generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=size, mode="bilinear", align_corners=True)
    noise = torch.rand((max(BATCHES), channels, *size), generator=generator)
    return scale(((0.7 * smooth + 0.3 * noise) * 255).round().to(torch.uint8), how)
