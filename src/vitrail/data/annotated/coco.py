"""COCO's JSON: images, categories, and annotations with boxes, polygons or run lengths."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.config.dense import DenseTask
from vitrail.data.annotated.folder import FileSource
from vitrail.data.annotation import Annotation, of_boxes, of_mask
from vitrail.data.decode import ImageError
from vitrail.data.mask_files import fill_polygons
from vitrail.errors import DataError
from vitrail.files import fingerprint_of, read_json
from vitrail.files.reading import open_regular
from vitrail.ops.shapes import filled, unpacked

LARGEST = 1 << 30  # bytes of a document; COCO's own are 470 MB
BEGINNING = 1 << 16  # bytes that tell a document from another JSON file
ROBOFLOW = "_annotations.coco.json"
WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
BACKGROUND = "background"


class Segmentation(NamedTuple):
    """What a row says of the pixels of an object: polygons or run lengths, not yet read."""

    said: Any
    size: tuple[int, int]

    def pixels(self) -> NDArray[np.bool_]:
        """Read them."""
        try:
            return mask_of(self.said, self.size)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ImageError(f"an object's segmentation is not COCO's: {error!r}") from error


class CocoSource(FileSource):
    """The images of one document; its categories are the classes, by their ids, after the background for pixels."""

    def __init__(self, path: Path, task: DenseTask, categories: Mapping[int, str] | None = None) -> None:
        document = read_document(path)
        self.path, self.task = path, task
        own = categories_of(document, path) if categories is None else categories
        self.numbers = {number: place for place, number in enumerate(sorted(own))}
        images = sorted(document["images"], key=lambda image: str(image.get("file_name")))
        roots = _roots(path)
        root = next((root for root in roots if images and (root / str(images[0]["file_name"])).is_file()), None)
        if images and root is None:
            places = ", ".join(map(str, roots))
            raise DataError(f"{path}: its image {images[0]['file_name']!r} is in none of {places}. Put them together.")
        inside = [str(image["file_name"]) for image in images]
        if outside := [name for name in inside if Path(name).is_absolute() or ".." in Path(name).parts]:
            raise DataError(f"{path} names {outside[0]!r}, which is not in its own folder. Give relative names.")
        names = tuple(own[number] for number in sorted(own))
        names = (BACKGROUND, *names) if task == "segment" else names
        rows: dict[Any, list[Mapping[str, Any]]] = {}
        for row in document["annotations"]:
            rows.setdefault(row.get("image_id"), []).append(row)
        self._rows = [rows.get(image.get("id"), []) for image in images]
        self._sizes = [(image.get("height"), image.get("width")) for image in images]
        self.image_ids = [image.get("id") for image in images]
        self.category_ids = sorted(own)
        super().__init__([(root or path) / name for name in inside], names, task, fingerprint_of(str(self._rows)))

    def annotation(self, index: int) -> Annotation:
        """Give the objects of an image, or paint them, the largest first, for the classes of its pixels."""
        rows, size = self._rows[index], self._sizes[index]
        known = isinstance(size[0], int) and isinstance(size[1], int)
        try:
            if self.task == "segment":
                if not known:
                    raise ImageError("the document does not say the size of the image")
                return of_mask(self._painted(rows, size))
            boxes = np.array([box_of(row) for row in rows], dtype=np.float64).reshape(-1, 4)
            boxes[:, 2:] += boxes[:, :2]
            return of_boxes(
                boxes,
                [self.numbers.get(row["category_id"], -1) for row in rows],
                [bool(row.get("iscrowd", 0)) for row in rows],
                [float(row.get("area", row["bbox"][2] * row["bbox"][3])) for row in rows],
                size if known else None,
                tuple(Segmentation(row["segmentation"], size) for row in rows)
                if known and all(row.get("segmentation") for row in rows)
                else None,
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ImageError(f"its annotations are not COCO's: {error!r}") from error

    def _painted(self, rows: Sequence[Mapping[str, Any]], size: tuple[int, int]) -> NDArray[np.uint8]:
        made = np.zeros(size, dtype=np.uint8)
        if unnamed := {row["category_id"] for row in rows} - self.numbers.keys():
            raise ImageError(f"an object is of category {unnamed.pop()!r}, which the training document does not name")
        masks = [(mask_of(row.get("segmentation"), size), self.numbers[row["category_id"]]) for row in rows]
        for mask, place in sorted(masks, key=lambda pair: -int(pair[0].sum())):
            made[mask] = place + 1
        return made


def read_document(path: Path) -> dict[str, Any]:
    """Read a document that has images, annotations and categories."""
    try:
        document = read_json(path, most=LARGEST)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}. Copy or download it again.") from error
    lists = isinstance(document, dict) and all(isinstance(document.get(key), list) for key in ("images", "annotations"))
    if not lists or not all(isinstance(image, dict) and "file_name" in image for image in document["images"]):
        raise DataError(f"{path} is not COCO's: expected an object with images, annotations and categories.")
    counts = Counter(str(each.get("id")) for each in document["images"])
    if twice := [number for number, count in counts.items() if count > 1]:
        raise DataError(f"{path}: {len(twice):,} numbers of images come twice, such as {twice[0]}. Give each its own.")
    return document


def categories_of(document: Mapping[str, Any], path: Path) -> dict[int, str]:
    """Give the categories by their ids; by their numbers where none is named. One that no row has is left out."""
    try:
        named = {int(each["id"]): str(each["name"]) for each in document.get("categories", ())}
        used = {int(row["category_id"]) for row in document["annotations"]}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: its categories are not COCO's: {error!r}.") from error
    if not named and not used:
        raise DataError(f"{path} has no categories and no annotations. Expected some of each.")
    if not named:
        return {number: str(number) for number in used}
    return {number: name for number, name in named.items() if number in used} or named


def coco_places(root: Path) -> dict[str, Path]:
    """Find the documents of a folder, by their split; none where there is no such document."""
    if root.is_file():
        return {_split_of(root.stem) or "all": root} if root.suffix.lower() == ".json" else {}
    found: dict[str, Path] = {}
    for place in sorted(root.iterdir()):
        if (place / ROBOFLOW).is_file() and place.name.lower() in WORDS:
            found[WORDS[place.name.lower()]] = place / ROBOFLOW
    if found:
        return _ordered(found)
    documents = [
        path
        for folder in (root / "annotations", root)
        if folder.is_dir()
        for path in sorted(folder.glob("*.json"))
        if not path.stem.startswith(("captions", "person_keypoints", "stuff")) and _begins_as_coco(path)
    ]
    for path in documents:
        split = _split_of(path.stem) or ("all" if len(documents) == 1 else None)
        if split is not None and split not in found:
            found[split] = path
    return _ordered(found)


def _begins_as_coco(path: Path) -> bool:
    """Tell whether one of the three lists stands near the beginning, as in every writer's documents."""
    with open_regular(path) as file:
        begin = file.read(BEGINNING)
    return any(key in begin for key in (b'"images"', b'"annotations"', b'"categories"'))


