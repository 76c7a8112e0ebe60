"""How a model that is trained is measured: counts that add, over batches and ranks."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vitrail.config.outputs import LabelOutputs
from vitrail.data.annotated.feed import annotated_feed
from vitrail.data.source import Batch, Source
from vitrail.errors import DataError
from vitrail.models import Model, eval_mode
from vitrail.models.dense import DenseViT
from vitrail.ops.losses import loss_of
from vitrail.ops.metrics import ClassCounts, first_classes, ranks_of, within
from vitrail.ops.task_metrics import choose_thresholds, measure
from vitrail.runtime.dense import DenseTally, go_through
from vitrail.runtime.inference import InferenceOptions, feed_of
from vitrail.train.loop import Plan, pad_batch
from vitrail.train.state import State

Count = Callable[[Batch, int], Tensor]  # from a padded batch and its number of real images to sums


def measure_accuracy(
    model: Model,
    source: Source,
    options: InferenceOptions,
    forward: Callable[[Tensor], Tensor] | None = None,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Mapping[str, float]:
    """Classify every image with the model's own preprocessing; give accuracy (also balanced, and top-5), F1, loss."""
    run, classes = model if forward is None else forward, model.config.classes or 0

    def count(part: Batch, real: int) -> Tensor:
        assert part.targets is not None
        with autocast():
            logits = run(part.images)[:real].float()
        labels = part.labels[:real]
        return torch.cat([count_correct(logits, labels, part.targets[:real]), count_classes(logits, labels)])

    pad = 1 if forward is None else options.batch_size  # a compiled model is made for one size
    loss, correct, top5, images, *rest, left_out = add_up(count, model, source, options, pad, 4 + 3 * classes)
    seen = max(images, 1)
    found = {"accuracy": correct / seen, "loss": loss / seen, "images": images, "left_out": left_out}
    images_of, answered, right = np.array(rest, dtype=np.int64).reshape(3, classes)
    counts = ClassCounts(images=images_of, answered=answered, right=right)
    found |= {"balanced_accuracy": counts.balanced_accuracy, "macro_f1": counts.macro_f1}
    return found | ({"top5": top5 / seen} if classes > 5 else {})


