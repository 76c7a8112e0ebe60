"""What a run of pixels or objects leaves open, chosen from its masks or boxes, with reasons; and what it refuses."""

import os
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from vitrail.config import BiTConfig, HybridStem, ModelConfig, PatchStem, ViTConfig, row
from vitrail.config.dense import DenseHead, DenseTask, LinearHead, QueryHead
from vitrail.config.recipes import adjust, recipe
from vitrail.data.annotated.folder import mask_places
from vitrail.data.annotated.open import is_table, kind_of
from vitrail.data.annotated.voc import voc_pairs
from vitrail.data.annotation import Annotation, checked
from vitrail.data.decode import ImageError, OpenImage
from vitrail.data.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.files import home_path
from vitrail.train.choice import BOX, SMALL_MODEL, model_name
from vitrail.train.request import Choice, TrainRequest, leaf_of
from vitrail.train.task import AnyModel, Start, known_config, training_split

LOOKED_AT = 64  # images of a split that are looked at before anything is computed
LONGER = 256  # pixels of the longer side, where no size is said
QUERIES = {"segment": (10, 100), "detect": (20, 300)}  # the fewest and the most; twice what an image may have
LONGEST, SHORTEST = 10_000, 1_500  # steps, where no length is said
DEV = 0.1  # of the training images, where there is no val split
LARGE_RATE = 1e-4  # of models that are not small


def refuse_masks(data: object) -> None:
    """Refuse folders of images and masks where classes of images would be read: images and masks would be these."""
    path = home_path(os.fspath(data)) if isinstance(data, str | os.PathLike) else None
    if path is None or not (path.is_dir() or path.suffix.lower() == ".parquet"):
        return
    task = None
    if is_table(path):
        task = kind_of(path)
    elif places := mask_places(path):
        task = "segment" if next(iter(places.values())).masks is not None else "detect"
    elif any((path / name).is_dir() for name in ("annotations", "Annotations")) or voc_pairs(path):
        task = kind_of(path)
    if task is not None:
        what = "masks" if task == "segment" else "boxes"
        cure = f"Give task={task}, or task=classify where its folders are classes of images."
        raise DataError(f"{path} has images with {what}. {cure}")


def start_dense(request: TrainRequest) -> tuple[AnyModel | None, list[str]]:
    """Give the model to begin with, and why: the one in the box where none is named."""
    if request.model is not None:
        return request.model, []
    return BOX, [f"from {BOX}, the model in the box; another with model=..., a fresh one with model=ViT-Ti/8"]


def choose_dense(request: TrainRequest, splits: Mapping[str, Source], start: Start | None, task: DenseTask) -> Choice:
    """Choose recipe, size, queries and length for images with masks or boxes."""
    sources = {name: source for name, source in splits.items() if len(source)}
    seen = {name: look_at(source, task) for name, source in sources.items()}
    whole, name = training_split(splits), model_name(request.model) or BOX
    known = known_config(start, {**request.model_fields, **request.fields})
    if isinstance(known, BiTConfig) or (known is None and row(name)[0] is BiTConfig):
        raise ConfigError(f"task={task} takes the tokens of a Vision Transformer or a hybrid; got a BiT.")
    looked = seen["train" if "train" in seen else "all"]
    head, why = choose_head(request, task, whole, [each for each, _ in looked], known)
    given = {leaf_of(field) for field in request.fields}
    chosen = recipe(request.recipe or task).training
    changes: dict[str, object] = {"task": task}
    small = start is None or start.parameters < SMALL_MODEL
    if request.recipe is None:
        changes |= {} if small else {"learning_rate": LARGE_RATE}
        changes |= {} if known is not None else {"layer_decay": None}
        if "layer_decay" not in given and known is not None and known.layers < 1:
            changes["layer_decay"] = None
        rate = changes.get("learning_rate", chosen.optimizer.learning_rate)
        first = "" if "learning_rate" in given else f" at {rate:g}"
        why.append(f"the recipe {task}: AdamW{first}, crops, flips, colors, averaged weights")
        batch = batch_for(len(whole))
        steps = min(max(round((chosen.epochs or 0) * len(whole) / batch), SHORTEST), LONGEST)
        changes |= {"batch_size": batch, "steps": steps}
        if not {"steps", "epochs"} & given:
            why.append(f"{steps:,} steps of {batch} images; minutes=10 takes as many as fit")
    if "image_size" not in given:
        size = choose_size([size for _, size in looked], known, name)
        changes["image_size"] = size
        why.append(f"{size[0]} x {size[1]} pixels, by the images' sides; image_size=HxW takes others, larger is better")
    if not splits.keys() & {"val", "dev"}:
        changes["validation_share"] = DEV
        if "validation_share" not in given:
            why.insert(0, f"{DEV:.0%} of the images kept back to choose by, as there is no val split")
    what = "classes of pixels" if task == "segment" else "classes of objects"
    why.insert(0, f"{len(whole):,} training images, {len(whole.class_names)} {what}")
    return Choice(model=name, training=adjust(chosen, changes), changes={"head": head}, reasons=tuple(why))


