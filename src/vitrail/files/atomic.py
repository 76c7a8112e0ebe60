"""Files on the disk: written whole or not at all, under a hidden name first; and where fetched ones are kept."""

import errno
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from vitrail.errors import CheckpointError

# What marks a folder as one of ours; a folder without it is never deleted.
MARK = "config.json"
OFFLINE_VARIABLES = ("VITRAIL_OFFLINE", "HF_HUB_OFFLINE")
HINTS = {
    errno.ENOSPC: "Free some space, or write elsewhere.",
    errno.EDQUOT: "Free some of your quota, or write elsewhere.",
    errno.ENOENT: "Check the path; create its folder first.",
    errno.EACCES: "Choose a place that you may write to.",
    errno.EPERM: "Choose a place that you may write to.",
    errno.EROFS: "Choose a place that can be written to.",
    errno.ENOTDIR: "A part of the path is a file; choose another path.",
    errno.EEXIST: "A part of the path is a file; choose another path.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into an error with the path, the reason and the way out."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        culprit = error.filename
        if isinstance(culprit, str) and not culprit.startswith(str(path.parent)):
            reason = f"{reason}: {culprit}"
        hint = HINTS.get(error.errno or 0, "Check the path.")
        raise CheckpointError(f"cannot write {path}: {reason}. {hint}") from error


def sync(path: Path) -> None:
    """Wait until a file, or the list of a folder's names, is on the disk itself."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    number = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file so that its name never shows anything but the old contents or all of the new."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a hidden name beside `path`; what is written there takes its place at the end, or is removed."""
    suffix, path = Path(path).suffix, Path(os.path.realpath(path))
    temporary = _beside(path, suffix)
    with writing(path):
        _check_plain(path)
        try:
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
        except BaseException:  # Ctrl-C too
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Yield the name of `path` in a hidden folder beside it; the files written there move in at the end, it last.

    On any error nothing is left of them.
    """
    path = Path(os.path.realpath(path))
    folder = _beside(path.with_suffix(""))
    with writing(path):
        _check_plain(path)
        folder.mkdir()
        try:
            yield folder / path.name
            written = sorted(folder.iterdir(), key=lambda each: each.name == path.name)
            for each in written:
                sync(each)
                os.replace(each, path.with_name(each.name))
            sync(path.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _check_plain(path: Path) -> None:
    """Refuse to write in place of what is no plain file: a folder, or a device, which would be gone for everybody."""
    if path.is_dir():
        raise CheckpointError(f"expected the path of a file to write; {path} is a folder. Give a name inside it.")
    if path.exists() and not path.is_file():
        raise CheckpointError(f"expected the path of a file to write; {path} is no plain file. Choose another name.")


def open_to_append(path: Path) -> IO[bytes]:
    """Open a file to add to it, or to lock it, made where it is not there; anything but a plain one is an OSError."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_BINARY"))
    number = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is no plain file", os.fspath(path))
    return os.fdopen(number, "ab")


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a path where no file can be written, before the work whose result goes there."""
    path = Path(os.path.realpath(path))
    _check_plain(path)
    with writing(path):
        temporary = _beside(path)
        temporary.touch()
        temporary.unlink()


@contextmanager
def new_folder(
    path: str | os.PathLike[str], *, overwrite: bool, ours: Collection[str] | None = None, mark: str = MARK
) -> Iterator[Path]:
    """Yield a hidden folder beside `path` that is renamed to it last of all; on any error nothing is left of it.

    A folder that lacks the file `mark`, or holds other files than `ours`, is never overwritten.
    """
    path = Path(os.path.realpath(path))
    with writing(path):
        check_replaceable(path, overwrite=overwrite, ours=ours, mark=mark)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(path)
        temporary.mkdir()
        try:
            yield temporary
            for written in (*temporary.rglob("*"), temporary):
                sync(written)
            # Saving can take minutes: somebody else may have taken the name meanwhile.
            check_replaceable(path, overwrite=overwrite, ours=ours, mark=mark)
            _move_in(temporary, path)
            sync(path.parent)
        except BaseException:  # Ctrl-C too
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _beside(path: Path, suffix: str = "") -> Path:
    # The suffix that was asked for stays last, whatever a link leads to: numpy.savez, for one, appends its own to a
    # name without it.
    return path.with_name(f".{path.stem}.{secrets.token_hex(6)}{suffix or path.suffix}")


def check_replaceable(path: Path, *, overwrite: bool, ours: Collection[str] | None = None, mark: str = MARK) -> None:
    """Refuse a name that is taken, unless it may be overwritten and nothing of somebody else's would be lost."""
    if not os.path.lexists(path):
        return
    if not path.is_dir():
        raise CheckpointError(f"expected the name of a folder to write; {path} is a file. Choose another name.")
    if not any(path.iterdir()):
        return
    if not overwrite:
        raise CheckpointError(f"{path} exists already and is not empty. Choose another name, or give overwrite=True.")
    if not (path / mark).is_file():
        raise CheckpointError(
            f"will not overwrite {path}: it has no {mark}, so it is none of ours, and its files would be lost. "
            "Choose another name, or remove the folder yourself."
        )
    others = [] if ours is None else sorted(file.name for file in path.iterdir() if file.name not in ours)
    if others:
        raise CheckpointError(
            f"will not overwrite {path}: it also holds {', '.join(others[:4])}, which would be lost. "
            "Choose another name, or move them away."
        )


def _move_in(temporary: Path, path: Path) -> None:
    if not path.exists():
        os.rename(temporary, path)
        return
    old = _beside(path)
    os.rename(path, old)
    try:
        os.rename(temporary, path)
    except BaseException:
        os.rename(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def cache_folder() -> Path:
    """The folder for fetched files: $VITRAIL_CACHE, or the place for caches of this system."""
    if own := os.environ.get("VITRAIL_CACHE"):
        return _absolute(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return _absolute(shared) / "vitrail"
    return _absolute("~/Library/Caches/vitrail" if sys.platform == "darwin" else "~/.cache/vitrail")


def home_path(path: str | os.PathLike[str]) -> Path:
    """Give a path whose ~ is the home of its user; as it is where nobody knows that."""
    return Path(os.path.expanduser(os.fspath(path)))


def offline_variable() -> str | None:
    """The variable that forbids the network, as NAME=value; None when none does."""
    for name in OFFLINE_VARIABLES:
        value = os.environ.get(name, "")
        if value.strip().lower() in ("1", "true", "yes", "on"):
            return f"{name}={value}"
    return None


def _absolute(path: str) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise CheckpointError(
            f"cannot find a folder for the cache: {error} Set VITRAIL_CACHE to a folder that you may write to."
        ) from error
