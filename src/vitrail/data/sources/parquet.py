"""Images in parquet files, as the Hugging Face hub keeps its datasets."""

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from vitrail.data.decode import ImageError
from vitrail.data.source import Source
from vitrail.data.sources.folder import SPLITS, read_file
from vitrail.errors import DataError, VitrailError
from vitrail.files import short_hash
from vitrail.files.tables import ImageTable

Location = str | os.PathLike[str]
# train.parquet, train-00000-of-00002.parquet, and the hub's older train-00000-of-00002-0123456789abcdef.parquet
SHARD = re.compile(r"(?P<split>.+?)(?:-(?P<number>\d{4,6})-of-(?P<count>\d{4,6})(?:-[0-9a-f]{16})?)?\.parquet")


class ParquetSource(Source):
    """The rows of parquet files, in the order of the files given; a folder's files are those of its one split."""

    def __init__(
        self,
        paths: Location | Sequence[Location],
        *,
        image: str | None = None,
        label: str | None = None,
        class_names: Sequence[str] | None = None,
        unlabeled: bool = False,
    ) -> None:
        files = _one_split(Path(paths)) if isinstance(paths, str | os.PathLike) else [Path(path) for path in paths]
        self.table = ImageTable([file.absolute() for file in files], image=image, label=label, unlabeled=unlabeled)
        self._labels, self.class_names = self.table.labels(class_names)
        self._labels.flags.writeable = False
        names = "\0".join((self.table.image, *self.class_names)).encode("utf-8", "surrogatepass")
        self._fingerprint = f"parquet-{short_hash(self.table.digest, self._labels.tobytes(), names).hex()}"

    def read(self, index: int) -> bytes:
        """Give the bytes of a row's image, or of the file beside the parquet file that the row names."""
        try:
            row = self.table.row(index)
        except VitrailError as error:
            raise ImageError(str(error)) from error
        if row.data is not None:
            return row.data
        if row.path is None:
            raise ImageError("the row has no image")
        return self._beside(index, row.path)

    def name(self, index: int) -> str:
        """Name a row by its file and its number there."""
        path, row = self.table.place(index)
        return f"{path.name} row {row}"

    def _beside(self, index: int, path: str) -> bytes:
        inside = PurePosixPath(path)
        # A table from elsewhere names no file outside its own folder.
        if inside.is_absolute() or ".." in inside.parts or "\0" in path:
            raise ImageError(f"the row names {path!r}, which is not beside its parquet file")
        return read_file(str(self.table.place(index)[0].parent / inside))


def parquet_splits(
    place: Location, *, image: str | None = None, label: str | None = None, unlabeled: bool = False
) -> dict[str, ParquetSource]:
    """Open every split of a folder, or of one file, by the hub's names of files; the classes are the same in all."""
    found = shards_of(Path(place))
    made = {
        split: ParquetSource(files, image=image, label=label, unlabeled=unlabeled) for split, files in found.items()
    }
    declared = {source.table.declared for source in made.values() if source.table.label is not None}
    if len(declared) > 1:
        raise DataError(f"{place}: its splits {', '.join(made)} name their classes differently. Open them one by one.")
    known = {source.class_names for source in made.values()}
    if len(known) == 1:
        return made
    # Classes found in the labels: a split that lacks some must number the others as the others do.
    longest = max(known, key=len)
    same = all(longest[: len(names)] == names for names in known)
    names = longest if same else tuple(sorted({name for names in known for name in names}))
    return {
        split: ParquetSource(files, image=image, label=label, unlabeled=unlabeled, class_names=names)
        for split, files in found.items()
    }


def _one_split(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    found = shards_of(place)
    if len(found) > 1:
        raise DataError(f"{place} has several splits: {', '.join(found)}. Open them with parquet_splits.")
    return next(iter(found.values()))


def shards_of(place: Path) -> dict[str, list[Path]]:
    """Find the files of each split, all of them there and in their order; training first."""
    if not place.exists():
        raise DataError(f"there is no file or folder {place}. Check the path.")
    if not place.is_dir():
        match = SHARD.fullmatch(place.name)
        return {match["split"] if match and match["split"] in SPLITS else "all": [place]}
    folder = next((folder for folder in (place, place / "data") if any(folder.glob("*.parquet"))), None)
    if folder is None:
        raise DataError(f"expected parquet files in {place}, or in its folder data; found none. Check the path.")
    splits: dict[str, dict[tuple[int, int], Path]] = {}
    for file in sorted(folder.glob("*.parquet")):
        match = SHARD.fullmatch(file.name)
        if match is None or file.name.startswith("."):
            continue
        key = int(match["number"] or 0), int(match["count"] or 1)
        files = splits.setdefault(match["split"], {})
        if key in files:
            raise DataError(f"{file} and {files[key].name} are the same part of a split. Remove one of them.")
        files[key] = file
    for split, files in splits.items():
        _check_whole(folder, split, files)
    if len(splits) == 1 and not splits.keys() & SPLITS.keys():  # a set that is not split, whatever its name
        splits = {"all": next(iter(splits.values()))}
    order = {"train": 0, "validation": 1, "test": 2}
    return {
        split: [splits[split][key] for key in sorted(splits[split])]
        for split in sorted(splits, key=lambda split: (order.get(split, 3), split))
    }


def _check_whole(folder: Path, split: str, files: dict[tuple[int, int], Path]) -> None:
    counts = {count for _, count in files}
    if len(counts) > 1:
        raise DataError(f"{folder}: {split} comes in {sorted(counts)} parts at once. Remove the older files.")
    missing = sorted({(number, count) for count in counts for number in range(count)} - files.keys())
    if missing:
        number, count = missing[0]
        raise DataError(
            f"{folder}: expected {count} parts of {split}; {len(missing)} are missing, the first is "
            f"{split}-{number:05}-of-{count:05}.parquet. Download it too."
        )
