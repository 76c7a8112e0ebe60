"""What a model gives for every image of a source, computed once: shared by processes and by the cores of a CPU."""

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from threading import Event, Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config.check import rate, whole
from vitrail.config.engine import EIGHT, Engine, Precision, check_engine, read_engine, read_precision
from vitrail.data.aspect import aspect_feed
from vitrail.data.feed import Loader, Reading, evaluation_feed
from vitrail.data.source import Skip, Source, Subset
from vitrail.errors import ConfigError, DataError
from vitrail.models import Model
from vitrail.ops.cost.counts import forward_macs, parameters
from vitrail.runtime.cpu import has_bfloat16
from vitrail.runtime.engines import EngineModel
from vitrail.runtime.fast import FastModel, make_fast
from vitrail.runtime.machine import Group, one_thread, usual_workers
from vitrail.runtime.merging import MergedModel
from vitrail.runtime.packing import PackedModel
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.runtime.scales import sample_for

OutputFunction = Callable[[Model, Tensor, Tensor], Mapping[str, Tensor]]  # from images and labels to a row for each
CPU_BATCH, GPU_BATCH = 16, 256  # a small one stays in a CPU's cache: a fifth faster than 64
FEW = 64  # images that no faster path is made for, unless it is asked for
# What repays it: on a CPU, uses of every weight (weights are laid out anew in the time of one image or two); on a GPU,
# floating-point operations (a model is compiled for a minute, in which a GPU does about as many).
CPU_USES, GPU_FLOPS = 16_384, 4e16


@dataclass(frozen=True, kw_only=True)
class InferenceOptions:
    """How a model goes through the images of a source."""

    group: Group
    batch_size: int = 64  # on every process
    workers: int = 0
    bad_image_limit: float = 0.01  # share of images that may be unreadable
    precision: Precision = "float32"
    engine: Engine = "plain"
    cache: bool = True  # keep outputs on disk, and use those that are there
    report: Reporter = SILENT
    progress: Callable[[int, int], None] = lambda done, total: None  # takes the images done, and their total

    def showing(self, what: str) -> "InferenceOptions":
        """Show progress under a name."""
        return replace(self, progress=partial(self.report.progress, what))


def inference_options(
    group: Group,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    bad_image_limit: float = 0.01,
    precision: str = "float32",
    engine: str = "auto",
    fresh: bool = False,
    report: Reporter = SILENT,
) -> InferenceOptions:
    """Choose for this machine what is None; the main process alone reports."""
    gpu = group.device.type == "cuda"
    check_engine(engine, precision)
    return InferenceOptions(
        group=group,
        batch_size=(GPU_BATCH if gpu else CPU_BATCH) if batch_size is None else whole("batch_size", batch_size),
        workers=usual_workers(gpu=gpu) if workers is None else whole("workers", workers, least=0),
        bad_image_limit=rate("bad_image_limit", bad_image_limit),
        precision=read_precision(precision),  # pyright: ignore[reportArgumentType]
        engine=read_engine(engine),
        cache=not fresh,
        report=report if group.is_main else SILENT,
    )


def choose_model(model: Model, images: int, options: InferenceOptions) -> Model:
    """Give what so many images go through: the model, or it made fast where that is asked for or repays.

    A model that was made fast before is taken as it is; nothing is made before its first pass.
    """
    if isinstance(model, FastModel) and options.engine != "plain":
        if options.precision not in ("float32", model.choice.precision):
            own = model.choice.precision
            raise ConfigError(f"the model is made fast in {own}; got precision={options.precision}. Leave it out.")
        return model
    if isinstance(model, MergedModel | PackedModel):
        if options.precision in EIGHT or options.engine == "fast":
            said = "token_merging" if isinstance(model, MergedModel) else "keep_aspect_ratio"
            raise ConfigError(
                f"{said} is a fast path of its own, in float32 or bfloat16. Leave engine={options.engine} out."
            )
        return model
    model = model.plain
    if isinstance(model, EngineModel):
        if options.precision != "float32" or options.engine == "fast":
            raise ConfigError("an exported file runs in its own engine and precision. Leave engine and precision out.")
        return model
    if options.engine == "plain" or (options.engine == "auto" and not repays(model, images, options.precision)):
        return model
    scaled = sample_for(model) if options.precision in EIGHT else None
    return make_fast(model, precision=options.precision, batch_size=options.batch_size, images=scaled)


def computed_in(model: Model, options: InferenceOptions) -> dict[str, Any]:
    """Say what a model that was chosen goes through images in, for documents."""
    if isinstance(model, FastModel):
        return model.choice.document()
    engine = f"exported to {model.said['to']}" if isinstance(model, EngineModel) else "plain"
    return {"engine": engine, "precision": options.precision, "device": str(options.group.device)}


def repays(model: Model, images: int, precision: Precision) -> bool:
    """Tell whether making the model fast repays for so many images; eight bits are asked for, and need it."""
    device, config = next(model.parameters()).device, model.config
    if precision in EIGHT:
        return True
    if device.type == "cuda":
        return precision == "bfloat16" and 2 * forward_macs(config).total * images > GPU_FLOPS
    if images < FEW or device.type != "cpu" or next(model.parameters()).dtype != torch.float32:
        return False
    if precision == "bfloat16" and not has_bfloat16():
        return False  # as autocast does it
    return forward_macs(config).total * images > CPU_USES * parameters(config).total


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """A row for each image that could be decoded."""

    samples: NDArray[np.int64]  # numbers of the images in the source, rising
    labels: NDArray[np.int64]  # -1: none
    values: Mapping[str, NDArray[Any]]
    skipped: tuple[Skip, ...] = ()
    reused: int = 0  # images whose rows were there before
    seconds: float = 0.0


