"""Images in tar files, in the manner of WebDataset: members of one name belong together, whatever their suffixes."""

import contextlib
import hashlib
import itertools
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import SUFFIXES, ImageError
from vitrail.data.source import Names, Source, is_name
from vitrail.data.sources.folder import SPLITS
from vitrail.data.sources.tar_headers import members
from vitrail.errors import WITHOUT_LABELS, CheckpointError, ConfigError, DataError
from vitrail.files import (
    cache_folder,
    fetch_patiently,
    is_remote,
    open_regular,
    parse_json,
    read_regular,
    replacing,
    short_hash,
    write_bytes,
    writing,
)
from vitrail.files.columns import likely_classes

Identity = Mapping[str, str | int]
Location = str | os.PathLike[str]
MOST_SHARDS = 100_000
MOST_CLASSES = 1_000_000
BRACES = re.compile(r"\{(?:(\d{1,12})\.\.(\d{1,12})|([^{}]*,[^{}]*))\}")
NUMBER = re.compile(r"[0-9]{1,9}")
LARGEST_LABEL = 1 << 16  # bytes
LARGEST_LIST = 64 << 20  # of classes
LARGEST_IMAGE = 512 << 20
LARGEST_INDEX = 1 << 30
VERSION = 1  # of the indices kept
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class TarSource(Source):
    """The images of tar files, read where they lie in them; each file is looked through once and its index kept.

    `paths` are files, https addresses or `pipe:` commands (run by the shell, where allowed); `{000..009}` in them
    counts and `{a,b}` lists. Labels are a member `.cls`, `.json` with a "label", or `.txt`; where there are none, the
    folder of each image. `parts` has the numbers of the samples in folders train, val and test, where these hold all.
    `problems` lists what is not used: the tar file and the reason.
    """

    def __init__(
        self,
        paths: Location | Sequence[Location],
        *,
        class_names: Sequence[str] | None = None,
        unlabeled: bool = False,
        allow_pipe: bool = False,
    ) -> None:
        listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        texts = [text for path in listed for text in expand(os.fspath(path))]
        if not texts:
            raise DataError("expected one tar file or more; got none.")
        self.paths = tuple(_local(text, allow_pipe=allow_pipe) for text in texts)
        indices = [index_of(path) for path in self.paths]
        places = [] if unlabeled else class_folders(indices)
        if places:
            indices = [label_by_folder(index) for index in indices]
        parts = [used_samples(index, unlabeled=unlabeled) for index in indices]
        self.parts = split_folders(places)
        self.problems = [(path.name, why) for path, (_, left) in zip(self.paths, parts, strict=True) for why in left]
        samples = [sample for used, _ in parts for sample in used]
        if not samples:
            seen = "; ".join(f"{shard}: {reason}" for shard, reason in self.problems[:3]) or "no image in them"
            raise DataError(
                f"expected labelled images in {self.paths[0]} and its like; got none ({seen}). "
                "Labels are folders of images, or members .cls, .json or .txt beside each; or say that the images are "
                "unlabeled; "
                f"{WITHOUT_LABELS}"
            )
        self._stamps = tuple((index["size"], index["mtime_ns"]) for index in indices)
        members = [(shard, *sample[1:3]) for shard, (used, _) in enumerate(parts) for sample in used]
        self._members = np.array(members, dtype=np.int64)  # shard, offset, size
        self._names = Names([sample[0] for sample in samples])
        given = tuple(class_names) if class_names is not None else class_list(self.paths[0].with_name("classes.txt"))
        self._labels, self.class_names = numbered([sample[3] for sample in samples], given, self.paths[0])
        self._labels.flags.writeable = False
        pieces = [f"{part}\0" for part in (*(index["headers"] for index in indices), *self.class_names)]
        rest = "".join(pieces).encode("utf-8", "surrogatepass")
        self._fingerprint = f"tar-{short_hash(self._members.tobytes(), self._labels.tobytes(), rest).hex()}"

    def read(self, index: int) -> bytes:
        """Read an image's bytes where they lie."""
        shard, offset, size = self._members[self._within(index)].tolist()

        def check(found: os.stat_result) -> None:
            if (found.st_size, found.st_mtime_ns) != self._stamps[shard]:
                raise ImageError(f"{self.paths[shard]} has changed since it was opened")

        return read_member(self.paths[shard], offset, size, check)

    def name(self, index: int) -> str:
        """Name a member by its tar file and its name there."""
        return f"{self.paths[int(self._members[index, 0])].name}/{self._names[index]}"


