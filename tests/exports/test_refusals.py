"""What export refuses before it computes, what it takes of models of other kinds, and files that were damaged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import family
from PIL import Image

import vitrail
from vitrail.config import Preprocessing, RotaryPositions
from vitrail.config.dense import LinearHead, QueryHead
from vitrail.errors import CheckpointError, ConfigError, DataError, VitrailError
from vitrail.exports import verify
from vitrail.exports.int8 import calibration_source
from vitrail.models import Model, build
from vitrail.runtime.engines import open_engine
from vitrail.verbs.describe import describe


def small(**changes: Any) -> Model:
    return family("vit", depth=1, **changes)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    path = tmp_path_factory.mktemp("exported") / "small.pt2"
    vitrail.export(small(), to="torch", out=path)
    jaxtyping.config.update("jaxtyping_disable", False)
    return path


@pytest.mark.parametrize(("head", "task"), [(QueryHead(task="detect", queries=5), "detect"), (LinearHead(), "segment")])
@pytest.mark.parametrize("how", [{"to": "html"}, {"precision": "int8"}])
def test_a_model_of_pixels_or_objects_is_no_page_and_has_no_int8(head: object, task: str, how: dict[str, Any]) -> None:
    model = vitrail.load("vitrail-ti8", classes=3, head=head)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=f"is of classifiers; the model was trained to {task}"):
        vitrail.export(model, **how)


@pytest.mark.parametrize(("to", "inside"), [("html", False), ("onnx", True)])
def test_pixels_of_8_bits_are_refused_where_the_model_reads_more(tmp_path: Path, to: str, inside: bool) -> None:
    model = small()
    model.card = model.card.prepared({"value_range": (0, 4095)}, 3)
    with pytest.raises(ConfigError, match="pixels of 8 bits; the model reads values from 0 to 4095"):
        vitrail.export(model, to=to, with_preprocessing=inside, out=tmp_path / f"small.{to}")
    with pytest.raises(DataError, match="those in the box are photographs of 8 bits; the model reads values from 0"):
        calibration_source(None, "int8 is calibrated", model)
    with pytest.raises(DataError, match=r"the model reads 5 channels\. Give calibrate="):
        calibration_source(None, "int8 is calibrated", small(channels=5))


def test_int8_is_calibrated_on_images_in_memory_with_labels_or_without() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 9, 11, 3), dtype=np.uint8)
    for given, labels in ((list(images), [-1] * 5), (images, [-1] * 5), ((images, [0, 1, 2, 1, 0]), [0, 1, 2, 1, 0])):
        source = calibration_source(given, "int8 is calibrated", small())
        assert source.labels.tolist() == labels
        assert np.array_equal(source.read(3), images[3])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_model_in_another_precision_is_written_in_float32(untyped: None, tmp_path: Path, dtype: torch.dtype) -> None:
    model = small().to(dtype)
    made = vitrail.export(model, to="torch", out=tmp_path / "small.pt2", fixed_size=True)
    assert next(model.parameters()).dtype == dtype
    images = torch.randn(2, 3, 12, 20)
    with torch.no_grad():
        torch.testing.assert_close(open_engine(made.path)(images), model.float()(images), atol=1e-5, rtol=0)


def test_a_model_that_has_diverged_is_refused() -> None:
    model = small()
    with torch.no_grad():
        model.head.weight[3, 4] = torch.nan  # pyright: ignore[reportIndexIssue, reportArgumentType]
    with pytest.raises(ConfigError, match=r"'head\.weight' holds numbers that are not finite"):
        vitrail.export(model, to="torch")


@pytest.mark.parametrize("word", [None, 3])
def test_words_that_are_no_text_are_refused(word: object) -> None:
    with pytest.raises(ConfigError, match="to must be one of 'onnx', 'torch'"):
        vitrail.export(small(), to=word)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="precision must be one of"):
        vitrail.export(small(), precision=torch.float16)  # pyright: ignore[reportArgumentType]


class Nearly(torch.nn.Module):
    """An engine whose numbers are a little off."""

    def __init__(self, model: Model, off: float) -> None:
        super().__init__()
        self.model, self.off = model, off

    def given(self, images: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            features, logits = self.model.outputs(images)
            assert logits is not None
            return [logits, features + self.off]


def test_a_file_may_differ_by_as_much_as_float32_itself_does() -> None:
    model, sizes = small(), [(12, 20)]
    with pytest.raises(
        CheckpointError, match=r"differs from the model by 3\.00e-04, and float32 may differ by 1\.00e-04"
    ):
        verify.verify(model, Nearly(model, 3e-4), sizes, "float32")  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        model.norm.weight.mul_(3000)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    found = verify.verify(model, Nearly(model, 3e-4), sizes, "float32")  # pyright: ignore[reportArgumentType]
    assert found.rounding is not None
    assert 1e-4 < found.rounding < 1e-2
    assert found.difference < verify.ROUNDINGS * found.rounding


@pytest.mark.parametrize("lost", [1, 100, 2000, 9000, 60_000])
def test_a_program_of_torch_that_was_cut_short_is_refused_in_one_line(
    program: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], lost: int
) -> None:
    (tmp_path / "short.pt2").write_bytes(program.read_bytes()[:-lost])
    with pytest.raises(CheckpointError, match="opy or export it again"):
        open_engine(tmp_path / "short.pt2")
    assert "Traceback" not in capfd.readouterr().err


def test_a_program_of_torch_with_a_bit_changed_in_its_weights_is_refused(program: Path, tmp_path: Path) -> None:
    data = bytearray(program.read_bytes())
    data[data.index(b"weight_1") + 3000] ^= 64
    (tmp_path / "other.pt2").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"other\.pt2 is damaged"):
        open_engine(tmp_path / "other.pt2")


def test_describe_says_what_a_file_takes_and_gives(program: Path) -> None:
    found = describe(program)
    assert found.config == small().config
    assert found.card.preprocessing == Preprocessing()
    text = str(found)
    assert "to torch, in float32" in text
    assert "any sides that are multiples of 4, from 8 pixels on" in text
    assert "logits and features" in text
    program_said = found.document()["program"]
    assert program_said["verified"]["batches"] == [1, 2, 5]
    with pytest.raises(ConfigError, match=r"knows its model; got image_size=32\. Leave image_size out"):
        describe(program, image_size=32)
    with pytest.raises(CheckpointError, match=r"cannot read .*none\.onnx: No such file"):
        describe("none.onnx")


def test_what_looks_inside_refuses_a_file_before_it_computes(program: Path, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    Image.fromarray(np.zeros((12, 20, 3), np.uint8)).save(photo)
    with pytest.raises(ConfigError, match="an exported file gives logits and features alone"):
        vitrail.inspect(program, photo, out=tmp_path / "page")
    images = np.zeros((7, 12, 20, 3), np.uint8)
    with pytest.raises(ConfigError, match="page shows where the model looked; an exported file does not"):
        vitrail.evaluate(program, (images, list(range(7))), page=tmp_path / "page")


def test_another_precision_than_a_files_own_is_refused(program: Path) -> None:
    with pytest.raises(ConfigError, match="an exported file runs in its own engine and precision"):
        vitrail.predict(program, np.zeros((12, 20, 3), np.uint8), precision="bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch", "openvino"])
def test_todays_files_with_registers_and_turned_positions_are_written_too(
    untyped: None, tmp_path: Path, to: str
) -> None:
    pytest.importorskip("openvino")
    positions = RotaryPositions(pairs="neighbors", table="bicubic-antialias")
    model = small(positions=positions, registers=3, mlp="gated", activation="silu", inner_norm="mlp", width=48)
    assert build(model.config, seed=0).config == model.config
    suffix = {"onnx": "onnx", "torch": "pt2", "openvino": "xml"}[to]
    made = vitrail.export(model, to=to, out=tmp_path / f"small.{suffix}")
    for size in ((12, 20), (28, 8)):
        images = torch.randn(3, 3, *size)
        with torch.no_grad():
            torch.testing.assert_close(open_engine(made.path)(images), model(images), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_run_with_changes_of_low_rank_is_written_as_it_was_merged(untyped: None, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (24, 12, 20, 3), dtype=np.uint8)
    base = tmp_path / "base"
    vitrail.save(small(), base)
    data = (images, np.arange(24) % 3)
    run = vitrail.finetune(data, model=base, adapt="lora", steps=2, batch_size=8, quiet=True, out=tmp_path / "run")
    vitrail.export(run, out=tmp_path / "run.onnx")
    ours, theirs = (vitrail.predict(each, list(images[:4])).logits for each in (run, tmp_path / "run.onnx"))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("calibrate", [[], 3])
def test_what_is_no_image_is_refused_to_calibrate_on(calibrate: object) -> None:
    with pytest.raises(VitrailError, match=r"expected|none"):
        calibration_source(calibrate, "int8 is calibrated", small())
