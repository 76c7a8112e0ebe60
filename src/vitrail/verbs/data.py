"""`vitrail.check_data` and `pack_data`: what is wrong with data, and data as arrays."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.config.dense import dense_of
from vitrail.config.task import read_image_task
from vitrail.data.annotated.check import ROW, check_annotations, drawn
from vitrail.data.annotated.open import kind_of, open_annotated
from vitrail.data.check import (
    ROWS,
    SPOILING,
    DataReport,
    Findings,
    NearCopies,
    check_data as check_splits,
    contact_sheet,
)
from vitrail.data.levels import Levels, survey
from vitrail.data.open import open_data
from vitrail.data.overlays import colors_of
from vitrail.data.source import Source
from vitrail.data.sources.packed import pack
from vitrail.data.targets import open_task
from vitrail.errors import DataError
from vitrail.figures.measured import SheetRow, draw_sheet
from vitrail.files import home_path, write_bytes
from vitrail.runtime.reporter import SILENT, Reporter, harmless, text_table

SHOWN_PROBLEMS = ("empty", "unreadable", "truncated", "tiny")  # on a contact sheet, before the copies
LARGER = 1.1  # inches of a picture on a sheet, where masks or boxes are drawn over it
NAMED = 5  # examples of each finding that are printed
SKIPPED = 10  # images left out that are printed


@dataclass
class DataCheck(DataReport):
    """What was found in all splits; it prints as a table and a list of findings."""

    levels: dict[str, Levels | None] = field(default_factory=dict)  # by split: how bright the images are

    def document(self) -> dict[str, Any]:
        """Give the findings as plain values, for JSON."""
        return {
            "clean": self.is_clean,
            "splits": {
                name: {
                    "images": split.samples,
                    "classes": split.class_counts,
                    "imbalance": split.imbalance if split.imbalance != float("inf") else None,
                    "uneven": split.uneven,
                    "formats": dict(split.formats),
                    "traits": dict(split.traits),
                    "problems": {kind: found.document() for kind, found in split.problems.items()},
                    "levels": None if (levels := self.levels[name]) is None else levels.document(),
                }
                for name, split in self.splits.items()
            },
            "duplicates": {name: found.document() for name, found in self.duplicates.items()},
            "leaks": {" and ".join(pair): found.document() for pair, found in self.leaks.items()},
            "conflicts": self.conflicts.document(),
            "near_copies": [
                {"split": split, "of": other, **found.document()} for (split, other), found in self.near.items()
            ],
        }

    def findings(self) -> dict[str, Findings]:
        """Give everything that was found, by what it is."""
        splits = self.splits.items()
        found = {f"{name}: {kind}": each for name, split in splits for kind, each in split.problems.items()}
        found |= {f"{name}: copies": each for name, each in self.duplicates.items()}
        found |= {f"in both {' and '.join(pair)}": each for pair, each in self.leaks.items()}
        for (name, other), each in self.near.items():
            where = "others there" if other == name else f"images of {other}"
            found[f"{name}: near-copies of {where}"] = each
        return found | ({"one image, two labels": self.conflicts} if self.conflicts.count else {})

    def __str__(self) -> str:
        heads = ("split", "images", "classes", "largest/smallest", "formats", "traits")
        rows = []
        for name, split in self.splits.items():
            ratio = "a class is empty" if split.imbalance == float("inf") else f"{split.imbalance:.1f}"
            counted = (split.formats, split.traits)
            words = (", ".join(f"{kind} {count:,}" for kind, count in each.items()) for each in counted)
            rows.append((name, f"{split.samples:,}", str(len(split.class_counts)), ratio, *words))
        lines = text_table("", heads, rows)
        for name, levels in self.levels.items():
            if levels is not None:
                said = [" ".join(f"{value:.4f}" for value in values) for values in levels[1:3]]
                lines.append(f"{name}: mean {said[0]}, deviation {said[1]}, of {levels.images:,} images, from 0 to 1")
                lines += [f"{name}: {words}"] if (words := levels.describe()) else []
        lines += [f"{name}: {split.uneven}" for name, split in self.splits.items() if split.uneven]
        lines += [f"{name}: {words}" for name, split in self.splits.items() for words in split.known]
        for what, found in self.findings().items():
            among = f" of {found.images:,} images" if isinstance(found, NearCopies) else ""
            lines += [f"{what}: {found.count:,}{among}", *(f"  {example}" for example in found.examples[:NAMED])]
            lines += [f"  and {found.count - NAMED:,} more"] if found.count > NAMED else []
        return harmless("\n".join([*lines, "clean" if self.is_clean else "not clean: see above"]))


class PackedSplit(NamedTuple):
    """A split as arrays: where they are, how many images they hold, and which were left out, each with the reason."""

    split: str
    path: Path
    images: int
    skipped: list[tuple[str, str]]


@dataclass(frozen=True)
class PackedData:
    """What was packed, split by split; it prints where the arrays are."""

    parts: tuple[PackedSplit, ...]

    def document(self) -> list[dict[str, Any]]:
        """Give what was packed as plain values, for JSON."""
        return [
            {
                **part._asdict(),
                "path": str(part.path),
                "skipped": [{"name": name, "reason": reason} for name, reason in part.skipped],
            }
            for part in self.parts
        ]

    def __str__(self) -> str:
        lines = []
        for part in self.parts:
            lines.append(f"{part.path}: {part.images:,} images, {len(part.skipped)} left out")
            lines += [f"  {name}: {reason}" for name, reason in part.skipped[:SKIPPED]]
        return harmless("\n".join(lines))


def check_data(
    data: Any,  # noqa: ANN401
    *,
    sheet: str | os.PathLike[str] | None = None,
    mirrored: bool = False,
    unlabeled: bool = False,
    allow_pipe: bool = False,
    task: str | None = None,
    columns: str | Sequence[str] = (),
    order: str | Sequence[str] = (),
    allow_empty: bool = False,
    report: Reporter = SILENT,
) -> DataCheck:
    """Find what cannot be decoded, copies and near-copies, leaks between splits, misnamed files, odd sizes, imbalance.

    `data` is anything that can be trained on: a path, a name, arrays, or a torch Dataset. `sheet` is a PNG file to
    write, with a few images of each class, its name, and the images with problems. Near-copies were encoded again,
    resized, or cropped by up to 5 % at each edge; with `mirrored`, also turned left to right. `unlabeled` also reads
    images without a label; `allow_pipe` runs the command of a pipe: source. `levels` has mean and deviation of the
    images, as preprocessing needs them. `is_clean` is False where something would spoil a run. Images with masks or
    boxes (docs/dense.md) are recognized, and what is wrong with these is found too; `task` ("segment" or "detect") says
    which of them to look at. task="multilabel", "regression" or "ordinal" read what training does: `columns` of a
    table, the `order` of classes, `allow_empty` for images without any label.
    """
    asked = read_image_task(task, columns=columns, order=order, allow_empty=allow_empty)
    dense = kind_of(data) if asked is None else dense_of(asked)
    if dense is not None:
        splits = open_annotated(data, dense, progress=partial(report.progress, "reading classes of masks"))
    elif asked is None:
        splits = open_data(data, allow_pipe=allow_pipe, unlabeled=unlabeled)
    else:
        splits = open_task(data, asked, allow_pipe=allow_pipe, unlabeled=unlabeled)
    found = check_splits(splits, mirrored=mirrored, progress=partial(report.progress, "checking images"))
    examples = {}
    if dense is not None:
        unread = "mask" if dense == "segment" else "boxes"
        examples = check_annotations(splits, found.splits, unread, partial(report.progress, "checking masks and boxes"))
    if sheet is not None:
        _write_sheet(home_path(sheet), splits, found, examples)
    levels = {name: survey(source) for name, source in splits.items()}
    return DataCheck(**vars(found), levels={name: each and each.as_one() for name, each in levels.items()})


def pack_data(
    data: Any,  # noqa: ANN401
    out: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] = 64,
    split: str | None = None,
    channels: int = 3,
    bad_image_limit: float = 0.01,
    overwrite: bool = False,
    unlabeled: bool = False,
    allow_pipe: bool = False,
    report: Reporter = SILENT,
) -> PackedData:
    """Write any data as arrays of one size, which are mapped and not read: the fastest way to train on small images.

    Several splits go into a folder each, inside `out`; one goes into `out` itself. Where more than `bad_image_limit`,
    a share of the images, cannot be decoded, nothing is written.
    """
    splits = open_data(data, allow_pipe=allow_pipe, unlabeled=unlabeled)
    if split is not None:
        if split not in splits:
            raise DataError(f"{data}: there is no split {split!r}. There are: {', '.join(splits)}.")
        splits = {split: splits[split]}
    folder, parts = home_path(out), []
    for name, source in splits.items():
        target = folder if len(splits) == 1 else folder / name
        made = pack(
            source,
            target,
            image_size,
            overwrite=overwrite,
            channels=channels,
            bad_image_limit=bad_image_limit,
            progress=partial(report.progress, f"packing {name}"),
        )
        parts.append(PackedSplit(name, target, made.count, made.skipped))
    return PackedData(tuple(parts))


def _write_sheet(
    path: Path,
    splits: Mapping[str, Source],
    found: DataReport,
    examples: Mapping[str, Mapping[str, Sequence[int]]],
) -> None:
    """Write the first images of each class of the first split, with its name, and the images that have problems.

    What is known of masks and boxes is drawn over `examples` of the classes.
    """
    source = next(iter(splits.values()))
    labels = np.asarray(source.labels)
    rows: list[SheetRow] = []
    for number, (name, some) in enumerate([*examples.get(next(iter(splits)), {}).items()][:ROWS]):
        red, green, blue = (colors_of(source.class_names)[number] / 255).tolist()
        pictures = [drawn(source, index) for index in some]
        rows.append(SheetRow(name, pictures, color=(red, green, blue) if red + green + blue else None))
    for label in () if examples else np.unique(labels)[:ROWS].tolist():
        first = np.flatnonzero(labels == label)[:ROWS]
        name = source.class_names[label] if label >= 0 else "no label"
        rows.append(SheetRow(name, [contact_sheet(source, [index]) for index in first.tolist()]))
    for split, each in splits.items():
        kinds = {kind: found.splits[split].problems.get(kind) for kind in (*SHOWN_PROBLEMS, *SPOILING)}
        for kind, seen in (kinds | {"copies": found.duplicates.get(split)}).items():
            if seen is not None and seen.samples:
                some = seen.samples[: ROW if examples else ROWS]
                cells = [drawn(each, index) if examples else contact_sheet(each, [index]) for index in some]
                names = [each.name(index) for index in some]
                rows.append(SheetRow(f"{split}: {kind} ({seen.count:,})", cells, names))
    for (split, other), near in found.near.items():  # each beside its copy
        pairs = near.places[: ROWS // 2]
        shown = [each for one, two in pairs for each in ((splits[split], one), (splits[other], two))]
        title = f"{split}: near-copies{f' of {other}' if other != split else ''} ({near.count:,})"
        cells = [contact_sheet(source, [index]) for source, index in shown]
        rows.append(SheetRow(title, cells, [source.name(index) for source, index in shown]))
    write_bytes(path, draw_sheet(rows, cell=LARGER) if examples else draw_sheet(rows))
