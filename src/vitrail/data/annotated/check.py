"""What is wrong with masks and boxes: sizes, numbers, boxes of nothing, boxes outside, classes without a name."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vitrail.data.annotation import VOID, Annotation, outlined, selected
from vitrail.data.check import EXAMPLES, ROWS, Findings, SplitReport, letterboxed
from vitrail.data.decode import ImageError, OpenImage, Pixels
from vitrail.data.overlays import colors_of, draw_boxes, lay_over, lay_shapes_over, picture_of, scaled
from vitrail.data.source import Source
from vitrail.errors import some_of

ROW = 8  # examples of a class on a sheet
CELL = 288  # pixels of a picture there
SLACK = 1.0  # pixels by which a box may reach over the edge: some count pixels from 0 and some from 1
Progress = Callable[[int, int], None]


def check_annotations(
    splits: Mapping[str, Source], reports: Mapping[str, SplitReport], unread: str, progress: Progress | None = None
) -> dict[str, dict[str, list[int]]]:
    """Read what is known of every image, and add what is wrong to the reports; give examples of every class.

    What cannot be read is added as `unread`: mask, or boxes.
    """
    shown: dict[str, dict[str, list[int]]] = {}
    total, done = sum(len(source) for source in splits.values()), 0
    for split, source in splits.items():
        names = source.class_names
        tally = Tally(names)
        problems, examples = reports[split].problems, shown.setdefault(split, {name: [] for name in names})
        for index in range(len(source)):
            done += 1
            if progress is not None:
                progress(done, total)
            try:
                size = size_of(source.read(index))
                found = source.annotation(index)
            except ImageError as error:
                if "unreadable" not in problems or source.name(index) not in "".join(problems["unreadable"].examples):
                    problems.setdefault(unread, Findings()).add(f"{source.name(index)}: {error}", index)
                continue
            for kind, text in judge(found, *size):
                problems.setdefault(kind, Findings()).add(f"{source.name(index)}: {text}", index)
            counts = tally.add(found)
            for number in np.flatnonzero(counts):
                if len(examples[names[number]]) < min(ROW, EXAMPLES):
                    examples[names[number]].append(index)
        reports[split].class_counts = dict(zip(names, tally.images.tolist(), strict=True))
        reports[split].known = [tally.describe()] if tally.seen else []
    return shown


class Tally:
    """The pixels, or the objects, of each class of a split, and the images that have some."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.counts, self.images = names, np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
        self.seen = self.bare = self.most = self.crowds = self.void = 0
        self.pixels = False

    def add(self, found: Annotation) -> NDArray[np.int64]:
        """Count what is known of an image; gives the counts of it."""
        counts = counts_of(found, len(self.names))
        self.counts += counts
        self.images += counts > 0
        self.seen, self.bare, self.most = self.seen + 1, self.bare + (not counts.any()), max(self.most, counts.sum())
        self.crowds += int(found.crowd.sum())
        if found.mask is not None:
            self.pixels, self.void = True, self.void + int((found.mask == VOID).sum())
        return counts

    def describe(self) -> str:
        """Say what there is: shares of the pixels, or numbers of objects."""
        whole = int(self.counts.sum())
        if self.pixels:
            rows = [f"{name} {count / max(whole, 1):.1%}" for name, count in zip(self.names, self.counts, strict=True)]
            void = f"; {self.void / max(whole + self.void, 1):.1%} of all is void" if self.void else ""
            return f"pixels that count: {some_of(rows, ROWS)}{void}"
        rows = [f"{name} {count:,}" for name, count in zip(self.names, self.counts, strict=True)]
        bare = f", none in {self.bare:,} images" if self.bare else ""
        crowds = f", {self.crowds:,} of them crowds or not judged" if self.crowds else ""
        return f"{whole:,} objects, at most {self.most:,} in an image{bare}{crowds}: {some_of(rows, ROWS)}"


def size_of(data: bytes | Pixels) -> tuple[int, int]:
    """Give height and width of an image, upright."""
    if isinstance(data, bytes):
        image = OpenImage(data)
        return image.height, image.width
    return data.shape[0], data.shape[1]


def judge(found: Annotation, height: int, width: int) -> Iterator[tuple[str, str]]:
    """Say what is wrong with what is known of an image of this size."""
    if found.mask is not None:
        if found.mask.shape != (height, width):
            yield "mask", f"{found.mask.shape[0]}x{found.mask.shape[1]} pixels, the image {height}x{width}"
        elif (found.mask == VOID).all():
            yield "mask", "all of it is void"
        return
    if found.size not in (None, (height, width)):
        yield "box sizes", f"said to be {found.size[0]}x{found.size[1]} pixels, and is {height}x{width}"
    sides = found.boxes[:, 2:] - found.boxes[:, :2]
    for box in found.boxes[(sides <= 0).any(axis=1)]:
        yield "empty boxes", said(box)
    over = np.concatenate([-found.boxes[:, :2], found.boxes[:, 2:] - [width, height]], axis=1).max(axis=1, initial=0)
    for box in found.boxes[(over > SLACK) & (sides > 0).all(axis=1)]:
        yield "boxes outside", f"{said(box)} of an image of {width} by {height}"
    if (unnamed := int((found.classes < 0).sum())) > 0:
        yield "classes without a name", f"{unnamed} objects of classes that the training split does not have, or name"


def said(box: NDArray[np.float64]) -> str:
    """Say a box."""
    left, top, right, bottom = (f"{edge:g}" for edge in box)
    return f"{left},{top} to {right},{bottom}"


def counts_of(found: Annotation, classes: int) -> NDArray[np.int64]:
    """Count the pixels, or the objects, of each class."""
    values = found.classes[found.classes >= 0] if found.mask is None else found.mask[found.mask != VOID]
    return np.bincount(values.ravel().astype(np.int64), minlength=classes)[:classes]


def drawn(source: Source, index: int) -> Pixels:
    """Draw what is known of an image over it, in a square: as far as it is sound; red where nothing can be shown."""
    try:
        pixels = picture_of(source.read(index))
    except ImageError:
        return letterboxed(None, CELL)
    small = scaled(pixels, CELL // 2, CELL)
    try:
        found = source.annotation(index)
    except ImageError:
        return letterboxed(small, CELL)
    named = selected(found, found.classes >= 0)._replace(shapes=None)  # which may be unsound
    drawn_over = draw_annotation(small, named, source.class_names, scale=small.shape[0] / pixels.shape[0], tell=False)
    return letterboxed(drawn_over, CELL)


def draw_annotation(
    pixels: Pixels, found: Annotation, names: Sequence[str], *, scale: float = 1.0, tell: bool = True
) -> Pixels:
    """Draw classes of pixels, or objects and what they are, over an image that is shown so many times larger."""
    if found.mask is not None:
        return lay_over(pixels, found.mask, colors_of(names))
    if found.shapes is not None:
        shapes = [outlined(each) for each in found.shapes]
        pixels = lay_shapes_over(pixels, shapes, found.classes, colors_of(names))
    texts = [names[int(number)] for number in found.classes] if tell else []
    return draw_boxes(pixels, found.boxes * scale, found.classes, colors_of(names), texts)
