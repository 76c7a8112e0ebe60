"""What each query of a model of pixels or objects attends to, block by block; with what it says in the end."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.decode import OpenImage, Pixels
from vitrail.data.overlays import colors_of, draw_boxes, lay_over, picture_of
from vitrail.data.transforms.annotated import squashed
from vitrail.data.transforms.finish import scale
from vitrail.data.transforms.resize import evaluation_image, resize, to_tensor
from vitrail.errors import ConfigError
from vitrail.figures import light_up
from vitrail.inspection.drawing import enlarge
from vitrail.models import Model, eval_mode
from vitrail.models.dense import DenseViT

SHOWN, LEAST = 8, 0.1  # queries of an image, and how sure they must be of a class
GRAY, NOTHING = 200, 255  # of a background; the number of what is outside a mask
SIDE = 224  # pixels of a picture's shorter side


class QueryLook(NamedTuple):
    """One query: its class, how sure it is, the share of its attention on patches, and pictures of both."""

    query: int
    label: str
    score: float
    on_patches: list[float]  # by block: the rest is on queries and the tokens before the patches
    attention: list[Pixels]  # by block
    answer: Pixels  # its mask or box


def look_at_queries(model: Model, data: bytes | Pixels, names: Sequence[str]) -> tuple[Pixels, list[QueryLook]]:
    """Give the picture, as the model sees its shape, and the queries that say something of it, the surest first."""
    if not isinstance(model, DenseViT) or not model.joined:
        raise ConfigError("a linear head has no queries. Take a model with head=queries.")
    size, like = model.config.image_size, next(model.parameters())
    image = OpenImage(data) if isinstance(data, bytes) else data
    levels = evaluation_image(image, size, squashed(model.card.preprocessing), None, model.config.channels)
    batch = scale(levels[None].to(like.device), model.card.preprocessing).to(like.dtype)
    picture = _picture(picture_of(data), size)
    with eval_mode(model):
        said, grid = model(batch), model.grid_of(batch)
        blocks = range(model.first_joined, len(model.blocks))
        weights = [model.attention_maps(batch, layer, slice(0, model.count))[0][0].mean(dim=0) for layer in blocks]
    shares = said.classes[0].float().softmax(dim=1)[:, :-1].cpu()
    scores, classes = shares.max(dim=1)
    found: list[QueryLook] = []
    for query in scores.argsort(descending=True, stable=True)[:SHOWN].tolist():
        if float(scores[query]) < LEAST:
            break
        seen = [each[query].float().cpu() for each in weights]  # T each
        patches = grid[0] * grid[1]
        maps = [_lit(picture, each[-patches:].unflatten(0, grid)) for each in seen]
        answer = _answer(picture, said.masks[0], said.boxes[0], query, int(classes[query]), names)
        on_patches = [float(each[-patches:].sum()) for each in seen]
        label = names[int(classes[query])]
        found.append(QueryLook(query, label, float(scores[query]), on_patches, maps, answer))
    return picture, found


def _picture(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    factor = max(SIDE / min(size), 1.0)
    shape = round(size[0] * factor), round(size[1] * factor)
    return resize(to_tensor(np.ascontiguousarray(pixels), 3), shape, "antialias").permute(1, 2, 0).numpy()


def _lit(picture: Pixels, weights: Tensor) -> Pixels:
    height, width = picture.shape[:2]
    stride = max(round(height / weights.shape[0]), 1)
    large = enlarge(weights[None], (height, width), stride)[0].numpy()
    return light_up(picture, large)


def _answer(picture: Pixels, masks: Tensor, boxes: Tensor, query: int, number: int, names: Sequence[str]) -> Pixels:
    colors = colors_of(names)
    colors = np.where(colors.any(axis=1, keepdims=True), colors, GRAY).astype(np.uint8)  # a background is shown too
    height, width = picture.shape[:2]
    if len(masks):
        whole = torch.nn.functional.interpolate(masks[query][None, None].float(), size=(height, width), mode="bilinear")
        inside: NDArray[np.bool_] = (whole[0, 0] > 0).cpu().numpy()
        colors[NOTHING] = 0
        return lay_over(picture, np.where(inside, number, NOTHING).astype(np.uint8), colors)
    sides = np.array([width, height, width, height])
    return draw_boxes(picture, boxes[query : query + 1].float().cpu().numpy() * sides, np.array([number]), colors)


def document_of(name: str, looks: Sequence[QueryLook]) -> dict[str, Any]:
    """Give the numbers of an image's queries as plain values."""
    rows = [
        {"query": each.query, "label": each.label, "score": each.score, "on_patches": each.on_patches} for each in looks
    ]
    return {"name": name, "queries": rows}
