"""What a cell does: train, count, time, look inside; each gives numbers by name."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import torch

from vitrail.checkpoint.load import load
from vitrail.checkpoint.run_folder import SAVED
from vitrail.config import ModelConfig, ViTConfig, parse
from vitrail.config.positions import LearnedPositions
from vitrail.config.recipe import Adam, Training
from vitrail.config.recipes import RECIPES, adjust
from vitrail.data.source import Source
from vitrail.errors import ConfigError
from vitrail.files import read_json_lines
from vitrail.inspection import attention_distance, filter_components, position_similarity
from vitrail.inspection.study import draw_images
from vitrail.inspection.views import views_of
from vitrail.models import Model, ViT, create
from vitrail.models.build import build, draw
from vitrail.ops.cost.counts import Step, exaflops, forward_macs, parameters, peak_memory
from vitrail.ops.cost.fit import SHARE, largest_batch
from vitrail.runtime.machine import choose_device, free_memory
from vitrail.runtime.step_memory import step_of
from vitrail.studies.scales import lengths
from vitrail.studies.sets import classes_of, count_of, open_set
from vitrail.studies.table import Cell, Count, Images, Look, Network, Numbers, Speed, Train, packed_numbers
from vitrail.train.guard import DivergedError
from vitrail.train.journal import LOG
from vitrail.verbs.features import fewshot
from vitrail.verbs.training import Run, finetune

RUN = "run"
TRIAL, EVERY, COUNTED = 24, 4, 3  # steps of a trial, how often they are timed, and how many of these times count
EVALUATIONS = 8  # of a run that may stop early
REPEATS = 3
PAUSED = 20.0  # times the usual pace: a run was interrupted between two lines of its log
BATCHES = (1, 8, 64, 256, 1024)
ONE = 1000  # classes of what is only counted or timed, as ImageNet's


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a study runs: its folder, the folder of its data, that of packed images, its device."""

    folder: Path
    data: Path | None
    packed: Path | None
    device: str
    workers: int = 0

    def of(self, name: str) -> Path:
        """Give the folder of a cell."""
        return self.folder / "cells" / name

    def open(self, images: Images) -> dict[str, Source]:
        """Give the train and test images of a set."""
        return open_set(images, self.data, self.packed)


def carry_out(cell: Cell, place: Place) -> Numbers:
    """Do what a cell says; a run that was begun before is resumed."""
    match cell.work:
        case Train():
            return train(cell, cell.work, place)
        case Count():
            return count(config_of(cell.work.network, cell.work.image_size, ONE))
        case Speed():
            return time_forward(cell.work, place.device)
        case Look():
            return look(cell.work, place)
        case _:
            assert_never(cell.work)


def config_of(network: Network, image_size: int, classes: int | None) -> ModelConfig:
    """Give the configuration of a network, without making it."""
    return parse(network.model, {**network.fields, "image_size": (image_size, image_size), "classes": classes})


def train(cell: Cell, work: Train, place: Place) -> Numbers:
    """Train, and measure the test images and few shots; a run that diverges has no accuracy, and says why."""
    folder = place.of(cell.name) / RUN
    try:
        run = finetune(**asked_of(work, place), out=folder)
    except DivergedError as error:
        return {"diverged": str(error), **costs(work)}
    if not run.finished:
        raise KeyboardInterrupt(f"{cell.name}: interrupted at step {run.step:,} of {run.steps:,}, and saved.")
    shutil.rmtree(folder / SAVED, ignore_errors=True)
    part = "test_" if work.patience is None else ""
    measured = {name: run.metrics.get(f"{part}{name}") for name in ("accuracy", "loss")}  # without labels a loss alone
    found = {name: value for name, value in measured.items() if value is not None}
    if work.few is not None:
        found["fewshot"] = few_shot(run, work.few, work.shots, place)
    if work.timed:
        found |= minutes_of(run, work)
    return {**found, "result_step": run.result_step, **costs(work, run.step)}


def minutes_of(run: Run, work: Train) -> dict[str, float]:
    """Give the minutes of a run's steps by the clock of its log, those beside them (compiling too), and all of them.

    The steps before the first line of the log, in which the model is compiled, count at the pace of the others; and so
    do the lines between which the run was interrupted.
    """
    lines = [each for each in run.history if each["kind"] == "train"]
    pairs = list(pairwise(lines))
    paces = [(b["time"]["clock"] - a["time"]["clock"]) / (b["step"] - a["step"]) for a, b in pairs]
    usual = statistics.median(paces) if paces else length_of(work)[0] / lines[0]["time"]["images_per_second"]
    steps = sum(
        (b["step"] - a["step"]) * (pace if pace < PAUSED * usual else usual)
        for (a, b), pace in zip(pairs, paces, strict=True)
    )
    minutes = steps * run.step / max(run.step - lines[0]["step"], 1) / 60 if paces else usual * run.step / 60
    whole = max(run.seconds / 60, minutes)
    return {"minutes": minutes, "aside": whole - minutes, "in_all": whole}


