"""Documents of runs from before fields had the names that they have now: they are read, and such runs resume."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from killed_runs import Runs, arguments, result

import vitrail
from vitrail.checkpoint.run_folder import BOX
from vitrail.config import ViTConfig, decode, encode
from vitrail.config.objective import MaskedAutoencoder, MaskedPatches, NextPixels
from vitrail.config.recipe import EMA, SGD, Augmentation, Training

ROOT = Path(__file__).parents[2]
# Documents of before the field's words; later ones have those.
KEPT = sorted(path for path in (ROOT / "results").rglob("training.json") if '"optimiser"' in path.read_text())
# What fields of each kind were called, by what they are called now.
BEFORE: dict[str, dict[str, str]] = {
    "training": {
        "optimizer": "optimiser",
        "batch_size": "batch",
        "clip_norm": "clip",
        "label_smoothing": "smoothing",
        "ema": "average",
        "pre_logits": "hidden",
        "validation_share": "dev",
        "augment_on": "augmenting",
        "bad_image_limit": "limit",
    },
    "adam": {"learning_rate": "rate", "weight_decay": "decay"},
    "sgd": {"learning_rate": "rate"},
    "schedule": {"warmup_steps": "warmup", "final_learning_rate": "end"},
    "augmentation": {"crop_area": "area", "random_erasing": "erasing"},
    "mae": {"normalized": "normalised"},
    "next-pixel": {"colors": "colours"},
    "vit": {"pre_logits": "representation_width"},
}
KINDS = {"ema": "average"}
VALUES = {"mean-color": "mean-colour", "small-colors": "small-colours"}
LATER = ("adapt", "warmup_epochs", "result", "class_weights", "sampling", "logit_adjustment", "focal")
LATER += ("initialization", "task", "distill")


def old(document: Any) -> Any:
    """Give a document as it was written then."""
    if not isinstance(document, dict):
        return VALUES.get(document, document) if isinstance(document, str) else document
    kind = document.get("kind")
    names = BEFORE.get(kind, {}) if isinstance(kind, str) else {}
    fields = {names.get(name, name): old(value) for name, value in document.items() if name not in LATER}
    return fields | ({"kind": KINDS.get(kind, kind)} if isinstance(kind, str) else {})


def names_of(document: Any) -> Any:
    return {name: names_of(value) for name, value in document.items()} if isinstance(document, dict) else None


def within(document: Any, other: Any) -> Any:
    """Give what another document has too: without fields that came later still."""
    if not isinstance(document, dict) or not isinstance(other, dict):
        return document
    return {name: within(value, other[name]) for name, value in document.items() if name in other}


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.name)
def test_a_document_that_was_kept_is_read_as_it_was_meant(path: Path) -> None:
    said = json.loads(path.read_text())["training"]
    training = decode(said, Training, "training")
    assert within(old(encode(training)), said) == said
    assert training.optimizer.learning_rate == said["optimiser"]["rate"]
    assert (training.batch_size, training.clip_norm) == (said["batch"], said["clip"])
    assert (training.label_smoothing, training.validation_share) == (said["smoothing"], said["dev"])


@pytest.mark.parametrize(
    "training",
    [
        Training(optimizer=SGD(learning_rate=0.03), steps=3, batch_size=8, clip_norm=2.0),
        Training(objective=MaskedPatches(target="small-colors"), steps=3, ema=EMA(decay=0.9), pre_logits=True),
        Training(objective=MaskedAutoencoder(normalized=False), steps=3, augment_on="device", bad_image_limit=0.2),
        Training(objective=NextPixels(colors=64), steps=3, augmentation=Augmentation(crop_area=(0.3, 1.0))),
    ],
    ids=lambda training: type(training.objective).__name__,
)
def test_every_old_name_is_read(training: Training) -> None:
    meant = replace(training, result="last")  # the last weights were the result of every run then
    assert decode(old(encode(training)), Training, "training") == meant


def test_the_model_in_the_box_is_read_by_its_old_names() -> None:
    said = json.loads((BOX / "vitrail-ti8" / "config.json").read_text())["model"]
    assert "representation_width" in said
    assert decode(said) == vitrail.load("vitrail-ti8").config
    deep = {**said, "representation_width": 24}
    found = decode(deep)
    assert isinstance(found, ViTConfig)
    assert found.pre_logits == 24


def test_a_run_that_was_begun_by_an_old_document_resumes_to_the_same_bits(
    runs: Runs, images: Path, stopped: Path, wanted: dict[str, Any]
) -> None:
    begun = json.loads((stopped / "training.json").read_text())
    begun["training"] = old(begun["training"])
    kept = json.loads((ROOT / "results" / "objectives" / "finetune-labels-0" / "training.json").read_text())
    assert names_of(begun["training"]) == names_of(kept["training"])
    begun["changes"]["representation_width"] = None
    (stopped / "training.json").write_text(json.dumps(begun))
    ended = runs(arguments(images, stopped, "--set", "model.pre_logits=none"))
    assert ended.status == 0, ended.said
    assert "resuming from step 9 of 12" in ended.said
    assert result(stopped) == wanted
