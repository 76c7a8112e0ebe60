"""A run as it was asked for: its images by what they are for, how to train, and the model that it begins with."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.checkpoint.load import Checkpoint, ModelInMemory, open_checkpoint
from vitrail.checkpoint.run_folder import BEGUN, SAVED, read_document
from vitrail.config import FILE_FIELDS, ModelConfig, ViTConfig, parse, row
from vitrail.config.given import check_name, is_checkpoint
from vitrail.config.objective import Full, Labels, NextPixels, check_adapt, check_suitable
from vitrail.config.recipe import Training
from vitrail.data.near import LARGEST
from vitrail.data.source import Source, Subset
from vitrail.data.splits import SomeClasses, hold_out, split
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.files import read_arrays, replacing
from vitrail.models import Model, create
from vitrail.models.adapting import begin_adapting
from vitrail.models.build import DIRECTIONS, draw
from vitrail.models.heads import CosineHead
from vitrail.models.mimetic import check_mimetic, initialize_attention
from vitrail.ops.random import shuffled
from vitrail.train.objective import Objective

NAMED = 8  # classes or images that a message lists
SCALE = 32.0  # of the cosines where a margin is asked for and no scale
AnyModel = str | os.PathLike[str] | Model
Start = Checkpoint | ModelInMemory  # what a run begins with
CUT = "split.npz"
DEV_SEED = 0  # one dev split for all seeds of a run
Cut = tuple[NDArray[np.int64], NDArray[np.int64]]  # numbers of the images to train on, and of those kept back


@dataclass(frozen=True, kw_only=True)
class Task:
    """A run: data, model, how to train, where to write."""

    command: str  # that started it
    data: str
    splits: Mapping[str, Source]
    model: str  # a name, or what a checkpoint was opened by
    start: Start | None = None  # the opened checkpoint; None: a fresh model by its name
    training: Training
    out: Path
    changes: Mapping[str, object] = field(default_factory=dict)  # of the model's fields
    preprocessing: Mapping[str, Any] = field(default_factory=dict)  # fields of it that were given
    objective: Objective | None = None  # of one's own, instead of the training's
    workers: int = 0
    device: str | None = None
    track: tuple[str, ...] = ()  # the trackers that take the log too
    until: float | None = None  # by time.monotonic: when it is to be over; its end is planned anew by the clock
    seconds: float = 0.0  # that it may take until then, all in all

    def __post_init__(self) -> None:
        """Refuse a model that cannot learn what is asked, before any image is read."""
        if self.start is None and is_checkpoint(self.model):
            object.__setattr__(self, "start", open_start(self.model))
        if not isinstance(self.training.objective, Labels):
            check_suitable(foresee_model(self), self.training.objective)
        if self.training.initialization is not None:
            check_mimetic(foresee_model(self), fresh=self.start is None)
        if self.training.distill is not None:
            from vitrail.train.distilling import check_teacher  # which needs the objectives, and these the task

            check_teacher(self.training.distill, foresee_model(self), training_split(self.splits).class_names)
        if not isinstance(self.training.adapt, Full):
            check_adapt(foresee_model(self), self.training.adapt, fresh=self.start is None)


def foresee_model(task: Task) -> ModelConfig:
    """Say what model a run trains; no weights are made or copied."""
    labels = isinstance(task.training.objective, Labels)
    changes = model_changes(
        task, task.training, len(training_split(task.splits).class_names) or None if labels else None
    )
    return parse(task.model, changes) if task.start is None else task.start.configure(**changes)


def open_start(model: AnyModel | None) -> Start | None:
    """Open what a run begins with, once; None for a name of the zoo. Refuses what is neither that nor there."""
    if model is None:
        return None
    if isinstance(model, Model):
        return ModelInMemory(model)
    if not isinstance(model, str) or is_checkpoint(model):
        return open_checkpoint(model)
    check_name(model)
    return None


def build_model(task: Task, training: Training, classes: tuple[str, ...]) -> Model:
    """Make the model by its name, or from a checkpoint with a new zero head (Section 3.2)."""
    labels = isinstance(training.objective, Labels) and bool(classes)
    changes = model_changes(task, training, len(classes) if labels else None)
    if task.start is None:
        model = create(task.model, seed=training.seed, **changes)
        model.card = model.card.prepared(task.preprocessing, model.config.channels)
        if training.initialization is not None:
            initialize_attention(model, training.initialization, seed=training.seed)
    else:
        model = task.start.model(**changes, preprocessing=task.preprocessing)
        if isinstance(model.head, CosineHead):  # directions are drawn, and a run has its own
            weight = model.head.directions.weight
            weight.data.copy_(draw(DIRECTIONS, weight.shape, training.seed))
    before = tuple(name for name in model.card.without_names().seen if name not in classes)
    came = model.card.provenance and replace(model.card.provenance, assumed=())  # the run's own, from now on
    card = replace(model.card.without_names(), class_names=classes if labels else None, seen=before, metrics={})
    model.card = replace(card, provenance=came)
    begin_adapting(model, training.adapt, seed=training.seed)
    return model.train()


def model_changes(task: Task, training: Training, classes: int | None) -> dict[str, Any]:
    """Give what a run changes of the model that is named, or of the checkpoint."""
    changes = dict(task.changes)
    for name in ("dropout", "stochastic_depth"):
        if (value := getattr(training, name)) is not None:
            changes.setdefault(name, value)
    changes.setdefault("head_bias", training.head_bias)
    if training.image_size is not None:
        changes["image_size"] = training.image_size
    changes["classes"] = classes
    known = known_config(task.start, changes)
    if training.margin is not None:
        changes.setdefault("cosine_scale", known.cosine_scale or SCALE if known else SCALE)
        if changes["cosine_scale"] is None:
            raise ConfigError("margin needs a classifier by cosines. Leave model.cosine_scale out, or set margin=none.")
    if known is not None:
        return _for_kind(changes, type(known))
    kind, values = row(task.model)
    if isinstance(training.objective, NextPixels) and kind is ViTConfig:
        changes = {"causal": True, "pooling": "mean", **changes}
    if training.distill is not None and training.distill.token and kind is ViTConfig:
        changes = {"pooling": "distilled", "registers": values.get("registers") or 1, **changes}
    if isinstance(training.objective, Labels) and kind is ViTConfig and training.pre_logits:
        changes.setdefault("pre_logits", values["width"])
    return _for_kind(changes, kind)


def known_config(start: Start | None, changes: Mapping[str, Any]) -> ModelConfig | None:
    """Say what a checkpoint holds, helped by what is said of it; None where a model is made by its name."""
    if start is None:
        return None
    return start.configure(**{name: changes[name] for name in ("image_size", *FILE_FIELDS) if name in changes})


def _for_kind(changes: dict[str, Any], kind: type) -> dict[str, Any]:
    """Leave out what a ResNet has none of."""
    if kind is ViTConfig:
        return changes
    for name in ("dropout", "stochastic_depth"):
        if changes.get(name):
            raise ConfigError(f"a BiT has no {name}; got {changes[name]}. Set {name}=0.")
    return {name: value for name, value in changes.items() if name not in ("dropout", "stochastic_depth")}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The splits by what they are for."""

    train: Source
    val: Source | None  # to choose by
    test: Source | None  # to report on, once


