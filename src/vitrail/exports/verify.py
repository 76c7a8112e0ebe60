"""A file is done when its own engine gives what the model gives: at three batch sizes and three image sizes."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitrail.config.preprocessing import Preprocessing
from vitrail.data.transforms.finish import scale
from vitrail.errors import CheckpointError
from vitrail.exports.graph_outputs import outputs_of, whole_outputs
from vitrail.models import Model, eval_mode
from vitrail.runtime.engines import EngineModel

BATCHES = (1, 2, 5)
# The largest difference of any logit or feature that a file may have: absolute in float32; in float16 of the largest
# number itself, since 11 bits of each are kept. int8 is held to the loss on labelled images instead.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}
ROUNDINGS = 4  # times that of the model itself, in float32, where this is more: a deep BiT's own is 1e-4


@dataclass(frozen=True, kw_only=True)
class Verified:
    """How far an engine is from the model: the largest difference, of numbers up to `scale`."""

    difference: float
    scale: float
    batches: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...]
    rounding: float | None = None  # of the model in float32, by itself in float64; None where nothing hangs on it

    def allowed(self, precision: str, unit: float = 1.0) -> float | None:
        """Give the largest difference that is allowed, of numbers of this size; none where another measure decides."""
        allowed = TOLERANCE.get(precision)
        if precision == "float32":
            return max(TOLERANCE["float32"] * unit, ROUNDINGS * (self.rounding or 0))
        return None if allowed is None else allowed * self.scale


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
                images_of = f"for {batch} images of {size[0]}x{size[1]}"
                if theirs.shape != ours[:batch].shape:
                    raise CheckpointError(
                        f"the exported graph gives {tuple(theirs.shape)} {images_of}, where the model gives "
                        f"{tuple(ours[:batch].shape)}. It was not kept."
                    )
                if not theirs.isfinite().all():
                    hint = " Take precision=float32." if precision == "float16" else ""
                    raise CheckpointError(
                        f"the exported graph gives numbers that are not finite {images_of}. It was not kept.{hint}"
                    )
                difference = max(difference, float((theirs - ours[:batch]).abs().max()))
                largest = max(largest, float(ours.abs().max()))
    verified = Verified(difference=difference, scale=largest, batches=BATCHES, sizes=tuple(sizes))
    allowed = verified.allowed(precision, unit)
    if precision == "float32" and allowed is not None and difference > allowed:
        verified = replace(verified, rounding=_rounding(model, sizes))
        allowed = verified.allowed(precision, unit)
    if allowed is not None and difference > allowed:
        raise CheckpointError(
            f"the exported graph differs from the model by {difference:.2e}, and {precision} may differ by "
            f"{allowed:.2e}. It was not kept."
        )
    return verified


def _rounding(model: Model, sizes: Sequence[tuple[int, int]]) -> float:
    """Give how far the model in float32 is from itself in float64."""
    exact, most = copy.deepcopy(model).double(), 0.0
    for size in sizes:
        images = _images(model.card.preprocessing, model.config.channels, size)
        with eval_mode(model), eval_mode(exact), torch.inference_mode():
            for ours, theirs in zip(whole_outputs(model, images), whole_outputs(exact, images.double()), strict=True):
                most = max(most, float((ours - theirs).abs().max()))
    return most


def _images(how: Preprocessing, channels: int, size: tuple[int, int]) -> Tensor:
    """Draw images of all levels, the same each time, as a model reads them."""
    generator = torch.Generator().manual_seed(size[0] * 65_537 + size[1])
    coarse = torch.rand((max(BATCHES), channels, 5, 7), generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=size, mode="bilinear", align_corners=True)
    noise = torch.rand((max(BATCHES), channels, *size), generator=generator)
    return scale(((0.7 * smooth + 0.3 * noise) * 255).round().to(torch.uint8), how)
