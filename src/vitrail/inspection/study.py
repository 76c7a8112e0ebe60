"""Everything that can be seen of a model and some images, in as few passes as it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.config.model import Pooling
from vitrail.data.source import Source
from vitrail.errors import ConfigError
from vitrail.inspection.attention import Distances, Pooled, Rollout, images_at_once, observe, shape_of
from vitrail.inspection.bias import Agreement, Moved, answers_of, patch_agreement, shift_agreement, stride_of
from vitrail.inspection.layers import Grams, LayerFeatures, compare_layers
from vitrail.inspection.learning import Records
from vitrail.inspection.page import MapPlan, Maps, Picture, QueryMaps, pictures_of, plan_maps
from vitrail.inspection.predictions import Predictions
from vitrail.inspection.views import AT_ONCE, Views, check_weights, has_classes_of, to_model, views_of
from vitrail.models import Model, ViT, eval_mode
from vitrail.ops.cost.counts import forward_macs
from vitrail.ops.random import shuffled
from vitrail.ops.similarity import FEWEST
from vitrail.runtime.reporter import SILENT, Reporter

ROOM = 14_000_000  # bytes of maps and pictures; a third more as a page's text
PICTURES = 5_000_000  # of them at most
SHARES = (0.0, 0.25, 0.5, 0.75)  # of the patches that are dropped or exchanged
STEPS = (0.0, 0.5, 1.0, 1.5)  # shifts, in patches
DRAWN = (12, 64)  # images drawn at random: at least, where there are so many, and at most
WORK = 12 * 17.6e9  # multiply-accumulates of their forward passes, once: 12 images of a ViT-B/16
FIRST = 5  # answers that are named


class Attention(NamedTuple):
    """What was seen of the attention to some images."""

    rollout: Float[Tensor, "B rows cols"]
    pooled: Float[Tensor, "B L h rows cols"]
    distance: Float[Tensor, "B L h"]
    normalized_distance: Float[Tensor, "B L h"]
    maps: list[Maps]
    plan: MapPlan
    pooling: Pooling  # how the classifier reads the tokens


@dataclass(kw_only=True)
class Findings:
    """What was seen of a model and some images."""

    views: Views
    pictures: list[Picture]
    logits: Float[Tensor, "B K"]
    attention: Attention | None  # None of a ResNet
    drawn: int  # images drawn at random, of which the layers and all below were measured
    grams: Grams  # of the layers' features
    layers: Float[Tensor, "L L"] | None  # CKA; None with too few images
    shifts: Sequence[int]
    shares: Sequence[float] = SHARES
    moved: Moved | None = None  # None where no bias was asked for, and so the next two
    dropped: Agreement | None = None
    shuffled: Agreement | None = None


class Inspected(NamedTuple):
    """A model with its title, and what was found with the images it was shown, where there were any."""

    title: str
    model: Model
    found: Findings | None = None
    class_names: Sequence[str] | None = None  # of the model's classes, where it or the data has them
    predictions: Predictions | None = None  # of a model that learned without labels
    log: Records = ()  # of the run that it comes from


def look_at(
    title: str,
    model: Model,
    source: Source | None,
    chosen: Sequence[int],
    mistakes: Sequence[int] = (),
    *,
    drawn: Sequence[int] = (),
    bias: bool,
    maps: bool = True,
    shifts: Sequence[int] | None = None,
    report: Reporter = SILENT,
) -> tuple[Inspected, list[int]]:
    """Study a model, with images where there are any; give the places of its mistakes among them too.

    `chosen` are shown; by `drawn`, which must not depend on the answers, is measured what is said of all images.
    """
    if source is None:
        return Inspected(title, model), []
    views, kept, bad = views_of(model, source, chosen, sharp=maps)
    for line in bad:
        report.note(f"left out {line}")
    random = views_of(model, source, drawn)[0].images if drawn else None
    found = study(model, views, random, maps=maps, bias=bias, shifts=shifts, report=report)
    names = source.class_names if has_classes_of(model, source) else None
    wrong = [place for place, number in enumerate(kept) if number in mistakes]
    return Inspected(title, model, found, names), wrong


def draw_images(source: Source, count: int) -> list[int]:
    """Draw images at random from all of a source, the same each time; of fewer images, all."""
    return sorted(shuffled(np.arange(min(count, len(source))), len(source), seed=0, epoch=0).tolist())


def drawn_count(*models: Model) -> int:
    """Say how many images to draw, so that passes through models take no long time: fewer of a large one on a CPU."""
    slow = [forward_macs(model.config).total for model in models if next(model.parameters()).device.type == "cpu"]
    return min(max(int(WORK / max(slow)), DRAWN[0]), DRAWN[1]) if slow else DRAWN[1]


def study(
    model: Model,
    views: Views,
    drawn: Float[Tensor, "n C H W"] | None = None,
    *,
    maps: bool,
    bias: bool,
    shifts: Sequence[int] | None = None,
    report: Reporter = SILENT,
) -> Findings:
    """Look at all there is; `bias` needs nine passes more, of the images drawn at random.

    `drawn` are those images, all that are shown where it is left out. `shifts` are in pixels; without, they are halves
    and wholes of the model's patches.
    """
    check_weights(model)
    attention = None
    drawn = views.images if drawn is None else drawn
    pictures = pictures_of(views.pictures, PICTURES)
    room = ROOM - sum(picture.bytes for picture in pictures)
    with eval_mode(model), report.working("following attention"):
        if isinstance(model, ViT):
            attention, logits = look(model, views.images, room if maps else None)
        else:
            logits = torch.cat([model(some).float().cpu() for some in to_model(model, views.images).split(AT_ONCE)])
    if not torch.isfinite(logits).all() or (attention is not None and not torch.isfinite(attention.rollout).all()):
        raise ConfigError(
            "the model's answers to these images are not finite: it has diverged, or its precision is too low. "
            "Take another checkpoint, or other images."
        )
    features = LayerFeatures(model.layers)
    with report.working("comparing layers"):
        before = answers_of(model, drawn, features)
    grams = features.grams()
    found = Findings(
        views=views,
        drawn=len(drawn),
        pictures=pictures,
        logits=logits,
        attention=attention,
        shifts=[round(step * stride_of(model)) for step in STEPS] if shifts is None else shifts,
        grams=grams,
        layers=compare_layers(grams, grams) if len(drawn) >= FEWEST else None,
    )
    if bias:
        found.shifts = [shift for shift in found.shifts if shift < drawn.shape[3] // 2]
        with report.working("moving images"):
            found.moved = shift_agreement(model, drawn, found.shifts, before)
        with report.working("dropping and exchanging patches"):
            found.dropped = patch_agreement(model, drawn, SHARES, change="drop", before=before)
            found.shuffled = patch_agreement(model, drawn, SHARES, change="shuffle", before=before)
    return found


def look(model: ViT, images: Float[Tensor, "B C H W"], room: int | None) -> tuple[Attention, Float[Tensor, "B K"]]:
    """Follow attention through all layers, once; give the logits too.

    `room` is bytes for maps of what every patch attends to; without it there are none.
    """
    plan = MapPlan(1, 0)
    if room is not None:
        plan = plan_maps(len(images), len(model.blocks), model.config.heads, model.grid_of(images), room)
    parts, kept, done = [], [], 0
    while done < len(images):
        more = images_at_once(model, images)
        if done < plan.all_heads:
            more = min(more, plan.all_heads - done)
        some = to_model(model, images[done : done + more])
        shape = shape_of(model, some)
        rolled, pooled = Rollout(shape), Pooled(shape)
        near, far = Distances(shape, normalized=False), Distances(shape, normalized=True)
        queries = QueryMaps(shape, plan.cell, all_heads=done < plan.all_heads)
        watching = (rolled, pooled, near, far) if room is None else (rolled, pooled, near, far, queries)
        tokens = observe(model, some, watching)
        found = (rolled.maps(), pooled.maps(), near.mean(), far.mean(), model.head(model.read_out(tokens)).float())
        parts.append([each.cpu() for each in found])
        if room is not None:
            kept.extend(queries.each())
        done += more
    *seen, logits = (torch.cat(part) for part in zip(*parts, strict=True))
    return Attention(*seen, maps=kept, plan=plan, pooling=model.config.pooling), logits