def expand(pattern: str) -> Iterator[str]:
    """Write out `shard-{000..009}.tar` and `{a,b}.tar`, every combination in order."""
    pieces: list[Sequence[str]] = []
    end, count = 0, 1
    for match in BRACES.finditer(pattern):
        first, last = match[1], match[2]
        if first is None:
            choices: Sequence[str] = match[3].split(",")
        else:
            width = len(first) if first.startswith("0") or len(first) == len(last) else 0
            if not int(first) <= int(last) < int(first) + MOST_SHARDS:
                raise DataError(f"expected {{FIRST..LAST}} with at most {MOST_SHARDS:,} numbers; got {match[0]}.")
            choices = [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]
        count *= len(choices)
        pieces += [[pattern[end : match.start()]], choices]
        end = match.end()
    if count > MOST_SHARDS:
        raise DataError(f"expected at most {MOST_SHARDS:,} files; {pattern} are {count:,}.")
    yield from ("".join(parts) for parts in itertools.product(*pieces, [pattern[end:]]))


def _local(text: str, *, allow_pipe: bool) -> Path:
    if is_remote(text):
        return fetch_patiently(text)
    if not text.startswith("pipe:"):
        return Path(os.path.realpath(text))
    if not allow_pipe:
        raise ConfigError(
            f"{text!r} would run a command. Say allow_pipe=True where you trust it, or give files or https addresses."
        )
    command = text.removeprefix("pipe:")
    file = cache_folder() / "pipes" / f"{short_hash(command).hex()}.tar"
    if not file.exists():
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary, temporary.open("wb") as out:
            code = subprocess.run(command, shell=True, stdout=out, stdin=subprocess.DEVNULL, check=False).returncode
            if code:
                raise DataError(f"the command {command!r} ended with {code}; expected 0. Try it in a shell.")
    return file


def class_list(file: Path) -> tuple[str, ...] | None:
    """Read the names of classes, a name a line, where there is such a file."""
    try:
        lines = read_regular(file, most=LARGEST_LIST).decode("utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the names of the classes, {file}: {error}. Check the file.") from error
    return tuple(line.strip() for line in lines if line.strip())


