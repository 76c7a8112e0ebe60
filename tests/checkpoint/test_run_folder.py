"""Our own run folder: all of it comes back, no half of it is ever read, and any change to a file is seen."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from families import FAMILIES, family, images_for

import vitrail
from vitrail.config import Card, Preprocessing, decode
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import write_sums

NAMES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")
CARD = Card(
    class_names=NAMES,
    preprocessing=Preprocessing(mean=(0.4, 0.5, 0.6), deviation=(0.2, 0.2, 0.3), resize="crop", crop_share=0.9),
    metrics={"accuracy": 0.91, "loss": 0.3},
)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_model_comes_back_with_all_that_belongs_to_it(name: str, tmp_path: Path) -> None:
    model = family(name)
    vitrail.save(model, tmp_path / "run", card=CARD)
    back = vitrail.load(tmp_path / "run")
    assert back.config == model.config
    assert back.card.class_names == NAMES
    assert back.card.preprocessing == CARD.preprocessing
    assert dict(back.card.metrics) == dict(CARD.metrics)
    images = images_for(model)
    assert torch.equal(back(images), model(images))
    again = vitrail.save(back, tmp_path / "again")
    assert again.lost == ()
    assert vitrail.load(tmp_path / "again").card.class_names == NAMES


def test_the_folder_says_what_it_holds_in_files_that_people_can_read(tmp_path: Path) -> None:
    vitrail.save(family("vit"), tmp_path / "source.npz", layout="google")
    vitrail.save(vitrail.load(tmp_path / "source.npz", grid=(3, 5)), tmp_path / "run", card=None)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert decode(config["model"]) == FAMILIES["vit"]
    assert config["grid"] == [3, 5]
    provenance = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert provenance["layout"] == "google"
    assert provenance["source"] == str(tmp_path / "source.npz")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        *("config.json", "weights.safetensors", "preprocessing.json", "provenance.json", "SHA256SUMS"),
    }
    checked = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "run", check=False, capture_output=True
    )
    assert checked.returncode == 0
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((tmp_path / "run" / "weights.safetensors").read_bytes())
    assert vitrail.load(alone).config == FAMILIES["vit"]  # the weights carry their configuration too


@pytest.mark.parametrize(
    "name", ["config.json", "weights.safetensors", "classes.json", "preprocessing.json", "metrics.json"]
)
def test_a_changed_or_missing_file_is_seen(name: str, tmp_path: Path) -> None:
    vitrail.save(family("vit"), tmp_path / "run", card=CARD)
    path = tmp_path / "run" / name
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[-9] ^= 1  # a digit, or a bit of the last weight
    path.write_bytes(changed)
    with pytest.raises(CheckpointError):
        vitrail.load(tmp_path / "run")
    path.unlink()
    with pytest.raises(CheckpointError):
        vitrail.load(tmp_path / "run")
    path.write_bytes(whole)
    vitrail.load(tmp_path / "run")


def test_a_folder_without_its_sums_is_refused(tmp_path: Path) -> None:
    vitrail.save(family("vit"), tmp_path / "run")
    (tmp_path / "run" / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match="SHA256SUMS"):
        vitrail.load(tmp_path / "run")


def test_nothing_half_written_is_left_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vitrail.save(family("vit"), tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}

    def interrupted(*_: object) -> None:
        assert not (tmp_path / "new").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["vitrail.checkpoint.run_folder"], "write_safetensors", interrupted)
    for target in ("new", "run"):
        with pytest.raises(KeyboardInterrupt):
            vitrail.save(family("vit-mean"), tmp_path / target, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_an_existing_folder_is_replaced_only_when_asked_and_only_if_it_is_a_model(tmp_path: Path) -> None:
    vitrail.save(family("vit"), tmp_path / "run")
    with pytest.raises(CheckpointError, match="exists already"):
        vitrail.save(family("vit-mean"), tmp_path / "run")
    vitrail.save(family("vit-mean"), tmp_path / "run", overwrite=True)
    assert vitrail.load(tmp_path / "run").config == FAMILIES["vit-mean"]
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "one.jpg").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="its files would be lost"):
        vitrail.save(family("vit"), photos, overwrite=True)
    assert (photos / "one.jpg").exists()


def test_documents_that_make_no_sense_are_refused_though_their_sums_fit(tmp_path: Path) -> None:
    vitrail.save(family("vit"), tmp_path / "run", card=CARD)
    for name, document, words in (
        ("classes.json", {"names": ["a", "b"]}, "2 class names for 7 classes"),
        ("classes.json", {"names": "abcdefg"}, "class_names must be a list of texts"),
        ("metrics.json", {"accuracy": "high"}, "metric accuracy must be a finite number"),
        ("preprocessing.json", {"mena": [0.5]}, "Preprocessing has no field 'mena'"),
        ("provenance.json", {"source": "x"}, "Provenance"),
    ):
        path = tmp_path / "run" / name
        before = path.read_bytes() if path.exists() else None
        path.write_text(json.dumps(document))
        write_sums(tmp_path / "run")
        with pytest.raises(CheckpointError, match=words):
            vitrail.load(tmp_path / "run")
        path.unlink() if before is None else path.write_bytes(before)
    write_sums(tmp_path / "run")
    vitrail.load(tmp_path / "run")


def test_class_names_must_be_as_many_as_the_classes_and_go_with_a_new_head(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="2 class names for 7 classes"):
        vitrail.save(family("vit"), tmp_path / "run", card=Card(class_names=("a", "b")))
    assert list(tmp_path.iterdir()) == []
    vitrail.save(family("vit"), tmp_path / "run", card=CARD)
    fresh = vitrail.load(tmp_path / "run", classes=7)
    assert fresh.card.class_names is None
    assert fresh.card.metrics == {}
    vitrail.save(vitrail.load(tmp_path / "run"), tmp_path / "hf", layout="hf")
    labels = json.loads((tmp_path / "hf" / "config.json").read_text())["id2label"]
    assert tuple(labels.values()) == NAMES
    assert vitrail.load(tmp_path / "hf").card.class_names == NAMES
    processor = json.loads((tmp_path / "hf" / "preprocessor_config.json").read_text())
    assert processor["image_mean"] == [0.4, 0.5, 0.6]


def test_other_files_are_left_alone_and_never_overwritten(tmp_path: Path) -> None:
    vitrail.save(family("vit"), tmp_path / "run")
    (tmp_path / "run" / "README.md").write_text("mine")
    vitrail.load(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"it also holds README\.md, which would be lost"):
        vitrail.save(family("vit"), tmp_path / "run", overwrite=True)
    (tmp_path / "run" / "metrics.json").write_text("{}")  # one of ours that is not listed
    with pytest.raises(CheckpointError, match=r"metrics\.json is not listed"):
        vitrail.load(tmp_path / "run")


def test_a_conversion_says_what_it_opened_not_where_it_once_came_from(tmp_path: Path) -> None:
    vitrail.save(family("vit", image_size=(20, 20)), tmp_path / "w.npz", layout="google")
    vitrail.convert(tmp_path / "w.npz", tmp_path / "run", layout="vitrail")
    report = vitrail.convert(tmp_path / "run", tmp_path / "hf", layout="hf")
    assert report.came is not None
    assert (report.came.layout, report.came.container) == ("vitrail", "safetensors")