def coco_splits(places: Mapping[str, Path], task: DenseTask) -> dict[str, CocoSource]:
    """Open the documents with one list of categories: those of the first."""
    first = next(iter(places.values()))
    categories = categories_of(read_document(first), first)
    return {split: CocoSource(path, task, categories) for split, path in places.items()}


def box_of(row: Mapping[str, Any]) -> Sequence[float]:
    """Give left, top, width and height of an object; refuses what is no box."""
    box = row.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(each, int | float) for each in box):
        raise ImageError(f"an object has the bbox {box!r}; expected [left, top, width, height]")
    if not np.isfinite(box).all():
        raise ImageError(f"an object has the bbox {box!r}, whose numbers are not all finite")
    return box


def mask_of(said: Any, size: tuple[int, int]) -> NDArray[np.bool_]:  # noqa: ANN401
    """Give what polygons or run lengths cover."""
    if not said:
        raise ImageError("an object has a box and no segmentation. Take task=detect, or give its pixels")
    if isinstance(said, list):
        if any(len(each) < 6 or len(each) % 2 or not np.isfinite(each).all() for each in said):
            raise ImageError("a polygon has less than three corners, or half of one: expected x, y, x, y, x, y, ...")
        return fill_polygons(size, said)
    counts = said["counts"]
    runs = counts if isinstance(counts, list) else unpacked(counts)
    if sum(runs) != size[0] * size[1] or list(said["size"]) != list(size):
        raise ValueError(f"runs of {sum(runs)} pixels of {said['size']} for an image of {size}")
    return filled(runs, size)


def _roots(path: Path) -> list[Path]:
    """List where the images of a document may lie."""
    folder, base = path.parent, path.parent.parent if path.parent.name == "annotations" else path.parent
    split = _split_of(path.stem)
    named = [path.stem.removeprefix("instances_"), *(word for word, meant in WORDS.items() if meant == split)]
    inside = [base / inner / name for inner in (".", "images") for name in named]
    return [folder, base, *inside, base / "images", *[each / "images" for each in inside]]


def _split_of(stem: str) -> str | None:
    return next((split for word, split in WORDS.items() if word in stem.lower()), None)


def _ordered(found: Mapping[str, Path]) -> dict[str, Path]:
    return {split: found[split] for split in ("train", "val", "test", "all") if split in found}
