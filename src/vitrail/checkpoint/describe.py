"""What a file of weights is: layout, architecture, numbers, and anything odd, without building a model."""

import os
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vitrail.checkpoint.archives.base import Archive
from vitrail.checkpoint.description import Description, TensorStatistics
from vitrail.checkpoint.layouts.base import Row
from vitrail.checkpoint.load import open_checkpoint
from vitrail.checkpoint.request import Request
from vitrail.config import Card, Grid, ModelConfig, ViTConfig, name_of
from vitrail.errors import CheckpointError

LARGE = 1e4  # of a weight


def describe(
    path: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] | None = None,
    grid: Grid | None = None,
    **fields: object,
) -> Description:
    """Say what a file, folder, address or name holds; `image_size`, `grid` and `heads` tell what it leaves open."""
    hints = Request.of({"image_size": image_size, "grid": grid, **fields}).hints
    with open_checkpoint(path) as checkpoint, checkpoint.named(), checkpoint.verifying():
        archive, opened, reason = checkpoint.archive, None, None
        try:
            opened = checkpoint.recognize(hints)
            rows = opened.check()
        except CheckpointError as error:
            rows, reason = [], str(error)
        tensors = tuple(_measure(archive, rows))
        config = opened.found.config if opened else None
        return Description(
            source=checkpoint.location.source,
            container=archive.kind,
            size=_size(archive),
            layout=opened.layout.name if opened else None,
            title=opened.layout.title if opened else None,
            model=name_of(config) if config else None,
            config=config,
            card=checkpoint.card(opened) if opened else Card(),
            reason=reason,
            odd=tuple(_oddities(tensors, config)),
            tensors=tensors,
        )


def _measure(archive: Archive, rows: list[Row]) -> Iterator[TensorStatistics]:
    ours = {name: _general(row) for row in rows for name in row.theirs}
    for name, entry in archive.entries.items():
        known = isinstance(entry.dtype, torch.dtype)
        head = TensorStatistics(
            name=name, ours=ours.get(name), shape=entry.shape, dtype=str(entry.dtype).removeprefix("torch.")
        )
        yield _with_numbers(head, archive.read(name)) if known and head.parameters else head


def _general(row: Row) -> str:
    """Name a parameter; one of all layers where the file stacks them."""
    return row.ours if row.layer is None else row.ours.replace(f".{row.layer}.", ".*.", 1)


def _with_numbers(head: TensorStatistics, tensor: Tensor) -> TensorStatistics:
    numbers = tensor.flatten().to(torch.promote_types(tensor.dtype, torch.float32))
    finite = torch.isfinite(numbers)
    wrong = int(numbers.numel() - finite.sum())
    if wrong:
        numbers = numbers[finite]
    if not numbers.numel():
        return replace(head, not_finite=wrong)
    deviation, mean = torch.std_mean(numbers, correction=0)
    low, high = torch.aminmax(numbers)
    return replace(
        head,
        mean=float(mean),
        deviation=float(deviation),
        low=float(low),
        high=float(high),
        zeros=float((numbers == 0).float().mean()),
        not_finite=wrong,
    )


def _oddities(tensors: tuple[TensorStatistics, ...], config: ModelConfig | None) -> Iterator[str]:
    """List what a person would want to know before using the file."""
    if broken := [tensor for tensor in tensors if tensor.not_finite]:
        count = sum(tensor.not_finite for tensor in broken)
        yield f"{count:,} numbers are not finite, in {_some(broken)}: load refuses the file"
    precisions = sorted({tensor.dtype for tensor in tensors if tensor.ours is not None})
    if len(precisions) > 1:
        yield f"the tensors have {len(precisions)} precisions: {', '.join(precisions)}"
    if huge := [tensor for tensor in tensors if tensor.high is not None and _largest(tensor) > LARGE]:
        yield f"numbers over {LARGE:,.0f} in {_some(huge)}"
    if config is None:
        return
    if config.classes is None:
        yield "there is no classifier: the model gives its representation (give classes=... for a new one)"
    by_ours = {tensor.ours: tensor for tensor in tensors if tensor.ours is not None}
    head = by_ours.get("head.weight")
    if head is not None and _constant(head):
        yield (
            "the classifier is all zeros, as in the authors' ImageNet-21k releases: its logits say nothing"
            if head.high == 0
            else f"all weights of the classifier are {head.high}"
        )
    quiet = ("head.", "class_token", "positions.")
    flat = [
        tensor
        for tensor in tensors
        if tensor.ours is not None
        and not tensor.ours.startswith(quiet)
        and tensor.ours.endswith("weight")
        and "norm" not in tensor.ours
        and len(tensor.shape) > 1
        and _constant(tensor)
    ]
    if flat:
        yield f"all numbers are the same in {_some(flat)}"
    norms = [tensor for tensor in tensors if tensor.ours and "norm" in tensor.ours and tensor.ours.endswith("weight")]
    if norms and all(_constant(tensor) and tensor.high in (0, 1) for tensor in norms):
        yield "every norm is as a fresh model's: the weights look untrained"
    if isinstance(config, ViTConfig) and (token := by_ours.get("class_token")) and _constant(token):
        yield f"the class token is all {token.high:g}, as a fresh model's"


def _constant(tensor: TensorStatistics) -> bool:
    return tensor.low is not None and tensor.low == tensor.high and not tensor.not_finite


def _largest(tensor: TensorStatistics) -> float:
    return max(abs(tensor.low or 0.0), abs(tensor.high or 0.0))


def _some(tensors: list[TensorStatistics]) -> str:
    names = ", ".join(tensor.name for tensor in tensors[:3])
    return names + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")


def _size(archive: Archive) -> int:
    paths = {archive.path, *getattr(archive, "paths", ())}
    return sum(path.stat().st_size for path in paths)
