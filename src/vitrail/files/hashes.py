"""Every hash: of files (a list in the format of `sha256sum`), of images, of names and numbers."""

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import CheckpointError
from vitrail.files.atomic import write_bytes
from vitrail.files.reading import open_regular, read_regular

SUMS = "SHA256SUMS"
LARGEST = 1 << 20  # bytes of a list
WIDTH = 16  # bytes of a short hash
LINE = re.compile(r"([0-9a-fA-F]{64}) [ *]([^\x00-\x1f/\\]+)")


def short_hash(*parts: str | bytes | memoryview, key: bytes = b"", person: bytes = b"", width: int = WIDTH) -> bytes:
    """Hash parts, one after the other, to a few bytes (BLAKE2)."""
    found = hashlib.blake2b(digest_size=width, key=key, person=person)
    for part in parts:
        found.update(part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part)
    return found.digest()


def image_hash(data: bytes | NDArray[np.uint8]) -> bytes:
    """Hash an image as it is kept: its bytes, or its shape and pixels."""
    if isinstance(data, bytes):
        return short_hash(data)
    return short_hash(np.ascontiguousarray(data).data, person="x".join(map(str, data.shape)).encode()[:16])


def fingerprint_of(*parts: str | NDArray[Any]) -> str:
    """Give sixteen hexadecimal digits that change when any part does, or when its end moves."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else np.ascontiguousarray(part).data
        total.update(hashlib.sha256(data).digest())
    return total.hexdigest()[:16]


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file's contents, in lower-case hexadecimal."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"cannot read {os.fspath(path)}: {error.strerror or error}. Check the path.") from error


def write_sums(folder: str | os.PathLike[str], names: Collection[str] | None = None) -> None:
    """Write the checksum of every plain file of a folder, or of some, into its SHA256SUMS."""
    folder = Path(folder)
    names = sorted(_plain_files(folder) if names is None else names)
    for name in names:
        if not LINE.fullmatch(f"{'0' * 64}  {name}"):
            raise CheckpointError(f"{folder}: the name {name!r} cannot stand in {SUMS}. Rename the file.")
    sums = _sums(folder, names)
    write_bytes(folder / SUMS, "".join(f"{sums[name]}  {name}\n" for name in names).encode())


def verify_sums(
    folder: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    *,
    known: Collection[str] | None = None,
    hashed: Mapping[str, str] | None = None,
) -> None:
    """Refuse a folder whose files (all of them, or `names`) are not what its SHA256SUMS says.

    With `known`, other files that are not listed are nobody's business; the sums in `hashed` are known already.
    """
    folder = Path(folder)
    listed = listed_sums(folder)
    if names is None:
        # Hidden files are the file manager's and the version control's: nothing is ever loaded from them.
        visible = {name for name in _plain_files(folder) if not name.startswith(".")}
        visible = visible if known is None else visible & set(known)
        wanted = sorted(listed.keys() | visible)
    else:
        wanted = sorted(set(names))
    for name in wanted:
        if name not in listed:
            raise CheckpointError(
                f"{folder / name} is not listed in {SUMS}. Copy the folder again, or remove the file."
            )
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is missing, though {SUMS} lists it. Copy the folder again.")
    sums = _sums(folder, [name for name in wanted if name not in (hashed or {})]) | dict(hashed or {})
    for name in wanted:
        if sums[name] != listed[name]:
            raise CheckpointError(
                f"{folder / name} is not the file that {SUMS} lists: expected sha256 {listed[name]}, "
                f"got {sums[name]}. Copy the folder again."
            )


def _plain_files(folder: Path) -> list[str]:
    try:
        return [file.name for file in folder.iterdir() if file.is_file() and file.name != SUMS]
    except OSError as error:
        raise CheckpointError(f"cannot read the folder {folder}: {error.strerror or error}. Check the path.") from error


def _sums(folder: Path, names: list[str]) -> dict[str, str]:
    # hashlib lets go of the interpreter while it hashes: the shards of a large model go side by side.
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
        return dict(zip(names, threads.map(lambda name: sha256_of(folder / name), names), strict=True))


def listed_sums(folder: Path) -> dict[str, str]:
    """Read the names and checksums that a folder's SHA256SUMS lists."""
    path = folder / SUMS
    try:
        lines = read_regular(path, most=LARGEST).decode().split("\n")
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror or error}. Copy the folder again, with its {SUMS}."
        ) from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is damaged: it is no text. Copy the folder again.") from error
    if lines[-1] == "":
        lines.pop()
    listed: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        match = LINE.fullmatch(line)
        if match is None or match[2] in (".", "..", SUMS) or match[2] in listed:
            raise CheckpointError(
                f"{path}, line {number}: expected a checksum of 64 digits, two spaces and the name of one file "
                f"of the folder, once; got {line[:100]!r}. Copy the folder again."
            )
        listed[match[2]] = match[1].lower()
    return listed
