"""Our own layout: a folder with the model, its weights, and what belongs to them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.checkpoint.archives import write_safetensors
from vitrail.checkpoint.layouts.base import NOTE
from vitrail.checkpoint.place import FORMAT, RUN_FILES, WEIGHTS
from vitrail.config import Card, ModelConfig, ViTConfig, encode, to_document
from vitrail.files import SUMS, write_bytes, write_sums


def write_run(folder: Path, config: ModelConfig, tensors: Mapping[str, Tensor], card: Card) -> None:
    """Write the files of a model into a folder; checksums are the caller's."""
    write_documents(folder, run_documents(config, card))
    write_safetensors(folder / WEIGHTS, tensors, {NOTE: json.dumps({"model": encode(config)})})


def renew_run(folder: Path, config: ModelConfig, tensors: Mapping[str, Tensor], card: Card) -> None:
    """Write a model into a folder that holds other things too, over one that is there, each file whole."""
    documents = run_documents(config, card)
    (folder / SUMS).unlink(missing_ok=True)  # what it says is about to change
    for name in RUN_FILES:
        if name.endswith(".json") and name not in documents:
            (folder / name).unlink(missing_ok=True)
    write_documents(folder, documents)
    write_safetensors(folder / WEIGHTS, tensors, {NOTE: json.dumps({"model": encode(config)})})
    write_sums(folder, [*documents, WEIGHTS])


def run_documents(config: ModelConfig, card: Card) -> dict[str, Any]:
    """Give the JSON documents beside the weights."""
    import vitrail

    grid: dict[str, Any] = {"grid": list(config.grid)} if isinstance(config, ViTConfig) else {}
    documents: dict[str, Any] = {
        "config.json": {"format": FORMAT, "vitrail": vitrail.__version__, "model": encode(config), **grid}
    }
    documents["preprocessing.json"] = to_document(card.preprocessing)
    classes = {"names": card.class_names, "seen": card.seen or None}
    if known := {word: list(names) for word, names in classes.items() if names is not None}:
        documents["classes.json"] = known
    if card.provenance is not None:
        documents["provenance.json"] = to_document(card.provenance)
    if card.metrics:
        documents["metrics.json"] = dict(card.metrics)
    return documents


def write_documents(folder: Path, documents: Mapping[str, Any]) -> None:
    """Write JSON documents by their names."""
    for name, document in documents.items():
        write_bytes(folder / name, (json.dumps(document, indent=2) + "\n").encode())
