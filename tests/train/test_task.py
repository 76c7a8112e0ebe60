"""Splits by what they are for, streams, and one run a folder."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.test_remote import COUNTS, NAMES, settle, write
from families import FAMILIES
from files.servers import Served, Server

import vitrail
from vitrail.cli import main
from vitrail.config import override
from vitrail.config.fields import decode, encode
from vitrail.config.objective import MaskedAutoencoder, MaskedPatches, NextPixels, Objective
from vitrail.config.recipe import Training
from vitrail.data.open import open_data
from vitrail.data.sources.memory import MemorySource
from vitrail.data.sources.packed import pack
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.files import transfer
from vitrail.models import build
from vitrail.runtime.reporter import Reporter
from vitrail.train.folder import lock, run_lock
from vitrail.train.gaps import describe_held_out
from vitrail.train.task import (
    CUT,
    Task,
    build_model,
    choose_parts,
    cut_dev,
    foresee_model,
    keep_classes,
    kept_back,
    without_held_out,
)

TINY = ("--model", "ViT-Ti/4", "--set", "model.depth=1", "--set", "model.width=24", "--set", "model.heads=3")


def images_of(count: int, seed: int = 0) -> MemorySource:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return MemorySource(pixels, np.arange(count) % 2, ("ant", "bee"))


@pytest.mark.parametrize("names", [("test",), ("val",), ("test", "val")])
def test_what_is_to_be_tested_on_is_never_trained_on(names: tuple[str, ...], tmp_path: Path) -> None:
    splits = {name: images_of(12) for name in names}
    with pytest.raises(DataError, match=r"expected a train split.*Name the folder train"):
        cut_dev(splits, 0.1, tmp_path / CUT)
    with pytest.raises(DataError, match="expected a train split"):
        choose_parts(splits, None)


def test_a_cut_is_by_content_and_is_read_again(tmp_path: Path) -> None:
    splits = {"all": images_of(40)}
    cut = cut_dev(splits, 0.2, tmp_path / CUT)
    assert cut is not None
    assert sorted([*cut[0], *cut[1]]) == list(range(40))
    assert len(cut[1]) == 8
    again = cut_dev(splits, 0.2, tmp_path / CUT)
    assert again is not None
    np.testing.assert_array_equal(again[1], cut[1])
    kept = kept_back(tmp_path, splits["all"])
    assert kept is not None
    np.testing.assert_array_equal(kept[0].indices, cut[0])
    np.testing.assert_array_equal(kept[1].indices, cut[1])
    assert kept_back(tmp_path, images_of(40, seed=1)) is None  # other images
    other = cut_dev(splits, 0.5, tmp_path / CUT)
    assert other is not None
    assert len(other[1]) == 20


def test_a_val_split_is_taken_as_it_is_also_when_packed(tmp_path: Path) -> None:
    for name, seed in (("train", 0), ("validation", 1)):
        pack(images_of(6, seed), tmp_path / "packed" / name, 8, overwrite=False)
    splits = open_data(tmp_path / "packed")
    assert cut_dev(splits, 0.1, tmp_path / CUT) is None
    parts = choose_parts(splits, None)
    assert parts.val is splits["val"]


def test_too_few_images_to_keep_any_back_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack(images_of(4), tmp_path / "few", 8, overwrite=False)
    command = ["finetune", str(tmp_path / "few"), *TINY, "--set", "model.mlp_width=29", "--set", "image_size=8"]
    assert main([*command, "--steps", "1", "--workers", "0", "--out", str(tmp_path / "run")]) == 0
    assert "too few images to keep any back" in capsys.readouterr().err


def test_data_without_splits_is_evaluated_on_what_was_kept_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(images_of(40), tmp_path / "flat", 8, overwrite=False)
    command = ["finetune", str(tmp_path / "flat"), *TINY, "--set", "model.mlp_width=29", "--set", "image_size=8"]
    assert main([*command, "--steps", "1", "--workers", "0", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / "flat"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 4
    assert "kept back" in found["split"]
    assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / "flat"), "--json", "--split", "all"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 40


def test_two_runs_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import vitrail.train.folder as module

    said: list[str] = []
    report = Reporter()
    monkeypatch.setattr(report, "note", said.append)
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    monkeypatch.setattr(module, "lock", lambda file: False)  # another process has it
    assert lock is not module.lock
    with pytest.raises(CheckpointError, match="another process trains in"), run_lock(tmp_path, report):
        raise AssertionError("it is not free")
    assert said == [f"another process trains in {tmp_path}: waiting for it to end"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transfer, "PAUSES", (0.0, 0.0))
    made = Server()
    for number in range(len(COUNTS)):
        made.files[f"/set/s-{number}.tar"] = Served(write(tmp_path / f"s-{number}.tar", number).read_bytes())
    made.files["/set/classes.txt"] = Served("\n".join(NAMES).encode())
    with made.running():
        yield made
        settle()


def test_a_stream_is_trained_on_and_gone_on_with(server: Server, tmp_path: Path) -> None:
    """Its steps are those of a run without an interruption, past the end of an epoch too."""

    def train(out: str, steps: int, save: int) -> None:
        command = ["pretrain", server.url("set/s-{0..4}.tar"), *TINY, "--recipe", "small", "--batch", "8"]
        command += ["--set", "model.mlp_width=29", "--set", "image_size=8", "--steps", str(steps), "--workers", "0"]
        command += ["--set", f"save_every={save}", "--set", "schedule.curve=constant", "--set", "warmup=0"]
        assert main([*command, "--out", str(tmp_path / out), "--quiet"]) == 0

    train("whole", 9, 100)
    train("parts", 9, 4)
    # As if it had been killed after step 8, in the second epoch of 6 steps.
    for name in ("summary.json", "weights.safetensors", "SHA256SUMS"):
        (tmp_path / "parts" / name).unlink()
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-000000009")
    train("parts", 9, 4)
    whole, parts = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts


def test_a_share_of_the_classes_is_kept_out_of_every_split(tmp_path: Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
    names = tuple("abcdef")
    splits = {name: MemorySource(pixels, np.arange(24) % 6, names) for name in ("train", "val", "test")}
    assert keep_classes(splits, 0.0) is splits
    kept = keep_classes(splits, 0.34)
    parts = choose_parts(kept, cut_dev(kept, 0.5, tmp_path / CUT))
    assert parts.val is not None
    assert parts.test is not None
    assert parts.train.class_names == parts.val.class_names == parts.test.class_names
    assert len(parts.train.class_names) == 4
    for part in (parts.train, parts.val, parts.test):
        assert len(part) == 16
        assert {names[int(part.name(place).split()[1]) % 6] for place in range(16)} == set(parts.train.class_names)
    assert describe_held_out(splits, parts) == "2 of 6 classes kept out whole: 16 images of 4 to train on"


def test_a_run_of_before_there_were_margins_goes_on(tmp_path: Path) -> None:
    pack(images_of(40), tmp_path / "flat", 8, overwrite=False)
    command = ["finetune", str(tmp_path / "flat"), *TINY, "--set", "model.mlp_width=29", "--set", "image_size=8"]
    command += ["--steps", "2", "--workers", "0", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(command) == 0
    begun = json.loads((tmp_path / "run" / "training.json").read_text())
    for name in ("margin", "held_out"):
        del begun["training"][name]
    (tmp_path / "run" / "training.json").write_text(json.dumps(begun))
    assert main(command) == 0
    assert without_held_out(tmp_path / "run", source := images_of(40)) is source


def test_a_run_of_mae_of_before_heads_had_a_width_goes_on_with_theirs_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(images_of(40), tmp_path / "flat", 8, overwrite=False)
    command = ["pretrain", str(tmp_path / "flat"), *TINY, "--objective", "mae", "--steps", "2", "--workers", "0"]
    command += ["--set", "model.mlp_width=29", "--set", "image_size=8", "--out", str(tmp_path / "run"), "--quiet"]
    assert main([*command, "--set", "decoder_head_width=32"]) == 0
    begun = json.loads((tmp_path / "run" / "training.json").read_text())
    del begun["training"]["objective"]["decoder_head_width"]
    (tmp_path / "run" / "training.json").write_text(json.dumps(begun))
    capsys.readouterr()
    assert main(command) == 1
    assert "decoder_head_width" in " ".join(capsys.readouterr().err.split())
    assert main([*command, "--set", "decoder_head_width=32"]) == 0
    old = encode(MaskedAutoencoder())
    del old["decoder_head_width"]
    assert decode(old, Objective, "objective") == MaskedAutoencoder(decoder_head_width=32)


def test_what_is_said_of_a_checkpoint_helps_to_recognize_it(tmp_path: Path) -> None:
    config = override(FAMILIES["vit"], {"image_size": (12, 20), "pooling": "mean"})
    vitrail.save(build(config, seed=0), tmp_path / "vit.npz", layout="google")
    task = unlabeled(tmp_path, str(tmp_path / "vit.npz"), MaskedPatches(), image_size=(12, 20))
    assert foresee_model(task).image_size == (12, 20)
    assert build_model(task, task.training, ()).config.image_size == (12, 20)


class Unread(MemorySource):
    """Images that nobody may look at."""

    def read(self, index: int) -> Any:
        raise AssertionError(f"image {index} was read")


def unlabeled(tmp_path: Path, model: str, objective: Objective, **fields: Any) -> Task:
    splits = {"all": Unread(np.zeros((40, 8, 8, 3), dtype=np.uint8), np.arange(40) % 2, ("ant", "bee"))}
    training = Training(objective=objective, steps=1, validation_share=0.1, **fields)
    return Task(command="", data="", splits=splits, model=model, training=training, out=tmp_path / "run")


@pytest.mark.parametrize("objective", [MaskedPatches(), MaskedAutoencoder(), NextPixels()])
def test_a_model_that_cannot_learn_what_is_asked_is_refused_before_an_image_is_read(
    objective: Objective, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="a BiT has none"):
        unlabeled(tmp_path, "BiT-R50x1", objective)
    vitrail.save(build(FAMILIES["vit-hidden"], seed=0), tmp_path / "hidden")
    with pytest.raises(ConfigError, match="the tanh layer before the head"):
        unlabeled(tmp_path, str(tmp_path / "hidden"), objective)


@pytest.mark.parametrize("made", [True, False])
def test_the_model_that_is_foreseen_is_the_one_that_is_made(tmp_path: Path, *, made: bool) -> None:
    model = "ViT-Ti/4"
    if made:
        model = str(tmp_path / "vit")
        vitrail.save(build(FAMILIES["vit"], seed=0), model)
    task = unlabeled(tmp_path, model, MaskedPatches(), image_size=(16, 28), dropout=0.2)
    found = foresee_model(task)
    assert found == build_model(task, task.training, ()).config
    assert (found.image_size, getattr(found, "dropout", None)) == ((16, 28), 0.2)


@pytest.mark.parametrize("word", ["masked-patch", "mae", "next-pixel"])
def test_the_command_refuses_such_a_model_before_images_are_hashed(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("images were hashed")

    monkeypatch.setattr("vitrail.train.folder.content_hashes", fail)
    monkeypatch.setattr("vitrail.data.splits.content_hashes", fail)
    pack(images_of(40), tmp_path / "flat", 8, overwrite=False)
    data, out = str(tmp_path / "flat"), tmp_path / "run"
    command = ["pretrain", data, "--objective", word, "--model", "BiT-R50x1", "--steps", "1", "--probe", data]
    assert main([*command, "--out", str(out)]) == 1
    assert "a BiT has none. Take another model." in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_of_more_images_than_are_looked_through_those_to_choose_by_are_drawn_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images_of(60)
    monkeypatch.setattr("vitrail.train.task.LARGEST", 50)
    monkeypatch.setattr(type(source), "read", lambda *_: pytest.fail("an image was read"))
    cut = cut_dev({"train": source}, 0.2, tmp_path / CUT)
    assert cut is not None
    assert sorted(np.concatenate(cut).tolist()) == list(range(60))
    assert len(cut[1]) == 12
    assert cut[1].max() - cut[1].min() > 30  # from everywhere
    again = cut_dev({"train": source}, 0.2, tmp_path / CUT)
    assert again is not None
    assert again[1].tolist() == cut[1].tolist()