def feed_of(model: Model, source: Source, options: InferenceOptions, lane: int = 0, lanes: int = 1) -> Loader:
    """Feed a model every image of a source once, as its card says: this process's, or those of one of its lanes."""
    group = options.group
    reading = Reading(
        batch=options.batch_size * group.world_size * lanes,
        workers=options.workers,
        rank=group.rank * lanes + lane,
        ranks=group.world_size * lanes,
        device=group.device,
    )
    prepared: dict[str, Any] = {"preprocessing": model.card.preprocessing, "channels": model.config.channels}
    if isinstance(model, PackedModel):
        feed = aspect_feed(source, model.patch, model.patches, **prepared, **reading)
    else:
        feed = evaluation_feed(source, model.config.image_size, **prepared, **reading)
    feed.bad_image_limit = options.bad_image_limit  # 1 where the caller checks it
    return feed


def compute_outputs(
    model: Model, source: Source, numbers: NDArray[np.int64], compute: OutputFunction, options: InferenceOptions
) -> Outputs:
    """Send images through, shared by all processes and their cores, and put the rows in order again."""
    own = _outputs_of_process(model, Subset(source, numbers), compute, options)
    found = _joined([lane for lanes in options.group.all_gather(own) for lane in lanes])
    samples = numbers[found.samples]  # lanes know the places of images in what they are given
    assert len(np.unique(samples)) == len(samples) == len(numbers) - len(found.skipped), "each image counts once"
    skipped = sorted(skip._replace(sample=int(numbers[skip.sample])) for skip in found.skipped)
    return replace(found, samples=samples, skipped=tuple(skipped))


def join_outputs(parts: list[Outputs], seconds: float) -> Outputs:
    """Put parts together, in the order of the samples."""
    if not any(len(part.samples) for part in parts):
        raise DataError("none of the images can be decoded. vitrail data check says why.")
    return replace(_joined(parts), seconds=seconds)


def _joined(parts: list[Outputs]) -> Outputs:
    some = [part for part in parts if len(part.samples)] or parts[:1]
    samples = np.concatenate([part.samples for part in some])
    order = np.argsort(samples, kind="stable")
    return Outputs(
        samples=samples[order],
        labels=np.concatenate([part.labels for part in some])[order],
        values={name: np.concatenate([part.values[name] for part in some])[order] for name in some[0].values},
        skipped=tuple(skip for part in parts for skip in part.skipped),
        reused=sum(part.reused for part in parts),
    )


def _outputs_of_process(
    model: Model, part: Subset, compute: OutputFunction, options: InferenceOptions
) -> list[Outputs]:
    """Go through this process's images: on a CPU on every core at once, each with a batch and a thread of its own.

    Cores that share out batches are a fifth faster than cores that share out every product of matrices.
    """
    cores = torch.get_num_threads() if options.group.device.type == "cpu" and options.workers == 0 else 1
    every = [row[0] for row in options.group.all_gather_numbers(cores)]  # lanes are as many in every process
    lanes = min(int(min(every)), max(len(part) // (options.batch_size * options.group.world_size), 1))
    done, lock, stop = 0, Lock(), Event()

    def advance(images: int) -> None:
        """Count what all lanes of all processes have done, as far as this one knows, and tell it."""
        nonlocal done
        with lock:
            done = min(done + images * options.group.world_size, len(part))
            options.progress(done, len(part))

    def go_through(lane: int) -> Outputs:
        unlimited = replace(options, bad_image_limit=1.0)  # the whole is checked after it, by all processes alike
        feed = feed_of(model, part, unlimited, lane, lanes)
        return _outputs_of_lane(model, feed, compute, options, advance, stop)

    if lanes == 1:
        return [go_through(0)]
    with one_thread(), ThreadPoolExecutor(lanes) as pool:
        try:
            going = [pool.submit(go_through, lane) for lane in range(lanes)]
            wait(going, return_when=FIRST_EXCEPTION)
            stop.set()
            return [each.result() for each in going]
        finally:
            stop.set()  # where all are interrupted


def _outputs_of_lane(
    model: Model,
    feed: Loader,
    compute: OutputFunction,
    options: InferenceOptions,
    advance: Callable[[int], None],
    stop: Event,
) -> Outputs:
    """Compute the rows of one lane's images, batch after batch; their samples are places in what it is given."""
    samples: list[Tensor] = []
    values: dict[str, list[Tensor]] = {}
    skipped: list[Skip] = []
    bfloat16 = options.precision == "bfloat16"
    for batch in feed.epoch(0):
        if stop.is_set():
            break
        skipped += batch.skipped
        if len(batch.labels):
            asked = model
            if isinstance(model, PackedModel) and batch.grids is not None:
                asked = model.at(batch.grids.tolist())
            with torch.inference_mode(), torch.autocast(batch.images.device.type, torch.bfloat16, enabled=bfloat16):
                rows = compute(asked, batch.images, batch.labels)
            for name, value in rows.items():
                values.setdefault(name, []).append(value.float().cpu() if value.is_floating_point() else value.cpu())
            samples.append(batch.samples)
        advance(len(batch.labels) + len(batch.skipped))
    places = torch.cat(samples).numpy() if samples else np.empty(0, np.int64)
    return Outputs(
        samples=places,
        labels=feed.source.labels[places],
        values={name: torch.cat(value).numpy() for name, value in values.items()},
        skipped=tuple(skipped),
    )
