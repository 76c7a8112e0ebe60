"""Exported files: what their engines give is what the model gives, and what differs is not kept."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from families import family, images_for
from torch import Tensor

import vitrail
from vitrail.cli import main
from vitrail.config import BiTConfig, Card, Learned2DPositions, Preprocessing, Sinusoidal2DPositions
from vitrail.config.export import SUFFIX
from vitrail.errors import CheckpointError, ConfigError, ShapeError
from vitrail.exports.traced import sizes_of, trace
from vitrail.models import Model, build
from vitrail.models.vit import ViT
from vitrail.runtime.engines import EngineModel, open_engine

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


@pytest.mark.slow
def test_the_reason_is_given_where_openvino_cannot_read_its_weights(untyped: None, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    vitrail.export(small(), to="openvino", out=tmp_path / "small.xml", fixed_size=True)
    weights = (tmp_path / "small.bin").read_bytes()
    for kept in (0, len(weights) // 2, len(weights) - 4096):
        (tmp_path / "small.bin").write_bytes(weights[:kept])
        with pytest.raises(CheckpointError, match=r"small\.xml cannot be run: Incorrect weights in bin file!"):
            open_engine(tmp_path / "small.xml")


def test_a_name_that_is_taken_beside_the_graph_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    (tmp_path / "small.bin").write_bytes(b"another program's")
    with pytest.raises(CheckpointError, match=r"small\.bin exists already"):
        vitrail.export(small(), to="openvino", out=tmp_path / "small.xml")
    (tmp_path / "small.xml").mkdir()
    with pytest.raises(CheckpointError, match="is a folder"):
        vitrail.export(small(), to="openvino", out=tmp_path / "small.xml", overwrite=True)


@pytest.mark.parametrize("moment", ["trace", "verify"])
def test_an_export_that_is_interrupted_leaves_nothing(
    untyped: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupt(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"vitrail.exports.run.{moment}", interrupt)
    with pytest.raises(KeyboardInterrupt):
        vitrail.export(small(), to="torch", out=tmp_path / "small.pt2", fixed_size=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("to", "missing", "extra"),
    [
        ("onnx", "onnxscript", "export"),
        ("openvino", "openvino", "openvino"),
        ("executorch", "executorch", "executorch"),
    ],
)
def test_a_missing_extra_is_named_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, missing: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=rf"is needed for this.*pip install 'vitrail\[{extra}\]'"):
        vitrail.export(tmp_path / "no such file", to=to)


def test_a_missing_engine_is_named_where_a_file_is_opened(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"onnxruntime is needed for this.*pip install 'vitrail\[export\]'"):
        vitrail.predict(exported, np.zeros((12, 20, 3), np.uint8))


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(family("vit-relative", pooling="mean", depth=1), marks=pytest.mark.slow),
        build(BiTConfig(units=(1, 1), width=32, classes=7, image_size=(24, 40)), seed=0).eval(),
    ],
    ids=["relative keys of pooled tokens", "groups of one channel"],
)
def test_a_program_makes_no_rule_of_the_batch_and_sides_that_it_was_traced_with(untyped: None, model: Model) -> None:
    program = trace(model, sizes_of(model.config, fixed=False), precision="float32", pixels=False).module()
    for batch, height, width in ((1, 24, 16), (4, 12, 40)):
        images = torch.randn(batch, 3, height, width)
        with torch.no_grad():
            torch.testing.assert_close(program(images)[0], model(images), atol=1e-5, rtol=0)


class Restless(ViT):
    """A model that no program can hold: what it computes depends on the images."""

    def represent(self, images: torch.Tensor) -> torch.Tensor:
        return super().represent(images) * (2 if images.sum() > 0 else 1)


def test_a_model_that_cannot_be_traced_is_refused_with_the_reason(untyped: None, tmp_path: Path) -> None:
    model = Restless(small().config)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"the model cannot be traced: .*data-dependent"):
        vitrail.export(model, to="torch", out=tmp_path / "small.pt2", fixed_size=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_differs_is_not_left_behind(untyped: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = EngineModel.given

    def moved(self: EngineModel, images: Tensor) -> list[Tensor]:
        return [each + 2e-3 for each in real(self, images)]

    monkeypatch.setattr(EngineModel, "given", moved)
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
    "vit": family("vit"),
    "mean": family("vit-mean"),
    "tanh": family("vit-hidden"),
    "post norm, sinusoidal": family("vit-original"),
    "sinusoidal in two dimensions": family("vit", positions=Sinusoidal2DPositions()),
    "learned in two dimensions": family("vit", positions=Learned2DPositions(at="layers")),
    "relative": family("vit-relative"),
    "relative, mean": family("vit-relative", pooling="mean"),
    "bicubic, of one channel": family("vit-scaled", channels=1),
    "cosines": family("vit", cosine_scale=10.0),
    "causal": family("vit-mean", causal=True),
    "features alone": family("vit", classes=None),
    "hybrid": family("hybrid", image_size=(24, 40)),
    "bit": family("bit"),
}


def equal_in_another_program(model: Model, to: str, folder: Path) -> None:
    step = 1 if isinstance(model.config, BiTConfig) else model.config.stem.stride  # pyright: ignore[reportAttributeAccessIssue]
    own = model.config.image_size
    sizes = [own, (own[1] + step, own[1] + step), (own[0], own[1] + 2 * step)]
    images = {f"{b}x{h}x{w}": torch.randn(b, model.config.channels, h, w) for h, w in sizes for b in (1, 2, 5)}
    np.savez(folder / "in.npz", **{key: value.numpy() for key, value in images.items()})  # pyright: ignore[reportArgumentType]
    path = folder / f"model{SUFFIX[to]}"
    vitrail.export(model, to=to, out=path)
    subprocess.run([sys.executable, BARE, path, folder / "in.npz", folder / "out.npz"], check=True, cwd=folder)
    found = np.load(folder / "out.npz")
    for key, batch in images.items():
        with torch.no_grad():
            assert np.abs(found[key] - model(batch).numpy()).max() < 1e-4, (to, key)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch", "openvino"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_target_equals_its_source_in_another_program(untyped: None, tmp_path: Path, name: str, to: str) -> None:
    pytest.importorskip("openvino")
    equal_in_another_program(FAMILIES[name], to, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_aotinductor_equals_its_source_in_another_program(untyped: None, tmp_path: Path) -> None:
    equal_in_another_program(FAMILIES["relative, mean"], "aotinductor", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "relative", "bit"])
def test_executorch_equals_its_source_in_another_program(untyped: None, tmp_path: Path, name: str) -> None:
    pytest.importorskip("executorch", reason="executorch is not installed")
    model = FAMILIES[name]
    model.card = CARD
    equal_in_another_program(model, "executorch", tmp_path)
    engine = open_engine(tmp_path / "model.pte")
    assert engine.card.class_names == CARD.class_names
    assert engine.said["verified"]["difference"] < 1e-4
    assert engine.said["sizes"]["most"] >= 2 * max(model.config.image_size)
    with pytest.raises(ShapeError, match=r"pixels to \d+; got \d+x4800"):
        open_engine(tmp_path / "model.pte", (model.config.image_size[0], 4800))
    images = torch.randn(19, 3, *model.config.image_size)  # more than its memory is planned for
    with torch.no_grad():
        torch.testing.assert_close(engine(images), model(images), atol=1e-4, rtol=0)


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
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_int8_stays_near_and_says_what_it_costs(untyped: None, tmp_path: Path, to: str) -> None:
    pytest.importorskip("openvino")
    model = small()
    path = tmp_path / f"int8{SUFFIX[to]}"
    made = vitrail.export(model, to=to, out=path, precision="int8", calibrate="sample", loss=5)
    assert made.quantized is not None
    assert made.quantized.loss <= 5
    assert made.quantized.images == 1000
    assert not made.quantized.labeled
    assert "of the answers on 1,000 images stay the same" in str(made)
    assert "these images have no labels of its classes" in str(made)
    images = images_for(model, batch=4)
    with torch.no_grad():
        torch.testing.assert_close(open_engine(path)(images), model(images), atol=0.1, rtol=0)


@pytest.mark.slow
def test_int8_is_in_the_products_alone_of_every_family(untyped: None, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    for name, products in (("bit", 13), ("hybrid", 22), ("cosines", 10), ("post norm, sinusoidal", 10)):
        made = vitrail.export(FAMILIES[name], out=tmp_path / f"{name}.onnx", precision="int8", loss=100)
        assert made.quantized is not None
        assert (made.quantized.layers, made.quantized.kept) == (products, ())
        graph = onnx.load(made.path).graph
        rounded = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
        read = [node.op_type for node in graph.node if rounded & {*node.input}]
        assert {*read} <= {"MatMul", "Gemm", "Conv"}
        assert len(read) == products
        sizes = [(entry.data_type, len(entry.raw_data)) for entry in graph.initializer]
        int8 = sum(size for kind, size in sizes if kind == onnx.TensorProto.INT8)
        assert int8 > 0.2 * sum(size for _, size in sizes)


@pytest.mark.slow
def test_layers_go_back_to_float32_until_the_loss_is_met(untyped: None, tmp_path: Path) -> None:
    model = small()
    with torch.no_grad():
        model.blocks[0].mlp.contract.weight[:, 3] *= 1000  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
    made = vitrail.export(model, out=tmp_path / "int8.onnx", precision="int8", loss=0.0005)
    assert made.quantized is not None
    assert made.quantized.loss <= 0.0005
    assert made.quantized.kept
    assert 0 < len(made.quantized.kept) < made.quantized.layers
