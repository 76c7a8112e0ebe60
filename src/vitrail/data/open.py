"""From what a person names to sources of images: recognised by what is there."""

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from vitrail.config.given import check_data
from vitrail.data.source import Source, Subset
from vitrail.data.sources.dataset import Progress, python_splits
from vitrail.data.sources.folder import SPLITS, FilesSource, folder_splits, is_image, loose_images
from vitrail.data.sources.idx import idx_splits
from vitrail.data.sources.memory import sample_splits
from vitrail.data.sources.packed import PackedSource
from vitrail.data.sources.parquet import parquet_splits
from vitrail.data.sources.remote import open_remote
from vitrail.data.sources.synthetic import SyntheticSource
from vitrail.data.sources.table import table_splits
from vitrail.data.sources.tar import TarSource
from vitrail.errors import DataError
from vitrail.files import fetch_dataset, home_path, is_remote, reading

_reading = partial(reading.refusing, kind=DataError, unread="cannot be read as images", cure=" Check the path.")

NAMES = {**SPLITS, "valid": "val", "dev": "val", "all": "train"}  # of splits, and what each is for
SYNTHETIC = {"train": 2000, "test": 1000}  # scenes of each split, of 64 pixels


def open_data(
    data: object, *, allow_pipe: bool = False, unlabeled: bool = False, progress: Progress | None = None
) -> Mapping[str, Source]:
    """Open every split that a name or path means: sample, synthetic, hf:OWNER/NAME, a folder, table, parquet, tars.

    Or of what a program holds: a source, a dataset of (image, label), arrays (images, labels), or a mapping from split
    to any of these. Where images may be `unlabeled`, those without a label are there too, with the label -1.
    """
    if isinstance(data, Mapping):
        if data.keys() & {"train", "all"} and len({NAMES.get(name) for name in data} - {None}) < len(data):
            known = "train (or all), val (or valid, validation, dev) and test"
            raise DataError(
                f"splits to train with are {known}, each once; got {', '.join(map(str, data))}. Rename them."
            )
        parts = {name: open_split(part) if isinstance(part, str | os.PathLike) else part for name, part in data.items()}
        return usual_splits(python_splits(parts, unlabeled=unlabeled, progress=progress))
    if not isinstance(data, str | os.PathLike):
        return python_splits({"all": data}, unlabeled=unlabeled, progress=progress)
    text = os.fspath(data)
    if text == "sample":
        return sample_splits()
    if text == "synthetic":
        return {split: SyntheticSource(count, 64, seed=seed) for seed, (split, count) in enumerate(SYNTHETIC.items())}
    with many_names():
        return _open_text(text, allow_pipe=allow_pipe, unlabeled=unlabeled)


@contextmanager
def many_names() -> Iterator[None]:
    """Let Python look for no cycles of objects: among a million names that takes as long as to read them."""
    looked = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looked:
            gc.enable()


def _open_text(text: str, *, allow_pipe: bool, unlabeled: bool) -> Mapping[str, Source]:
    if is_remote(text):
        return {"all": open_remote(text, unlabeled=unlabeled)}
    if text.startswith("pipe:") or ("{" in text and text.endswith(".tar")):
        return {"all": TarSource(text, unlabeled=unlabeled, allow_pipe=allow_pipe)}
    if text.startswith("hf:"):
        return usual_splits(parquet_splits(fetch_dataset(text.removeprefix("hf:")), unlabeled=unlabeled))
    path = home_path(text)
    with _reading(path):
        check_data(text)
        opened = _in_folder if path.is_dir() else _in_file
        return opened(path, allow_pipe=allow_pipe, unlabeled=unlabeled)


def open_images(what: str | os.PathLike[str], *, allow_pipe: bool = False) -> Mapping[str, Source]:
    """Open images to look at, with labels or without: a file, a folder of files, or anything that `open_data` opens."""
    path = home_path(what)
    with _reading(path):
        if is_image(path):
            return {"all": FilesSource([path])}
        if path.is_dir() and (loose := loose_images(path)) and not any(entry.is_dir() for entry in path.iterdir()):
            return {"all": FilesSource(loose)}
    return open_data(what, allow_pipe=allow_pipe)


def choose_split(splits: Mapping[str, Source], data: str, split: str | None) -> str:
    """Give the split that is named, or test, or val, or the only one."""
    chosen = split or next((name for name in ("test", "val", "dev") if name in splits), None)
    if chosen is None and len(splits) == 1:
        return next(iter(splits))
    if chosen is None or chosen not in splits:
        raise DataError(f"{data}: there is no split {chosen or 'test'!r}. There are: {', '.join(splits)}.")
    return chosen


def open_split(what: str | os.PathLike[str], split: str | None = None, *, allow_pipe: bool = False) -> Source:
    """Open one split: the one that is named, or the only one."""
    splits = open_data(what, allow_pipe=allow_pipe)
    if split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if split is None or split not in splits:
        asked = "which split is not said" if split is None else f"there is no split {split!r}"
        raise DataError(f"{os.fspath(what)}: {asked}. There are: {', '.join(splits)}.")
    return splits[split]


def _in_folder(folder: Path, *, allow_pipe: bool, unlabeled: bool) -> Mapping[str, Source]:
    names = {entry.name for entry in folder.iterdir()}
    if "packed.json" in names:
        return {"all": PackedSource(folder)}
    parts = [name for name in sorted(names) if (folder / name / "packed.json").is_file()]
    if parts:
        return usual_splits({name: PackedSource(folder / name) for name in parts})
    if any(name.endswith(("-idx3-ubyte", "-idx3-ubyte.gz")) for name in names):
        return idx_splits(folder)
    if any(name.endswith(".parquet") for name in names) or any((folder / "data").glob("*.parquet")):
        return usual_splits(parquet_splits(folder, unlabeled=unlabeled))
    tars = sorted(str(folder / name) for name in names if name.endswith(".tar"))
    if tars:
        return {"all": TarSource(tars, unlabeled=unlabeled, allow_pipe=allow_pipe)}
    return folder_splits(folder, unlabeled=unlabeled)


def usual_splits(splits: Mapping[str, Source]) -> Mapping[str, Source]:
    """Call the validation split val, as everywhere."""
    return {"val" if name in ("valid", "validation") else name: source for name, source in splits.items()}


def _in_file(path: Path, *, allow_pipe: bool, unlabeled: bool) -> Mapping[str, Source]:
    match path.suffix.lower():
        case ".csv" | ".tsv" | ".jsonl":
            return table_splits(path, unlabeled=unlabeled)
        case ".parquet":
            return usual_splits(parquet_splits(path, unlabeled=unlabeled))
        case ".tar":
            source = TarSource(str(path), unlabeled=unlabeled, allow_pipe=allow_pipe)
            return {name: Subset(source, part) for name, part in source.parts.items()} or {"all": source}
        case suffix:
            raise DataError(
                f"{path} ends in {suffix!r}. Expected .csv, .tsv, .jsonl, .parquet or .tar, or a folder of classes."
            )
