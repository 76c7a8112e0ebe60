"""The authors' answers from files in the names of every generation, and each file back as it was."""

from collections.abc import Callable
from pathlib import Path

import generations
import numpy as np
import pytest
import torch
from generations import Arrays
from reference import cases, shapes

import vitrail
from vitrail.config import ViTConfig

VIT: dict[str, Callable[[Arrays], Arrays]] = {
    "linen": lambda arrays: arrays,
    "first release": generations.first_release,
    "optimiser's target": lambda arrays: generations.first_release(arrays, "opt/target/"),
    "big_vision": generations.big_vision,
    "big_vision, two towers": lambda arrays: generations.big_vision(arrays, "params/img/"),
    "big_vision, stacked": lambda arrays: generations.big_vision(arrays, stacked=True),
    "wide norms": generations.wide_norms,
    "all at once": lambda arrays: generations.wide_norms(generations.first_release(arrays, "opt/target/")),
}
BIT: dict[str, Callable[[Arrays], Arrays]] = {
    "numbered": generations.numbered_bit,
    "big_vision": generations.big_vision_bit,
}
OLDER = ("optimiser's target", "big_vision, stacked", "all at once")
CASES = [(name, how) for name in cases.MODELS if not name.startswith("bit") for how in OLDER]
# Without a ResNet there are no norms to be wide, and the two are one file.
CASES = [(name, how) for name, how in CASES if name.startswith("r") or how != "all at once"]
CASES += [(name, how) for name in cases.MODELS if name.startswith("bit") for how in BIT]
LARGE = ("vit_b32_gap_224", "r26_s32_224", "bit_r50x1_epsilon")  # under their first names they are in test_load.py


def write(path: Path, arrays: Arrays) -> Path:
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    return path


@pytest.mark.parametrize(
    ("name", "how"), [pytest.param(*case, marks=[pytest.mark.slow] if case[0] in LARGE else []) for case in CASES]
)
def test_logits_are_the_authors_under_every_name_and_the_file_comes_back(name: str, how: str, tmp_path: Path) -> None:
    case = cases.read(name)
    written = (BIT if name.startswith("bit") else VIT)[how](cases.weights_of(name))
    path = write(tmp_path / "weights.npz", written)
    model = vitrail.load(path, image_size=tuple(case["size"]))
    images = torch.from_numpy(cases.draw_images(case)).permute(0, 3, 1, 2)
    with torch.inference_mode():
        logits = model(images)
    torch.testing.assert_close(logits, torch.tensor(case["answers"]["logits"]), atol=5e-5, rtol=0)

    vitrail.save(model, tmp_path / "back.npz", layout="google")
    with np.load(tmp_path / "back.npz") as back:
        assert set(back.files) == written.keys()
        for key, array in written.items():
            if model.config.image_size == tuple(case["size"]) and back[key].shape == array.shape:
                np.testing.assert_array_equal(back[key], array, err_msg=key)


SMALL = shapes.vit(width=24, depth=3, heads=3, mlp=40, patch=4, tokens=1 + 9, classes=7)


def drawn(layout: shapes.Shapes = SMALL) -> Arrays:
    return {name: cases.draw(name, shape, 3) for name, shape in layout.items()}


@pytest.mark.parametrize("how", VIT)
def test_a_file_of_any_generation_comes_back_array_by_array(how: str, tmp_path: Path) -> None:
    hybrid = {name: cases.draw(name, shape, 5) for name, shape in hybrid_shapes().items()}
    for index, arrays in enumerate((drawn(), hybrid)):
        written = VIT[how](arrays)
        source = write(tmp_path / f"{index}.npz", written)
        vitrail.convert(source, tmp_path / f"back{index}.npz", layout="google")
        with np.load(tmp_path / f"back{index}.npz") as back:
            assert set(back.files) == written.keys()
            for key in written:
                np.testing.assert_array_equal(back[key], written[key], err_msg=key)


def hybrid_shapes() -> shapes.Shapes:
    return shapes.vit(
        width=24, depth=2, heads=3, mlp=40, patch=1, tokens=1 + 9, classes=7, units=(1, 2), root=32, hidden=11
    )


def test_bfloat16_stored_as_bytes_is_read_and_comes_back(tmp_path: Path) -> None:
    cut = generations.as_bfloat16(drawn())
    write(tmp_path / "cut.npz", cut)
    write(tmp_path / "plain.npz", generations.from_bfloat16(cut))
    ours, plain = vitrail.load(tmp_path / "cut.npz"), vitrail.load(tmp_path / "plain.npz")
    for name, parameter in ours.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, plain.get_parameter(name)), name
    vitrail.convert(tmp_path / "cut.npz", tmp_path / "back.npz", layout="google")
    with np.load(tmp_path / "back.npz") as back:
        assert all(back[name].tobytes() == array.tobytes() for name, array in cut.items())
        assert {str(back[name].dtype) for name in cut} == {"|V2"}


def test_what_stands_beside_the_weights_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays = generations.big_vision(drawn(), "params/img/")
    beside = {"params/txt/head/kernel": np.zeros((3, 3), np.float32), "step": np.array(5), "params/t": np.zeros(1)}
    model = vitrail.load(write(tmp_path / "weights.npz", arrays | beside))
    assert model.card.provenance is not None
    assert set(model.card.provenance.left_out) == beside.keys()
    assert "left out, since the model has no place for it" in caplog.text
    assert model.card.provenance.inferred == ("the class token's position is folded into the token",)


def test_a_table_of_a_rectangle_with_a_square_number_of_entries_is_not_taken_for_a_square(tmp_path: Path) -> None:
    layout = shapes.vit(width=24, depth=1, heads=3, mlp=40, patch=4, tokens=1 + 15, classes=7)
    path = write(tmp_path / "weights.npz", drawn(layout))
    with pytest.raises(vitrail.CheckpointError, match="15 positions are no square grid"):
        vitrail.load(path)
    config = vitrail.load(path, image_size=(12, 20)).config
    assert isinstance(config, ViTConfig)
    assert config.grid == (3, 5)
    folded = write(tmp_path / "folded.npz", generations.big_vision(drawn(layout)))
    assert vitrail.load(folded, grid=(5, 3)).config.image_size == (20, 12)


def test_weights_changed_after_loading_are_folded_when_they_go_back(tmp_path: Path) -> None:
    path = write(tmp_path / "weights.npz", generations.big_vision(drawn()))
    model = vitrail.load(path)
    with torch.no_grad():
        model.get_parameter("positions.table.0").add_(0.3 * torch.randn(10, 24))
    vitrail.save(model, tmp_path / "back.npz", layout="google")
    images = torch.rand(2, 3, 12, 12)
    torch.testing.assert_close(vitrail.load(tmp_path / "back.npz")(images), model(images), atol=1e-5, rtol=0)
