"""Images that a model is sure of, and wrong about."""

from collections.abc import Sequence

import torch

from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.inspection.looking import to_model
from vitrail.inspection.views import views_of
from vitrail.models import Model, eval_mode

AT_ONCE = 32


def surest_mistakes(model: Model, source: Source, numbers: Sequence[int]) -> list[int]:
    """Give the numbers of images with labels whose first answer is wrong, the surest first."""
    found: list[tuple[float, int]] = []
    labeled = [number for number in numbers if source.labels[number] >= 0]
    for start in range(0, len(labeled), AT_ONCE):
        try:
            views, kept, _ = views_of(model, source, labeled[start : start + AT_ONCE])
        except DataError:  # none of these can be decoded; others may
            continue
        with eval_mode(model):
            shares = model(to_model(model, views.images)).float().softmax(dim=1)
        sure, answer = shares.max(dim=1)
        wrong = (answer.cpu() != torch.from_numpy(source.labels[kept])).tolist()
        found += [(-share, number) for share, number, bad in zip(sure.tolist(), kept, wrong, strict=True) if bad]
    return [number for _, number in sorted(found)]
