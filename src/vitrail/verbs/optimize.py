"""`vitrail.optimize`: a model made fast for what this machine has, called alike; in eight bits, saved too."""

import os
import time
from statistics import median
from typing import Unpack

import torch

from vitrail.checkpoint.load import of_run
from vitrail.checkpoint.run_folder import RUN_FILES
from vitrail.checkpoint.save import save
from vitrail.config.check import whole
from vitrail.config.engine import EIGHT, check_engine, read_engine, read_precision
from vitrail.errors import ConfigError
from vitrail.files import check_replaceable, home_path
from vitrail.models import Model, eval_mode
from vitrail.ops.cost.counts import forward_macs
from vitrail.runtime.engines import EngineModel
from vitrail.runtime.fast import Choice, FastModel, check_precision, make_fast
from vitrail.runtime.machine import keep_memory
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.runtime.scales import sample_for
from vitrail.verbs.images import gather_images
from vitrail.verbs.opening import (
    AnyModel,
    Device,
    FileHints,
    ImageSize,
    check_options,
    model_name,
    open_model,
)

TURNS = 3  # of the plain model and the fast one, one after the other
WORK = {"cpu": 2e11, "cuda": 1e14}  # floating-point operations of a pass that is measured
BATCHES = {"cpu": 16, "cuda": 256}  # most images of it, where none are asked for


class OptimizeOptions(FileHints, total=False):
    """Where the model is to be, what its file leaves open, and who is told."""

    device: Device | None  # None: a GPU where there is one; a model in memory stays where it is
    report: Reporter


def optimize(
    model: AnyModel,
    *,
    precision: str = "auto",
    image_size: ImageSize | None = None,
    batch_size: int | None = None,
    calibrate: object = None,
    engine: str = "auto",
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    **options: Unpack[OptimizeOptions],
) -> FastModel:
    """Make a model fast for what this machine has; it is called like any model, and `.plain` is the one it was made of.

    `model` is a name, a file, a run or its folder, a model in memory, or a folder that this wrote. `precision` is
    float32 (exact), bfloat16, int8 (on a CPU), float8 (on a GPU) or auto: the exact one on a CPU, bfloat16 on a GPU
    that has it. Eight bits are calibrated on images of `calibrate`, given as to `predict`; the sample in the box where
    it is left out. `batch_size` is the usual one; others work. `engine` is auto (the fast path, unless it is slower
    here), fast or plain. `out` is a folder for a model in eight bits, which `optimize`, `predict`, `evaluate` and
    `serve` open; `.choice` says what was chosen, why, and how fast it is. Other options: device, report; and what a
    file leaves open, as in `vitrail.load`.
    """
    check_options(optimize, OptimizeOptions, options)
    word, asked = read_engine(engine), read_precision(precision, ("auto",))
    check_engine(word, "float32" if asked == "auto" else asked)
    if batch_size is not None:
        whole("batch_size", batch_size)
    if out is not None:
        check_replaceable(home_path(out), overwrite=overwrite, ours=RUN_FILES)
    report = options.pop("report", SILENT)
    keep_memory()
    opened = open_model(of_run(model), image_size, options.pop("device", None), options)
    if isinstance(opened, EngineModel):
        raise ConfigError(f"{model_name(model)} runs in its own engine already. Give the checkpoint that it came from.")
    if asked == "auto" and isinstance(opened, FastModel):
        asked = opened.choice.precision
    chosen = check_precision(opened, asked)
    for name in [name for name, given in (("calibrate", calibrate), ("out", out)) if given is not None]:
        if chosen not in EIGHT or word == "plain":
            raise ConfigError(f"{name} is of eight bits; got precision={chosen}. Take int8 on a CPU, float8 on a GPU.")
    if word == "plain":
        return _plain(opened, "as asked")
    fast = _make(opened, asked, batch_size, calibrate, report)
    with report.working("measuring how fast it is"):
        size, ratio = measure_ratio(fast, batch_size)
    if word == "auto" and asked == "auto" and ratio < 1:
        return _plain(opened, f"the fast path has {ratio:.2f} times its speed here, at batch {size}")
    report.note(str(fast.chosen(ratio=ratio, batch_size=size).choice))
    if out is not None:
        save(fast, out, overwrite=overwrite)
    return fast


def _make(opened: Model, precision: str, batch_size: int | None, calibrate: object, report: Reporter) -> FastModel:
    """Make a model fast; one that is in this precision already stays, unless it is to be calibrated anew."""
    if isinstance(opened, FastModel) and opened.choice.precision == precision and calibrate is None:
        return opened
    images = None
    if precision in EIGHT:
        with report.working("reading images to calibrate on"):
            images = sample_for(opened, None if calibrate is None else gather_images(calibrate, report))
    with report.working("making the model fast"):
        fast = make_fast(opened, precision=precision, batch_size=batch_size, images=images)
        fast.prepare()
    return fast


def _plain(model: Model, why: str) -> FastModel:
    """Give the plain model, called as a fast one is."""
    plain, place = model.plain, str(next(model.parameters()).device)
    return FastModel(plain, lambda: plain.outputs, Choice(engine="plain", precision="float32", device=place, why=why))


def measure_ratio(fast: FastModel, batch_size: int | None) -> tuple[int, float]:
    """Give how many times as fast a model is as its plain one, in turns, and the images of a batch that say so.

    On a GPU the plain one is in bfloat16 too, by autocast, where the fast one is not in float32.
    """
    device, config = next(fast.parameters()).device, fast.config
    most = batch_size or BATCHES[device.type]
    size = max(min(most, int(WORK[device.type] / (2 * forward_macs(config).total))), 1)
    images = torch.randn(size, config.channels, *config.image_size, generator=torch.Generator().manual_seed(0))
    images = images.to(device)
    half = device.type == "cuda" and fast.choice.precision != "float32"

    def seconds(model: Model) -> float:
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            model.outputs(images)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    with eval_mode(fast):
        turns = [(seconds(fast.plain), seconds(fast)) for _ in range(TURNS + 1)][1:]  # the first ones warm up
    return size, median(slow / quick for slow, quick in turns)
