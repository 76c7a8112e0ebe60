"""The images that a verb is given, as one source: by path, folder, data set or glob, or in memory."""

import glob
import os
from collections.abc import Iterable, Mapping, Sized
from pathlib import Path

import numpy as np
from torch import Tensor

from vitrail.config.given import no_images
from vitrail.data.decode import Pixels
from vitrail.data.open import open_data
from vitrail.data.preprocess import read_image
from vitrail.data.source import Source
from vitrail.data.sources.dataset import DatasetSource
from vitrail.data.sources.folder import FilesSource, FolderSource, is_image
from vitrail.data.sources.remote import RemoteShards
from vitrail.errors import ConfigError, DataError
from vitrail.files import is_remote
from vitrail.runtime.reporter import Reporter

DATA = (".parquet", ".tar", ".csv", ".tsv", ".jsonl")  # files that hold or list many images


class ImageList(FilesSource):
    """Images by their paths, and by their numbers those that are elsewhere: in memory, or in another source."""

    def __init__(self, names: list[str], held: Mapping[int, object]) -> None:
        super().__init__(names)
        self._held = dict(held)

    def read(self, index: int) -> bytes | Pixels:
        """Read an image from where it is."""
        match self._held.get(index):
            case None:
                return super().read(index)
            case (Source() as source, int(place)):
                return source.read(place)
            case image:
                data = read_image(image)
                if callable(getattr(image, "read", None)):  # an open file, which gives its bytes once
                    self._held[index] = data
                return data

    @property
    def are_files(self) -> bool:
        """Whether every image is a file of its own."""
        return not self._held

    def name(self, index: int) -> str:
        """Give the path of an image as it was given, or its number where it has none."""
        return self._names[index]


def gather_images(images: object, report: Reporter) -> ImageList:
    """Give one source of all images; every path is looked for first, so that a wrong one costs no compute."""
    names: list[str] = []
    held: dict[int, object] = {}
    missing: list[str] = []
    for image in _each(images):
        if not isinstance(image, str | os.PathLike | Source):
            held[len(names)] = image
            names.append(f"image {len(names)}")
            continue
        found = [image] if isinstance(image, Source) else find_images(os.path.expanduser(os.fspath(image)), report)
        for each in found:
            if isinstance(each, Source):
                held |= {len(names) + place: (each, place) for place in range(len(each))}
            names += [each] if isinstance(each, str) else map(each.name, range(len(each)))
        missing += [] if found else [str(image)]
    if missing:
        raise no_images(missing)
    if not names:
        raise DataError("expected one image or more; got none. Give files, folders, or images in memory.")
    return ImageList(names, held)


def _each(images: object) -> Iterable[object]:
    """Take several apart; one image, path or source is a list of one."""
    if images is None or isinstance(images, Mapping):
        got = "None" if images is None else "a dict. Give its values"
        raise ConfigError(f"images must be a path, an image in memory, a list of these, or a dataset; got {got}.")
    if isinstance(images, np.ndarray | Tensor):
        return list(images) if images.ndim == 4 else [images]
    if isinstance(images, str | os.PathLike | bytes | bytearray | memoryview | Source) or hasattr(images, "read"):
        return [images]  # an open file is one image, not its lines
    several = isinstance(images, Iterable)
    if isinstance(images, Sized) and hasattr(images, "__getitem__"):
        first = next(iter(images), None) if several else ()
        if isinstance(first, tuple | Mapping):  # items of a dataset, an image and its label each
            return [DatasetSource(images, np.full(len(images), -1), ())]
    return images if several else [images]


def find_images(text: str, report: Reporter) -> list[str | Source]:
    """Find the images that a path, a folder, a data set or a glob means; none where nothing is there."""
    if os.path.isfile(text) and not text.lower().endswith(DATA):
        return [text]
    if os.path.isdir(text):
        return _in_folder(text, report)
    if os.path.exists(text) or text in ("sample", "synthetic") or text.startswith("hf:") or is_remote(text):
        sources = open_data(text, unlabeled=True).values()
        if any(isinstance(source, RemoteShards) for source in sources):
            raise DataError(f"{text}: a stream of shards is not read in order. Download them, and give the files.")
        return [*sources]
    found = sorted(glob.glob(text, recursive=True)) if glob.has_magic(text) else []
    inside = [] if "**" in text else [path for path in found if os.path.isdir(path)]  # ** lists what is in them too
    files = [path for path in found if is_image(Path(path))]
    return [*files, *(each for folder in inside for each in _in_folder(folder, report))]


def _in_folder(folder: str, report: Reporter) -> list[str | Source]:
    source = FolderSource(folder, unlabeled=True)
    if source.ignored:
        some = ", ".join(source.ignored_names[:2])
        report.note(f"{folder}: left out {source.ignored:,} files that are no images by their suffix, such as {some}")
    for place, reason in source.problems:
        report.note(f"{os.path.join(folder, place)} was not read: {reason}")
    return [os.path.join(folder, source.name(index)) for index in range(len(source))]
