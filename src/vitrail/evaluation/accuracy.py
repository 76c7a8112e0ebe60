"""Accuracy of a model on a source: counts that add, every image once, on any number of processes."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from vitrail.data.source import Source
from vitrail.models import Model, eval_mode
from vitrail.ops.losses import loss_of
from vitrail.ops.metrics import ranks_of, within
from vitrail.runtime.group import Group
from vitrail.train.loop import lengthen
from vitrail.train.measure import feed_for

WORDS = ("loss", "correct", "among five", "images", "left out")


@torch.inference_mode()
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
    feed = feed_for(model, source, group, batch=batch, workers=workers, limit=limit)
    counts = torch.zeros(len(WORDS), dtype=torch.float64, device=group.device)
    run = model if forward is None else forward
    with eval_mode(model):
        for part in feed.epoch(0):
            assert part.targets is not None
            counts[4] += len(part.skipped)
            some = bool(len(part.labels))
            if not some and group.ranks == 1:
                continue
            # Filled up, as a compiled model is made for one size; a rank without images runs too: others may wait.
            images = lengthen(part.images, 1 if forward is None else batch)
            with autocast():
                logits = run(images)[: len(part.labels)]
            if some:
                counts[:4] += count(logits.float(), part.labels, part.targets)
    loss, correct, five, images, left_out = group.together(counts).tolist()
    seen = max(images, 1)
    found = {"accuracy": correct / seen, "loss": loss / seen, "images": images, "left_out": left_out}
    return found | ({"top5": five / seen} if (model.config.classes or 0) > 5 else {})


def count(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Sum the loss, and count images classified right, right among five, and all; of equals the first class wins."""
    ranks = ranks_of(logits, labels)
    loss = loss_of(logits, targets, "softmax").sum(dtype=torch.float64)
    right, five, known = within(ranks, 1), within(ranks, 5), labels >= 0
    return torch.stack([loss, right.sum().double(), five.sum().double(), known.sum().double()])
