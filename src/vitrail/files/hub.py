"""Models and data sets of the Hugging Face Hub: the small files and one kind of weights, or parquet; never code."""

import glob
import importlib
import os
from dataclasses import replace
from pathlib import Path

from vitrail.errors import CheckpointError
from vitrail.files.cache import cache_folder, is_offline, offline_variable
from vitrail.files.progress import say
from vitrail.files.repository import Wanted, parse, useful

TIMEOUT = 30.0  # seconds


def fetch_repository(name: str) -> Path:
    """Bring what is useful of OWNER/NAME[@REVISION] here and give its folder; with /FILE at the end, that file."""
    return _brought(parse(name))


def fetch_dataset(name: str) -> Path:
    """Bring the parquet files of a data set OWNER/NAME[@REVISION][/FOLDER or FILE] here and give where they lie."""
    return _brought(replace(parse(name), kind="dataset"))


def _brought(wanted: Wanted) -> Path:
    try:
        _ = importlib.import_module("huggingface_hub").get_cached_repo_tree  # the newest of what is used here
    except (ImportError, AttributeError) as error:
        raise CheckpointError(
            f"fetching {wanted} from the Hub needs huggingface_hub 1.31 or newer. Run: pip install 'vitrail[hub]'"
        ) from error
    folder = _cached(wanted) if is_offline() else _fetched(wanted)
    return folder / wanted.file if wanted.file else folder


def _fetched(wanted: Wanted) -> Path:
    from huggingface_hub import HfApi

    try:
        info = HfApi(endpoint=_endpoint()).repo_info(
            wanted.repository, repo_type=wanted.kind, revision=wanted.revision, timeout=TIMEOUT
        )
    except Exception as error:  # the client raises its own types, its HTTP library's and the system's
        if not _is_away(error):
            raise _explained(error, wanted) from error
        try:
            folder = _cached(wanted)
        except CheckpointError:
            raise _explained(error, wanted) from error
        say(f"the Hub cannot be reached; using {wanted} as it is in the cache")
        return folder
    return _snapshot(
        wanted, useful([file.rfilename for file in getattr(info, "siblings", None) or ()], wanted), local=False
    )


def _cached(wanted: Wanted) -> Path:
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        tree = get_cached_repo_tree(
            wanted.repository, repo_type=wanted.kind, revision=wanted.revision, cache_dir=_cache()
        )
    except CachedRepoTreeNotFoundError:
        # Another tool may have fetched single files, which leaves no list: what is there must do.
        folder = _snapshot(wanted, [], local=True)
        useful([file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()], wanted)
        return folder
    except Exception as error:
        raise _explained(error, wanted) from error
    return _snapshot(wanted, useful([file.path for file in tree], wanted), local=True)


def _snapshot(wanted: Wanted, names: list[str], *, local: bool) -> Path:
    """Give the folder that holds these files, fetched unless `local`; none of them may be missing."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            wanted.repository,
            repo_type=wanted.kind,
            revision=wanted.revision,
            cache_dir=_cache(),
            endpoint=_endpoint(),
            allow_patterns=[glob.escape(name) for name in names] or None,
            local_files_only=local,
        )
    except Exception as error:
        raise _explained(error, wanted) from error
    for name in names:
        if not (Path(folder) / name).is_file():
            raise CheckpointError(f"{wanted} changed on the Hub while it was fetched: {name} is missing. Run again.")
    return Path(folder)


def _endpoint() -> str | None:
    # The client reads this once, when it is imported; here it is read on every call.
    return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None


def _cache() -> Path:
    # A user who says where the Hub's files go has them there, shared with other tools; else all of ours is in one
    # folder, which VITRAIL_CACHE moves and which can be deleted as a whole.
    if own := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(os.path.expandvars(own)).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(os.path.expandvars(home)).expanduser() / "hub"
    return cache_folder() / "hub"


def _is_away(error: Exception) -> bool:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    return not isinstance(error, HFValidationError)


def _explained(error: Exception, wanted: Wanted) -> CheckpointError:
    from huggingface_hub import errors

    repository = wanted.repository
    elsewhere = "or download the files elsewhere and give their path"
    match error:
        case errors.GatedRepoError():
            message = (
                f"{repository} asks for an agreement before it is given out. Agree on its page "
                f"(https://huggingface.co/{repository}), then run: hf auth login"
            )
        case errors.RepositoryNotFoundError():
            message = (
                f"there is no repository {repository} on the Hub, or it is private. Check the name; "
                "for a private one run: hf auth login"
            )
        case errors.RevisionNotFoundError():
            message = f"{repository} has no revision {wanted.revision or 'main'}. Check the branch, tag or commit."
        case errors.RemoteEntryNotFoundError():
            message = f"{wanted} lacks a file that it lists. Try again later, or name another revision."
        case errors.HFValidationError():
            message = f"expected the name of a repository, OWNER/NAME; got {repository!r}: {error}"
        case errors.HfHubHTTPError() if error.response.status_code in (401, 403):
            message = (
                f"the Hub refuses access to {wanted} (HTTP {error.response.status_code}). Check the name; "
                "for a private one run: hf auth login"
            )
        case errors.HfHubHTTPError():
            message = (
                f"the Hub cannot serve {wanted} now (HTTP {error.response.status_code}). Try again later, {elsewhere}."
            )
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled() if variable := _offline(error):
            message = (
                f"{wanted} is not (or not wholly) in the cache {_cache()}, and {variable} forbids to download it. "
                f"Unset the variable, {elsewhere}."
            )
        case OSError() if error.errno:
            message = (
                f"cannot write {_cache()}: {error.strerror}. Free some space, or set VITRAIL_CACHE to another folder."
            )
        case _:
            message = f"cannot fetch {wanted} from the Hub: {_first_line(error)}. Check the connection, {elsewhere}."
    return CheckpointError(message)


def _offline(error: Exception) -> str | None:
    from huggingface_hub.errors import OfflineModeIsEnabled

    # The client keeps the setting that it was imported with, whatever the environment says now.
    return offline_variable() or ("HF_HUB_OFFLINE" if isinstance(error, OfflineModeIsEnabled) else None)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
