"""Files, whole or not at all: written at once, checked by their sums, fetched once and kept in a cache."""

from vitrail.files.atomic import (
    cache_folder,
    check_replaceable,
    check_writable,
    new_folder,
    replacing,
    write_bytes,
    writing,
)
from vitrail.files.download import fetch, fetch_if_there, place_of, recorded_sum
from vitrail.files.hashes import SUMS, fingerprint_of, image_hash, short_hash, verify_sums, write_sums
from vitrail.files.hub import fetch_dataset, fetch_repository

__all__ = ["SUMS", "cache_folder", "check_replaceable", "check_writable", "fetch", "fetch_dataset", "fetch_if_there"]
__all__ += ["fetch_repository", "fingerprint_of", "image_hash", "new_folder", "place_of", "recorded_sum", "replacing"]
__all__ += ["short_hash", "verify_sums", "write_bytes", "write_sums", "writing"]
