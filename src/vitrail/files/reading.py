"""Files of others, read with bounds: plain files alone, no more bytes than they may have, headers of a likely size."""

import errno
import io
import json
import os
import stat
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from vitrail.errors import VitrailError, shortened

DEEPEST = 100  # levels of a JSON document
LARGEST_DOCUMENT = 64 << 20  # bytes
MARKS = (b"[", b"{", b":", b",")  # of JSON, between its values
MOST_VALUES = 8_000_000  # of JSON: each takes up to 80 bytes of memory, and perhaps two of text
LARGEST_HEADER = 1 << 16  # bytes of an array's
# What is compressed is a little smaller than it was, pictures and weights above all: what says that it grows by more
# than this, or is a file of holes, is made to fill a memory.
LARGEST_GROWTH, SMALL = 20, 256 << 20
# A pipe is opened without waiting for somebody to write into it; a terminal does not become this process's own.
FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))


def open_regular(path: str | os.PathLike[str], *, most: int | None = None) -> io.BufferedReader:
    """Open a plain file to read, of at most so many bytes; anything else is an OSError, at once.

    What is judged is what was opened, whatever becomes of the name meanwhile: no pipe is waited for, and no device,
    which has no end, is read.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # before it is opened, which some devices take as an order
        raise _odd(path)
    number = os.open(path, FLAGS)
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or (not found.st_size and os.pread(number, 1, 0)):
            raise _odd(path)  # what has no size and something in it is the system's own, and may have no end
        if most is not None and found.st_size > most:
            reason = f"{found.st_size:,} bytes; at most {most:,} are read"
            raise OSError(errno.EFBIG, reason, os.fspath(path))
        if found.st_size > SMALL and LARGEST_GROWTH * _held(number, found.st_size) < found.st_size:
            reason = f"it says that it has {found.st_size:,} bytes, and nearly all of it is holes"
            raise OSError(errno.EFBIG, reason, os.fspath(path))
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


@contextmanager
def refusing(path: Path, kind: type[VitrailError], unread: str, cure: str = "") -> Iterator[None]:
    """Say in an error of ours why a file is not read, by the system or by whatever library its damage stopped."""
    try:
        yield
    except VitrailError:
        raise
    except OSError as error:
        raise kind(f"cannot read {path}: {error.strerror or error}.{cure}") from error
    except Exception as error:  # what nobody foresaw in a file is an error of the file all the same
        reason = f"{type(error).__name__}: {shortened(str(error), 200)}"
        raise kind(f"{path} {unread}: {reason}. Copy or download it again.") from error


def read_regular(path: str | os.PathLike[str], *, most: int) -> bytes:
    """Read a plain file of at most so many bytes; anything else is an OSError."""
    with open_regular(path, most=most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def parse_json(text: str | bytes, deepest: int = DEEPEST) -> Any:  # noqa: ANN401
    """Read JSON; whatever is wrong with it, also that it is nested or goes on without end, is a ValueError."""
    _check_values(text)
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    depth, layer = 0, [document]
    while layer := [
        inner
        for item in layer
        if isinstance(item, dict | list)
        for inner in (item.values() if isinstance(item, dict) else item)
    ]:
        depth += 1
        if depth > deepest:
            raise ValueError(f"it is nested more than {deepest} deep")
    return document


def read_json(path: str | os.PathLike[str], *, most: int = LARGEST_DOCUMENT, deepest: int = DEEPEST) -> Any:  # noqa: ANN401
    """Read a JSON file of at most so many bytes; an OSError or a ValueError says why not."""
    return parse_json(read_regular(path, most=most), deepest)


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the JSON objects of a log, a line each, without lines that are damaged; none where it cannot be read."""
    found: list[Any] = []
    with suppress(OSError, ValueError):
        text = read_regular(path, most=LARGEST_DOCUMENT)
        _check_values(text)
        for line in io.BytesIO(text):
            with suppress(ValueError):
                found.append(parse_json(line))
    return [item for item in found if isinstance(item, dict)]


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read an .npz file that numpy.savez wrote here; whatever is wrong with it is an OSError or a ValueError."""
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                held = sum(info.file_size for info in archive.infolist())
            if held > os.fstat(file.fileno()).st_size:  # nothing of ours is compressed
                raise ValueError(f"it says that it holds {held:,} bytes")
            return dict(np.load(file, allow_pickle=False))
        except OSError:
            raise
        except Exception as error:  # a damaged file stops its reader in many types
            raise ValueError(f"{type(error).__name__}: {error}") from error


class ArrayHeader(NamedTuple):
    """What an array in numpy's format says of itself, and where its numbers begin."""

    shape: tuple[int, ...]
    columns_first: bool
    dtype: np.dtype[Any]
    start: int  # bytes


def array_header(start: bytes) -> ArrayHeader:
    """Read an array's header from its first bytes; whatever is wrong with it is a ValueError."""
    stream = io.BytesIO(start[:LARGEST_HEADER])
    try:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version} of the array format")
        width = 2 if version == (1, 0) else 4
        if int.from_bytes(start[stream.tell() : stream.tell() + width], "little") > len(start):
            raise ValueError("its header is too long")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that Python 2 wrote
            shape, columns_first, dtype = read(stream)
    except Exception as error:  # the parser of a header is Python's own, and fails in many types
        raise ValueError((str(error) or type(error).__name__).splitlines()[0][:200]) from error
    return ArrayHeader(shape, bool(columns_first), dtype, stream.tell())


def _check_values(text: str | bytes) -> None:
    """Refuse JSON of more values than any document has, by the signs between them."""
    marks = sum(text.count(mark) for mark in "[{:,") if isinstance(text, str) else sum(map(text.count, MARKS))
    if marks > MOST_VALUES:
        raise ValueError(f"it holds more than {MOST_VALUES:,} values")


def _held(number: int, size: int) -> int:
    """Count the bytes of a file that are on the disk, its holes aside; all of them where the system does not say."""
    held, place = 0, 0
    try:
        for _ in range(1000):  # stretches of data: where there are more, these stand for all
            start = os.lseek(number, place, os.SEEK_DATA)
            place = os.lseek(number, start, os.SEEK_HOLE)
            held += place - start
    except (OSError, AttributeError) as error:
        return held if getattr(error, "errno", None) == errno.ENXIO else size  # holes to the end; or not known
    finally:
        os.lseek(number, 0, os.SEEK_SET)
    return held * size // place


def _odd(path: str | os.PathLike[str]) -> OSError:
    if Path(path).is_dir():
        return IsADirectoryError(errno.EISDIR, "it is a folder", os.fspath(path))
    return OSError(errno.EINVAL, "it is no plain file", os.fspath(path))
