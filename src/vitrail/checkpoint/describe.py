"""What a file of weights is: layout, architecture, numbers, and anything odd, without building a model."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Archive
from vitrail.checkpoint.description import Arrays, Description, TensorStatistics
from vitrail.checkpoint.layouts.base import Row
from vitrail.checkpoint.load import LORA, Checkpoint, recognize
from vitrail.config import Card, Grid, ModelConfig, ViTConfig, name_of
from vitrail.errors import CheckpointError

LARGE = 1e4  # of a weight
PIECE = 1 << 23  # numbers that are measured at once


def describe(
    path: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] | None = None,
    grid: Grid | None = None,
    propose: bool = False,
    check: tuple[Arrays, Arrays] | None = None,
    write_names: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
    **fields: object,
) -> Description:
    """Say what a file, folder, address or name holds; `image_size`, `grid` and `heads` tell what it leaves open.

    Of a file in no layout that is known, and of any with `propose`, it proposes which tensor is what: a table of names.
    `check` is images (float B C H W, as their own model read them) and its outputs, arrays or .npy files: what is open
    in the proposal, or in the table `names`, is settled by trying. `write_names` is the .toml to write the table to.
    """
    from vitrail.checkpoint.proposing import naming  # much code for few files

    hints = Request.of({"image_size": image_size, "grid": grid, **fields})
    if write_names is not None:
        naming.check_target(write_names, overwrite=overwrite)
    with Checkpoint(path) as checkpoint, checkpoint.named(), checkpoint.verifying():
        archive, opened, reason = checkpoint.archive, None, None
        if LORA in archive.notes:
            return _describe_lora(checkpoint)
        try:
            opened = recognize(checkpoint.location, archive, hints)
            rows = opened.check()
        except CheckpointError as error:
            rows, reason = [], str(error)
        proposal = None
        if propose or check is not None or write_names is not None or (opened is None and hints.names is None):
            proposal = naming.find_names(archive, hints.names, check, progress)
            if proposal.agrees and proposal.table is not None and not proposal.table.open:
                opened = recognize(checkpoint.location, archive, replace(hints, names=proposal.table))
                rows, reason = opened.check(), None
        if write_names is not None and proposal is not None:
            naming.write_names(proposal, write_names, checkpoint.location.source, overwrite=overwrite)
        tensors = tuple(_measure(archive, rows))
        config = opened.found.config if opened else None
        return Description(
            source=checkpoint.location.source,
            container=archive.kind,
            size=sum(path.stat().st_size for path in archive.paths),
            layout=opened.layout.name if opened else None,
            title=opened.layout.title if opened else None,
            model=name_of(config) if config else None,
            config=config,
            card=opened.card().prepared(hints.preprocessing, opened.found.config.channels) if opened else Card(),
            reason=reason,
            odd=tuple(_oddities(tensors, config)),
            tensors=tensors,
            proposal=proposal,
        )


def _describe_lora(checkpoint: Checkpoint) -> Description:
    """Say what a file of LoRA changes, and of which base, which need not be there."""
    from vitrail.checkpoint.lora_files import read_said  # few files need it

    archive = checkpoint.archive
    said = read_said(checkpoint.location.weights, archive.notes[LORA])
    tensors = tuple(replace(tensor, ours=tensor.name) for tensor in _measure(archive, []))
    changed = f"changes of rank {said.adapt.rank} of {', '.join(said.adapt.matrices)}"
    return Description(
        source=checkpoint.location.source,
        container=archive.kind,
        size=sum(path.stat().st_size for path in archive.paths),
        layout="lora",
        title=f"{changed}, and a classifier, of the base {said.base} (digest {said.digest})",
        model=name_of(said.config),
        config=said.config,
        card=said.card,
        reason=None,
        odd=tuple(_oddities(tensors, None)),
        tensors=tensors,
        proposal=None,
    )


def _measure(archive: Archive, rows: list[Row]) -> Iterator[TensorStatistics]:
    ours = {
        name: row.ours if row.layer is None else row.ours.replace(f".{row.layer}.", ".*.", 1)  # of all layers
        for row in rows
        for name in row.theirs
    }
    for name, (shape, dtype) in archive.entries.items():
        numbers = _numbers(archive.read(name)) if isinstance(dtype, torch.dtype) and prod(shape) else {}
        yield TensorStatistics(
            name=name, ours=ours.get(name), shape=shape, dtype=str(dtype).removeprefix("torch."), **numbers
        )


def _numbers(tensor: Tensor) -> dict[str, Any]:
    """Measure a tensor, a piece at a time where it is large, so that it takes little memory beside its own."""
    pieces = [(len(piece), _measure_piece(piece)) for piece in tensor.flatten().split(PIECE)]
    if len(pieces) == 1:
        return pieces[0][1]
    known = [(size - found["not_finite"], found) for size, found in pieces if "mean" in found]
    wrong = {"not_finite": sum(found["not_finite"] for _, found in pieces)}
    if not known:
        return wrong
    total = sum(count for count, _ in known)
    mean, zeros = (sum(count * found[name] for count, found in known) / total for name in ("mean", "zeros"))
    square = sum(count * (found["deviation"] ** 2 + found["mean"] ** 2) for count, found in known) / total
    bounds = {"low": min(found["low"] for _, found in known), "high": max(found["high"] for _, found in known)}
    return {**wrong, "mean": mean, "deviation": max(square - mean**2, 0.0) ** 0.5, "zeros": zeros, **bounds}


def _measure_piece(tensor: Tensor) -> dict[str, Any]:
    numbers = tensor.flatten().to(torch.promote_types(tensor.dtype, torch.float32))
    finite = torch.isfinite(numbers)
    wrong = int(numbers.numel() - finite.sum())
    if wrong:
        numbers = numbers[finite]
    if not numbers.numel():
        return {"not_finite": wrong}
    (deviation, mean), (low, high) = torch.std_mean(numbers, correction=0), torch.aminmax(numbers)
    found = {"mean": mean, "deviation": deviation, "low": low, "high": high, "zeros": (numbers == 0).float().mean()}
    return {"not_finite": wrong, **{name: float(value) for name, value in found.items()}}


def _oddities(tensors: tuple[TensorStatistics, ...], config: ModelConfig | None) -> Iterator[str]:
    """List what a person would want to know before using the file."""
    if broken := [tensor for tensor in tensors if tensor.not_finite]:
        count = sum(tensor.not_finite for tensor in broken)
        yield f"{count:,} numbers are not finite, in {_some(broken)}: load refuses the file"
    precisions = sorted({tensor.dtype for tensor in tensors if tensor.ours is not None})
    if len(precisions) > 1:
        yield f"the tensors have {len(precisions)} precisions: {', '.join(precisions)}"
    if huge := [tensor for tensor in tensors if max(-(tensor.low or 0.0), tensor.high or 0.0) > LARGE]:
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
    weights = [(tensor.ours, tensor) for tensor in tensors if tensor.ours and tensor.ours.endswith("weight")]
    kernels = [tensor for name, tensor in weights if "norm" not in name and not name.startswith("head.")]
    if flat := [tensor for tensor in kernels if len(tensor.shape) > 1 and _constant(tensor)]:
        yield f"all numbers are the same in {_some(flat)}"
    norms = [tensor for name, tensor in weights if "norm" in name]
    if norms and all(_constant(tensor) and tensor.high in (0, 1) for tensor in norms):
        yield "every norm is as a fresh model's: the weights look untrained"
    if isinstance(config, ViTConfig) and (token := by_ours.get("class_token")) and _constant(token):
        yield f"the class token is all {token.high:g}, as a fresh model's"


def _constant(tensor: TensorStatistics) -> bool:
    return tensor.low is not None and tensor.low == tensor.high and not tensor.not_finite


def _some(tensors: list[TensorStatistics]) -> str:
    names = ", ".join(tensor.name for tensor in tensors[:3])
    return names + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")
