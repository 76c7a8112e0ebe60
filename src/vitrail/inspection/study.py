"""Everything that can be seen of a model and some images, in as few passes as it takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.source import Source
from vitrail.errors import ConfigError
from vitrail.inspection.attention import Distances, Pooled, Rollout, images_at_once, observe, shape_of
from vitrail.inspection.bias import Agreement, Moved, patch_agreement, shift_agreement, stride_of
from vitrail.inspection.layers import Grams, LayerFeatures, compare_layers, grams_of
from vitrail.inspection.looking import check_weights, in_parts, to_model
from vitrail.inspection.maps import MapPlan, Maps, QueryMaps, plan_maps
from vitrail.inspection.pictures import Picture, pictures_of
from vitrail.inspection.predictions import Predictions
from vitrail.inspection.views import Views, has_classes_of, views_of
from vitrail.models import Model, ViT, eval_mode
from vitrail.ops.similarity import FEWEST
from vitrail.runtime.reporter import SILENT, Reporter

ROOM = 14_000_000  # bytes of maps and pictures; a third more as a page's text
PICTURES = 5_000_000  # of them at most
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75)  # of the patches that are dropped or exchanged
STEPS = (0.0, 0.5, 1.0, 1.5, 2.0)  # shifts, in patches
FIRST = 5  # answers that are named


@dataclass(kw_only=True)
class Attention:
    """What was seen of the attention to some images."""

    rollout: Float[Tensor, "B rows cols"]
    pooled: Float[Tensor, "B L h rows cols"]
    distance: Float[Tensor, "B L h"]
    normalized_distance: Float[Tensor, "B L h"]
    maps: list[Maps] = field(default_factory=list)
    plan: MapPlan


@dataclass(kw_only=True)
class Findings:
    """What was seen of a model and some images."""

    pictures: list[Picture]
    logits: Float[Tensor, "B K"]
    attention: Attention | None  # None of a ResNet
    shifts: Sequence[int]
    moved: Moved | None
    shares: Sequence[float]
    dropped: Agreement | None
    shuffled: Agreement | None
    grams: Grams  # of the layers' features
    layers: Float[Tensor, "L L"] | None  # CKA; None with too few images


class Inspected(NamedTuple):
    """A model with its title, the images it was shown, and what was found."""

    title: str
    model: Model
    views: Views | None = None
    found: Findings | None = None
    class_names: Sequence[str] | None = None  # of the model's classes, where it or the data has them
    predictions: Predictions | None = None  # of a model that learned without labels


def look_at(
    title: str,
    model: Model,
    source: Source | None,
    chosen: Sequence[int],
    mistakes: Sequence[int] = (),
    *,
    bias: bool,
    maps: bool = True,
    shifts: Sequence[int] | None = None,
    report: Reporter = SILENT,
) -> tuple[Inspected, list[int]]:
    """Study a model, with images where there are any; give the places of its mistakes among them too."""
    if source is None:
        return Inspected(title, model), []
    views, kept, bad = views_of(model, source, chosen)
    for line in bad:
        report.note(f"left out {line}")
    found = study(model, views, maps=maps, bias=bias, shifts=shifts, report=report)
    names = source.class_names if has_classes_of(model, source) else None
    wrong = [place for place, number in enumerate(kept) if number in mistakes]
    return Inspected(title, model, views, found, names), wrong


def study(
    model: Model,
    views: Views,
    *,
    maps: bool,
    bias: bool,
    shifts: Sequence[int] | None = None,
    report: Reporter = SILENT,
) -> Findings:
    """Look at all there is; `bias` needs several passes more, through a third of the images.

    `shifts` are in pixels; without, they are halves and wholes of the model's patches.
    """
    attention = None
    check_weights(model)
    pictures = pictures_of(views.pixels, PICTURES)
    room = ROOM - sum(picture.bytes for picture in pictures)
    with eval_mode(model), report.working("following attention"):
        if isinstance(model, ViT):
            attention, logits, grams = look(model, views.images, room if maps else None)
        else:
            grams = grams_of(model, views.images)
            logits = torch.cat([model(some).float().cpu() for some in in_parts(to_model(model, views.images))])
    if not torch.isfinite(logits).all() or (attention is not None and not torch.isfinite(attention.rollout).all()):
        raise ConfigError(
            "the model's answers to these images are not finite: it has diverged, or its precision is too low. "
            "Take another checkpoint, or other images."
        )
    found = Findings(
        pictures=pictures,
        logits=logits,
        attention=attention,
        shifts=[round(step * stride_of(model)) for step in STEPS] if shifts is None else shifts,
        moved=None,
        shares=SHARES,
        dropped=None,
        shuffled=None,
        grams=grams,
        layers=compare_layers(grams, grams) if len(views.images) >= FEWEST else None,
    )
    if bias:
        some = views.images[: max(-(-len(views.images) // 3), min(4, len(views.images)))]
        found.shifts = [shift for shift in found.shifts if shift < some.shape[3] // 2]
        with report.working("moving images"):
            found.moved = shift_agreement(model, some, found.shifts)
        with report.working("dropping and exchanging patches"):
            found.dropped = patch_agreement(model, some, SHARES, change="drop")
            found.shuffled = patch_agreement(model, some, SHARES, change="shuffle")
    return found


def look(
    model: ViT, images: Float[Tensor, "B C H W"], room: int | None
) -> tuple[Attention, Float[Tensor, "B K"], Grams]:
    """Follow attention through all layers, once; give the logits and the layers' features too.

    `room` is bytes for maps of what every patch attends to; without it there are none.
    """
    maps = room is not None
    grid = model.grid_of(images)
    plan = MapPlan(1, 0) if room is None else plan_maps(len(images), len(model.blocks), model.config.heads, grid, room)
    rolled, pooled, near, far, kept, logits = [], [], [], [], [], []
    features = LayerFeatures(len(model.blocks))
    done = 0
    while done < len(images):
        more = min(images_at_once(model, images), len(images) - done)
        if done < plan.all_heads:
            more = min(more, plan.all_heads - done)
        some = to_model(model, images[done : done + more])
        shape = shape_of(model, some)
        roll, pool = Rollout(shape), Pooled(shape)
        queries = QueryMaps(shape, plan.cell, all_heads=done < plan.all_heads)
        raw, scaled = Distances(shape, normalized=False), Distances(shape, normalized=True)
        watching = (roll, pool, raw, scaled, queries) if maps else (roll, pool, raw, scaled)
        tokens = observe(model, some, watching, features)
        rolled.append(roll.maps().cpu())
        pooled.append(pool.maps().cpu())
        near.append(raw.mean().cpu())
        far.append(scaled.mean().cpu())
        if maps:
            kept.extend(queries.each())
        logits.append(model.head(model.read_out(tokens)).float().cpu())
        done += more
    attention = Attention(
        rollout=torch.cat(rolled),
        pooled=torch.cat(pooled),
        distance=torch.cat(near),
        normalized_distance=torch.cat(far),
        maps=kept,
        plan=plan,
    )
    return attention, torch.cat(logits), features.grams()
