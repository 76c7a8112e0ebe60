"""One pass of a model through images: a row for each, shared by processes and by the cores of a CPU."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.feed import evaluation_feed
from vitrail.data.loader import Skip
from vitrail.data.source import Source, Subset
from vitrail.errors import DataError
from vitrail.models import Model
from vitrail.runtime.group import Group

Read = Callable[[Model, Tensor, Tensor], Mapping[str, Tensor]]  # from images and labels to a row for each
Progress = Callable[[int, int], None]  # images done, and of how many


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


class Share(NamedTuple):
    """What one lane found: places of the images in what it was given, their rows, and what could not be decoded."""

    places: NDArray[np.int64]
    values: dict[str, NDArray[Any]]
    skipped: list[Skip]


def compute_rows(model: Model, source: Source, numbers: NDArray[np.int64], read: Read, how: Pass) -> Rows:
    """Send images through, shared by all processes and their cores, and put the rows in order again."""
    shares = [
        share
        for found in how.group.all_gather(_share_of_process(model, Subset(source, numbers), read, how))
        for share in found
    ]
    some = [share for share in shares if len(share.places)]
    gone = sorted(skip._replace(sample=int(numbers[skip.sample])) for share in shares for skip in share.skipped)
    places = np.concatenate([share.places for share in shares])
    order = np.argsort(places, kind="stable")
    assert len(np.unique(places)) == len(places) == len(numbers) - len(gone), "each image counts once"
    found = numbers[places[order]]
    names = some[0].values if some else ()
    return Rows(
        samples=found,
        labels=source.labels[found],
        values={name: np.concatenate([share.values[name] for share in some])[order] for name in names},
        skipped=tuple(gone),
    )


def join_rows(parts: list[Rows], seconds: float) -> Rows:
    """Put parts together, in the order of the samples."""
    some = [part for part in parts if len(part.samples)]
    if not some:
        raise DataError("none of the images can be decoded. vitrail data check says why.")
    samples = np.concatenate([part.samples for part in some])
    order = np.argsort(samples, kind="stable")
    return Rows(
        samples=samples[order],
        labels=np.concatenate([part.labels for part in some])[order],
        values={name: np.concatenate([part.values[name] for part in some])[order] for name in some[0].values},
        skipped=tuple(skip for part in parts for skip in part.skipped),
        reused=sum(part.reused for part in parts),
        seconds=seconds,
    )


def _share_of_process(model: Model, part: Subset, read: Read, how: Pass) -> list[Share]:
    """Go through this process's images: on a CPU on every core at once, each with a batch and a thread of its own.

    Cores that share out batches are a fifth faster than cores that share out every product of matrices.
    """
    cores = torch.get_num_threads() if how.group.device.type == "cpu" and how.workers == 0 else 1
    lanes = int(min(min(row) for row in how.group.all_gather_numbers(cores)))  # as many in every process
    lanes = min(lanes, max(len(part) // (how.batch * how.group.world_size), 1))
    advance, stop = _counting(how, len(part)), Event()
    if lanes == 1:
        return [_go_through(model, part, read, how, 0, 1, advance, stop)]
    with _one_thread_each(), ThreadPoolExecutor(lanes) as pool:
        try:
            going = [
                pool.submit(_go_through, model, part, read, how, lane, lanes, advance, stop) for lane in range(lanes)
            ]
            wait(going, return_when=FIRST_EXCEPTION)
            stop.set()
            return [each.result() for each in going]
        finally:
            stop.set()  # where all are interrupted


def _go_through(
    model: Model,
    part: Subset,
    read: Read,
    how: Pass,
    lane: int,
    lanes: int,
    advance: Callable[[int], None],
    stop: Event,
) -> Share:
    """Read one lane's images, batch after batch."""
    group = how.group
    feed = evaluation_feed(
        part,
        model.config.image_size,
        batch=how.batch * group.world_size * lanes,
        preprocessing=model.card.preprocessing,
        channels=model.config.channels,
        workers=how.workers,
        rank=group.rank * lanes + lane,
        ranks=group.world_size * lanes,
        device=group.device,
    )
    feed.loader.bad_image_limit = 1.0  # none, of a part: the whole is checked after it, by all processes alike
    samples: list[Tensor] = []
    values: dict[str, list[Tensor]] = {}
    skipped: list[Skip] = []
    autocast = partial(torch.autocast, group.device.type, torch.bfloat16, enabled=how.precision == "bfloat16")
    for batch in feed.epoch(0):
        if stop.is_set():
            break
        skipped += batch.skipped
        if len(batch.labels):
            with torch.inference_mode(), autocast():
                rows = read(model, batch.images, batch.labels)
            for name, value in rows.items():
                values.setdefault(name, []).append(value.float().cpu() if value.is_floating_point() else value.cpu())
            samples.append(batch.samples)
        advance(len(batch.labels) + len(batch.skipped))
    places = torch.cat(samples).numpy() if samples else np.empty(0, np.int64)
    return Share(places, {name: torch.cat(value).numpy() for name, value in values.items()}, skipped)


def _counting(how: Pass, count: int) -> Callable[[int], None]:
    """Count what all lanes of all processes have done, as far as this one knows, and tell it."""
    done, lock = 0, Lock()

    def advance(images: int) -> None:
        nonlocal done
        if how.progress is None:
            return
        with lock:
            done = min(done + images * how.group.world_size, count)
            how.progress(done, count)

    return advance


@contextmanager
def _one_thread_each() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
