"""Where the images of a tar file lie in it and what their labels are: looked through once, then kept in the cache."""

import contextlib
import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitrail.data.decode import SUFFIXES
from vitrail.errors import CheckpointError, DataError
from vitrail.files import cache_folder, short_hash, write_bytes

Identity = Mapping[str, str | int]
LARGEST_LABEL = 1 << 16  # bytes
LARGEST_IMAGE = 512 << 20
VERSION = 1  # of the indices kept
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


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
    kept = _place(identity)
    with contextlib.suppress(OSError, CheckpointError):  # a cache that cannot be written to costs time, nothing else
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(kept, short_hash(body).hex().encode() + b"\n" + body)
    return made


def kept_index(identity: Identity) -> dict[str, Any] | None:
    """Give the index that is kept of a tar file, which need not be there any more."""
    with contextlib.suppress(OSError):
        digest, _, body = _place(identity).read_bytes().partition(b"\n")
        if digest == short_hash(body).hex().encode():
            return json.loads(body)
    return None


def _place(identity: Identity) -> Path:
    described = json.dumps({"version": VERSION, **identity})
    return cache_folder() / "tars" / f"{short_hash(described).hex()}.json"


def _look_through(path: Path, length: int) -> dict[str, Any]:
    """List the samples of a tar file: name, offset and size of the image, and the label; what is cut off is told."""
    with path.open("rb") as file:
        start = file.read(8)
        packing = next((kind for magic, kind in PACKED.items() if start.startswith(magic)), None)
        if packing:
            raise DataError(f"{path} is packed with {packing}: no image in it can be read by itself. Unpack it first.")
        groups: dict[str, dict[str, tuple[str, int, int]]] = {}
        problems: list[str] = []
        headers = hashlib.blake2b(digest_size=16)
        for member in _members(path, length, problems):
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


def _members(path: Path, length: int, problems: list[str]) -> Iterator[tarfile.TarInfo]:
    """Give the members that are whole, one at a time."""
    try:
        with tarfile.open(path, "r:") as opened:
            tar: Any = opened  # its list of members is public, and in no stub
            while (member := tar.next()) is not None:
                tar.members.clear()  # it would hold all of them
                if member.isreg() and not member.issparse():
                    if member.offset_data + member.size > length:
                        problems.append(f"{member.name} is cut off, and what follows it is missing")
                        return
                    yield member
                elif not member.isdir():
                    problems.append(f"{member.name} is a link or no plain file")
            with path.open("rb") as file:
                file.seek(tar.offset)
                end = file.read(512)
            if end.strip(b"\0"):
                problems.append(f"damaged at byte {tar.offset:,}: what follows is not used")
            elif len(end) < 512:
                problems.append(f"ends at byte {length:,} without the mark of an end; members may be missing")
    except (tarfile.TarError, ValueError, OverflowError) as error:
        problems.append(f"damaged or cut off: {error}")


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
        label = json.loads(text)["label"] if suffix == "json" else text
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        problems.append(f"{name} holds no label: {error}")
        return None
    if isinstance(label, str) and suffix == "cls" and re.fullmatch(r"[0-9]{1,9}", label):
        return int(label)
    if isinstance(label, bool) or not isinstance(label, int | str) or label in ("", -1):
        problems.append(f"{name} holds no label: {str(label)[:40]!r}")
        return None
    return label