def numbered(
    found: Sequence[int | str | None], given: tuple[str, ...] | None, path: Location
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Turn labels into numbers of classes; names without a list of them are numbered in their order."""
    kinds = {type(label) for label in found if label is not None}
    if len(kinds) > 1:
        raise DataError(f"{path}: expected labels of one kind; some are numbers and some are names.")
    if kinds == {str}:
        names = tuple(sorted({label for label in found if isinstance(label, str)})) if given is None else given
        places: dict[int | str | None, int] = {name: number for number, name in enumerate(names)}
    else:
        highest = max((label for label in found if isinstance(label, int)), default=-1)
        if given is None and highest >= MOST_CLASSES:
            raise DataError(f"{path}: expected fewer than {MOST_CLASSES:,} classes; got the label {highest}.")
        if given is None and highest >= likely_classes(len(found)):
            raise DataError(
                f"{path}: the highest label is {highest:,}, in {len(found):,} samples: such numbers are no classes. "
                "Count the classes from 0, or name them in classes.txt."
            )
        names = tuple(str(number) for number in range(highest + 1)) if given is None else given
        places = {number: number for number in range(len(names))}
    places[None] = -1
    unknown = next((label for label in found if label not in places), None)
    if unknown is not None:
        raise DataError(f"{path}: the label {unknown!r} is none of the {len(names)} classes. Check their names.")
    return np.array([places[label] for label in found], dtype=np.int64), names


def index_of(path: Path, identity: Identity | None = None) -> dict[str, Any]:
    """Give a tar file's index, from the cache where that is whole and the file is the same.

    A file is known by its path, size and time, or by the `identity` given.
    """
    try:
        stamp = path.stat()
        identity = identity or {"path": str(path), "size": stamp.st_size, "mtime_ns": stamp.st_mtime_ns}
        found = kept_index(identity)
        if found is not None:
            return found
        made = {"version": VERSION, **identity, **_look_through(path, stamp.st_size)}
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}. Check the path.") from error
    body = json.dumps(made, separators=(",", ":")).encode()
    with contextlib.suppress(OSError, CheckpointError):  # a cache that cannot be written to costs time, nothing else
        kept = _place(identity)
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(kept, short_hash(body).hex().encode() + b"\n" + body)
    return made


def kept_index(identity: Identity) -> dict[str, Any] | None:
    """Give the index that is kept of a tar file, which need not be there any more."""
    with contextlib.suppress(OSError, CheckpointError):  # also where nothing can be kept
        digest, _, body = read_regular(_place(identity), most=LARGEST_INDEX).partition(b"\n")
        if digest == short_hash(body).hex().encode():
            return json.loads(body)
    return None


def used_samples(index: dict[str, Any], *, unlabeled: bool) -> tuple[list[Any], list[str]]:
    """Give the samples that may be used (name, offset, size, label), and what is not used with the reason."""
    used = [sample for sample in index["samples"] if unlabeled or sample[3] is not None]
    bare = [] if unlabeled else [f"{sample[0]} has no label" for sample in index["samples"] if sample[3] is None]
    return used, [*index["problems"], *bare]


def class_folders(indices: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Give the folders of every image where they are classes: no label beside any, two folders or more, one depth."""
    samples = [sample for index in indices for sample in index["samples"]]
    if any(sample[3] is not None for sample in samples):
        return []
    places = [_folders(sample[0]) for sample in samples]
    alike = len({len(place) for place in places}) == 1 and len({place[-1:] for place in places}) > 1
    return places if alike else []


def label_by_folder(index: Mapping[str, Any]) -> dict[str, Any]:
    """Give an index with the folder of every image as its label."""
    return {**index, "samples": [[*sample[:3], _folders(sample[0])[-1]] for sample in index["samples"]]}


def split_folders(places: Sequence[tuple[str, ...]]) -> dict[str, NDArray[np.int64]]:
    """Number the images of each split, where the folders of the classes are in folders train, val and test."""
    names = [SPLITS.get(place[-2].lower()) if len(place) > 1 else None for place in places]
    if None in names or "train" not in names:
        return {}
    return {name: np.flatnonzero([other == name for other in names]) for name in dict.fromkeys(map(str, names))}


def _folders(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.split("/")[:-1] if part not in ("", "."))


def read_member(path: Path, offset: int, size: int, check: Callable[[os.stat_result], None]) -> bytes:
    """Read bytes where they lie in a tar file, once `check` has seen that it is the right one."""
    try:
        with open_regular(path) as file:
            check(os.fstat(file.fileno()))
            data = os.pread(file.fileno(), size, offset)
    except OSError as error:
        raise ImageError(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) != size:
        raise ImageError(f"{len(data):,} of {size:,} bytes could be read")
    return data


def _place(identity: Identity) -> Path:
    described = json.dumps({"version": VERSION, **identity})
    return cache_folder() / "tars" / f"{short_hash(described).hex()}.json"


def _look_through(path: Path, length: int) -> dict[str, Any]:
    """List the samples of a tar file: name, offset and size of the image, and the label; what is cut off is told."""
    with open_regular(path) as file:
        start = file.read(8)
        packing = next((kind for magic, kind in PACKED.items() if start.startswith(magic)), None)
        if packing:
            raise DataError(f"{path} is packed with {packing}: no image in it can be read by itself. Unpack it first.")
        groups: dict[str, dict[str, tuple[str, int, int]]] = {}
        problems: list[str] = []
        headers = hashlib.blake2b(digest_size=16)
        for member in members(file, length, problems):
            headers.update(f"{member.name}\0{member.size}\0{member.mtime}\0{member.chksum}\0".encode(errors="replace"))
            folder, _, base = member.name.rpartition("/")
            stem, _, suffix = base.partition(".")
            if not stem:  # hidden: of a file manager
                continue
            group = groups.setdefault(f"{folder}/{stem}", {})
            if suffix.lower() in group:
                problems.append(f"{member.name} comes twice; the first is used")
            else:
                group[suffix.lower()] = (member.name, member.offset_data, member.size)
        samples: list[tuple[str, int, int, int | str | None]] = []
        for group in groups.values():
            image = _image_of(group)
            if image is not None and image[2] > LARGEST_IMAGE:
                problems.append(f"{image[0]} has {image[2]:,} bytes, more than an image has")
            elif image is not None:
                samples.append((*image, _label_of(file.fileno(), group, problems)))
    return {"samples": samples, "problems": problems, "headers": headers.hexdigest()}


def _image_of(group: dict[str, tuple[str, int, int]]) -> tuple[str, int, int] | None:
    exact = [group[suffix] for suffix in SUFFIXES if suffix in group]
    longer = [member for suffix, member in group.items() if suffix.rpartition(".")[2] in SUFFIXES]
    return exact[0] if exact else longer[0] if len(longer) == 1 else None


def _label_of(file: int, group: dict[str, tuple[str, int, int]], problems: list[str]) -> int | str | None:
    """Read a label: a number or a name from .cls, what .json calls "label", or a name from .txt."""
    suffix = next((suffix for suffix in ("cls", "json", "txt") if suffix in group), None)
    if suffix is None:
        return None
    name, offset, size = group[suffix]
    try:
        if size > LARGEST_LABEL:
            raise ValueError(f"{size:,} bytes")
        text = os.pread(file, size, offset).decode().strip()
        label = parse_json(text)["label"] if suffix == "json" else text
    except (ValueError, KeyError, TypeError) as error:
        problems.append(f"{name} holds no label: {error}")
        return None
    if isinstance(label, str) and suffix == "cls" and NUMBER.fullmatch(label):
        return int(label)
    if isinstance(label, bool) or not isinstance(label, int | str) or label in ("", -1) or not _likely(label):
        problems.append(f"{name} holds no label: {repr(label)[:40]}")
        return None
    return label


def _likely(label: int | str) -> bool:
    """Tell a label that could be one: a number of a class, or a name that can be written."""
    return 0 <= label < MOST_CLASSES if isinstance(label, int) else is_name(label)
