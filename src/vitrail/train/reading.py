"""How a run reads its images: their channels checked, their levels measured, color augmentation kept to photographs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitrail.checkpoint.run_folder import BEGUN, read_document
from vitrail.config import FILE_FIELDS, ModelConfig
from vitrail.config.recipe import Augmentation
from vitrail.config.recipes import adjust
from vitrail.data.levels import check_channels, survey
from vitrail.data.source import Source
from vitrail.errors import ConfigError
from vitrail.train.request import TrainRequest, leaf_of
from vitrail.train.task import Task, foresee_model

OF_COLORS = ("jitter", "randaugment", "three_augment")  # levels of 8 bits, in one or three channels
PHOTOGRAPHS = (1, 3)


def settle_reading(task: Task, request: TrainRequest, source: Source) -> tuple[Task, list[str]]:
    """Refuse images of other channels than the model's; measure what nothing says of theirs; give reasons.

    Where the images have more than 8 bits and no range of values is said, by you or by the checkpoint, it is measured;
    so are mean and deviation where the first layer is new: of a fresh model, or of one that gets other channels.
    """
    config = foresee_model(task)
    check_channels(source, config.channels)
    hints = {name: task.changes[name] for name in FILE_FIELDS if name in task.changes}
    card = None if task.start is None else task.start.card(**hints)
    before = None if task.start is None else task.start.configure(**hints).channels
    said, why = dict(task.preprocessing), list[str]()
    known = None if card is None else card.preprocessing.value_range
    if not _goes_on_without(task):
        new = before != config.channels
        found = survey(source, config.channels, photographs=False)
        if found is not None and found.kind is not None:
            why.append(f"images have {found.describe()}")
            if known is None and found.value_range is not None:
                said.setdefault("value_range", found.value_range)
            same = said.get("value_range", known) == found.value_range
            if new and same and not {"mean", "deviation"} & said.keys():
                flat = [str(number) for number, value in enumerate(found.deviation) if not value]
                deviation = tuple(value or 1.0 for value in found.deviation)
                said |= {"mean": found.mean, "deviation": deviation}
                why.append(f"mean and deviation of each channel are those of {found.images:,} training images")
                why += [f"channels that are the same everywhere: {', '.join(flat)} (from 0)"] if flat else []
    real = said.get("value_range", known) is not None
    augmentation, reasons = _without_colors(task.training.augmentation, request.fields, config, real=real)
    training = adjust(task.training, augmentation) if augmentation else task.training
    return replace(task, training=training, preprocessing=said), [*why, *reasons]


def _goes_on_without(task: Task) -> bool:
    """Tell a run that was begun, and measured nothing."""
    return (task.out / BEGUN).is_file() and "preprocessing" not in read_document(task.out / BEGUN)


def _without_colors(
    config: Augmentation, asked: Mapping[str, Any], model: ModelConfig, *, real: bool
) -> tuple[dict[str, object], list[str]]:
    """Leave out what changes colors where images are no photographs; refuse it where it is asked for."""
    used = [name for name in OF_COLORS if getattr(config, name)]
    if not used or (model.channels in PHOTOGRAPHS and not real):
        return {}, []
    what = f"{model.channels} channels" if model.channels not in PHOTOGRAPHS else "more than 8 bits"
    named = {leaf_of(name) for name in asked}
    if wrong := [name for name in used if name in named]:
        raise ConfigError(
            f"{wrong[0]} changes the colors of photographs; the images have {what}. Leave it out: crops, flips, "
            "random_erasing, mixup and cutmix are of any images."
        )
    off: dict[str, object] = {name: type(getattr(config, name))() for name in used if name != "randaugment"}
    off |= {"randaugment": None} if "randaugment" in used else {}
    return off, [f"without {' and '.join(used)}, which change the colors of photographs: the images have {what}"]
