"""Models and data sets of the Hugging Face Hub: the small files and one kind of weights, or parquet; never code."""

import glob
import importlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from vitrail.errors import CheckpointError
from vitrail.files.atomic import cache_folder, home_path, offline_variable
from vitrail.files.hashes import SUMS
from vitrail.files.hub_answers import check_answers
from vitrail.files.progress import say

NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@(refs/pr/\d+|refs/convert/parquet|\w[\w.+-]*))?(?:/(.+))?", re.ASCII)
# Kinds of weights, the preferred first: one alone is fetched.
KINDS = ((".safetensors",), (".npz",), (".bin", ".pth", ".pt"))
# Where a repository has one of these, its other files of weights are of other models or other precisions.
WHOLE = ("model.safetensors", "pytorch_model.bin")
TIMEOUT = 30.0  # seconds
# What training leaves behind under the suffixes of weights.
LEFTOVERS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state.*)\.(bin|pth|pt)")


@dataclass(frozen=True)
class Wanted:
    """What a name such as OWNER/NAME@REVISION/FILE asks for."""

    repository: str
    revision: str | None
    file: str | None
    kind: Literal["model", "dataset"] = "model"

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


def parse(name: str) -> Wanted:
    """Read OWNER/NAME[@REVISION][/FILE]."""
    match = NAME.fullmatch(name)
    if match is None or (match[3] and not {"", ".", ".."}.isdisjoint(re.split(r"[/\\]", match[3]))):
        raise CheckpointError(f"expected OWNER/NAME, OWNER/NAME@REVISION, or either with /FILE; got {name!r}.")
    return Wanted(match[1], match[2], match[3])


def useful(listed: Iterable[str], wanted: Wanted) -> list[str]:
    """Choose the small files and one kind of weights; where a file is asked for, it and the small files beside it."""
    listed = sorted(listed)
    if wanted.kind == "dataset":
        return _tables(listed, wanted)
    held = ", ".join(listed[:10] + ["..."] * (len(listed) > 10)) or "nothing"
    if wanted.file is not None and wanted.file not in listed:
        raise CheckpointError(f"{wanted} has no file {wanted.file}. It has {held}.")
    place = PurePosixPath(wanted.file or "x").parent
    beside = [name for name in listed if PurePosixPath(name).parent == place]
    small = [name for name in beside if PurePosixPath(name).name == SUMS or name.endswith(".json")]
    weights = [wanted.file] if wanted.file else _weights(beside)
    if not weights:
        kinds = ", ".join(suffix for kind in KINDS for suffix in kind)
        raise CheckpointError(
            f"expected a repository with weights ({kinds}) at its top; {wanted} has {held}. "
            "Check the name, or name a file: OWNER/NAME/FILE."
        )
    # An index tells which shard holds what: of no use without its shards.
    shards = tuple({f"{PurePosixPath(name).suffix}.index.json" for name in weights if name not in WHOLE})
    small = [name for name in small if not name.endswith(".index.json") or name.endswith(shards)]
    return sorted({*small, *weights})


def _tables(listed: list[str], wanted: Wanted) -> list[str]:
    """Choose the parquet files: all of them, or the one that is asked for, or those of a folder."""
    found = [name for name in listed if name.endswith(".parquet")]
    if wanted.file is not None:
        found = [name for name in found if name == wanted.file or name.startswith(f"{wanted.file.rstrip('/')}/")]
    if not found:
        raise CheckpointError(
            f"expected parquet files in {wanted}{f'/{wanted.file}' if wanted.file else ''}; it has "
            f"{', '.join(listed[:10]) or 'nothing'}. Check the name; the Hub keeps a parquet copy of many sets under "
            "@refs/convert/parquet."
        )
    return found


def _weights(names: list[str]) -> list[str]:
    for kind in KINDS:
        found = [name for name in names if name.endswith(kind) and not LEFTOVERS.fullmatch(name)]
        if found:
            return [name for name in found if name in WHOLE] or found
    return []


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
    check_answers()
    folder = _cached(wanted) if offline_variable() else _fetched(wanted)
    return folder / wanted.file if wanted.file else folder


def _fetched(wanted: Wanted) -> Path:
    from huggingface_hub import HfApi

    try:
        info = HfApi(endpoint=_endpoint()).repo_info(
            wanted.repository, repo_type=wanted.kind, revision=wanted.revision, timeout=TIMEOUT
        )
    except CheckpointError:  # of an answer that is not safe
        raise
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
    except CheckpointError:  # of an answer that is not safe
        raise
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
        return home_path(os.path.expandvars(own))
    if home := os.environ.get("HF_HOME"):
        return home_path(os.path.expandvars(home)) / "hub"
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
    # The client keeps the setting that it was imported with, whatever the environment says now.
    offline = offline_variable() or ("HF_HUB_OFFLINE" if isinstance(error, errors.OfflineModeIsEnabled) else None)
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
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled() if offline:
            message = (
                f"{wanted} is not (or not wholly) in the cache {_cache()}, and {offline} forbids to download it. "
                f"Unset the variable, {elsewhere}."
            )
        case OSError() if error.errno:
            message = (
                f"cannot write {_cache()}: {error.strerror}. Free some space, or set VITRAIL_CACHE to another folder."
            )
        case _:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            message = f"cannot fetch {wanted} from the Hub: {reason}. Check the connection, {elsewhere}."
    return CheckpointError(message)
