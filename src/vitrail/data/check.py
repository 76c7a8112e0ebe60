"""What is wrong with a data set, before a run finds out: damage, misnamed files, copies, leaks, odd images."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import FORMATS, ImageError, OpenImage, Pixels
from vitrail.data.known import count_known, describe_known
from vitrail.data.near import Thumbnails
from vitrail.data.source import Source
from vitrail.data.sources.folder import AGAIN
from vitrail.data.splits import same_contents
from vitrail.data.transforms.resize import resize, to_tensor
from vitrail.files import image_hash
from vitrail.files.hashes import WIDTH
from vitrail.ops.near import BUCKET, near_pairs
from vitrail.ops.uneven import HELPS, UNEVEN, imbalance

Progress = Callable[[int, int], None]
EXAMPLES = 20  # of each kind of finding that are named; all are counted
TINY = 32  # pixels of the shorter side
HUGE = 40_000_000  # pixels
EXTREME = 5  # the longer side by the shorter
ROWS = 12  # classes and examples of a contact sheet
REMEMBERED = 65_536  # contents whose judgement is kept, for where they come again
# What may be wrong with masks and boxes.
SPOILING = ("mask", "boxes", "box sizes", "empty boxes", "boxes outside", "classes without a name")
KNOWN = frozenset(itertools.chain.from_iterable(FORMATS.values()))


class Judgement(NamedTuple):
    """What is found of an image by its contents alone, wherever they come."""

    format: str  # empty where it cannot be opened
    traits: tuple[str, ...]
    problems: tuple[tuple[str, str], ...]  # kinds and details
    thumbnail: NDArray[np.uint8]


@dataclass
class Findings:
    """How often something was found, and the first few of it, in words."""

    count: int = 0
    examples: list[str] = field(default_factory=list)
    samples: list[int] = field(default_factory=list, compare=False)  # numbers in the split, of the first few

    def add(self, example: str, *samples: int) -> None:
        """Count one more."""
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)
            self.samples.extend(each for each in samples if each not in self.samples)

    def document(self) -> dict[str, Any]:
        """Give the count and the words, for JSON."""
        return {"count": self.count, "examples": self.examples}


@dataclass
class NearCopies(Findings):
    """Images that have a near-copy among others, of how many; all pairs by name, the image first."""

    images: int = 0
    pairs: list[tuple[str, str]] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list, compare=False)  # their numbers, of the first few

    def document(self) -> dict[str, Any]:
        """Give all of it, for JSON."""
        return {**super().document(), "images": self.images, "pairs": self.pairs}


@dataclass
class SplitReport:
    """What one split holds.

    `problems` by kind: empty, unreadable, truncated, misnamed, tiny, huge, extreme, left_out, read_already, ignored.
    `traits` by kind: grey, alpha, cmyk, sixteen_bit, animated, which are decoded and merely worth knowing.
    """

    samples: int
    class_counts: dict[str, int]
    formats: Counter[str] = field(default_factory=Counter)
    traits: Counter[str] = field(default_factory=Counter)
    problems: dict[str, Findings] = field(default_factory=dict)
    known: list[str] = field(default_factory=list)  # of labels, numbers, pixels or objects of images, in words

    @property
    def imbalance(self) -> float:
        """The largest class by the smallest; infinite where a class has none, 1 where there are no classes."""
        return imbalance([*self.class_counts.values()])

    @property
    def uneven(self) -> str | None:
        """Say which classes are rare, and what to do about it; None where classes are even enough."""
        counts = {name: count for name, count in self.class_counts.items() if count}
        if self.known or imbalance([*counts.values()]) < UNEVEN:
            return None
        most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
        return (
            f"classes are uneven, {counts[most] / counts[least]:,.0f} to 1: {most} has {counts[most]:,} images, "
            f"{least} {counts[least]:,}. {HELPS}"
        )


@dataclass
class DataReport:
    """What was found in all splits: each by itself, and contents that come more than once."""

    splits: dict[str, SplitReport]
    duplicates: dict[str, Findings]  # within a split: copies beyond the first
    leaks: dict[tuple[str, str], Findings]  # contents that two splits share
    conflicts: Findings  # contents with more than one label
    # Images that were encoded again, resized or cropped, by their split and that of the others. The worst kind comes
    # first: of images that are trained on; then those of other splits, then of the same.
    near: dict[tuple[str, str], NearCopies] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether nothing would spoil a run or its figures: no damage, no leak, no contradiction."""
        damage = ("empty", "unreadable", "truncated", "left_out", *SPOILING)
        broken = any(kind in report.problems for report in self.splits.values() for kind in damage)
        near = any(split != other for split, other in self.near)
        return not (broken or near or self.leaks or self.conflicts.count)


