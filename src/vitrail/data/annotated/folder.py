"""Folders of images with masks of the same name: images/ beside masks/, and instances/ that number objects."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.config.dense import DenseTask
from vitrail.data.annotated.classes import MaskClasses, find_classes, read_classes
from vitrail.data.annotation import VOID, Annotation, boxes_of, of_boxes, of_mask, selected
from vitrail.data.decode import SUFFIXES, Pixels
from vitrail.data.mask_files import decode_mask
from vitrail.data.source import Names, Source
from vitrail.data.sources.folder import SPLITS, is_image, read_file
from vitrail.errors import DataError, some_of
from vitrail.files import fingerprint_of, read_regular

IMAGES = ("images", "JPEGImages")
MASKS, INSTANCES = ("masks", "labels", "annotations", "SegmentationClass"), ("instances", "SegmentationObject")
OF_SOME = ("SegmentationClass", "SegmentationObject")  # Pascal VOC's, which has them of some of its images
NAMED = 5
LARGEST = 64 << 20  # bytes of a list of names
Progress = Callable[[int, int], None]
LAYOUT = "expected train/images/NAME.jpg with train/masks/NAME.png (and val/, test/)"


class FileSource(Source):
    """Image files with something known of each; the labels are -1, as classes are of pixels or of objects."""

    def __init__(self, paths: Sequence[Path], class_names: tuple[str, ...], *words: str) -> None:
        self._names = Names([str(path) for path in paths])
        self._labels = np.full(len(paths), -1, dtype=np.int64)
        self.class_names = class_names
        self._fingerprint = fingerprint_of("\0".join([str(path) for path in paths]), "\0".join(class_names), *words)

    def read(self, index: int) -> bytes | Pixels:
        """Give the bytes of a file."""
        return read_file(self._names[index])

    def name(self, index: int) -> str:
        """Give the file's folder and name."""
        return "/".join(Path(self._names[index]).parts[-2:])


class MaskSource(FileSource):
    """Images with a mask each, or, where objects are asked for, with a map of their numbers."""

    def __init__(self, pairs: Sequence[tuple[Path, Path]], classes: MaskClasses) -> None:
        super().__init__([image for image, _ in pairs], classes.names, str(classes.values), str(classes.void))
        self.classes = classes
        self._masks = Names([str(mask) for _, mask in pairs])

    def annotation(self, index: int) -> Annotation:
        """Read the mask of an image."""
        return of_mask(self.classes.read(decode_mask(read_file(self._masks[index]))))


class Numbered(NamedTuple):
    """The pixels that have an object's number."""

    numbers: NDArray[np.uint16]  # H W; one map of all objects of an image
    number: int

    def pixels(self) -> NDArray[np.bool_]:
        """Find them."""
        return self.numbers == self.number


class InstanceSource(FileSource):
    """Images with maps that number objects; the class of one is the most frequent of its pixels, where masks say it."""

    def __init__(self, found: Sequence[tuple[Path, Path, Path | None]], classes: MaskClasses | None) -> None:
        names = ("object",) if classes is None else tuple(_without_background(classes))
        super().__init__([image for image, _, _ in found], names, "instances")
        self.classes = classes
        self._maps = Names([str(each) for _, each, _ in found])
        self._masks = Names(["" if mask is None else str(mask) for _, _, mask in found])

    def annotation(self, index: int) -> Annotation:
        """Read the boxes of an image's objects."""
        instances = decode_mask(read_file(self._maps[index]))
        numbers, boxes, areas = boxes_of(instances)
        small = instances.astype(np.uint16)  # which holds all numbers that a file may have
        shapes = [Numbered(small, number) for number in numbers.tolist()]
        found = of_boxes(boxes, np.zeros(len(boxes)), areas=areas, size=instances.shape[:2], shapes=shapes)
        if self.classes is None or not self._masks[index]:
            return found
        mask = self.classes.read(decode_mask(read_file(self._masks[index])))
        if mask.shape != instances.shape:
            return found
        kept, places = _without_background(self.classes), []
        for number in numbers:
            counts = np.bincount(mask[instances == number], minlength=VOID + 1)[: len(self.classes.names)]
            name = self.classes.names[int(counts.argmax())] if counts.any() else ""
            places.append(kept.index(name) if name in kept else -1)
        classes = np.array(places, dtype=np.int64)
        return selected(found._replace(classes=classes), classes >= 0)


def _without_background(classes: MaskClasses) -> list[str]:
    pairs = zip(classes.names, classes.values, strict=True)
    return [name for name, value in pairs if not (value == 0 and name in ("background", "0"))]


