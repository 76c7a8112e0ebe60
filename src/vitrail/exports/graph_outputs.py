"""What a graph gives: logits and features of a classifier; scores of pixels; or scores, boxes and masks of objects."""

import torch
from torch import Tensor

from vitrail.models import Model
from vitrail.models.dense_heads import Prediction
from vitrail.ops.dense import class_scores
from vitrail.runtime.dense import dense_task, draws_objects


def names_of(model: Model) -> tuple[str, ...]:
    """Name the outputs, in their order."""
    match dense_task(model):
        case "segment":
            return ("scores",)
        case "detect":
            return ("scores", "boxes", "masks") if draws_objects(model) else ("scores", "boxes")
        case _:
            return ("logits", "features") if model.config.classes else ("features",)


def outputs_of(model: Model, images: Tensor) -> tuple[Tensor, ...]:
    """Give the outputs, in float32."""
    return tuple(output.float() for output in whole_outputs(model, images))


def whole_outputs(model: Model, images: Tensor) -> tuple[Tensor, ...]:
    """Give the outputs, as precise as the model computes them.

    Scores of pixels are B K H W, as large as the images; scores of objects are B Q K, the probability of every class,
    and boxes B Q 4: left, top, right and bottom in shares of the sides; where objects are drawn, masks are B Q h w,
    logits on a map that is coarser than the image.
    """
    match dense_task(model):
        case "segment":
            said = Prediction(*model(images))
            size = (images.shape[2], images.shape[3])
            found = (class_scores(said.classes, said.masks, size),)
        case "detect":
            said = Prediction(*model(images))
            found = (torch.softmax(said.classes, dim=2)[:, :, :-1], said.boxes)
            found += (said.masks,) if draws_objects(model) else ()
        case _:
            features, logits = model.outputs(images)
            found = tuple(output for output in (logits, features) if output is not None)
    return found
