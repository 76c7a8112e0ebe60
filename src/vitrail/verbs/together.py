"""Verbs by many processes: the images are shared out among those of torchrun, and the first has all answers."""

from typing import Any

from vitrail.runtime.machine import Group, is_together, joined
from vitrail.verbs import predict as alone
from vitrail.verbs.opening import AnyModel, device_for
from vitrail.verbs.predictions import Embeddings, Predictions


def predict(model: AnyModel, images: object, **options: Any) -> Predictions:  # noqa: ANN401
    """Classify images as `vitrail.predict` does, by all processes where torchrun started several."""
    if not is_together():
        return alone.predict(model, images, **options)
    with joined(device_for(model, options.pop("device", None))) as group:
        return alone.predict(model, images, **_placed(model, group), **options)


def embeddings(model: AnyModel, images: object, **options: Any) -> Embeddings:  # noqa: ANN401
    """Give features with the names of their images, by all processes where torchrun started several."""
    if not is_together():
        return alone.embeddings(model, images, **options)
    with joined(device_for(model, options.pop("device", None))) as group:
        return alone.embeddings(model, images, **_placed(model, group), **options)


def _placed(model: AnyModel, group: Group) -> dict[str, Any]:
    return {"group": group, "device": device_for(model, group.device)}
