"""`vitrail.check_data` and `vitrail.pack_data`: what is wrong with a data set, and data sets as arrays."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.check import ROWS, DataReport, Findings, contact_sheet
from vitrail.data.check import check_data as check_splits
from vitrail.data.decode import encode
from vitrail.data.open import open_data
from vitrail.data.source import Source
from vitrail.data.sources.packed import pack
from vitrail.errors import DataError
from vitrail.files import write_bytes
from vitrail.runtime.reporter import SILENT, Reporter, harmless
from vitrail.runtime.text import text_table

NAMED = 5  # examples of each finding that are printed
SKIPPED = 10  # images left out that are printed


@dataclass
class DataCheck(DataReport):
    """What was found in all splits; it prints as a table and a list of findings."""

    def document(self) -> dict[str, Any]:
        """Give the findings as plain values, for JSON."""
        return {
            "clean": self.is_clean,
            "splits": {
                name: {
                    "images": split.samples,
                    "classes": split.class_counts,
                    "imbalance": split.imbalance if split.imbalance != float("inf") else None,
                    "formats": dict(split.formats),
                    "traits": dict(split.traits),
                    "problems": {kind: vars(found) for kind, found in split.problems.items()},
                }
                for name, split in self.splits.items()
            },
            "duplicates": {name: vars(found) for name, found in self.duplicates.items()},
            "leaks": {" and ".join(pair): vars(found) for pair, found in self.leaks.items()},
            "conflicts": vars(self.conflicts),
        }

    def findings(self) -> dict[str, Findings]:
        """Give everything that was found, by what it is."""
        splits = self.splits.items()
        found = {f"{name}: {kind}": each for name, split in splits for kind, each in split.problems.items()}
        found |= {f"{name}: copies": each for name, each in self.duplicates.items()}
        found |= {f"in both {' and '.join(pair)}": each for pair, each in self.leaks.items()}
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
        for what, found in self.findings().items():
            lines += [f"{what}: {found.count:,}", *(f"  {example}" for example in found.examples[:NAMED])]
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
    unlabeled: bool = False,
    allow_pipe: bool = False,
    report: Reporter = SILENT,
) -> DataCheck:
    """Find what cannot be decoded, duplicates, leaks between splits, misnamed files, odd sizes and imbalance.

    `data` is anything that can be trained on: a path, a name, arrays, or a torch Dataset. `sheet` is a PNG file to
    write, with a few images of each class. `unlabeled` also reads images without a label; `allow_pipe` runs the
    command of a pipe: source. `is_clean` is False where something would spoil a run.
    """
    splits = open_data(data, allow_pipe=allow_pipe, unlabeled=unlabeled)
    found = check_splits(splits, progress=partial(report.progress, "checking images"))
    if sheet is not None:
        _write_sheet(Path(sheet).expanduser(), splits)
    return DataCheck(**vars(found))


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
    folder, parts = Path(out).expanduser(), []
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


def _write_sheet(path: Path, splits: Mapping[str, Source]) -> None:
    """Write the first images of each class of the first split."""
    source = next(iter(splits.values()))
    labels = np.asarray(source.labels)
    chosen = [index for label in np.unique(labels)[:ROWS] for index in np.flatnonzero(labels == label)[:ROWS]]
    write_bytes(path, encode(contact_sheet(source, np.array(chosen, dtype=np.int64))))
