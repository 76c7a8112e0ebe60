"""How well an objective without labels is met on images that are not trained on."""

from collections.abc import Mapping

import torch

from vitrail.data.feed import Feed, evaluation_feed
from vitrail.data.source import Source
from vitrail.models import Model
from vitrail.runtime.group import Group
from vitrail.train.loop import Plan, fill_up
from vitrail.train.state import State

WORDS = ("loss", "right", "images", "left out")


def feed_for(model: Model, source: Source, group: Group, *, batch: int, workers: int, limit: float) -> Feed:
    """Feed every image once, as the model evaluates it, `batch` at a time on every rank."""
    return evaluation_feed(
        source,
        model.config.image_size,
        batch=batch * group.ranks,
        preprocessing=model.card.preprocessing,
        channels=model.config.channels,
        workers=workers,
        rank=group.rank,
        ranks=group.ranks,
        limit=limit,
        device=group.device,
    )


@torch.no_grad()  # and not inference mode, in which nothing that is shared out can be gathered
def measure_objective(plan: Plan, state: State, source: Source, *, workers: int) -> Mapping[str, float]:
    """Ask of every image once, always the same; give the mean loss, and the share that was answered right."""
    model, group = state.model, plan.group
    batch = plan.micro_batch
    feed = feed_for(model, source, group, batch=batch, workers=workers, limit=plan.config.bad_image_limit)
    counts = torch.zeros(len(WORDS), dtype=torch.float64, device=group.device)
    for part in feed.epoch(0):
        real = len(part.labels)
        counts[3] += len(part.skipped)
        if not real and group.ranks == 1:
            continue
        filled = fill_up(part, batch if plan.fills else 1)
        inputs = plan.objective.inputs(filled)
        with plan.autocast():
            outputs = plan.forward(*inputs)
        losses, right = plan.objective.judge(outputs, filled, inputs)
        counts[0] += losses[:real].sum(dtype=torch.float64)
        counts[1] += right[:real].sum(dtype=torch.float64)
        counts[2] += real
    loss, right, images, left_out = group.together(counts).tolist()
    seen = max(images, 1)
    found = {"loss": loss / seen, "right": right / seen, "images": images, "left_out": left_out}
    return found if plan.objective.counts else {name: value for name, value in found.items() if name != "right"}