def check_data(splits: Mapping[str, Source], *, mirrored: bool = False, progress: Progress | None = None) -> DataReport:
    """Read every image once; what is held meanwhile is a hash and a thumbnail of each, and a few examples.

    Contents that come again are not decoded again.

    With `mirrored`, mirrored copies are near-copies too.
    """
    total, done = sum(len(source) for source in splits.values()), 0
    reports: dict[str, SplitReport] = {}
    hashes = np.zeros((total, WIDTH), dtype=np.uint8)
    readable = np.zeros(total, dtype=np.bool_)
    small = {split: Thumbnails(source) for split, source in splits.items()}
    judged: dict[bytes, Judgement] = {}
    for split, source in splits.items():
        reports[split] = SplitReport(len(source), count_known(source), known=describe_known(source))
        for place, reason in getattr(source, "problems", ()):
            kind = "read_already" if reason == AGAIN else "left_out"
            reports[split].problems.setdefault(kind, Findings()).add(f"{place}: {reason}")
        if ignored := getattr(source, "ignored", 0):
            names = getattr(source, "ignored_names", ())[:EXAMPLES]
            why = ("in no class folder", "no image by its suffix")
            reports[split].problems["ignored"] = Findings(ignored, [f"{name}: {why['/' in name]}" for name in names])
        for index in range(len(source)):
            found = _look_at(source, index, reports[split], small[split], judged)
            if found is not None:
                hashes[done] = np.frombuffer(found, dtype=np.uint8)
                readable[done] = True
            done += 1
            if progress is not None:
                progress(done, total)
        small[split].save()
    report = DataReport(reports, {}, {}, Findings())
    places = np.flatnonzero(readable)
    groups = [places[same] for same in same_contents(hashes[readable])]
    _compare(splits, groups, report)
    thumbnails = np.concatenate([each.rows for each in small.values()])
    groups.sort(key=lambda group: int(group[0]))
    pairs = near_pairs(thumbnails[[group[0] for group in groups]], mirrored=mirrored)
    _compare_near(splits, _of_copies(pairs, groups), report)
    return report


def contact_sheet(source: Source, indices: Sequence[int] | NDArray[np.int64], cell: int = 96) -> Pixels:
    """Lay out examples, a row for each of up to 12 classes, letterboxed on white; what cannot be decoded is red."""
    labels = source.labels
    rows: dict[int, list[int]] = {}
    for index in map(int, indices):
        rows.setdefault(int(labels[index]), []).append(index)
    chosen = [rows[label][:ROWS] for label in sorted(rows)[:ROWS]]
    columns = max((len(row) for row in chosen), default=0)
    sheet = np.full((len(chosen) * cell, columns * cell, 3), 255, dtype=np.uint8)
    for top, row in enumerate(chosen):
        for left, index in enumerate(row):
            sheet[top * cell : (top + 1) * cell, left * cell : (left + 1) * cell] = _letterboxed(source, index, cell)
    return sheet


def _look_at(
    source: Source, index: int, report: SplitReport, small: Thumbnails, judged: dict[bytes, Judgement]
) -> bytes | None:
    """Judge one sample; give the hash of its contents, None where there are none, and keep its thumbnail."""

    def note(kind: str, detail: str) -> None:
        report.problems.setdefault(kind, Findings()).add(f"{source.name(index)}: {detail}", index)

    try:
        data = source.read(index)
        if isinstance(data, bytes) and not data:
            note("empty", "no bytes")
            return None
    except ImageError as error:
        note("unreadable", str(error))
        return None
    found = image_hash(data)
    known = judged.get(found)
    small.make(index, found, data, None if known is None else known.thumbnail)
    if known is None:
        known = _judge(data, small.rows[index].copy())
        if len(judged) < REMEMBERED:
            judged[found] = known
    report.formats.update([known.format] if known.format else [])
    report.traits.update(known.traits)
    suffix = PurePosixPath(source.name(index)).suffix.lower().lstrip(".")
    if known.format and suffix in KNOWN and suffix not in FORMATS.get(known.format, (suffix,)):
        note("misnamed", f"is {known.format}")
    for kind, detail in known.problems:
        note(kind, detail)
    return found


def _judge(data: bytes | Pixels, thumbnail: NDArray[np.uint8]) -> Judgement:
    """Open and decode an image, and say what is found."""
    if not isinstance(data, bytes):
        grey = ("grey",) if data.shape[2] == 1 else ()
        return Judgement("pixels", grey, tuple(_judge_size(*data.shape[:2])), thumbnail)
    try:
        opened = OpenImage(data)
        traits = tuple(_traits(opened))
    except ImageError as error:
        return Judgement("", (), (("unreadable", str(error)),), thumbnail)
    problems = [*_judge_size(opened.height, opened.width)]
    try:
        opened.picture()
    except ImageError as error:
        problems.append(("truncated", str(error)))
    return Judgement(opened.format, traits, tuple(problems), thumbnail)


def _judge_size(height: int, width: int) -> Iterator[tuple[str, str]]:
    sides = f"{height}x{width} pixels"
    if min(height, width) < TINY:
        yield "tiny", sides
    if height * width > HUGE:
        yield "huge", sides
    if max(height, width) > EXTREME * min(height, width):
        yield "extreme", sides


