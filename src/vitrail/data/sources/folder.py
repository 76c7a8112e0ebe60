"""A folder of class folders: scanned once, remembered, and read file by file; and image files by their paths."""

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import SUFFIXES, ImageError, Pixels
from vitrail.data.source import Names, Source
from vitrail.errors import WITHOUT_LABELS, DataError, VitrailError, some_of
from vitrail.files import cache_folder, fingerprint_of, read_arrays, read_regular, replacing

SPLITS = {"train": "train", "val": "val", "validation": "val", "test": "test"}
LARGEST = 512 << 20  # bytes of an image file
NAMED = 20  # files that are no images, of which the names are kept; all are counted
FORMAT = 4  # of the remembered list
AGAIN = "leads to a folder that was read already"
ABOVE = "leads to a folder that this one is in"


@dataclass(frozen=True)
class Index:
    """What a scan found: the images with their labels, and every folder that was read with its time of change.

    Images that lie in no class folder have the label -1.
    """

    names: list[str]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    folders: list[str]
    changed: NDArray[np.int64]  # ns
    ignored: int
    ignored_names: list[str]
    problems: list[tuple[str, str]]


class FolderSource(Source):
    """The images of `root/class/**`, by class and path; `class_names` may name more classes than the folder has.

    `ignored` counts files that are no images, `ignored_names` are the first of them; `problems` lists folders that were
    not read, with the reason. Where images may be `unlabeled`, those of the root itself come first, with the label -1;
    else they are ignored.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, class_names: tuple[str, ...] | None = None, unlabeled: bool = False
    ) -> None:
        self.root = Path(root)
        index = _index(self.root)
        loose = 0 if unlabeled else int((index.labels < 0).sum())  # in no class folder: the first, as they are sorted
        names, labels = index.names[loose:], index.labels[loose:]
        self.ignored, self.problems = index.ignored + loose, index.problems
        self.ignored_names = [*index.names[:loose], *index.ignored_names][:NAMED]
        if not names:
            raise self._empty(len(index.class_names), loose, unlabeled=unlabeled)
        self.class_names = index.class_names if class_names is None else class_names
        if missing := sorted(set(index.class_names) - set(self.class_names)):
            raise DataError(
                f"{root} has class folders that class_names lacks: {_few(missing)}. Name them too, or remove them."
            )
        numbers = {name: number for number, name in enumerate(self.class_names)}
        self._labels = np.array([*(numbers[name] for name in index.class_names), -1], dtype=np.int64)[labels]
        self._names = Names(names)
        self._fingerprint = fingerprint_of("\0".join(names), self._labels, "\0".join(self.class_names))

    def read(self, index: int) -> bytes:
        """Give the bytes of a file; what cannot be read is an `ImageError`."""
        return read_file(os.path.join(self.root, self._names[index]))

    def name(self, index: int) -> str:
        """Give the path of an image inside the folder."""
        return self._names[index]

    def _empty(self, folders: int, loose: int, *, unlabeled: bool) -> DataError:
        others = (
            f"{loose} images beside no folder of a class, " if loose else ""
        ) + f"{self.ignored - loose} other files"
        if self.problems:
            others += f"; {self.problems[0][0]}: {self.problems[0][1]}"
        if unlabeled:
            return DataError(
                f"expected a folder of images; {self.root} has none, nor in its folders ({others}). Check the path."
            )
        return DataError(
            f"expected a folder for each class with images in it; {self.root} has {folders} folders and no image in "
            f"them ({others}). Put the images of a class into a folder of its name; {WITHOUT_LABELS}"
        )


class FilesSource(Source):
    """Some image files, as they are named; their labels are -1."""

    class_names = ()

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        if not paths:
            raise DataError("expected an image file at least; none is named.")
        names = [os.fspath(path) for path in paths]
        self._names = Names(names)
        self._labels = np.full(len(names), -1, dtype=np.int64)
        self._fingerprint = fingerprint_of("\0".join(names))

    def read(self, index: int) -> bytes | Pixels:
        """Give the bytes of a file; what cannot be read is an `ImageError`."""
        return read_file(self._names[index])

    def name(self, index: int) -> str:
        """Give the file's name."""
        return os.path.basename(self._names[index])


def is_image(path: Path) -> bool:
    """Tell an image file by its suffix."""
    return path.suffix.lower().removeprefix(".") in SUFFIXES and path.is_file()


def loose_images(folder: Path) -> list[Path]:
    """List the images that lie in a folder itself, in the order of their names."""
    return sorted(path for path in folder.iterdir() if is_image(path))


def folder_splits(root: str | os.PathLike[str], *, unlabeled: bool = False) -> dict[str, FolderSource]:
    """Open the splits of a folder (train, val, test) with one list of classes, or all of it where it has none."""
    folders = _class_folders(Path(root))
    splits = [name for name in folders if name.lower() in SPLITS]
    if not splits:
        return {"all": FolderSource(root, unlabeled=unlabeled)}
    if others := [name for name in folders if name not in splits]:
        raise DataError(
            f"{root} must hold either splits or classes; it holds {_few(splits)} beside {_few(others)}. "
            "Move the classes into the splits, or rename the folders."
        )
    places = {SPLITS[name.lower()]: Path(root) / name for name in splits}
    if len(places) < len(splits):
        raise DataError(f"{root} must hold every split once; it holds {_few(splits)}. Merge or rename the folders.")
    names = tuple(sorted({name for place in places.values() for name in _class_folders(place)}))
    order = [split for split in ("train", "val", "test") if split in places]
    return {split: FolderSource(places[split], class_names=names, unlabeled=unlabeled) for split in order}


