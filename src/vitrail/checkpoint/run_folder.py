"""From what a person names to files on this machine, and our own run folder: what is in it, read and written."""

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Entry, Headers, read_safetensors, write_safetensors
from vitrail.checkpoint.cards import to_note
from vitrail.checkpoint.layouts.base import NOTE, Dialect, Found, Holds, Layout, Row, read_note
from vitrail.checkpoint.layouts.codecs import SAME
from vitrail.config import Card, ModelConfig, Preprocessing, Provenance, ViTConfig, decode, encode
from vitrail.config.check import number, texts
from vitrail.config.given import check_weights
from vitrail.config.objective import Objective
from vitrail.config.outputs import Outputs
from vitrail.config.zoo import BOX, boxed
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import (
    SUMS,
    fetch,
    fetch_repository,
    home_path,
    listed_sums,
    parse_json,
    read_json,
    write_bytes,
    write_sums,
)
from vitrail.models import skeleton
from vitrail.ops.cost.counts import parameters

FORMAT = "vitrail run folder"  # what config.json of ours says that it is
WEIGHTS = "weights.safetensors"
OBJECTIVE = "objective.safetensors"  # what predicts from a model that learns without labels
OPTIMIZED = "optimized.json"  # of a model in eight bits: its weights have scales beside them
BEGUN, SAVED = "training.json", "checkpoints"  # of a run: what was asked, and the folder of its checkpoints
STEP = re.compile(r"step-(\d{9,})")
RUN_FILES = ("config.json", WEIGHTS, OBJECTIVE, "preprocessing.json", "classes.json", "provenance.json")
RUN_FILES += ("metrics.json", "calibration.json", "outputs.json", OPTIMIZED, SUMS)
HF_FILES = ("config.json", "model.safetensors", "preprocessor_config.json")
ADAPTER = "adapter_config.json"  # of peft
DOCUMENTS = (
    "config.json",
    "preprocessor_config.json",
    "open_clip_config.json",
    ADAPTER,
)  # of others, beside their weights
DEEPEST = 32  # levels
LARGEST_DOCUMENT = 8 * 2**20  # bytes: 21,843 class names are under 2
# The weights in a folder of another library, best first.
USUAL = (
    *("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"),
    *("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
)
SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt")
# What trainers put beside the weights, under the same suffixes.
OF_TRAINERS = re.compile(r"(optimizer|scheduler|scaler|rng_state|random_states|training_args)[._].*")


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where weights lie, the documents beside them by name, and the run folder of ours where it is one."""

    source: str
    weights: Path
    documents: dict[str, Any]
    run: Path | None = None


def locate(name: object) -> Location:
    """Find the weights that a path, an address (https://...), a name (hf:OWNER/NAME) or one of the box means."""
    if not isinstance(name, str | os.PathLike) or not os.fspath(name):
        got = repr(name) if isinstance(name, str) else f"a {type(name).__name__}"
        raise CheckpointError(f"expected the path, the address or the name of weights; got {got}.")
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
        path = home_path(source)
    try:
        if not path.exists():
            check_weights(source)
        if path.is_dir():
            return _in_folder(path, source)
        if path.name == WEIGHTS and is_run(path.parent):
            return _in_folder(path.parent, source)
        documents = _documents(path.parent) if path.name in USUAL else {}  # of a file that is a library's own
        return Location(source=source, weights=path, documents=documents)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error


def is_run(folder: Path) -> bool:
    """Tell whether a folder is one of ours."""
    path = folder / "config.json"
    if (folder / SUMS).is_file() and (folder / WEIGHTS).is_file():
        return True  # also where config.json is lost, which its sums will say
    return path.is_file() and read_document(path).get("format") == FORMAT


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON object of a likely size."""
    try:
        document = read_json(path, most=LARGEST_DOCUMENT, deepest=DEEPEST)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise CheckpointError(f"{path} is too large for a configuration: {error.strerror}.") from error
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}. Copy or download it again.") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is no JSON: {error}. Copy or download it again.") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} must hold a JSON object; it holds a {type(document).__name__}.")
    return document


def checkpoints_of(run: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first."""
    found = (run / SAVED).iterdir() if (run / SAVED).is_dir() else ()
    return sorted((path for path in found if STEP.fullmatch(path.name)), key=lambda path: int(path.name[5:]))


def _in_folder(folder: Path, source: str) -> Location:
    if (folder / BEGUN).is_file() and not (folder / SUMS).is_file():  # not finished, or not quite
        if not (found := checkpoints_of(folder)):
            raise CheckpointError(f"{folder} is a run that has saved nothing yet. Let it train for longer.")
        return _in_folder(found[-1], source)
    if is_run(folder):
        if not (folder / WEIGHTS).is_file():
            raise CheckpointError(f"{folder} is a run folder without {WEIGHTS}. Copy it again.")
        documents = {name: read_document(folder / name) for name in ("config.json",) if (folder / name).is_file()}
        return Location(source=source, weights=folder / WEIGHTS, documents=documents, run=folder)
    usual = [folder / name for name in USUAL if (folder / name).is_file()]
    held = sorted(folder.iterdir())
    others = [path for path in held if path.name.endswith((*SUFFIXES, ".pth.tar")) and path.is_file()]
    others = [path for path in others if not OF_TRAINERS.fullmatch(path.name)]
    if not usual and not others:
        raise CheckpointError(f"{folder} is a folder with no weights. {_instead(folder, held)}")
    if not usual and len(others) > 1:
        names = ", ".join(path.name for path in others[:6])
        raise CheckpointError(f"{folder} is a folder with several files of weights: {names}. Give one of them.")
    return Location(source=source, weights=(usual or others)[0], documents=_documents(folder))


def _instead(folder: Path, held: list[Path]) -> str:
    """Say what to give in the place of a folder without weights, by what lies in it."""
    if any(path.suffix == ".distcp" for path in held):
        return (
            "It is a sharded checkpoint of torch.distributed: make one file of it, "
            "torch.distributed.checkpoint.format_utils.dcp_to_torch_save(FOLDER, NEW)."
        )
    if inside := [path.name for path in held if any((path / name).is_file() for name in USUAL)]:
        return f"Give one of those in it that have some: {', '.join(inside[:6])}."
    return "Give a file, or a folder that a Vitrail run, transformers or timm wrote."


def _documents(folder: Path) -> dict[str, Any]:
    return {name: read_document(folder / name) for name in DOCUMENTS if (folder / name).is_file()}


def read_run_card(folder: Path, classes: int | None) -> Card:
    """Read the documents of a run folder, strictly."""
    try:
        parts: dict[str, Any] = {}
        if (path := folder / "classes.json").is_file():
            said = read_document(path)
            words = {"class_names": "names", "seen": "seen"}
            parts = {key: texts(key, said[word]) for key, word in words.items() if word in said}
        for part, kind in {"preprocessing": Preprocessing, "provenance": Provenance}.items():
            if (path := folder / f"{part}.json").is_file():
                parts[part] = decode(read_document(path), kind)
        if (path := folder / "metrics.json").is_file():
            parts["metrics"] = {name: number(f"metric {name}", value) for name, value in read_document(path).items()}
        if (path := folder / "calibration.json").is_file():
            parts["temperature"] = number("temperature", read_document(path).get("temperature"))
        if (path := folder / "outputs.json").is_file():
            parts["outputs"] = decode(read_document(path), Outputs, "outputs")
        card = Card(**parts)
    except ConfigError as error:
        raise CheckpointError(f"{folder}: {error} Copy the folder again.") from error
    if card.class_names is not None and len(card.class_names) != classes:
        raise CheckpointError(f"{folder}: {len(card.class_names)} class names for {classes} classes. Copy it again.")
    if card.outputs is not None and card.outputs.size != classes:
        raise CheckpointError(f"{folder}: {card.outputs.size} outputs are told of, {classes} are there. Copy it again.")
    return card


class Predictor(NamedTuple):
    """What predicts from a model for an objective without labels: the objective, and tensors by their names."""

    objective: Objective
    tensors: Mapping[str, Tensor]


def write_run(
    folder: Path, config: ModelConfig, tensors: Mapping[str, Tensor], card: Card, predictor: Predictor | None = None
) -> list[str]:
    """Write the files of a model into a folder, and give their names; checksums are the caller's."""
    import vitrail

    grid = {"grid": list(config.grid)} if isinstance(config, ViTConfig) else {}
    said = {"format": FORMAT, "vitrail": vitrail.__version__, "model": encode(config), **grid}
    documents: dict[str, Any] = {"config.json": said, "preprocessing.json": encode(card.preprocessing)}
    classes = {"names": card.class_names, "seen": card.seen or None}
    if known := {word: list(names) for word, names in classes.items() if names is not None}:
        documents["classes.json"] = known
    if card.provenance is not None:
        documents["provenance.json"] = encode(card.provenance)
    if card.metrics:
        documents["metrics.json"] = dict(card.metrics)
    if card.temperature != 1:
        documents["calibration.json"] = {"temperature": card.temperature}
    if card.outputs is not None:
        documents["outputs.json"] = encode(card.outputs)
    write_documents(folder, documents)
    write_safetensors(folder / WEIGHTS, tensors, to_note(config, card))
    if predictor is None:
        return [*documents, WEIGHTS]
    note = {"objective": encode(predictor.objective)}
    write_safetensors(folder / OBJECTIVE, predictor.tensors, {NOTE: json.dumps(note)})
    return [*documents, WEIGHTS, OBJECTIVE]


def read_predictor(folder: Path) -> Predictor | None:
    """Read what predicts from the model of a run folder, where there is such."""
    path = folder / OBJECTIVE
    if not path.is_file():
        return None
    tensors, notes = read_safetensors(path)
    try:
        return Predictor(decode(parse_json(notes[NOTE])["objective"], Objective, "objective"), tensors)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"{path} does not say what it predicts: {error!r}. Copy it again.") from error


def renew_run(
    folder: Path, config: ModelConfig, tensors: Mapping[str, Tensor], card: Card, predictor: Predictor | None = None
) -> None:
    """Write a model into a folder that holds other things too, over one that is there, each file whole."""
    (folder / SUMS).unlink(missing_ok=True)  # what it says is about to change
    names = write_run(folder, config, tensors, card, predictor)
    for name in RUN_FILES:
        if name not in names:
            (folder / name).unlink(missing_ok=True)
    write_sums(folder, names)


def calibrate_run(folder: Path, temperature: float) -> None:
    """Write a temperature into the card of a run folder, in place of an earlier one."""
    write_documents(folder, {"calibration.json": {"temperature": temperature}})
    if (folder / SUMS).is_file():
        write_sums(folder, {*listed_sums(folder), "calibration.json"})


def write_documents(folder: Path, documents: Mapping[str, Any]) -> None:
    """Write JSON documents by their names."""
    for name, document in documents.items():
        write_bytes(folder / name, (json.dumps(document, indent=2) + "\n").encode())


def _recognize_own(entries: Mapping[str, Entry]) -> str | None:
    """Tell our names, those of the modules, from others'."""
    ours = "blocks.0.attention.qkv.weight" in entries or {"root.weight", "stages.0.0.conv1.weight"} <= entries.keys()
    return "" if ours else None


def _infer_own(headers: Headers, hints: Request, documents: Mapping[str, Any]) -> Found:
    """Read the configuration that was written with the weights."""
    document = documents.get("config.json", {}).get("model") or read_note(documents)
    if not document:
        raise CheckpointError(
            "the weights have Vitrail's names but come without their configuration. Give the run folder that holds "
            "config.json and weights.safetensors."
        )
    if hints.grid is not None:
        raise CheckpointError("a file of Vitrail's own says its grid. Leave grid out.")
    try:
        config = decode(document)
    except ConfigError as error:
        raise CheckpointError(f"the configuration beside the weights cannot be: {error}") from error
    _check_size(headers, config)
    return Found(config=config, dialect={})


def _check_size(headers: Headers, config: ModelConfig) -> None:
    """Refuse a configuration that is far larger than the file before a module is made of it."""
    stem = config.stem if isinstance(config, ViTConfig) else config
    parts = sum(getattr(stem, "units", ())) + (config.layers if isinstance(config, ViTConfig) else 0)
    held = sum(prod(shape) for shape in headers.shapes.values())
    stages = len(getattr(stem, "units", ()))
    if parts > 2 * len(headers.shapes) or stages > 16 or parameters(config).total > 2 * held + 10_000_000:
        raise CheckpointError(
            "the configuration beside the weights is of another model, far larger than the file. Copy both again."
        )


def _own_rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter: itself."""
    for name, tensor in skeleton(config).state_dict().items():
        yield Row(name, (name,), tuple(tensor.shape), SAME)


OWN = Layout(
    name="vitrail",
    title="Vitrail's own names",
    recognize=_recognize_own,
    infer=_infer_own,
    rows=_own_rows,
    dialect=lambda config: {},
    holds=Holds(),
)
