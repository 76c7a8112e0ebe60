"""Pascal VOC: an XML document of boxes for each image, and lists of the images of each split."""

import xml.etree.ElementTree as Tree
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrail.data.annotated.folder import FileSource
from vitrail.data.annotation import Annotation, of_boxes
from vitrail.data.decode import SUFFIXES
from vitrail.data.sources.folder import SPLITS
from vitrail.errors import DataError, some_of
from vitrail.files import read_regular

LARGEST = 4 << 20  # bytes of a document
LISTS = ("train", "val", "test")
EDGES = ("xmin", "ymin", "xmax", "ymax")


class VocSource(FileSource):
    """Images with a document of boxes each; those marked difficult are not judged."""

    def __init__(self, pairs: Sequence[tuple[Path, Path]], class_names: tuple[str, ...] | None = None) -> None:
        parsed = [read_objects(document) for _, document in pairs]
        found = {name for objects, _ in parsed for name, *_ in objects}
        names = tuple(sorted(found)) if class_names is None else class_names
        numbers = {name: number for number, name in enumerate(names)}
        self._objects = [
            of_boxes(
                [box for _, box, _ in objects],
                [numbers.get(name, -1) for name, _, _ in objects],
                [difficult for _, _, difficult in objects],
                size=size,
            )
            for objects, size in parsed
        ]
        super().__init__([image for image, _ in pairs], names, str([each.boxes.tolist() for each in self._objects]))

    def annotation(self, index: int) -> Annotation:
        """Give the objects of an image."""
        return self._objects[index]


def read_objects(
    path: Path,
) -> tuple[list[tuple[str, tuple[float, ...], bool]], tuple[int, int] | None]:
    """Read the objects of a document: name, box (from 0; VOC counts pixels from 1), difficult; and the image's size."""
    try:
        data = read_regular(path, most=LARGEST)
        if b"<!ENTITY" in data or b"<!DOCTYPE" in data:
            raise DataError(f"{path} declares entities, which no annotation needs. Remove them.")
        root = Tree.fromstring(data)
        objects = []
        for each in root.iter("object"):
            box = each.find("bndbox")
            if box is None:
                raise DataError(f"{path}: an object has no bndbox. Repair or remove the document.")
            left, top, right, bottom = (float(box.findtext(edge, "nan")) for edge in EDGES)
            if not np.isfinite([left, top, right, bottom]).all():
                raise DataError(f"{path}: a box lacks one of {', '.join(EDGES)}. Repair or remove the document.")
            edges = (left - 1, top - 1, right, bottom)
            objects.append((each.findtext("name", "object").strip(), edges, each.findtext("difficult") == "1"))
        size = int(root.findtext("size/height", "0")), int(root.findtext("size/width", "0"))
    except (OSError, ValueError, Tree.ParseError) as error:
        raise DataError(f"cannot read {path}: {error}. Repair or remove it.") from error
    return objects, size if min(size) > 0 else None


def voc_pairs(root: Path) -> dict[str, list[tuple[Path, Path]]]:
    """Find images and their documents, by split: VOC's three folders, or splits with both kinds of files side by side.

    None where it is another kind.
    """
    documents, images = root / "Annotations", root / "JPEGImages"
    if documents.is_dir() and images.is_dir():
        lists = root / "ImageSets" / "Main"
        named = {split: _listed(lists / f"{split}.txt") for split in LISTS if (lists / f"{split}.txt").is_file()}
        if not named and (lists / "trainval.txt").is_file():
            named = {"train": _listed(lists / "trainval.txt")}
        every = {"all": sorted(path.stem for path in documents.glob("*.xml"))}
        return {split: _paired(images, documents, names) for split, names in (named or every).items()}
    found = {SPLITS[place.name.lower()]: place for place in sorted(root.iterdir()) if place.name.lower() in SPLITS}
    if (root / "valid").is_dir():
        found["val"] = root / "valid"
    places = {split: found[split] for split in LISTS if split in found} or {"all": root}
    made = {}
    for split, place in places.items():
        images, documents = (
            next((place / name for name in names if (place / name).is_dir()), place)
            for names in (("JPEGImages", "images"), ("Annotations", "annotations"))
        )
        if names := sorted(path.stem for path in documents.glob("*.xml")):
            made[split] = _paired(images, documents, names)
    return made


def voc_splits(pairs: dict[str, list[tuple[Path, Path]]]) -> dict[str, VocSource]:
    """Open every split with the classes of the training documents."""
    first = next(iter(pairs))
    train = VocSource(pairs[first])
    return {
        split: train if split == first else VocSource(each, train.class_names) for split, each in pairs.items() if each
    }


def _listed(path: Path) -> list[str]:
    lines = read_regular(path, most=LARGEST * 16).decode("utf-8").splitlines()
    return [line.split()[0] for line in lines if line.strip()]


def _paired(images: Path, documents: Path, names: Sequence[str]) -> list[tuple[Path, Path]]:
    held = {path.stem: path for path in sorted(images.iterdir()) if path.suffix.lower().lstrip(".") in SUFFIXES}
    missing = [name for name in names if name not in held or not (documents / f"{name}.xml").is_file()]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(names):,} names have no image in {images} or no document in {documents}: "
            f"{some_of(missing, 5)}. Add them, or take them off the list."
        )
    return [(held[name], documents / f"{name}.xml") for name in names]