def try_out(work: Train, place: Place) -> tuple[float, float]:
    """Give the seconds of a step of a run, and those beside its steps, from a short one of which nothing is kept."""
    fields = {**work.fields, **lengths(TRIAL), "log_every": EVERY}
    patience = None if work.patience is None else TRIAL  # evaluated as often, and never stopped
    trial = replace(work, fields=fields, begins=None, fresh_positions=False, patience=patience)
    with tempfile.TemporaryDirectory() as folder:
        aside = replace(place, folder=Path(folder))
        start, cell = time.perf_counter(), Cell(at={"trial": 0}, work=trial)
        train(cell, trial, aside)
        taken = time.perf_counter() - start
        records = read_json_lines(aside.of(cell.name) / RUN / LOG)
    rates = [record["time"]["images_per_second"] for record in records if record["kind"] == "train"]
    pace = length_of(work)[0] / statistics.median(rates[-COUNTED:])
    return pace, max(taken - TRIAL * pace, 0.0)


def asked_of(work: Train, place: Place) -> dict[str, Any]:
    """Give the arguments of `vitrail.finetune`."""
    fields, splits = dict(work.fields), place.open(work.images)
    begins: str | Model = work.network.model
    if work.begins is None:
        fields |= {f"model.{name}": value for name, value in work.network.fields.items()}
    else:
        begins = str(place.of(work.begins) / RUN)
        if work.fresh_positions:
            begins = with_fresh_positions(load(begins, image_size=fields["image_size"]), fields.get("seed", 0))
    if work.patience is not None:
        splits = {"train": splits["train"], "val": splits["test"]}
        every = max(length_of(work)[1] // EVALUATIONS, 1)
        fields |= {"patience": work.patience, "evaluate_every": every, "result": "best"}
    if place.device.startswith("cuda"):
        fields.setdefault("augment_on", "device")
    how = {"device": place.device, "workers": place.workers, "quiet": True}
    return {"data": splits, "model": begins, "recipe": work.recipe, **how, **fields}


def few_shot(run: Run, images: Images, shots: int, place: Place) -> float:
    """Give the accuracy of least squares on frozen features from few images of every class, mean of three draws."""
    size = run.model.config.image_size
    how = {"device": place.device, "workers": place.workers, "fresh": True}
    found = fewshot(run, place.open(images), shots=shots, probes=("ridge",), image_size=size, **how)
    return statistics.fmean(found.table.cells[0].accuracy["ridge"])


def with_fresh_positions(model: Model, seed: int) -> Model:
    """Give a model whose position table is drawn anew, but for the class token's."""
    config = model.config
    if not isinstance(config, ViTConfig) or not isinstance(config.positions, LearnedPositions):
        raise ConfigError("only learned positions can be drawn anew.")
    first = config.leading
    with torch.no_grad():
        for name, table in model.named_parameters():
            if name.startswith("positions."):
                table[first:] = draw(name, table.shape, seed)[first:].to(table)
    return model


def costs(work: Train, steps: int | None = None) -> Numbers:
    """Count what a run costs: its model, the images that it sees, and its compute by Table 6's convention."""
    size = int(work.fields.get("image_size", work.images.image_size))
    config = config_of(work.network, size, classes_of(work.images))
    batch, planned = length_of(work)
    images = batch * (planned if steps is None else steps)
    seen = {"steps": planned if steps is None else steps, "images": images}
    return {**count(config), **seen, "exaflops": exaflops(config, images=images)}


def length_of(work: Train) -> tuple[int, int]:
    """Give the batch and the steps of a run."""
    training = adjust(RECIPES[work.recipe].training, work.fields)
    if training.steps is not None:
        return training.batch_size, training.steps
    assert training.epochs is not None
    return training.batch_size, round(training.epochs * count_of(work.images) / training.batch_size)


def count(config: ModelConfig) -> dict[str, float]:
    """Count parameters, and the billions of multiply-accumulates of a forward pass."""
    return {"parameters": parameters(config).total, "gmacs": forward_macs(config).total / 1e9}


def time_forward(work: Speed, device: str) -> Numbers:
    """Time forward passes at growing batches, and give the best rate; predict the largest batch of a training step."""
    place, config = choose_device(device), config_of(work.network, work.image_size, ONE)
    model = create(work.network.model, image_size=work.image_size, device=place, **work.network.fields).eval()
    gpu = place.type == "cuda"
    rates: dict[int, float] = {}
    for batch in (each for each in BATCHES if each <= work.most):
        if rates and peak_memory(config, Step(kind="infer", batch=batch)).total > SHARE * free_memory(place):
            break
        rates[batch] = _rate(model, batch, work, place)
        if batch / rates[batch] > work.seconds:  # a pass that takes so long gains nothing by a larger batch
            break
    best = max(rates, key=lambda batch: rates[batch])
    repeats = [_rate(model, best, work, place) for _ in range(REPEATS)]
    whole = torch.cuda.mem_get_info(place)[1] if gpu else free_memory(place)
    room = int(work.memory * 2**30) if work.memory else int(SHARE * whole)
    found = {"images_per_second": statistics.median(repeats), "repeats": repeats, "batch": best}
    step = step_of(config, Training(optimizer=Adam(), steps=1), 1, place.type, "bfloat16" if gpu else "float32")
    most = largest_batch(config, step, room)
    return {**count(config), **found, "largest_batch": most}


def _rate(model: Model, batch: int, work: Speed, device: torch.device) -> float:
    """Give images a second of forward passes, bfloat16 on a GPU."""
    gpu, side = device.type == "cuda", work.image_size
    drawn = torch.Generator(device).manual_seed(0)
    images = torch.rand(batch, 3, side, side, generator=drawn, device=device) * 2 - 1
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=gpu):
        for _ in range(2):
            model(images)
        done, start = 0, _now(device)
        while (taken := _now(device) - start) < work.seconds or not done:
            for _ in range(max(1, min(64 // batch, 8)) if gpu else 1):
                model(images)
                done += 1
    return batch * done / taken


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def look(work: Look, place: Place) -> Numbers:
    """Measure how far heads attend, by layer, as a share of the image's side; how positions are alike; the filters."""
    model = load(place.of(work.begins) / RUN, device=place.device)
    source = place.open(work.images)["test"]
    if not isinstance(model, ViT):
        raise ConfigError(f"{work.begins} is a ResNet, which has no attention.")
    images = views_of(model, source, draw_images(source, work.count))[0].images
    far = attention_distance(model, images, normalized=True).mean(dim=0) / model.config.image_size[1]  # L h
    fresh = build(model.config, seed=0, device=place.device)
    begun = attention_distance(fresh, images, normalized=True).mean(dim=0) / model.config.image_size[1]
    filters, shares = filter_components(model)
    return {
        "distances": [[round(float(value), 5) for value in layer] for layer in far],
        "fresh_distances": [[round(float(value), 5) for value in layer] for layer in begun],
        "uniform_distance": uniform_distance(*model.config.grid),
        "filters": packed_numbers(filters.cpu().numpy()),
        "filter_shares": [round(float(share), 5) for share in shares],
        **_position_numbers(model),
    }


def uniform_distance(rows: int, cols: int) -> float:
    """Give the mean distance of two patches, as a share of the width: of a head that attends to all alike."""
    down, across = (np.abs(np.subtract.outer(range(side), range(side))).ravel() for side in (rows, cols))
    return float(np.hypot(down[:, None], across[None, :]).mean()) / cols


def _position_numbers(model: ViT) -> Mapping[str, Any]:
    """Say how alike the positions of neighbors, of a row or column, and of all others are; and each pair's cosine."""
    if not isinstance(model.config.positions, LearnedPositions):
        return {}
    alike = position_similarity(model).double().cpu()  # rows cols rows cols
    rows, cols = alike.shape[:2]
    down = (torch.arange(rows)[:, None, None, None] - torch.arange(rows)[None, None, :, None]).abs()
    across = (torch.arange(cols)[None, :, None, None] - torch.arange(cols)[None, None, None, :]).abs()
    near, line = (down + across) == 1, ((down == 0) ^ (across == 0)) & (down + across > 1)
    other = (down > 0) & (across > 0) & (down + across > 2)
    parts = {"neighbors": near, "line": line, "others": other}
    means = {name: float(alike[part.expand_as(alike)].mean()) for name, part in parts.items() if part.any()}
    return {"similarity": packed_numbers(alike.numpy()), **{f"similarity_{name}": mean for name, mean in means.items()}}
