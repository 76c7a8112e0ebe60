"""What a model gives for every image of a source, computed once: shared by processes and by the cores of a CPU."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Event, Lock
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config.check import one_of, rate, whole
from vitrail.data.feed import evaluation_feed
from vitrail.data.loader import Skip
from vitrail.data.source import Source, Subset
from vitrail.errors import DataError
from vitrail.models import Model
from vitrail.runtime.group import Group, joined
from vitrail.runtime.machine import usual_workers
from vitrail.runtime.memory import keep_memory
from vitrail.runtime.reporter import SILENT, Reporter

OutputFunction = Callable[[Model, Tensor, Tensor], Mapping[str, Tensor]]  # from images and labels to a row for each
Precision = Literal["float32", "bfloat16"]
CPU_BATCH, GPU_BATCH = 16, 256  # a small one stays in a CPU's cache: a fifth faster than 64


def _nobody(done: int, total: int) -> None:
    """Show nothing."""


@dataclass(frozen=True, kw_only=True)
class InferenceOptions:
    """How a model goes through the images of a source."""

    group: Group
    batch_size: int = 64  # on every process
    workers: int = 0
    bad_image_limit: float = 0.01  # share of images that may be unreadable
    precision: Precision = "float32"
    cache: bool = True  # keep outputs on disk, and use those that are there
    report: Reporter = SILENT
    progress: Callable[[int, int], None] = _nobody  # takes the images done, and their total

    def showing(self, what: str) -> "InferenceOptions":
        """Show progress under a name."""
        return replace(self, progress=partial(self.report.progress, what))


@contextmanager
def inference(
    device: str | torch.device | None,
    *,
    batch_size: int | None,
    workers: int | None,
    bad_image_limit: float,
    precision: str,
    fresh: bool,
    report: Reporter,
) -> Iterator[InferenceOptions]:
    """Join the processes of a run, and choose for this machine what is None; the main process alone reports."""
    one_of("precision", precision, ("float32", "bfloat16"))
    keep_memory()
    with joined(device) as group:
        gpu = group.device.type == "cuda"
        yield InferenceOptions(
            group=group,
            batch_size=(GPU_BATCH if gpu else CPU_BATCH) if batch_size is None else whole("batch_size", batch_size),
            workers=usual_workers(gpu=gpu) if workers is None else whole("workers", workers, least=0),
            bad_image_limit=rate("bad_image_limit", bad_image_limit),
            precision=precision,  # pyright: ignore[reportArgumentType]
            cache=not fresh,
            report=report if group.is_main else SILENT,
        )


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """A row for each image that could be decoded."""

    samples: NDArray[np.int64]  # numbers of the images in the source, rising
    labels: NDArray[np.int64]  # -1: none
    values: Mapping[str, NDArray[Any]]
    skipped: tuple[Skip, ...] = ()
    reused: int = 0  # images whose rows were there before
    seconds: float = 0.0


class LaneOutputs(NamedTuple):
    """What one lane found: places of the images in what it was given, their rows, and what could not be decoded."""

    places: NDArray[np.int64]
    values: dict[str, NDArray[Any]]
    skipped: list[Skip]


def compute_outputs(
    model: Model, source: Source, numbers: NDArray[np.int64], compute: OutputFunction, options: InferenceOptions
) -> Outputs:
    """Send images through, shared by all processes and their cores, and put the rows in order again."""
    own = _outputs_of_process(model, Subset(source, numbers), compute, options)
    lanes = [lane for found in options.group.all_gather(own) for lane in found]
    some = [lane for lane in lanes if len(lane.places)]
    gone = sorted(skip._replace(sample=int(numbers[skip.sample])) for lane in lanes for skip in lane.skipped)
    places = np.concatenate([lane.places for lane in lanes])
    order = np.argsort(places, kind="stable")
    assert len(np.unique(places)) == len(places) == len(numbers) - len(gone), "each image counts once"
    found = numbers[places[order]]
    names = some[0].values if some else ()
    return Outputs(
        samples=found,
        labels=source.labels[found],
        values={name: np.concatenate([lane.values[name] for lane in some])[order] for name in names},
        skipped=tuple(gone),
    )


def join_outputs(parts: list[Outputs], seconds: float) -> Outputs:
    """Put parts together, in the order of the samples."""
    some = [part for part in parts if len(part.samples)]
    if not some:
        raise DataError("none of the images can be decoded. vitrail data check says why.")
    samples = np.concatenate([part.samples for part in some])
    order = np.argsort(samples, kind="stable")
    return Outputs(
        samples=samples[order],
        labels=np.concatenate([part.labels for part in some])[order],
        values={name: np.concatenate([part.values[name] for part in some])[order] for name in some[0].values},
        skipped=tuple(skip for part in parts for skip in part.skipped),
        reused=sum(part.reused for part in parts),
        seconds=seconds,
    )


def _outputs_of_process(
    model: Model, part: Subset, compute: OutputFunction, options: InferenceOptions
) -> list[LaneOutputs]:
    """Go through this process's images: on a CPU on every core at once, each with a batch and a thread of its own.

    Cores that share out batches are a fifth faster than cores that share out every product of matrices.
    """
    cores = torch.get_num_threads() if options.group.device.type == "cpu" and options.workers == 0 else 1
    every = [row[0] for row in options.group.all_gather_numbers(cores)]  # lanes are as many in every process
    lanes = min(int(min(every)), max(len(part) // (options.batch_size * options.group.world_size), 1))
    advance, stop = _counting(options, len(part)), Event()
    if lanes == 1:
        return [_go_through(model, part, compute, options, 0, 1, advance, stop)]
    with _one_thread_each(), ThreadPoolExecutor(lanes) as pool:
        try:
            going = [
                pool.submit(_go_through, model, part, compute, options, lane, lanes, advance, stop)
                for lane in range(lanes)
            ]
            wait(going, return_when=FIRST_EXCEPTION)
            stop.set()
            return [each.result() for each in going]
        finally:
            stop.set()  # where all are interrupted


def _go_through(
    model: Model,
    part: Subset,
    compute: OutputFunction,
    options: InferenceOptions,
    lane: int,
    lanes: int,
    advance: Callable[[int], None],
    stop: Event,
) -> LaneOutputs:
    """OutputFunction one lane's images, batch after batch."""
    group = options.group
    feed = evaluation_feed(
        part,
        model.config.image_size,
        batch=options.batch_size * group.world_size * lanes,
        preprocessing=model.card.preprocessing,
        channels=model.config.channels,
        workers=options.workers,
        rank=group.rank * lanes + lane,
        ranks=group.world_size * lanes,
        device=group.device,
    )
    feed.loader.bad_image_limit = 1.0  # none, of a part: the whole is checked after it, by all processes alike
    samples: list[Tensor] = []
    values: dict[str, list[Tensor]] = {}
    skipped: list[Skip] = []
    autocast = partial(torch.autocast, group.device.type, torch.bfloat16, enabled=options.precision == "bfloat16")
    for batch in feed.epoch(0):
        if stop.is_set():
            break
        skipped += batch.skipped
        if len(batch.labels):
            with torch.inference_mode(), autocast():
                rows = compute(model, batch.images, batch.labels)
            for name, value in rows.items():
                values.setdefault(name, []).append(value.float().cpu() if value.is_floating_point() else value.cpu())
            samples.append(batch.samples)
        advance(len(batch.labels) + len(batch.skipped))
    places = torch.cat(samples).numpy() if samples else np.empty(0, np.int64)
    return LaneOutputs(places, {name: torch.cat(value).numpy() for name, value in values.items()}, skipped)


def _counting(options: InferenceOptions, count: int) -> Callable[[int], None]:
    """Count what all lanes of all processes have done, as far as this one knows, and tell it."""
    done, lock = 0, Lock()

    def advance(images: int) -> None:
        nonlocal done
        with lock:
            done = min(done + images * options.group.world_size, count)
            options.progress(done, count)

    return advance


@contextmanager
def _one_thread_each() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
