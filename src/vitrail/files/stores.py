"""Files in object stores (s3, gs, az, hf), copied through fsspec: the only code that opens it."""

import itertools
import time
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.files import transfer
from vitrail.files.atomic import open_to_append, writing
from vitrail.files.progress import Progress
from vitrail.files.transfer import CHUNK, ELSEWHERE, Address, Part, RefusedError, UnavailableError

DRIVERS = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "hf": "huggingface_hub"}
VERSIONS = ("ETag", "etag", "md5Hash", "mtime", "last_modified", "LastModified", "updated", "created")
READ_AHEAD = 4  # chunks that are asked for at once


def copy_stored(address: Address, part: Part, progress: Progress) -> None:
    """Bring the whole file into `part`, going on where an earlier try stopped, trying again after a failure."""
    store, path = _open_store(address)
    for tried in itertools.count():
        try:
            _copy(store, path, address, part, progress)
        except FileNotFoundError as error:
            raise RefusedError(f"there is no file at {address.shown}. Check the address.", 404) from error
        except PermissionError as error:
            raise RefusedError(
                f"{address.host} refuses access to {address.shown}: {error}. Check the address and the credentials "
                f"that its driver reads, {ELSEWHERE}.",
                403,
            ) from error
        except CheckpointError:
            raise
        except Exception as error:  # each driver has kinds of its own
            if tried == len(transfer.PAUSES):
                raise UnavailableError(
                    f"{address.shown} failed {tried + 1} times: {error}. "
                    f"Run again: it continues at {part.state()[0]:,} bytes."
                ) from error
            time.sleep(transfer.PAUSES[tried])
        else:
            return


def _open_store(address: Address) -> tuple[Any, str]:
    scheme = address.url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs

        return url_to_fs(address.url)
    except ImportError as error:
        driver = DRIVERS.get(scheme, "fsspec")
        raise CheckpointError(
            f"{address.shown}: {scheme}:// is read by fsspec and {driver}, which are not installed. "
            f"pip install 'vitrail[stores]' {driver}, {ELSEWHERE}."
        ) from error


def _copy(store: Any, path: str, address: Address, part: Part, progress: Progress) -> None:  # noqa: ANN401
    store.invalidate_cache()  # of listings
    info = store.info(path)
    total = int(info["size"])
    version = "; ".join(str(info[name]) for name in VERSIONS if info.get(name) is not None)
    done, before, size = part.state()
    if not done or before != version or size != total or done > total:
        done = 0
        part.begin(address.shown, version, total)
    transfer.check_space(part.path.parent, total - done, address)
    progress.begin(done, total)
    with (
        store.open(path, "rb", block_size=READ_AHEAD * CHUNK, cache_type="readahead") as file,
        writing(part.path),
        open_to_append(part.path) as out,
    ):
        file.seek(done)
        while chunk := file.read(CHUNK):
            out.write(chunk)
            progress.advance(len(chunk))
            done += len(chunk)
    if done != total:
        if done > total:
            part.clear()
        raise OSError(f"{done:,} of {total:,} bytes came")