def training_split(splits: Mapping[str, Source]) -> Source:
    """Find the images to train on: the train split, or the only one where it has no name."""
    found = splits.get("train", splits.get("all"))
    if found is None:
        raise DataError(
            f"expected a train split, or images that are not split; the splits are: {', '.join(splits)}. "
            'Name the folder train, or the key of a dict, {"train": ...}; or give one split alone.'
        )
    return found


def cut_dev(
    splits: Mapping[str, Source], share: float, kept: Path, progress: Callable[[int, int], None] | None = None
) -> Cut | None:
    """Cut images to choose by from the training images, by content, where there is no split for that.

    The numbers are kept in a file, so that a run that goes on need not hash the images again. Of more images than are
    looked through unasked they are drawn: no image is read for that.
    """
    whole = training_split(splits)
    if not will_cut(splits, share):
        return None
    shares = {"train": 1 - share, "dev": share}

    def choose() -> Mapping[str, Subset]:
        if len(whole) > LARGEST:
            return draw_split(whole, share)
        return split(whole, shares, seed=DEV_SEED, progress=progress)

    cut = remember_cut(whole, share, kept, choose)
    return cut if len(cut[0]) and len(cut[1]) else None


def draw_split(source: Source, share: float) -> Mapping[str, Subset]:
    """Draw images to choose by, each with the same probability, by their numbers."""
    order = shuffled(np.arange(len(source), dtype=np.int64), len(source), DEV_SEED, 0)
    count = round(share * len(source))
    return {"train": Subset(source, np.sort(order[count:])), "dev": Subset(source, np.sort(order[:count]))}


