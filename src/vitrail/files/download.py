"""Files from the net, fetched once: checked on every use, and used without the network ever after."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitrail.errors import CheckpointError
from vitrail.files import transfer as transfers
from vitrail.files.atomic import cache_folder, offline_variable, open_to_append, sync, write_bytes, writing
from vitrail.files.hashes import sha256_of
from vitrail.files.progress import Progress, say
from vitrail.files.reading import read_json
from vitrail.files.transfer import (
    ELSEWHERE,
    LARGEST_RECORD,
    Address,
    BusyError,
    Part,
    RefusedError,
    UnavailableError,
    is_stored,
    parse,
    transfer,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


# What a server says of a file that is not there; stores that do not list their files say 403.
ABSENT = (403, 404, 410)
LATER = 8  # times the first pauses, of those after them


def fetch(url: str, *, quiet: bool = False) -> Path:
    """Bring an https file into the cache, once, and give its path; `#sha256=HEX` is checked on every use."""
    address = parse(url)
    file = place_of(url)
    # Looked at before the lock, so that a cache that may only be read can be used.
    damage = _damage(file, address)
    if damage is None:
        return file
    if variable := offline_variable():
        raise CheckpointError(
            f"{damage}, and {variable} forbids to download {address.shown}. Unset the variable, {ELSEWHERE}."
        )
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(file):
            damage = _damage(file, address)
            if damage is None:  # another process was faster
                return file
            if file.exists():
                say(f"{damage}. It is downloaded again.")
                file.unlink()
            part = Part(_with(file, ".part"))
            with Progress(address.name, quiet=quiet) as progress:
                _bring(address, part, progress)
            _keep(file, part, address)
    return file


def _bring(address: Address, part: Part, progress: Progress) -> None:
    if not is_stored(address.url):
        transfer(address, part, progress)
        return
    from vitrail.files.stores import copy_stored  # which few need

    copy_stored(address, part, progress)


def fetch_patiently(url: str, *, quiet: bool = False, long: bool = True) -> Path:
    """Bring a file as `fetch` does, asking again for a while where it does not come now: a run depends on it."""
    for pause in (*transfers.PAUSES, *(LATER * pause for pause in transfers.PAUSES if long)):
        try:
            return fetch(url, quiet=quiet)
        except (BusyError, UnavailableError) as error:
            say(f"{error} It is asked for again in {pause:.0f} s.")
            time.sleep(pause)
    return fetch(url, quiet=quiet)


def fetch_if_there(url: str, *, patiently: bool = True) -> Path | None:
    """Bring a file that may be missing on its server; None where it is."""
    try:
        return fetch_patiently(url, quiet=True, long=False) if patiently else fetch(url, quiet=True)
    except RefusedError as error:
        if error.code in ABSENT:
            return None
        raise


def place_of(url: str) -> Path:
    """Say where an address's file lies in the cache, whether or not it has been fetched."""
    return cache_folder() / "downloads" / parse(url).key


def recorded_sum(file: Path) -> str | None:
    """The sha256 of a file when it was last fetched; the record outlives the file."""
    try:
        recorded = read_json(_with(file, ".json"), most=LARGEST_RECORD)["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return recorded if isinstance(recorded, str) else None


def _damage(file: Path, address: Address) -> str | None:
    """Say what is wrong with a file of the cache; None when it is as recorded, and as the address asks."""
    if not file.is_file():
        return f"{file.name} is not in the cache {file.parent}"
    got = sha256_of(file)
    expected = address.sha256 or recorded_sum(file)
    if expected is None:
        return f"{file} has no record of its checksum"
    if got != expected:
        return f"{file} is damaged, or another file than asked for: expected sha256 {expected}, got {got}"
    return None


def _keep(file: Path, part: Part, address: Address) -> None:
    got = sha256_of(part.path)
    if address.sha256 not in (got, None):
        part.clear()
        raise CheckpointError(
            f"{address.shown} is not the file that was asked for: expected sha256 {address.sha256}, got {got}. "
            "It was removed. Compare the checksum with the publisher's, and try again."
        )
    record = {"url": address.shown, "sha256": got, "bytes": part.path.stat().st_size}
    write_bytes(_with(file, ".json"), json.dumps(record, indent=1).encode())
    sync(part.path)
    os.replace(part.path, file)
    part.clear()


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Let one process at a time download a file; where there are no locks, all go ahead."""
    if fcntl is None:
        yield
        return
    with open_to_append(_with(file, ".lock")) as lock:  # never removed: two processes could lock two files of one name
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that downloads {file}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        try:
            yield
        finally:  # said, since a process that was forked meanwhile holds the file open too
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)


def _with(file: Path, ending: str) -> Path:
    return file.with_name(f"{file.name}{ending}")
