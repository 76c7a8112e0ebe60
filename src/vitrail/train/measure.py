"""How good a model is on images that it is not trained on: counts that add, every image once, on all processes."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from vitrail.data.feed import evaluation_feed
from vitrail.data.loader import Batch
from vitrail.data.source import Source
from vitrail.models import Model, eval_mode
from vitrail.ops.losses import loss_of
from vitrail.ops.metrics import ranks_of, within
from vitrail.runtime.group import Group
from vitrail.train.loop import Plan, pad_batch
from vitrail.train.state import State

Count = Callable[[Batch, int], Tensor]  # from a padded batch and its number of real images to sums


def measure_accuracy(
    model: Model,
    source: Source,
    *,
    group: Group,
    batch: int = 64,
    workers: int = 0,
    limit: float = 0.01,
    forward: Callable[[Tensor], Tensor] | None = None,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Mapping[str, float]:
    """Classify every image with the model's own preprocessing; give accuracy, top-5 accuracy and mean loss."""
    run = model if forward is None else forward

    def count(part: Batch, real: int) -> Tensor:
        assert part.targets is not None
        with autocast():
            logits = run(part.images)[:real]
        return count_correct(logits.float(), part.labels[:real], part.targets[:real])

    pad = 1 if forward is None else batch  # a compiled model is made for one size
    sums, left_out = add_up(count, model, source, group, batch=batch, pad=pad, workers=workers, limit=limit)
    loss, correct, top5, images = sums
    seen = max(images, 1)
    found = {"accuracy": correct / seen, "loss": loss / seen, "images": images, "left_out": left_out}
    return found | ({"top5": top5 / seen} if (model.config.classes or 0) > 5 else {})


def measure_objective(plan: Plan, state: State, source: Source, *, workers: int) -> Mapping[str, float]:
    """Ask of every image once, always the same; give the mean loss, and the share that was answered right."""
    objective, batch, limit = plan.objective, plan.micro_batch, plan.config.bad_image_limit

    def count(part: Batch, real: int) -> Tensor:
        inputs = objective.inputs(part)
        with plan.autocast():
            outputs = plan.forward(*inputs)
        losses, right = objective.compute_loss(outputs, part, inputs)
        summed = [some[:real].sum(dtype=torch.float64) for some in (losses, right)]
        return torch.stack([*summed, torch.zeros_like(summed[0]), torch.full_like(summed[0], real)])

    pad = batch if plan.pad_to_micro_batch else 1
    sums, left_out = add_up(count, state.model, source, plan.group, batch=batch, pad=pad, workers=workers, limit=limit)
    loss, right, _, images = sums
    seen = max(images, 1)
    correct = {"right": right / seen} if objective.counts else {}
    return {"loss": loss / seen, **correct, "images": images, "left_out": left_out}


def add_up(
    count: Count, model: Model, source: Source, group: Group, *, batch: int, pad: int, workers: int, limit: float
) -> tuple[list[float], float]:
    """Add up four numbers of every batch, padded to `pad` images, over all ranks; and count the undecodable images."""
    feed = evaluation_feed(
        source,
        model.config.image_size,
        batch=batch * group.world_size,
        preprocessing=model.card.preprocessing,
        channels=model.config.channels,
        workers=workers,
        rank=group.rank,
        ranks=group.world_size,
        bad_image_limit=limit,
        device=group.device,
    )
    sums = torch.zeros(5, dtype=torch.float64, device=group.device)
    with eval_mode(model):  # which is not inference mode, in which no sharded weight can be gathered
        for part in feed.epoch(0):
            sums[4] += len(part.skipped)
            if len(part.labels) or group.world_size > 1:  # a rank without images runs too: the others may wait for it
                sums[:4] += count(pad_batch(part, pad), len(part.labels))
    *found, left_out = group.all_reduce_sum(sums).tolist()
    return found, left_out


def count_correct(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Sum the loss, and count the images that are correct, correct in the top 5, and labeled; ties: the first class."""
    ranks = ranks_of(logits, labels)
    loss = loss_of(logits, targets, "softmax").sum(dtype=torch.float64)
    counts = [some.sum().double() for some in (within(ranks, 1), within(ranks, 5), labels >= 0)]
    return torch.stack([loss, *counts])