def will_cut(splits: Mapping[str, Source], share: float) -> bool:
    """Tell whether images to choose by are cut from the training images: asked for, and there is no split of them."""
    return share > 0 and not splits.keys() & {"val", "dev"}


def remember_cut(source: Source, share: float, kept: Path, draw: Callable[[], Mapping[str, Subset]]) -> Cut:
    """Give the numbers of `train` and `dev` that were drawn from a source before, or draw and keep them."""
    cut = _read_cut(kept, source, share)
    if cut is None:
        parts = draw()
        cut = parts["train"].indices, parts["dev"].indices
        fingerprint = np.array(source.fingerprint)
        with replacing(kept) as temporary:
            np.savez(temporary, train=cut[0], dev=cut[1], share=np.array(share), fingerprint=fingerprint)
    return cut


def kept_back(run: Path | Model, source: Source) -> tuple[Subset, Subset] | None:
    """Give the images of a source that a run was trained on, and those that it kept back; None where it kept none.

    A run that is in memory alone is its model.
    """
    if isinstance(run, Model):
        cut = run.trained_on.get(source.fingerprint)
    else:
        cut = _read_cut(folder_of(run) / CUT, source, None)
    return None if cut is None or not len(cut[1]) else (Subset(source, cut[0]), Subset(source, cut[1]))


def was_trained_on(run: Path | Model, source: Source) -> bool:
    """Tell whether a run was given these images, or others of the same classes in one split, to train on."""
    if isinstance(run, Model):
        return source.fingerprint in run.trained_on
    try:
        prints = read_document(folder_of(run) / BEGUN)["fingerprints"]
        names = read_document(folder_of(run) / "classes.json")["names"]
    except (CheckpointError, KeyError):
        return False
    return source.fingerprint in prints.values() or (len(prints) == 1 and tuple(names) == source.class_names)


def remember(task: Task) -> dict[str, Cut | None]:
    """Give what a run knows of its training images, by their fingerprint, for a model that has no folder."""
    whole = training_split(task.splits)
    return {whole.fingerprint: _read_cut(task.out / CUT, whole, None)}


def folder_of(run: Path) -> Path:
    """Give the folder of a run, also for one of its checkpoints."""
    return run.parent.parent if run.parent.name == SAVED else run


def keep_classes(splits: Mapping[str, Source], share: float) -> Mapping[str, Source]:
    """Keep a share of the training split's classes out of every split, whole: nothing of them is learned."""
    if not share:
        return splits
    gone = set(hold_out(training_split(splits).class_names, share))
    return {name: SomeClasses(source, [*(set(source.class_names) - gone)]) for name, source in splits.items()}


def without_held_out(run: Path | Model, source: Source) -> Source:
    """Give a source without the classes that a run kept out of its training; as it is where it kept none."""
    if isinstance(run, Model):
        return source
    try:
        share = float(read_document(folder_of(run) / BEGUN)["training"]["held_out"])
        names = set(read_document(run / "classes.json")["names"])
    except (CheckpointError, KeyError, TypeError, ValueError):
        return source
    left = [name for name in source.class_names if name in names]
    return SomeClasses(source, left) if share and 0 < len(left) < len(source.class_names) else source


def choose_parts(splits: Mapping[str, Source], cut: Cut | None) -> Parts:
    """Take the splits that there are, and what was cut from the training images."""
    train, val = training_split(splits), splits.get("val", splits.get("dev"))
    if cut is not None:
        train, val = Subset(train, cut[0]), Subset(train, cut[1])
    return Parts(train=train, val=val, test=splits.get("test"))


def _read_cut(path: Path, source: Source, share: float | None) -> Cut | None:
    """Read a cut of these images, of this share where it is said."""
    try:
        held = read_arrays(path)
        same = str(held["fingerprint"]) == source.fingerprint and share in (None, float(held["share"]))
        return (held["train"], held["dev"]) if same and _are_places(held, len(source)) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _are_places(held: Mapping[str, NDArray[Any]], count: int) -> bool:
    """Tell whether both parts of a cut are numbers of a source's images."""
    parts = (held["train"], held["dev"])
    whole = all(part.ndim == 1 and part.dtype.kind == "i" for part in parts)
    return whole and all(part.min(initial=0) >= 0 and part.max(initial=0) < count for part in parts)