def measure_task(
    model: Model,
    source: Source,
    options: InferenceOptions,
    forward: Callable[[Tensor], Tensor] | None = None,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Mapping[str, float]:
    """Ask of every image what the model's card says that it answers; give how good the answers are."""
    assert model.card.outputs is not None
    raw, targets, left_out = collect(model, source, options, forward, autocast)
    found, _ = measure(model.card.outputs, raw, targets, source.class_names)
    return found | {"images": len(raw), "left_out": left_out}


def tune_thresholds(
    model: Model,
    source: Source,
    options: InferenceOptions,
    forward: Callable[[Tensor], Tensor] | None = None,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Mapping[str, float]:
    """Put into a model's card the thresholds of its labels that these images choose; give how good answers are then."""
    raw, targets, left_out = collect(model, source, options, forward, autocast)
    assert isinstance(model.card.outputs, LabelOutputs)
    outputs = replace(model.card.outputs, thresholds=choose_thresholds(raw, targets))
    model.card = replace(model.card, outputs=outputs)
    found, _ = measure(outputs, raw, targets, source.class_names)
    return found | {"images": len(raw), "left_out": left_out}


def collect(
    model: Model,
    source: Source,
    options: InferenceOptions,
    forward: Callable[[Tensor], Tensor] | None,
    autocast: Callable[[], AbstractContextManager[object]],
) -> tuple[Tensor, Tensor, int]:
    """Give the outputs and the targets of every image, in the source's order, and how many could not be decoded."""
    run, group = model if forward is None else forward, options.group
    pad = 1 if forward is None else options.batch_size
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    skipped = 0
    with eval_mode(model), torch.no_grad():
        for part in feed_of(model, source, options).epoch(0):
            skipped += len(part.skipped)
            real = len(part.labels)
            if real or group.world_size > 1:
                padded = pad_batch(part, pad)
                assert padded.targets is not None
                with autocast():
                    raw = run(padded.images)[:real].float()
                rows.append((part.samples[:real].cpu(), raw.cpu(), padded.targets[:real].cpu()))
    own = tuple(torch.cat(column) for column in zip(*rows, strict=True)) if rows else None
    gathered = group.all_gather((own, skipped))
    every = [each for each, _ in gathered if each is not None]
    if not sum(len(each[0]) for each in every):
        raise DataError("none of the images can be decoded. vitrail data check says why.")
    samples, raw, targets = (torch.cat([each[place] for each in every]) for place in range(3))
    order = samples.argsort(stable=True)
    return raw[order], targets[order], sum(count for _, count in gathered)


def measure_objective(plan: Plan, state: State, source: Source, options: InferenceOptions) -> Mapping[str, float]:
    """Ask of every image once, always the same; give the mean loss, and the share that was answered right."""

    def count(part: Batch, real: int) -> Tensor:
        inputs = plan.objective.inputs(part)
        with plan.autocast():
            outputs = plan.forward(*inputs)
        losses, right = plan.objective.compute_loss(outputs, part, inputs)
        summed = [some[:real].sum(dtype=torch.float64) for some in (losses, right)]
        return torch.stack([*summed, torch.zeros_like(summed[0]), torch.full_like(summed[0], real)])

    options = replace(options, batch_size=plan.micro_batch)
    pad = plan.micro_batch if plan.pad_to_micro_batch else 1
    loss, right, _, images, left_out = add_up(count, state.model, source, options, pad)
    seen = max(images, 1)
    correct = {"right": right / seen} if plan.objective.counts else {}
    return {"loss": loss / seen, **correct, "images": images, "left_out": left_out}


def add_up(
    count: Count, model: Model, source: Source, options: InferenceOptions, pad: int, numbers: int = 4
) -> list[float]:
    """Add up the numbers of every batch, padded to `pad` images, over all ranks; and count the undecodable images."""
    group = options.group
    sums = torch.zeros(numbers + 1, dtype=torch.float64, device=group.device)
    with eval_mode(model):  # which is not inference mode, in which no sharded weight can be gathered
        for part in feed_of(model, source, options).epoch(0):
            sums[-1] += len(part.skipped)
            if len(part.labels) or group.world_size > 1:  # a rank without images runs too: the others may wait for it
                sums[:-1] += count(pad_batch(part, pad), len(part.labels))
    return group.all_reduce_sum(sums).tolist()


def count_correct(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Sum the loss, and count the images that are correct, correct in the top 5, and labeled; ties: the first class."""
    ranks = ranks_of(logits, labels)
    loss = loss_of(logits, targets, "softmax").sum(dtype=torch.float64)
    counts = [some.sum().double() for some in (within(ranks, 1), within(ranks, 5), labels >= 0)]
    return torch.stack([loss, *counts])


def count_classes(logits: Tensor, labels: Tensor) -> Tensor:
    """Count for every class its images, the answers that name it, and those that are right, one after the other."""
    known, classes = labels >= 0, logits.shape[1]
    labels, answers = labels[known], first_classes(logits[known], 1)[:, 0]
    parts = (labels, answers[answers >= 0], labels[labels == answers])
    return torch.cat([torch.bincount(part, minlength=classes) for part in parts]).double()


def measure_dense(plan: Plan, model: DenseViT, source: Source, options: InferenceOptions) -> Mapping[str, float]:
    """Measure a model on every image, whole, as the run computes it: mean IoU, or average precision."""
    group, classes = options.group, model.config.classes or 0
    pad = plan.micro_batch if plan.pad_to_micro_batch else 1
    batch = plan.micro_batch if plan.pad_to_micro_batch else options.batch_size
    feed = annotated_feed(
        source,
        model.config.image_size,
        preprocessing=model.card.preprocessing,
        channels=model.config.channels,
        batch=batch * group.world_size,
        workers=options.workers,
        rank=group.rank,
        ranks=group.world_size,
        device=group.device,
        shapes=model.learns_shapes,
    )
    feed.bad_image_limit = options.bad_image_limit
    tally, left_out, images = DenseTally(classes), 0, 0
    passes = go_through(
        model, feed.epoch(0), forward=plan.forward, autocast=plan.autocast, pad=lambda part: pad_batch(part, pad)
    )
    for part, rows in passes:
        left_out, images = left_out + len(part.skipped), images + len(rows)
        for sample, known, answer in rows:
            tally.add(sample, known, answer)
    found = tally.join(group.all_gather(tally)).metrics(model.task)
    counts = group.all_reduce_sum(torch.tensor([images, left_out], dtype=torch.float64, device=group.device)).tolist()
    return {**found, "images": counts[0], "left_out": counts[1]}
