"""`vitrail.plan`: parameters, operations and memory of a model, and the cost of a run, without running anything."""

import os
from collections.abc import Sequence
from math import isfinite
from typing import get_args

from vitrail.checkpoint.load import of_run, open_checkpoint
from vitrail.config import ModelConfig, as_size, name_of, override, parse, whole
from vitrail.config.check import LARGEST, one_of, positive
from vitrail.config.given import is_checkpoint
from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.ops.cost import counts
from vitrail.ops.cost.plan import CostPlan
from vitrail.runtime.reporter import text_table

MOST_IMAGES = 10**15
QUADRATIC = 0.5  # share of the work that is token against token, from which it is worth a warning


class Plan(CostPlan):
    """The counts of a model, of a step, and of a run; it prints as a table."""

    def __str__(self) -> str:
        return side_by_side([self])


def plan(
    model: str | os.PathLike[str] | ModelConfig | Model,
    *,
    image_size: int | tuple[int, int] | None = None,
    batch_size: int = 64,
    images: float | None = None,
    epochs: float | None = None,
    precision: str = "bfloat16",
    optimizer: str = "adam",
    device: str = "cuda",
    **fields: object,
) -> Plan:
    """Count parameters, operations and memory of a model, and what a run would cost; nothing is run.

    `model` is a name such as ViT-B/16 or vitrail-ti8, weights on disk, a run, a configuration, or a model in memory;
    `fields` change its configuration. The memory is that of a training step of `batch_size` images on `device` (cuda or
    cpu). With `images`, those of the data, and `epochs`, the run is counted too, also in the exaFLOPs of Table 6.
    """
    if (epochs is None) != (images is None):
        raise ConfigError("a run needs both images and epochs; got one of them.")
    for name, value, kind in (
        ("precision", precision, counts.Precision),
        ("optimizer", optimizer, counts.Optimizer),
        ("device", device, counts.Device),
    ):
        one_of(name, value, get_args(kind))
    step = counts.Step(
        kind="train",
        batch=whole("batch_size", batch_size),
        precision=precision,  # pyright: ignore[reportArgumentType]
        optimizer=optimizer,  # pyright: ignore[reportArgumentType]
        device=device,  # pyright: ignore[reportArgumentType]
    )
    if epochs is not None and positive("epochs", epochs) > LARGEST:
        raise ConfigError(f"epochs must be at most {LARGEST}; got {epochs}.")
    changes = {**fields} if image_size is None else {**fields, "image_size": as_size(image_size)}
    model = of_run(model)
    if isinstance(model, os.PathLike) or (isinstance(model, str) and is_checkpoint(model)):
        title = os.fspath(model)
        with open_checkpoint(title) as checkpoint:
            hints = {name: changes.pop(name) for name in ("grid", "heads") if name in changes}
            config = override(checkpoint.configure(**hints), changes)
    elif isinstance(model, str):
        config, title = parse(model, changes), model
    else:
        config = override(model.config if isinstance(model, Model) else model, changes)
        title = name_of(config) or type(config).__name__
    count = None if images is None else whole("images", _rounded(images), most=MOST_IMAGES)
    return Plan(name=title, config=config, step=step, images=count, epochs=epochs)


def side_by_side(plans: Sequence[Plan]) -> str:
    """Write plans of the same step as one table, a column each, and what is unusual about them."""
    step, columns = plans[0].step, [each.lines() for each in plans]
    rows = [
        [f"  {label}" if label else section, *(column[section, label] for column in columns)]
        for section, label in columns[0]
    ]
    title = (
        f"Counted, not run: an image, and a step of {step.batch} in {step.precision} with {step.optimizer} "
        f"on {step.device}"
    )
    heads = ["", *(each.name for each in plans)]
    table = text_table(title, heads, [row for row in rows if any(row[1:])])
    notes = [
        f"{each.name}: {each.pair_share:.0%} of the work is token against token, {each.tokens:,} by {each.tokens:,}.\n"
        "A patch twice as large has a sixteenth of it."
        for each in plans
        if each.pair_share > QUADRATIC
    ]
    return "\n".join([*table, *notes])


def _rounded(value: float) -> float:
    """Read 1.28e6 as the whole number that it is; a fraction stays one, and is refused."""
    return int(value) if isfinite(value) and value == int(value) else value