def _traits(opened: OpenImage) -> Iterable[str]:
    count = opened.channels[-1] if opened.channels[0] not in (1, 3) else 0
    if count:
        yield f"{count} channels"
    if opened.channels == (1,) or opened.mode in ("LA", "La"):
        yield "grey"
    if opened.is_see_through:
        yield "alpha"
    if opened.mode == "CMYK":
        yield "cmyk"
    if not opened.is_photograph:
        yield "sixteen_bit" if opened.bits == 16 else f"{opened.bits} bits"
    try:
        if opened.format != "MPO" and opened.frames > 1:
            yield "animated"
    except Exception as error:  # later frames of any kind of damage
        raise ImageError(f"damaged frames: {error}") from error


def _compare(splits: Mapping[str, Source], groups: Sequence[NDArray[np.int64]], report: DataReport) -> None:
    """Say where contents are that come more than once; each group has the numbers of one among all samples."""
    names = list(splits)
    labels = {split: np.asarray(source.labels) for split, source in splits.items()}
    starts = np.cumsum([0, *(len(source) for source in splits.values())])
    for group in (group for group in groups if len(group) > 1):
        places = np.searchsorted(starts, group, side="right") - 1
        found = [(names[place], int(sample - starts[place])) for place, sample in zip(places, group, strict=True)]
        text = " = ".join(f"{split}:{splits[split].name(index)}" for split, index in found[:4])
        for split, count in Counter(split for split, _ in found).items():
            copies = [index for each, index in found if each == split][:EXAMPLES]
            for _ in range(count - 1):
                report.duplicates.setdefault(split, Findings()).add(text, *copies)
        present = [split for split in names if any(split == each for each, _ in found)]
        for pair in itertools.combinations(present, 2):
            report.leaks.setdefault(pair, Findings()).add(text)
        called = {(split, int(labels[split][index])) for split, index in found}
        classes = sorted({splits[split].class_names[label] for split, label in called if label >= 0})
        if len(classes) > 1:
            report.conflicts.add(f"{text}: {', '.join(classes[:4])}")


def _of_copies(pairs: NDArray[np.int64], groups: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Give the pairs of samples that pairs of contents stand for, each of the one with the first of the other."""
    found = [np.zeros((0, 2), dtype=np.int64)]
    for first, second in pairs.tolist():
        one, two = groups[first], groups[second]
        found += [_each_with_each(one, two[:BUCKET]), _each_with_each(one[:BUCKET], two)]
    return np.unique(np.sort(np.concatenate(found), axis=1), axis=0)


def _each_with_each(one: NDArray[np.int64], two: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([np.repeat(one, len(two)), np.tile(two, len(one))], axis=1)


def _compare_near(splits: Mapping[str, Source], pairs: NDArray[np.int64], report: DataReport) -> None:
    """Say of pairs of near-copies, by their numbers among all samples, which images have one where."""
    names = list(splits)
    starts = np.cumsum([0, *(len(source) for source in splits.values())])
    places = np.searchsorted(starts, pairs, side="right") - 1
    kinds: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for (first, second), (low, high) in zip((pairs - starts[places]).tolist(), places.tolist(), strict=True):
        if low != high and names[high] == "train":  # what is measured has copies in what is trained on
            kinds.setdefault((names[low], names[high]), []).append((first, second))
        else:
            kinds.setdefault((names[high], names[low]), []).append((second, first))
    for split, other in sorted(kinds, key=lambda kind: (kind[0] == kind[1], kind[1] != "train")):
        found = sorted(kinds[split, other])
        named = [(splits[split].name(one), splits[other].name(two)) for one, two in found]
        examples = [f"{split}:{one} ~ {other}:{two}" for one, two in named[:EXAMPLES]]
        count, images = len({one for one, _ in found}), len(splits[split])
        report.near[split, other] = NearCopies(count, examples, images=images, pairs=named, places=found[:EXAMPLES])


def _letterboxed(source: Source, index: int, cell: int) -> Pixels:
    try:
        data = source.read(index)
        pixels = OpenImage(data).picture(least=(cell, cell)) if isinstance(data, bytes) else data
    except ImageError:
        pixels = None
    return letterboxed(pixels, cell)


def letterboxed(pixels: Pixels | None, cell: int) -> Pixels:
    """Show an image whole in a square, on white; red where there is none."""
    made = np.full((cell, cell, 3), 255, dtype=np.uint8)
    if pixels is None:
        made[:] = (200, 30, 30)
        return made
    rows, cols = (max(1, round(side * cell / max(pixels.shape[:2]))) for side in pixels.shape[:2])
    small = resize(to_tensor(pixels, 3), (rows, cols), "antialias").permute(1, 2, 0)  # h w 3
    top, left = (cell - rows) // 2, (cell - cols) // 2
    made[top : top + rows, left : left + cols] = small.numpy()
    return made