class Place(NamedTuple):
    """The folders of a split."""

    images: Path
    masks: Path | None
    instances: Path | None


def mask_places(root: Path) -> dict[str, Place]:
    """Find the folders of images and of masks, by their split; none where it is another kind of data.

    Splits may stand above (train/images) or below (images/train); without them, there is one.
    """
    inside = {split: _place(root / name) for name, split in _split_names(root)}
    whole = _place(root)
    if whole is not None:
        parts = [whole.masks or whole.instances, whole.images]
        below = {
            name: split for name, split in _split_names(whole.images) if all((each / name).is_dir() for each in parts)
        }
        inside = {
            split: Place(whole.images / name, *(each and each / name for each in whole[1:]))
            for name, split in below.items()
        }
    found = {split: place for split, place in inside.items() if place is not None}
    if not found and whole is not None:
        found = {"all": whole}
    return {split: found[split] for split in ("train", "val", "test", "all") if split in found}


def mask_splits(
    root: Path, places: Mapping[str, Place], task: DenseTask, progress: Progress | None
) -> dict[str, Source]:
    """Open every split with one list of classes, that of the training masks."""
    for place in places.values():
        if (place.masks if task == "segment" else place.instances) is None:
            what = "masks/" if task == "segment" else "instances/ (a number for each object)"
            raise DataError(f"{place.images.parent} has no {what}. {LAYOUT}, or another kind that docs/dense.md names.")
    pairs = {split: _matched(place.images, place.masks) for split, place in places.items() if place.masks is not None}
    pairs = _listed(root, pairs) if task == "segment" else pairs
    classes = read_classes(root)
    if classes is None and pairs:
        first = next(iter(pairs.values()))

        def read(index: int) -> NDArray[np.int64]:
            return decode_mask(read_file(str(first[index][1])))

        classes = find_classes(read, len(first), str(root), progress)
    if task == "segment":
        assert classes is not None
        return {split: MaskSource(each, classes) for split, each in pairs.items()}
    made: dict[str, Source] = {}
    for split, place in places.items():
        assert place.instances is not None
        known = dict(pairs.get(split, ()))
        matched = _matched(place.images, place.instances)
        made[split] = InstanceSource([(image, each, known.get(image)) for image, each in matched], classes)
    return made


def _listed(root: Path, pairs: dict[str, list[tuple[Path, Path]]]) -> dict[str, list[tuple[Path, Path]]]:
    """Share out the images of Pascal VOC's folder as its lists for pixels say; as they were without such lists."""
    lists = {split: root / "ImageSets" / "Segmentation" / f"{split}.txt" for split in ("train", "val", "test")}
    held = {image.stem: (image, mask) for image, mask in pairs.get("all", ())}
    named = {
        split: [held[name] for name in read_regular(path, most=LARGEST).decode("utf-8").split() if name in held]
        for split, path in lists.items()
        if held and path.is_file()
    }
    return {split: found for split, found in named.items() if found} or pairs


def _split_names(root: Path) -> list[tuple[str, str]]:
    names = {**SPLITS, "training": "train", "valid": "val", "testing": "test"}
    return [(path.name, names[path.name.lower()]) for path in sorted(root.iterdir()) if path.name.lower() in names]


def _place(root: Path) -> Place | None:
    """Find images beside masks or numbers of objects, as files of images: other libraries put other things there."""
    images = next((root / name for name in IMAGES if (root / name).is_dir()), None)
    found = [
        next((root / name for name in names if any(is_image(path) for path in (root / name).rglob("*"))), None)
        for names in (MASKS, INSTANCES)
    ]
    return None if images is None or not any(found) else Place(images, *found)


def _matched(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    """Pair images and masks by their names; refuses where some have none, since a wrong folder would go unnoticed."""
    held = {path.relative_to(images).with_suffix(""): path for path in sorted(images.rglob("*")) if is_image(path)}
    answers: dict[Path, Path] = {}
    for path in sorted(masks.rglob("*")):
        if path.suffix.lower().removeprefix(".") in SUFFIXES:
            answers.setdefault(path.relative_to(masks).with_suffix(""), path)
    if not held:
        raise DataError(f"{images} holds no images. {LAYOUT}.")
    if masks.name in OF_SOME:
        held = {name: path for name, path in held.items() if name in answers}
    if missing := [str(name) for name in held if name not in answers]:
        raise DataError(
            f"{len(missing):,} of {len(held):,} images of {images} have no file of their name in {masks.name}/: "
            f"{some_of(missing, NAMED)}. Add them, or move these images away."
        )
    return [(path, answers[name]) for name, path in held.items()]
