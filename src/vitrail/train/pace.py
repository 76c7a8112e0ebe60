"""How many steps fit into a time: measured in a short trial, before the run begins; `Tempo` then keeps to the time."""

import math
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.checkpoint.run_folder import BEGUN, read_document
from vitrail.config.recipes import adjust
from vitrail.errors import ConfigError
from vitrail.files import read_json_lines
from vitrail.runtime.reporter import SILENT
from vitrail.train.chores import ANSWER
from vitrail.train.journal import LOG
from vitrail.train.prepare import TIMES, Probe
from vitrail.train.run import run
from vitrail.train.task import Task, training_split

TRIAL = 8  # steps, of which the first few warm up,
COUNTED = 4  # and the last few count
LEAST = 3  # steps of it in any case, as workers start in the first
FEW = 8  # images of a step of it at most, so that it can end in time
SHARE = 0.1  # of the time, after which it ends
FEWEST = 10  # steps that are planned at first, where a trial on a busy machine says that fewer fit
SPARE = 0.95  # of the time, as machines have moods


def steps_within(
    task: Task, seconds: float, probe: Probe | None = None, *, since: float | None = None
) -> tuple[int, str]:
    """Give the steps that fit, evaluations, probes and all, and why; those of the run itself where it has begun.

    The seconds count from `since`, by time.monotonic, or from now.
    """
    if (task.out / BEGUN).is_file():
        steps = read_document(task.out / BEGUN).get("training", {}).get("steps")
        if isinstance(steps, int):
            return steps, f"{steps:,} steps, as the run was begun with"
    start = time.monotonic() if since is None else since
    pace, probing = _trial(task, probe, SHARE * seconds)
    every = task.training.probe_every or task.training.evaluate_every
    left = seconds * SPARE - (time.monotonic() - start) - probing * (1 if every else TIMES)
    images, evaluated, last = _images(task)
    each = pace * (1 + ANSWER * evaluated / max(images, 1)) + (probing / every if every else 0)
    steps = int((left - pace / task.training.batch_size * ANSWER * last) / each)
    if pace > left:
        raise ConfigError(
            f"a step of {task.training.batch_size} images takes {pace:.1f} seconds here; {seconds / 60:g} minutes are "
            "too few. Give more, a smaller model, batch_size or image_size."
        )
    if steps < FEWEST:
        said = f"a step of {task.training.batch_size} images may take {pace:.1f} seconds here: few fit"
        return FEWEST, f"{said}, and more with a smaller model, batch_size or image_size"
    return steps, f"{steps:,} steps fit into {seconds / 60:g} minutes: {pace:.2f} seconds each, as measured"


def _trial(task: Task, probe: Probe | None = None, limit: float = math.inf) -> tuple[float, float]:
    """Run a few steps of few images beside, where nothing is kept; give the seconds of a step, and of a probe.

    After so many seconds it ends, however few steps were made.
    """
    start, batch = time.monotonic(), task.training.batch_size
    never = dict.fromkeys(("save_every", "evaluate_every", "probe_every"), 10 * TRIAL)
    changes = {"steps": TRIAL, "log_every": 1, "validation_share": 0.0, "patience": None, "held_out": 0.0}
    changes |= {"schedule.warmup_steps": 0, "batch_size": min(batch, FEW)}
    training = adjust(task.training, never | changes)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "trial"
        splits = {"train": training_split(task.splits)}
        trial = replace(task, out=out, training=training, splits=splits, track=())

        def ends(record: Mapping[str, Any]) -> bool:
            return record["kind"] == "train" and record["step"] >= LEAST and time.monotonic() - start > limit

        run(trial, SILENT, probe, [ends])
        lines = read_json_lines(out / LOG)
    paces = [line["time"]["images_per_second"] for line in lines if line["kind"] == "train"]
    probes = [line["time"]["seconds"] for line in lines if line["kind"] == "probe"]
    return batch / statistics.median(paces[1:][-COUNTED:]), max(probes, default=0.0)


def _images(task: Task) -> tuple[int, float, int]:
    """Count the images of an epoch, of an evaluation after it, and of the last one."""
    whole = len(training_split(task.splits))
    val = next((len(task.splits[name]) for name in ("val", "dev") if name in task.splits), None)
    kept = whole * task.training.validation_share if val is None else val
    return round(whole - (kept if val is None else 0)), kept, len(task.splits.get("test", ()))
