"""Where fetched files are kept, and whether the network may be used."""

import os
import sys
from pathlib import Path

from vitrail.errors import CheckpointError

OFFLINE_VARIABLES = ("VITRAIL_OFFLINE", "HF_HUB_OFFLINE")


def cache_folder() -> Path:
    """The folder for fetched files: $VITRAIL_CACHE, or the place for caches of this system."""
    if own := os.environ.get("VITRAIL_CACHE"):
        return _absolute(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return _absolute(shared) / "vitrail"
    return _absolute("~/Library/Caches/vitrail" if sys.platform == "darwin" else "~/.cache/vitrail")


def is_offline() -> bool:
    """Whether the environment forbids the network."""
    return offline_variable() is not None


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
