"""Our own layout: a folder with the model, its weights, and what belongs to them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from vitrail.checkpoint.archives import write_safetensors
from vitrail.checkpoint.archives.safe import read_safetensors
from vitrail.checkpoint.layouts.base import NOTE
from vitrail.checkpoint.place import FORMAT, OBJECTIVE, RUN_FILES, WEIGHTS
from vitrail.config import Card, ModelConfig, ViTConfig, decode, encode
from vitrail.config.objective import Objective
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import SUMS, write_bytes, write_sums


class Predictor(NamedTuple):
    """What predicts from a model for an objective without labels: the objective, and tensors by their names."""

    objective: Objective
    tensors: Mapping[str, Tensor]


def write_run(
    folder: Path,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    card: Card,
    predictor: Predictor | None = None,
) -> list[str]:
    """Write the files of a model into a folder, and give their names; checksums are the caller's."""
    documents = run_documents(config, card)
    write_documents(folder, documents)
    write_safetensors(folder / WEIGHTS, tensors, {NOTE: json.dumps({"model": encode(config)})})
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
        return Predictor(decode(json.loads(notes[NOTE])["objective"], Objective, "objective"), tensors)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"{path} does not say what it predicts: {error!r}. Copy it again.") from error


def renew_run(
    folder: Path,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    card: Card,
    predictor: Predictor | None = None,
) -> None:
    """Write a model into a folder that holds other things too, over one that is there, each file whole."""
    (folder / SUMS).unlink(missing_ok=True)  # what it says is about to change
    names = write_run(folder, config, tensors, card, predictor)
    for name in RUN_FILES:
        if name not in names:
            (folder / name).unlink(missing_ok=True)
    write_sums(folder, names)


def run_documents(config: ModelConfig, card: Card) -> dict[str, Any]:
    """Give the JSON documents beside the weights."""
    import vitrail

    grid: dict[str, Any] = {"grid": list(config.grid)} if isinstance(config, ViTConfig) else {}
    documents: dict[str, Any] = {
        "config.json": {"format": FORMAT, "vitrail": vitrail.__version__, "model": encode(config), **grid}
    }
    documents["preprocessing.json"] = encode(card.preprocessing)
    classes = {"names": card.class_names, "seen": card.seen or None}
    if known := {word: list(names) for word, names in classes.items() if names is not None}:
        documents["classes.json"] = known
    if card.provenance is not None:
        documents["provenance.json"] = encode(card.provenance)
    if card.metrics:
        documents["metrics.json"] = dict(card.metrics)
    return documents


def write_documents(folder: Path, documents: Mapping[str, Any]) -> None:
    """Write JSON documents by their names."""
    for name, document in documents.items():
        write_bytes(folder / name, (json.dumps(document, indent=2) + "\n").encode())