def choose_head(
    request: TrainRequest, task: DenseTask, source: Source, looked: list[Annotation], known: ModelConfig | None
) -> tuple[DenseHead, list[str]]:
    """Give the head that is asked for, or queries enough for what images have."""
    said = request.model_fields.get("head")
    if isinstance(said, LinearHead):
        if task == "detect":
            raise ConfigError("head=linear segments alone: it knows no objects. Leave head out, or set task=segment.")
        return said, ["a linear head on every patch, the baseline; without head=linear, queries among the last tokens"]
    depth = known.depth if isinstance(known, ViTConfig) else None
    drawn = isinstance(said, QueryHead) and said.masks
    if drawn:
        check_shapes(task, looked)
    if isinstance(said, QueryHead) and not (drawn and request.head_fields == {".masks"}):
        return replace(said, task=task), []
    most = len(source.class_names) if task == "segment" else max((len(each.boxes) for each in looked), default=1)
    least, limit = QUERIES[task]
    queries = min(max(2 * most, least), limit)
    blocks = min(QueryHead().blocks, depth or QueryHead().blocks)
    drawing = " that draw the objects too" if drawn else ""
    reason = f"{queries} queries in the last {blocks} blocks{drawing}; head.queries and head.blocks say others"
    return QueryHead(task=task, queries=queries, blocks=blocks, masks=drawn), [reason]


def check_shapes(task: DenseTask, looked: list[Annotation]) -> None:
    """Refuse masks of objects where they are not known of all, or where classes of pixels are learned."""
    if task == "segment":
        raise ConfigError("head.masks=true draws the objects of task=detect; task=segment has masks. Leave it out.")
    if lacking := sum(1 for known in looked if known.shapes is None and len(known.boxes)):
        raise DataError(
            f"head.masks=true learns the pixels of every object; {lacking} of {len(looked)} images looked at have "
            "boxes alone. Give instances/ or segmentations (docs/dense.md), or leave head.masks out."
        )


def choose_size(sides: list[tuple[int, int]], known: ModelConfig | None, name: str) -> tuple[int, int]:
    """Give the middle shape of the images, no larger than is quick, in whole patches."""
    height, width = np.median(np.array(sides), axis=0)
    fields = {} if known is not None else row(name)[1]
    stem = known.stem if isinstance(known, ViTConfig) else fields.get("stem")
    assert isinstance(stem, PatchStem | HybridStem)
    most = max(LONGER, max(known.image_size) if known is not None else LONGER)
    scale = min(1.0, most / max(height, width))
    side = stem.stride
    tall, wide = (max(round(scale * each / side), 1) * side for each in (height, width))
    return tall, wide


def look_at(source: Source, task: DenseTask) -> list[tuple[Annotation, tuple[int, int]]]:
    """Read what is known of some images, spread over the source; refuses what cannot be, naming the image.

    An image that cannot be decoded is left to the limit of bad images.
    """
    found: list[tuple[Annotation, tuple[int, int]]] = []
    for index in np.unique(np.linspace(0, len(source) - 1, min(LOOKED_AT, len(source))).astype(np.int64)).tolist():
        try:
            data = source.read(index)
            image = OpenImage(data) if isinstance(data, bytes) else None
            size = (data.shape[0], data.shape[1]) if image is None else (image.height, image.width)  # pyright: ignore
        except ImageError:
            continue
        try:
            known = checked(source.annotation(index), *size)
        except ImageError as error:
            raise DataError(f"{source.name(index)}: {error}. vitrail data check lists all that are so.") from error
        if (known.mask is None) == (task == "segment"):
            what = "boxes and no mask" if task == "segment" else "a mask and no boxes"
            other = "detect" if task == "segment" else "segment"
            raise DataError(f"{source.name(index)} has {what}. Take task={other}.")
        found.append((known, size))
    if not found:
        raise DataError("none of the images looked at can be decoded. vitrail data check says why.")
    if task == "detect" and not any(len(known.boxes) for known, _ in found):
        raise DataError(
            f"none of {len(found)} images looked at has an object. vitrail data check --task detect says more."
        )
    return found


def batch_for(count: int) -> int:
    """Give fewer images a step where there are few."""
    return 8 if count < 100 else 16 if count < 5000 else 32
