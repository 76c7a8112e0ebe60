"""What a model says of every image of a source: one row each, computed once, kept on disk, in the source's order.

A part of a source is kept under a digest of the weights, the preprocessing, and the images and labels themselves; so a
pass that is interrupted goes on where it was, and rows of images that have changed are never used again.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config import encode, to_document
from vitrail.data.feed import evaluation_feed
from vitrail.data.loader import Skip
from vitrail.data.source import Source, check_limit
from vitrail.data.sources.memory import fingerprint_of
from vitrail.data.splits import Subset, content_hashes
from vitrail.errors import DataError
from vitrail.files import cache_folder, replacing
from vitrail.models import Model
from vitrail.train.group import Group

Read = Callable[[Model, Tensor, Tensor], Mapping[str, Tensor]]  # from images and labels to a row for each
Progress = Callable[[int, int], None]  # images done, and of how many
PART = 2048  # images whose rows are kept in one file
FORMAT = 1  # of the files; another number forgets them all
MORE = "--limit 0.05"


@dataclass(frozen=True, kw_only=True)
class Pass:
    """How a model goes through a source."""

    group: Group
    batch: int = 64
    workers: int = 0
    limit: float = 0.01  # share of images that may be unreadable
    precision: Literal["float32", "bfloat16"] = "float32"
    keeps: bool = True  # rows, on disk
    progress: Progress | None = None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of the images that could be decoded."""

    samples: NDArray[np.int64]  # numbers of the images in the source, rising
    labels: NDArray[np.int64]  # -1: none
    values: Mapping[str, NDArray[Any]]
    skipped: tuple[Skip, ...] = ()
    reused: int = 0  # images whose rows were there before
    seconds: float = 0.0


def rows_of(model: Model, source: Source, what: str, read: Read, how: Pass) -> Rows:
    """Go through a source; `what` names the kind of row. Every process gets all rows."""
    start, count = time.perf_counter(), len(source)
    if not count:
        raise DataError("the source holds no images. Check its path.")
    weights = digest_of(model) if how.keeps else ""
    parts: list[Rows] = []
    with _evaluating(model):
        for first in range(0, count, PART):
            part = Subset(source, np.arange(first, min(first + PART, count)))
            found = _kept_rows(model, part, what, read, how, weights, first)
            parts.append(found)
            _check_limit(parts, count, how)
            if how.progress is not None:
                how.progress(first + len(part), count)
    return _joined(parts, time.perf_counter() - start)


def digest_of(model: Model) -> str:
    """Give a digest of everything about a model that decides its rows: weights, configuration, preprocessing."""
    said = json.dumps([encode(model.config), to_document(model.card.preprocessing)], sort_keys=True)
    tensors = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    bits = [tensor.contiguous().view(torch.uint8).numpy() for tensor in tensors.values() if tensor.dim()]
    return fingerprint_of(said, "\0".join(tensors), *bits)


def _kept_rows(model: Model, part: Subset, what: str, read: Read, how: Pass, weights: str, first: int) -> Rows:
    """Take the rows of a part from disk, or compute and keep them."""
    if not how.keeps:
        return _computed(model, part, read, how, first)
    group = how.group
    found: Rows | None = None
    path = Path()
    with group.leader_writes() as leads:
        if leads:
            asked = fingerprint_of(
                f"{FORMAT} {what} {how.precision} {weights}", content_hashes(part), np.asarray(part.labels)
            )
            path = cache_folder() / "rows" / what / asked[:2] / f"{asked}.npz"
            found = _read(path, first)
    found = group.from_leader(found)
    if found is not None:
        return found
    found = _computed(model, part, read, how, first)
    with group.leader_writes() as leads:
        if leads and not found.skipped:  # what cannot be read now may be readable tomorrow
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                np.savez(temporary, samples=found.samples - first, labels=found.labels, **found.values)  # pyright: ignore[reportArgumentType]
    return found


def _read(path: Path, first: int) -> Rows | None:
    try:
        with np.load(path, allow_pickle=False) as held:
            arrays = dict(held)
    except (OSError, ValueError, KeyError, EOFError):
        return None
    samples, labels = arrays.pop("samples") + first, arrays.pop("labels")
    return Rows(samples=samples, labels=labels, values=arrays, reused=len(samples))


def _computed(model: Model, part: Subset, read: Read, how: Pass, first: int) -> Rows:
    """Send the images of a part through, shared by all processes, and put the rows in order again."""
    group = how.group
    feed = evaluation_feed(
        part,
        model.config.image_size,
        batch=how.batch * group.ranks,
        preprocessing=model.card.preprocessing,
        channels=model.config.channels,
        workers=how.workers,
        rank=group.rank,
        ranks=group.ranks,
        limit=0.999,  # of a part; the whole is checked after it
        device=group.device,
    )
    samples: list[Tensor] = []
    labels: list[Tensor] = []
    values: dict[str, list[Tensor]] = {}
    skipped: list[Skip] = []
    autocast = partial(torch.autocast, group.device.type, torch.bfloat16, enabled=how.precision == "bfloat16")
    for batch in feed.epoch(0):
        skipped += batch.skipped
        if not len(batch.labels):
            continue
        with torch.inference_mode(), autocast():
            rows = read(model, batch.images, batch.labels)
        for name, value in rows.items():
            values.setdefault(name, []).append(value.float().cpu() if value.is_floating_point() else value.cpu())
        samples.append(batch.samples)
        labels.append(batch.labels.cpu())
    mine = {name: torch.cat(value).numpy() for name, value in values.items()}
    own = (
        (torch.cat(samples).numpy(), torch.cat(labels).numpy(), mine, skipped) if samples else (None, None, {}, skipped)
    )
    gathered = group.gather(own)
    some = [share for share in gathered if share[0] is not None]
    gone = tuple(skip._replace(sample=skip.sample + first) for share in gathered for skip in share[3])
    if not some:
        return Rows(samples=np.empty(0, np.int64), labels=np.empty(0, np.int64), values={}, skipped=gone)
    numbers = np.concatenate([share[0] for share in some])
    order = np.argsort(numbers, kind="stable")
    return Rows(
        samples=numbers[order] + first,
        labels=np.concatenate([share[1] for share in some])[order],
        values={name: np.concatenate([share[2][name] for share in some])[order] for name in some[0][2]},
        skipped=gone,
    )


def _joined(parts: list[Rows], seconds: float) -> Rows:
    some = [part for part in parts if len(part.samples)]
    if not some:
        raise DataError("none of the images can be decoded. vitrail data check says why.")
    return Rows(
        samples=np.concatenate([part.samples for part in some]),
        labels=np.concatenate([part.labels for part in some]),
        values={name: np.concatenate([part.values[name] for part in some]) for name in some[0].values},
        skipped=tuple(skip for part in parts for skip in part.skipped),
        reused=sum(part.reused for part in parts),
        seconds=seconds,
    )


def _check_limit(parts: list[Rows], count: int, how: Pass) -> None:
    bad = [(skip.name, skip.reason) for part in parts for skip in part.skipped]
    check_limit(bad, len(bad), count, how.limit, MORE)


@contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    trains = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(trains)
