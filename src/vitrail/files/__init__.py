"""Files, whole or not at all: written at once, checked by their sums, fetched once and kept in a cache."""

from vitrail.files.atomic import (
    cache_folder,
    check_replaceable,
    check_writable,
    home_path,
    new_folder,
    replacing,
    staged,
    write_bytes,
    writing,
)
from vitrail.files.download import fetch, fetch_if_there, fetch_patiently, place_of, recorded_sum
from vitrail.files.hashes import SUMS, fingerprint_of, image_hash, listed_sums, short_hash, verify_sums, write_sums
from vitrail.files.hub import fetch_dataset, fetch_repository
from vitrail.files.public import fetch_public
from vitrail.files.reading import open_regular, parse_json, read_arrays, read_json, read_json_lines, read_regular
from vitrail.files.transfer import is_remote

__all__ = [
    "SUMS",
    "cache_folder",
    "check_replaceable",
    "check_writable",
    "fetch",
    "fetch_dataset",
    "fetch_if_there",
    "fetch_patiently",
    "fetch_public",
    "fetch_repository",
    "fingerprint_of",
    "home_path",
    "image_hash",
    "is_remote",
    "listed_sums",
    "new_folder",
    "open_regular",
    "parse_json",
    "place_of",
    "read_arrays",
    "read_json",
    "read_json_lines",
    "read_regular",
    "recorded_sum",
    "replacing",
    "short_hash",
    "staged",
    "verify_sums",
    "write_bytes",
    "write_sums",
    "writing",
]