def read_file(path: str) -> bytes:
    """Give the bytes of an image file; what cannot be read, or is too large, is an `ImageError`."""
    try:
        return read_regular(path, most=LARGEST)
    except (OSError, ValueError) as error:  # also of a name that no file can have
        raise ImageError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _few(names: list[str]) -> str:
    return some_of([*map(repr, names)], 5)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"  # what macOS adds to its archives


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _class_folders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if not _is_hidden(entry.name) and _is_folder(entry))
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"expected a folder of class folders; {root} cannot be read: {reason}.") from error


def _index(root: Path) -> Index:
    """Find the images of a folder: as remembered where no folder changed, by a scan otherwise."""
    remembered = _memory_of(root)
    index = _recall(root, remembered) if remembered else None
    if index is None:
        now = time.time_ns()
        index = _scan(root)
        unread = any(reason != AGAIN for _, reason in index.problems)
        if index.names and remembered and not unread and not _is_recent(index.changed, now):
            _remember(remembered, index)
    return index


def _scan(root: Path) -> Index:
    """Read every folder once: a link to a folder after all folders that are no links, so that it takes none's place."""
    class_names = _class_folders(root)
    numbers = {name: number for number, name in enumerate(class_names)}
    images: list[tuple[int, str]] = []
    visited: dict[str, int] = {}
    problems: list[tuple[str, str]] = []
    seen: set[tuple[int, int]] = set()
    folders, links = deque([""]), deque[str]()
    ignored, ignored_names = 0, list[str]()
    above = {str(place) for place in Path(os.path.realpath(root)).parents}
    while folders or links:
        linked, folder = not folders, (folders or links).popleft()
        path = os.path.join(root, folder)
        if linked and os.path.realpath(path) in above:  # or all of a disk would be read
            problems.append((folder, ABOVE))
            continue
        try:
            found = os.stat(path)  # before it is read: what changes meanwhile is seen the next time
            if (found.st_dev, found.st_ino) in seen:
                problems.append((folder, AGAIN))
                continue
            with os.scandir(path) as entries:
                inside = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            problems.append((folder, error.strerror or str(error)))
            continue
        seen.add((found.st_dev, found.st_ino))
        visited[folder] = found.st_mtime_ns
        number = numbers.get(folder.partition("/")[0], -1)
        for entry in inside:
            name = entry.name
            relative = f"{folder}/{name}" if folder else name
            if _is_hidden(name):
                continue
            if _is_folder(entry):
                if folder or name in numbers:
                    (links if entry.is_symlink() else folders).append(relative)
            elif name.rpartition(".")[2].lower() in SUFFIXES and "." in name:
                images.append((number, relative))
            else:
                ignored += 1
                if ignored <= NAMED:
                    ignored_names.append(relative)
    images.sort()
    names = [name for _, name in images]
    labels = np.array([number for number, _ in images], dtype=np.int64)
    changed = np.array(list(visited.values()), dtype=np.int64)
    return Index(names, labels, tuple(class_names), list(visited), changed, ignored, ignored_names, problems)


def _is_recent(changed: NDArray[np.int64], now: int) -> bool:
    """Whether a folder may change once more without a new time: clocks of file systems tick in ms, some in seconds."""
    tick = np.where(changed % 1_000_000 == 0, 2_000_000_000, 50_000_000)
    return bool((changed + tick > now).any())


def _memory_of(root: Path) -> Path | None:
    try:
        return cache_folder() / "folders" / f"{sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]}.npz"
    except VitrailError:  # nowhere to keep it
        return None


def _remember(path: Path, index: Index) -> None:
    problems = [text for problem in index.problems for text in problem]
    parts = [index.names, index.class_names, index.folders, index.ignored_names, problems]
    texts = np.frombuffer(
        "\0".join(text for part in parts for text in part).encode("utf-8", "surrogateescape"), np.uint8
    )
    numbers = np.array([FORMAT, index.ignored, *map(len, parts)], dtype=np.int64)
    with contextlib.suppress(VitrailError, OSError):  # a disk that is full or not ours: the next start scans again
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            np.savez(temporary, numbers=numbers, texts=texts, labels=index.labels, changed=index.changed)


def _recall(root: Path, path: Path) -> Index | None:
    try:
        file = read_arrays(path)
        (version, ignored, *lengths), labels, changed = file["numbers"].tolist(), file["labels"], file["changed"]
        texts = file["texts"].tobytes().decode("utf-8", "surrogateescape").split("\0")
        ends = [sum(lengths[: part + 1]) for part in range(5)]
        names, class_names, folders, ignored_names, problems = (
            texts[end - length : end] for end, length in zip(ends, lengths, strict=True)
        )
        sound = version == FORMAT and len(texts) == ends[-1] and labels.dtype == changed.dtype == np.int64
        sound = sound and len(names) == len(labels) and labels.min() >= -1 and labels.max() < len(class_names)
        stamps = zip(folders, changed.tolist(), strict=True)
        if not sound or any(os.stat(os.path.join(root, folder)).st_mtime_ns != then for folder, then in stamps):
            return None
        pairs = list(zip(problems[::2], problems[1::2], strict=True))
        return Index(names, labels, tuple(class_names), folders, changed, ignored, ignored_names, pairs)
    except Exception:  # a damaged file stops its reader in many types
        return None
