"""Exported files: what their engines give is what the model gives, and what differs is not kept."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from families import family

import vitrail
from vitrail.cli import main
from vitrail.config import Card, Preprocessing
from vitrail.errors import CheckpointError, ConfigError, ShapeError
from vitrail.exports import verify
from vitrail.models import Model
from vitrail.runtime.engines import open_engine

CARD = Card(
    class_names=tuple(f"kind {number}" for number in range(7)),
    preprocessing=Preprocessing(mean=(0.4, 0.5, 0.6), deviation=(0.2, 0.25, 0.3)),
    temperature=1.7,
)
BARE = Path(__file__).with_name("run_bare.py")


def small() -> Model:
    model = family("vit", depth=1)
    model.card = CARD
    return model


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    jaxtyping.config.update("jaxtyping_disable", True)
    path = tmp_path_factory.mktemp("exported") / "small.onnx"
    made = vitrail.export(small(), out=path)
    jaxtyping.config.update("jaxtyping_disable", False)
    assert made.verified is not None
    assert made.verified.difference < 1e-5
    assert "any sides that are multiples of 4" in str(made)
    assert json.loads(json.dumps(made.document()))["sizes"]["free"]
    return path


def test_a_file_gives_what_the_model_gives_at_other_sizes_than_it_was_verified_at(exported: Path) -> None:
    model = small()
    for batch, height, width in ((3, 8, 36), (7, 28, 12)):
        engine, images = open_engine(exported, (height, width)), torch.randn(batch, 3, height, width)
        with torch.no_grad():
            torch.testing.assert_close(engine(images), model(images), atol=1e-5, rtol=0)
            torch.testing.assert_close(engine.represent(images), model.represent(images), atol=1e-5, rtol=0)


def test_a_file_knows_classes_preprocessing_and_temperature(exported: Path) -> None:
    engine = open_engine(exported)
    assert engine.card.class_names == CARD.class_names
    assert engine.card.preprocessing == CARD.preprocessing
    assert engine.card.temperature == CARD.temperature
    assert engine.config == small().config
    assert engine.said["verified"]["batches"] == [1, 2, 5]
    assert len(engine.said["verified"]["sizes"]) == 3


def test_other_programs_find_the_metadata_and_names_of_the_axes(exported: Path) -> None:
    onnx = pytest.importorskip("onnx")
    loaded = onnx.load(exported)
    onnx.checker.check_model(loaded)
    said = {entry.key: json.loads(entry.value) for entry in loaded.metadata_props}
    assert said["class_names"][2] == "kind 2"
    assert said["mean"] == [0.4, 0.5, 0.6]
    axes = [side.dim_param or side.dim_value for side in loaded.graph.input[0].type.tensor_type.shape.dim]
    assert axes == ["batch", 3, "height", "width"]


def test_predict_and_embed_take_a_file_as_a_model(exported: Path) -> None:
    images = [np.random.default_rng(0).integers(0, 256, (15, 31, 3), dtype=np.uint8) for _ in range(3)]
    ours, theirs = vitrail.predict(small(), images), vitrail.predict(exported, images)
    assert [each.label for each in ours] == [each.label for each in theirs]
    assert [each.probability for each in ours] == pytest.approx([each.probability for each in theirs], abs=1e-5)
    torch.testing.assert_close(vitrail.embed(exported, images), vitrail.embed(small(), images), atol=1e-5, rtol=0)


def test_sizes_that_a_graph_cannot_take_are_refused(exported: Path) -> None:
    with pytest.raises(ShapeError, match=r"multiples of 4, of 8 pixels or more; got 10x20"):
        open_engine(exported, (10, 20))


def test_a_file_that_was_cut_short_is_refused(exported: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.onnx"
    short.write_bytes(exported.read_bytes()[:-3000])
    with pytest.raises(CheckpointError, match=r"copy or export it again|no file of vitrail\.export"):
        vitrail.predict(short, np.zeros((12, 20, 3), np.uint8))


def test_a_file_that_differs_is_not_left_behind(untyped: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(verify.TOLERANCE, "float32", -1.0)
    with pytest.raises(CheckpointError, match=r"differs from the model by .* It was not kept"):
        vitrail.export(small(), to="torch", out=tmp_path / "small.pt2", fixed_size=True)
    assert list(tmp_path.iterdir()) == []


def test_other_programs_words_are_answered(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TensorRT reads ONNX: take to=onnx"):
        vitrail.export(small(), to="tensorrt")
    with pytest.raises(ConfigError, match="Batch, height and width are free already"):
        vitrail.export(small(), dynamic_axes={})  # pyright: ignore[reportCallIssue]
    with pytest.raises(ConfigError, match=r"ends in \.onnx; got small\.pt"):
        vitrail.export(small(), out=tmp_path / "small.pt")


def test_the_command_writes_a_file_and_says_how_far_it_is(
    untyped: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitrail.save(small(), tmp_path / "run")
    out = tmp_path / "small.pt2"
    assert main(["export", str(tmp_path / "run"), "--to", "torch", "--fixed-size", "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verified"]["difference"] < 1e-5
    assert not said["sizes"]["free"]
    assert main(["export", str(tmp_path / "run"), "--to", "torch", "--out", str(out)]) == 1
    assert "exists already" in capsys.readouterr().err


FAMILIES = {
    "vit": {},
    "vit-mean": {},
    "vit-original": {},
    "vit-relative": {},
    "hybrid": {"image_size": (24, 40)},
    "bit": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_target_equals_its_source_in_another_program(untyped: None, tmp_path: Path, name: str) -> None:
    pytest.importorskip("openvino")
    model = family(name, **FAMILIES[name])
    step = 1 if name == "bit" else model.config.stem.stride  # pyright: ignore[reportAttributeAccessIssue]
    own = model.config.image_size
    sizes = [own, (own[1] + step, own[1] + step), (own[0], own[1] + 2 * step)]
    images = {f"{b}x{h}x{w}": torch.randn(b, 3, h, w) for h, w in sizes for b in (1, 2, 5)}
    np.savez(tmp_path / "in.npz", **{key: value.numpy() for key, value in images.items()})  # pyright: ignore[reportArgumentType]
    for to, suffix in (("onnx", "onnx"), ("torch", "pt2"), ("openvino", "xml")):
        path = tmp_path / f"model.{suffix}"
        vitrail.export(model, to=to, out=path)
        subprocess.run(
            [sys.executable, BARE, path, tmp_path / "in.npz", tmp_path / "out.npz"], check=True, cwd=tmp_path
        )
        found = np.load(tmp_path / "out.npz")
        for key, batch in images.items():
            with torch.no_grad():
                assert np.abs(found[key] - model(batch).numpy()).max() < 1e-4, (to, key)


@pytest.mark.slow
def test_pixels_in_and_half_precision_give_nearly_the_same(untyped: None, tmp_path: Path) -> None:
    model = small()
    pixels = np.random.default_rng(1).integers(0, 256, (4, 12, 20, 3), dtype=np.uint8)
    wanted = vitrail.predict(model, list(pixels)).logits
    vitrail.export(model, out=tmp_path / "pixels.onnx", with_preprocessing=True)
    torch.testing.assert_close(
        vitrail.predict(tmp_path / "pixels.onnx", list(pixels)).logits, wanted, atol=1e-4, rtol=0
    )
    vitrail.export(model, out=tmp_path / "half.onnx", precision="float16")
    torch.testing.assert_close(vitrail.predict(tmp_path / "half.onnx", list(pixels)).logits, wanted, atol=2e-2, rtol=0)
    onnx = pytest.importorskip("onnx")
    weights = [entry for entry in onnx.load(tmp_path / "half.onnx").graph.initializer if len(entry.dims) == 2]
    assert {entry.data_type for entry in weights} == {onnx.TensorProto.FLOAT16}


@pytest.mark.slow
def test_int8_stays_near_and_says_what_it_costs(untyped: None, tmp_path: Path) -> None:
    model = replace_names(small())
    made = vitrail.export(model, out=tmp_path / "int8.onnx", precision="int8", calibrate="sample", loss=5)
    assert made.quantized is not None
    assert made.quantized.loss <= 5
    assert made.quantized.images == 1000 or not made.quantized.labeled
    assert "points lost" in str(made)


def replace_names(model: Model) -> Model:
    model.card = replace(model.card, class_names=None)
    return model
