"""From what a person names to files on this machine: a file, a folder, an address, a name on a hub."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.files import SUMS, fetch, fetch_repository

BOX = Path(__file__).parents[1] / "box"  # models that come with the package, a run folder each
FORMAT = "vitrail run folder"  # what config.json of ours says that it is
WEIGHTS = "weights.safetensors"
OBJECTIVE = "objective.safetensors"  # what predicts from a model that learns without labels
BEGUN, SAVED = "training.json", "checkpoints"  # of a run: what was asked, and the folder of its checkpoints
STEP = re.compile(r"step-(\d{9,})")
RUN_FILES = (
    *("config.json", WEIGHTS, OBJECTIVE, "preprocessing.json", "classes.json", "provenance.json", "metrics.json", SUMS),
)
HF_FILES = ("config.json", "model.safetensors", "preprocessor_config.json")
DOCUMENTS = ("config.json", "preprocessor_config.json")  # of others, beside their weights
DEEPEST = 32  # levels
LARGEST_DOCUMENT = 8 * 2**20  # bytes: 21,843 class names are under 2
# The weights in a folder of another library, best first.
USUAL = (
    *("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"),
    "open_clip_pytorch_model.bin",
)
SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where weights lie, the documents beside them by name, and the run folder of ours where it is one."""

    source: str
    weights: Path
    documents: dict[str, Any]
    run: Path | None = None


def find(name: object) -> Place:
    """Find the weights that a path, an address (https://...), a name (hf:OWNER/NAME) or one of the box means."""
    if not isinstance(name, str | os.PathLike) or not os.fspath(name):
        raise CheckpointError(f"expected the path or the address of weights; got {name!r}.")
    source = os.fspath(name)
    if isinstance(source, bytes):
        source = os.fsdecode(source)
    if source in boxed():
        path = BOX / source
    elif source.startswith("hf:"):
        path = fetch_repository(source.removeprefix("hf:"))
    elif "://" in source:
        path = fetch(source)
        source = source.partition("#")[0]
    else:
        path = Path(source).expanduser()
    try:
        if not path.exists():
            raise CheckpointError(
                f"there is no file {path}. Check the path; a name on the Hugging Face hub is hf:OWNER/NAME, "
                f"and in the box there is {', '.join(boxed())}."
            )
        return _in_folder(path, source) if path.is_dir() else _beside(path, source)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error


def boxed() -> tuple[str, ...]:
    """Name the models that come with the package."""
    return tuple(sorted(path.parent.name for path in BOX.glob("*/config.json")))


def is_run(folder: Path) -> bool:
    """Tell whether a folder is one of ours."""
    path = folder / "config.json"
    if (folder / SUMS).is_file() and (folder / WEIGHTS).is_file():
        return True  # also where config.json is lost, which its sums will say
    return path.is_file() and read_document(path).get("format") == FORMAT


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON object of a likely size."""
    if not path.is_file():
        raise CheckpointError(f"{path} is no plain file.")
    if path.stat().st_size > LARGEST_DOCUMENT:
        raise CheckpointError(f"{path} is too large for a configuration: {path.stat().st_size:,} bytes.")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is no JSON: {error}. Copy or download it again.") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} must hold a JSON object; it holds a {type(document).__name__}.")
    if _depth(document) > DEEPEST:
        raise CheckpointError(f"{path} is nested more than {DEEPEST} deep, as no configuration is.")
    return document


def _depth(document: object) -> int:
    """Count how deep lists and objects lie in each other."""
    depth, layer = 0, [document]
    while layer := [inner for item in layer for inner in _inside(item)]:
        depth += 1
    return depth


def _inside(item: object) -> list[object]:
    return list(item.values()) if isinstance(item, dict) else list(item) if isinstance(item, list) else []


def checkpoints_of(run: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first."""
    found = (run / SAVED).iterdir() if (run / SAVED).is_dir() else ()
    return sorted((path for path in found if STEP.fullmatch(path.name)), key=lambda path: int(path.name[5:]))


def _in_folder(folder: Path, source: str) -> Place:
    if (folder / BEGUN).is_file() and not (folder / SUMS).is_file():  # not finished, or not quite
        if not (found := checkpoints_of(folder)):
            raise CheckpointError(f"{folder} is a run that has saved nothing yet. Let it train for longer.")
        return _in_folder(found[-1], source)
    if is_run(folder):
        if not (folder / WEIGHTS).is_file():
            raise CheckpointError(f"{folder} is a run folder without {WEIGHTS}. Copy it again.")
        documents = {name: read_document(folder / name) for name in ("config.json",) if (folder / name).is_file()}
        return Place(source=source, weights=folder / WEIGHTS, documents=documents, run=folder)
    usual = [folder / name for name in USUAL if (folder / name).is_file()]
    others = [path for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES and path.is_file()]
    if not usual and len(others) != 1:
        names = ", ".join(path.name for path in others[:6])
        what = (
            f"several files of weights: {names}. Give one of them" if others else "no weights. Give a file, or a folder"
        )
        raise CheckpointError(
            f"{folder} is a folder with {what} that a Vitrail run, transformers or timm wrote."
            if not others
            else f"{folder} is a folder with {what}."
        )
    return Place(source=source, weights=(usual or others)[0], documents=_documents(folder))


def _beside(path: Path, source: str) -> Place:
    """Take a file by itself; where it is a library's own, with the documents beside it."""
    if path.name == WEIGHTS and is_run(path.parent):
        return _in_folder(path.parent, source)
    return Place(source=source, weights=path, documents=_documents(path.parent) if path.name in USUAL else {})


def _documents(folder: Path) -> dict[str, Any]:
    return {name: read_document(folder / name) for name in DOCUMENTS if (folder / name).is_file()}
