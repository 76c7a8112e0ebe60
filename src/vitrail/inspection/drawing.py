"""From what was found to pictures with their words."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Num
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail import figures
from vitrail.config import PatchStem, ViTConfig
from vitrail.config.model import Pooling
from vitrail.config.parts import reads_token
from vitrail.data.transforms.resize import resize
from vitrail.figures import Curve, measured
from vitrail.inspection.bias import stride_of
from vitrail.inspection.learning import learning_panels
from vitrail.inspection.page import with_color
from vitrail.inspection.predictions import Predictions
from vitrail.inspection.study import Findings, Inspected
from vitrail.inspection.views import Views
from vitrail.inspection.weights import (
    axis_similarity,
    filter_components,
    kind_of_positions,
    offset_biases,
    position_similarity,
    relative_similarity,
)
from vitrail.models import Model, ViT, build
from vitrail.models.positions import AddedPositions

SHOWN = 16  # images of a picture
LARGER = 1.5  # times the image size, at which positions are shown resampled
Titled = Sequence[tuple[str, Findings]]  # models by their titles, with what was found
MOST_TILES = 24  # patches of a side that have a tile


READ: dict[Pooling, tuple[str, str]] = {  # what the classifier reads, and who attends to what it reads
    "token": ("the class token, which the classifier reads", "the class token attends"),
    "token+mean": ("the class token, which the classifier reads beside the mean", "the class token attends"),
    "distilled": ("the class token, which the first classifier reads", "the class token attends"),
    "attention": ("the mean of the patches, to which a learned query attends", "all patches attend, on average,"),
    "mean-all": ("the mean of all tokens, which the classifier reads", "all tokens attend, on average,"),
    "mean": ("the mean of all tokens, which the classifier reads", "all tokens attend, on average,"),
    "max": (
        "the mean of all tokens, of whose largest values the classifier reads",
        "all tokens attend, on average,",
    ),
}


class Drawing(NamedTuple):
    """A picture to be drawn in either theme, and its words."""

    name: str
    title: str
    caption: str
    draw: Callable[[figures.Theme], bytes]
    photographic: bool = False  # so that a page may carry it with loss


def drawings(subject: Inspected, other: Inspected | None, between: Float[Tensor, "L L2"] | None) -> Iterator[Drawing]:
    """Give every picture that there is of a model, and of another beside it."""
    if panels := learning_panels(subject.log):
        yield Drawing(
            "learning",
            "How it learned",
            "Loss, accuracy and learning rate by step, from the run's log. Training values are means over the images "
            "since the value before, as they were augmented and mixed, so that they may be worse than those of "
            "validation images, which are as they come.",
            lambda theme: measured.draw_learning(panels, theme),
        )
    yield _filters(subject)
    if other is not None:
        yield _filters(other, "other-")
    yield from _positions(subject.model)
    if subject.found is not None:
        both = [(each.title, each.found) for each in (subject, other) if each is not None and each.found is not None]
        if subject.predictions is not None:
            yield _predictions(subject.found.views, subject.predictions)
        yield from _attention(subject.model, subject.found, both)
        yield from _bias(stride_of(subject.model), subject.found, both)
    if between is not None and other is not None:
        yield Drawing(
            "layers-against",
            "Which layers of two models are alike",
            f"CKA between the layers of {subject.title} and those of {other.title}, over "
            f"{0 if subject.found is None else subject.found.drawn} images drawn at random.",
            lambda theme: figures.draw_matrix(between.numpy(), other.title, subject.title, theme),
        )


def _predictions(views: Views, found: Predictions) -> Drawing:
    rows = zip(views.pixels[:SHOWN], found.read[:SHOWN], found.made[:SHOWN], strict=True)
    pictures = [[_channels_last(picture) for picture in row] for row in rows]
    right = "" if found.right is None else f" {float(found.right.mean()):.0%} of them are right."
    return Drawing(
        "predictions",
        "What it predicts without labels",
        f"The image; what the model is shown of it; {found.words}.{right}",
        lambda theme: figures.draw_rows(pictures, ("image", "shown", "predicted"), theme),
        photographic=True,
    )


def _filters(subject: Inspected, prefix: str = "") -> Drawing:
    found = filter_components(subject.model)
    config = subject.model.config
    plain = isinstance(config, ViTConfig) and isinstance(config.stem, PatchStem)
    whose = "patch embedding" if plain else "ResNet's first layer"
    return Drawing(
        f"{prefix}filters",
        f"What the filters of {subject.title} look at",
        f"The first {len(found.filters)} principal components of the {whose}'s filters, each with its share of the "
        f"variance (Fig. 7 left). They hold {float(found.shares.sum()):.0%} of it.",
        lambda theme: figures.draw_filters(found.filters.cpu().numpy(), found.shares.cpu().numpy(), theme),
    )


def _positions(model: Model) -> Iterator[Drawing]:
    if not isinstance(model, ViT):
        return
    kind, size = kind_of_positions(model), model.config.image_size
    if kind == "relative":
        keys = relative_similarity(model)
        yield Drawing(
            "positions",
            "What it knows of places",
            "Cosine similarity of the keys of all offsets of two tokens in the sequence, in every head (Appendix D.4).",
            lambda theme: figures.draw_relative(keys.numpy(), theme),
        )
    if kind == "bias":
        biases = offset_biases(model)
        yield Drawing(
            "positions-biases",
            "What it knows of distances",
            "What each head of the first layer adds to the logits of a patch so many rows and columns away: one tile a "
            "head, zero in its middle.",
            lambda theme: figures.draw_offsets(biases.numpy(), theme),
        )
    if kind in ("relative", "none") or not isinstance(model.positions, AddedPositions):
        return
    if kind == "learned-2d":
        axes = axis_similarity(model)
        yield Drawing(
            "positions-by-axis",
            "What it knows of rows and of columns",
            "Cosine similarity of the positions of rows, and of columns, which are learned apart (Appendix D.4).",
            lambda theme: figures.draw_axes(axes.rows.numpy(), axes.cols.numpy(), theme),
        )
    learned, stride = kind != "fixed", stride_of(model)
    many = round(size[0] * LARGER / stride) * stride, round(size[1] * LARGER / stride) * stride
    shown: list[tuple[str, str, Model, tuple[int, int], str]] = [
        ("positions", "What it knows of places", model, size, "as trained" if learned else "fixed, not learned"),
        ("positions-resampled", "The same at another image size", model, many, f"resampled for {many[0]}x{many[1]}"),
    ]
    if learned:
        fresh = build(replace(model.config, depth=1), seed=0)
        shown.insert(1, ("positions-before", "What it knew before training", fresh, size, "fresh"))
    for name, title, whose, at, words in shown:
        every = -(-max(model.config.stem.grid(*at)) // MOST_TILES)
        values = position_similarity(whose, at, every=every)
        some = "each patch's" if every == 1 else f"every {every}th patch's"
        yield Drawing(
            name,
            title,
            f"Cosine similarity of {some} position with all others, {words}: one tile a patch, at its place "
            "(Fig. 7 centre).",
            lambda theme, values=values: figures.draw_tiles(values.numpy(), theme),
        )


def _attention(model: Model, found: Findings, both: Titled) -> Iterator[Drawing]:
    views, seen = found.views, found.attention
    looked = [(title, each.attention) for title, each in both if each.attention is not None]
    tokens = [reads_token(each.pooling) for _, each in looked]
    apart = any(tokens)  # else all weights go to patches, and are scaled to one already
    left_out = f" {'The' if all(tokens) else 'A'} class token is left out, and the other weights"
    distances = [("distance", "How far its heads look", "distance", f"{left_out} are as they are, as the authors do.")]
    if apart:
        more = ("distance-normalised", "The same, of what goes to patches", "normalized_distance")
        distances.append((*more, f"{left_out} are scaled to one."))
    for name, title, part, token in distances:
        panels = [(whose, getattr(each, part).mean(dim=0).numpy()) for whose, each in looked]
        if panels:
            yield Drawing(
                name,
                title,
                "Mean distance in pixels from a patch to those that it attends to, a dot a head, over the "
                f"{len(views.images)} images shown (Fig. 7 right, Fig. 11).{token if apart else ''}",
                lambda theme, panels=panels: figures.draw_distances(panels, theme),
            )
    if seen is None:
        return
    pictures = [_channels_last(picture) for picture in views.pictures[:SHOWN]]
    finer = [picture.shape[1] / views.pixels.shape[3] for picture in pictures]
    lit = [
        enlarge(each[None], picture.shape[:2], round(factor * stride_of(model)))[0]
        for each, picture, factor in zip(seen.rollout[:SHOWN], pictures, finer, strict=True)
    ]
    names = [short(name) for name in views.names[:SHOWN]]
    read, who = READ[seen.pooling]
    yield Drawing(
        "rollout",
        "Where it looks",
        f"Attention rollout: the share of each patch in {read}, through all layers (Figs. 6 and 14), dark where it is "
        "least and bright where it is most.",
        lambda theme: figures.draw_overlays(pictures, [each.numpy() for each in lit], names, theme),
        photographic=True,
    )
    yield Drawing(
        "heads",
        "What each head looks at",
        f"What {who} to in {names[0]}, by layer and head; each map is scaled to its own largest weight.",
        lambda theme: figures.draw_heads(seen.pooled[0].numpy(), theme),
    )


def _bias(stride: int, found: Findings, both: Titled) -> Iterator[Drawing]:
    moved = [(title, each, each.moved) for title, each in both if each.moved is not None]
    values = [("representation", "cosine")]
    if not any(agreement.same.isnan().any() for _, _, agreement in moved):  # of models without classes
        values.append(("same answer", "same"))
    same = ", and the share of images with the same answer" if len(values) > 1 else ""
    cells = "a whole patch" if found.attention is not None else "a whole cell of its features"

    over = f"over {found.drawn} images drawn at random"

    def curve(title: str, x: Sequence[float], agreement: Any, value: str) -> Curve:  # noqa: ANN401
        heights, intervals = getattr(agreement, value), getattr(agreement, f"{value}_interval")
        return Curve(title, x, heights.tolist(), intervals.tolist())

    def panel(words: str, x: str, part: str, value: str) -> tuple[str, list[Curve]]:
        return words, [curve(title, getattr(each, x), getattr(each, part), value) for title, each, _ in moved]

    if moved:
        shown = [("features that moved along", "maps"), *values]
        shifted = [panel(words, "shifts", "moved", value) for words, value in shown]
        yield Drawing(
            "shifts",
            "When the image moves",
            "The image moved to the right by so many pixels: cosine of the features with those moved along, and of the "
            f"representation with that before{same}, {over}, with intervals of 95 %. Dotted: {cells}.",
            lambda theme: figures.draw_curves(shifted, f"shift, pixels; n = {found.drawn}", theme, marks=[stride]),
        )
        spoiled = [
            panel(f"{how}: {words}", "shares", part, value)
            for how, part in (("made grey", "dropped"), ("exchanged", "shuffled"))
            for words, value in values
        ]
        yield Drawing(
            "patches",
            "When patches are lost or exchanged",
            f"Cosine of the representation with that of the whole image{same}, when a share of the patches is made "
            f"grey, or exchanged among themselves, {over}, with intervals of 95 %.",
            lambda theme: figures.draw_curves(spoiled, f"patches changed; n = {found.drawn}", theme, percent=True),
        )
    layers = found.layers
    if layers is not None:
        yield Drawing(
            "layers",
            "Which layers are alike",
            f"CKA between the features of all layers, {over} (unbiased; 1 for the same up to a rotation).",
            lambda theme: figures.draw_matrix(layers.numpy(), "layer", "layer", theme),
        )


def _channels_last(picture: Num[Tensor, "C H W"]) -> NDArray[np.uint8]:
    return with_color(picture).permute(1, 2, 0).numpy()


def enlarge(maps: Float[Tensor, "B rows cols"], size: Sequence[int], stride: int) -> Float[Tensor, "B H W"]:
    """Bring maps to the images' size as the authors do: Lanczos, then a Gaussian as wide as a patch."""
    peaks = maps.amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)
    levels = (maps / peaks * 255).round().to(torch.uint8)[:, None]
    large = resize(levels, (size[0], size[1]), "lanczos").float() / 255  # B 1 H W
    reach = min(2 * stride, min(size) - 1)
    places = torch.arange(-reach, reach + 1, dtype=large.dtype)
    bell = torch.exp(-0.5 * (places / (stride / 2)).square())
    bell = bell / bell.sum()
    padded = F.pad(large, (reach, reach, reach, reach), mode="reflect")
    return F.conv2d(F.conv2d(padded, bell[None, None, :, None]), bell[None, None, None, :])[:, 0]


def short(name: str, most: int = 18) -> str:
    """Give the end of a long name."""
    return name if len(name) <= most else f"…{name[-most + 1 :]}"


def numbers(values: Tensor) -> list[Any]:
    """Give a tensor's values rounded for people's eyes and programs' files."""
    rounded = np.round(values.double().numpy(), 6).astype(object)
    rounded[np.isnan(rounded.astype(np.float64))] = None
    return rounded.tolist()
