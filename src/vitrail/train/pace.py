"""How many steps fit into a time: measured in a short trial, before the run begins."""

import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from vitrail.checkpoint.run_folder import BEGUN, read_document
from vitrail.config.recipes import adjust
from vitrail.errors import ConfigError
from vitrail.runtime.reporter import SILENT
from vitrail.train.folder import LOG
from vitrail.train.prepare import TIMES, Probe
from vitrail.train.run import run
from vitrail.train.task import Task, training_split

TRIAL = 8  # steps, of which the first few warm up
COUNTED = 4
FEWEST = 10  # steps that a run is worth
ANSWER = 1 / 3  # what an image costs that is evaluated, of one that is trained on
SPARE = 0.95  # of the time, as machines have moods


def steps_within(task: Task, seconds: float, probe: Probe | None = None) -> tuple[int, str]:
    """Give the steps that fit, evaluations, probes and all, and why; those of the run itself where it has begun."""
    if (task.out / BEGUN).is_file():
        steps = read_document(task.out / BEGUN).get("training", {}).get("steps")
        if isinstance(steps, int):
            return steps, f"{steps:,} steps, as the run was begun with"
    start = time.perf_counter()
    pace, probing = _trial(task, probe)
    every = task.training.probe_every or task.training.evaluate_every
    left = seconds * SPARE - (time.perf_counter() - start) - probing * (1 if every else TIMES)
    images, evaluated, last = _images(task)
    each = pace * (1 + ANSWER * evaluated / max(images, 1)) + (probing / every if every else 0)
    steps = int((left - pace / task.training.batch_size * ANSWER * last) / each)
    if steps < FEWEST:
        raise ConfigError(
            f"a step of {task.training.batch_size} images takes {pace:.1f} seconds here; {seconds / 60:g} minutes are "
            "too few. Give more, a smaller model, batch_size or image_size."
        )
    return steps, f"{steps:,} steps fit into {seconds / 60:g} minutes: {pace:.2f} seconds each, as measured"


def _trial(task: Task, probe: Probe | None = None) -> tuple[float, float]:
    """Run a few steps beside, where nothing is kept; give the seconds of one, and of a probe."""
    never = dict.fromkeys(("save_every", "evaluate_every", "probe_every"), 10 * TRIAL)
    changes = {"steps": TRIAL, "log_every": 1, "validation_share": 0.0, "patience": None, "held_out": 0.0}
    changes["schedule.warmup_steps"] = 0
    training = adjust(task.training, never | changes)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "trial"
        splits = {"train": training_split(task.splits)}
        run(replace(task, out=out, training=training, splits=splits, tensorboard=False), SILENT, probe)
        lines = [json.loads(line) for line in (out / LOG).read_text().splitlines()]
    paces = [line["time"]["images_per_second"] for line in lines if line["kind"] == "train"]
    probes = [line["time"]["seconds"] for line in lines if line["kind"] == "probe"]
    return task.training.batch_size / statistics.median(paces[-COUNTED:]), max(probes, default=0.0)


def _images(task: Task) -> tuple[int, float, int]:
    """Count the images of an epoch, of an evaluation after it, and of the last one."""
    whole = len(training_split(task.splits))
    val = next((len(task.splits[name]) for name in ("val", "dev") if name in task.splits), None)
    kept = whole * task.training.validation_share if val is None else val
    return round(whole - (kept if val is None else 0)), kept, len(task.splits.get("test", ()))
