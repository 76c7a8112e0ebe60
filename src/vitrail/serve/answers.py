"""What a model found, as documents and pictures."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fastapi.responses import JSONResponse

from vitrail.config.outputs import LabelOutputs, NumberOutputs, OrderedOutputs
from vitrail.data.decode import encode
from vitrail.figures import light_up
from vitrail.inspection.drawing import enlarge
from vitrail.inspection.page import with_color
from vitrail.models import ViT
from vitrail.ops.task_losses import median_class
from vitrail.serve.models import Answer, Looked, Served
from vitrail.serve.requests import RequestError


def top_of(served: Served, answer: Answer, count: int) -> list[dict[str, Any]]:
    """Name the most probable classes of an image."""
    assert answer.order is not None, "a model without classes is refused before"
    assert answer.probabilities is not None
    best, labels = answer.order[:count], served.labels
    return [{"label": labels[number], "probability": float(answer.probabilities[number])} for number in best]


def said_of(served: Served, answer: Answer, count: int) -> dict[str, Any]:
    """Say what a model answers to an image: its most probable classes, and what its task asks beside them."""
    outputs = served.model.card.outputs
    assert answer.probabilities is not None, "a model without classes is refused before"
    shares, names = answer.probabilities, served.labels
    match outputs:
        case NumberOutputs():
            return {"top": [], "values": dict(zip(names, shares.tolist(), strict=True))}
        case LabelOutputs(thresholds=thresholds):
            rows = zip(names, shares.tolist(), thresholds, strict=True)
            said = [name for name, share, least in rows if share >= least]
            return {"top": top_of(served, answer, count), "labels": said}
        case OrderedOutputs():
            median = int(median_class(torch.from_numpy(shares)[None])[0])
            return {"top": top_of(served, answer, count), "label": names[median]}
        case None:
            return {"top": top_of(served, answer, count)}


def map_of(looked: Looked, layer: int | None, head: int | None) -> np.ndarray:
    """Give the map that is asked for: rollout, or a layer's, of one head or the mean of all."""
    seen = looked.attention
    if layer is None:
        if head is not None:
            raise RequestError(422, "layer", "a head is of a layer: say which, layer=1.")
        return seen.rollout[0].numpy()
    layers, heads = seen.pooled.shape[1:3]
    if layer > layers or (head or 1) > heads:
        raise RequestError(
            422, "layer", f"the model has {layers} layers of {heads} heads; got layer={layer}, head={head}."
        )
    maps = seen.pooled[0, layer - 1]
    return (maps.mean(dim=0) if head is None else maps[head - 1]).numpy()


def light(looked: Sequence[Looked], seen: Sequence[np.ndarray], model: ViT) -> bytes:
    """Light pictures where their maps are high, as the figures of `vitrail inspect` are; one stands below the other."""
    lit = [_lit(*each, model) for each in zip(looked, seen, strict=True)]
    sheet = np.zeros((sum(each.shape[0] for each in lit), max(each.shape[1] for each in lit), 3), np.uint8)
    top = 0
    for each in lit:
        sheet[top : top + each.shape[0], : each.shape[1]] = each
        top += each.shape[0]
    return encode(sheet)


def _lit(looked: Looked, seen: np.ndarray, model: ViT) -> np.ndarray:
    picture = with_color(looked.picture)
    height, width = picture.shape[1:]
    stride = max(round(model.config.stem.stride * width / model.config.image_size[1]), 1)
    large = enlarge(torch.from_numpy(seen)[None], (height, width), stride)[0].numpy()
    return light_up(picture.permute(1, 2, 0).numpy(), large)


def encoded(answer: Answer, form: str) -> list[float] | str:
    """Give features as numbers, or as base64 of little-endian float32."""
    if form == "float":
        return answer.features.tolist()
    return base64.b64encode(answer.features.astype("<f4").tobytes()).decode()


def as_json(document: dict[str, Any], served: Served | None = None) -> Any:  # noqa: ANN401
    """Give a document as an answer, with the version of the model that it comes from."""
    return JSONResponse(document, headers={} if served is None else {"x-model-version": served.version})
