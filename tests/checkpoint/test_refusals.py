"""Files that are not what they say, and files that do not fit what is asked."""

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import cases, shapes

import vitrail
from vitrail.errors import CheckpointError, ConfigError

BLOCK = "Transformer/encoderblock_1/MultiHeadDotProductAttention_0"
LAYOUT = shapes.vit(width=24, depth=2, heads=3, mlp=40, patch=4, tokens=1 + 15, classes=7)


def arrays(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    drawn = {name: cases.draw(name, shape, 3) for name, shape in LAYOUT.items()}
    return {name: array for name, array in (drawn | changes).items() if array is not None}


def refusal(path: Path, **asked: object) -> str:
    with pytest.raises(CheckpointError) as caught:
        vitrail.load(path, **asked)  # pyright: ignore[reportArgumentType]
    assert str(path) in str(caught.value)
    return str(caught.value)


def saved(path: Path, weights: dict[str, np.ndarray]) -> Path:
    np.savez(path, **weights)  # pyright: ignore[reportArgumentType]
    return path


def test_files_that_are_no_npz_are_refused_by_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    assert "there is no file" in refusal(path)
    assert "is a folder with no weights" in refusal(tmp_path)
    path.write_bytes(b"")
    assert "it is empty" in refusal(path)
    path.write_bytes(b"hello, world")
    assert "it starts with b'hello, w'" in refusal(path)
    path.write_bytes(pickle.dumps({"weights": [1, 2]}))
    assert "it looks like a pickle, but not one of torch.save" in refusal(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert "a single array (.npy)" in refusal(path)
    torch.save({"weight": torch.zeros(3)}, path)
    assert "got 1 tensors such as weight" in refusal(path)
    saved(path, arrays())
    path.write_bytes(path.read_bytes()[:-100])
    assert "is damaged: File is not a zip file" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "is a zip archive but not an .npz file: it holds 'readme.txt'" in refusal(path)


def test_pickled_objects_damage_and_integers_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "weights.npz", {"embedding/kernel": np.array([{"a": 1}], dtype=object)})
    assert "holds more than plain arrays" in refusal(path)
    saved(path, arrays(**{"head/bias": np.arange(7)}))
    assert "expected floating-point weights; 'head/bias' is int64" in refusal(path, grid=(3, 5))
    saved(path, {})
    assert "holds no arrays" in refusal(path)
    saved(path, arrays())
    damaged = bytearray(path.read_bytes())
    damaged[2000:2400] = bytes(400)
    path.write_bytes(damaged)
    assert "is damaged" in refusal(path, grid=(3, 5))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("embedding/kernel.npy", b"not an array")
    assert "is damaged" in refusal(path)


def test_a_stranger_is_told_what_was_expected(tmp_path: Path) -> None:
    path = saved(tmp_path / "weights.npz", {"conv1.weight": np.zeros((3, 3), dtype=np.float32)})
    message = refusal(path)
    assert "no ViT, hybrid or BiT in any layout that is known: Vitrail's own names" in message
    assert "got 1 tensors such as conv1.weight" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head/bias": None}, "1 missing: head/bias"),
        ({"extra/bias": np.zeros(3, dtype=np.float32)}, "1 unexpected: extra/bias"),
        ({"head/bias": None, "extra": np.zeros(3, dtype=np.float32)}, "1 missing: head/bias; 1 unexpected: extra"),
        ({"head/bias": np.zeros(6, dtype=np.float32)}, "1 of another shape: head/bias is (6,), not (7,)"),
        ({"head/kernel": np.zeros((), dtype=np.float32)}, "'head/kernel' must have 2 axes; its shape is ()"),
        ({"cls": np.zeros((24,), dtype=np.float32)}, "cls is (24,), not (1, 1, 24)"),
        ({f"{BLOCK}/query/kernel": np.zeros((24, 4, 6), dtype=np.float32)}, "is (24, 4, 6), not (24, 3, 8)"),
        ({f"{BLOCK}/query/kernel": np.zeros((23, 3, 8), dtype=np.float32)}, "is (23, 3, 8), not (24, 3, 8)"),
        (
            {"Transformer/posembed_input/pos_embedding": np.zeros((2, 16, 24), dtype=np.float32)},
            "is (2, 16, 24), not (1, 16, 24)",
        ),
        ({"Transformer/posembed_input/pos_embedding": np.zeros((1, 0, 24), dtype=np.float32)}, "table is empty"),
        ({"embedding/kernel": np.zeros((4, 5, 3, 24), dtype=np.float32)}, "patches must be square"),
        ({"embedding/kernel": np.zeros((48, 24), dtype=np.float32)}, "must have 4 axes; its shape is (48, 24)"),
        ({"Transformer/posembed_input/pos_embedding": None}, "lacks 'Transformer/posembed_input/pos_embedding'"),
        (
            {name: None for name in LAYOUT if "encoderblock_0" in name},
            "must be numbered from 0 without a gap; got [1]",
        ),
        (
            {
                "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel": np.zeros(
                    (24, 3, 7), dtype=np.float32
                )
            },
            "heads must divide the width 24; the file has 3 heads of 7",
        ),
    ],
)
def test_weights_that_do_not_fit_are_all_listed(
    tmp_path: Path, changes: dict[str, np.ndarray | None], message: str
) -> None:
    assert message in refusal(saved(tmp_path / "weights.npz", arrays(**changes)), grid=(3, 5))


def test_grids_that_do_not_fit_say_what_would(tmp_path: Path) -> None:
    path = saved(tmp_path / "weights.npz", arrays())
    assert "15 positions are no square grid. Say which with grid=(rows, cols)" in refusal(path)
    assert "grid=(4, 4) has 16 positions; the file's table has 15" in refusal(path, grid=(4, 4))
    assert "image_size=(16, 16) has 4x4 = 16. Say the file's own" in refusal(path, image_size=16)
    bit = {name: cases.draw(name, shape, 3) for name, shape in shapes.bit(units=(1,), factor=1, classes=2).items()}
    assert "a BiT has no position table" in refusal(saved(tmp_path / "bit.npz", bit), grid=(3, 5))


def test_sizes_and_fields_are_checked_too(untyped: None, tmp_path: Path) -> None:
    path = saved(tmp_path / "weights.npz", arrays())
    with pytest.raises(vitrail.ShapeError, match="multiples of the patch side 4; got 13x20"):
        vitrail.load(path, grid=(3, 5), image_size=(13, 20))
    with pytest.raises(ConfigError, match="Did you mean 'dropout'"):
        vitrail.load(path, grid=(3, 5), droput=0.1)
    for name in ("depth", "heads", "positions"):
        with pytest.raises(ConfigError, match=f"load cannot change '{name}': the file decides"):
            vitrail.load(path, grid=(3, 5), **{name: 4})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="pre_logits=9: the file has none"):
        vitrail.load(path, grid=(3, 5), classes=7, pre_logits=9)
    with pytest.raises(ConfigError, match="classes must be a whole number"):
        vitrail.load(path, grid=(3, 5), classes=0)
    with pytest.raises(ConfigError, match="device must be one of this machine, such as 'cpu'; got 'nonsense'"):
        vitrail.load(path, grid=(3, 5), device="nonsense")
    for grid in (5, (3,), (3, 5, 1), "35", (3, None)):
        with pytest.raises(ConfigError, match="grid must be"):
            vitrail.load(path, grid=grid)  # pyright: ignore[reportArgumentType]
    for stranger in (None, 5, b"x"):
        with pytest.raises(CheckpointError, match="expected the path, the address or the name of weights; got"):
            vitrail.load(stranger)  # pyright: ignore[reportArgumentType]


def test_damage_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    np.savez_compressed(path, **arrays())  # pyright: ignore[reportArgumentType]
    whole = path.read_bytes()
    generator = np.random.RandomState(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        start = generator.randint(0, len(whole) - 40)
        damaged[start : start + 40] = generator.bytes(40)
        path.write_bytes(damaged)
        try:
            vitrail.load(path, grid=(3, 5))
        except CheckpointError:
            refused += 1
    assert refused >= 55  # a few bytes of a zip archive mean nothing


def test_a_convolution_of_other_axes_is_refused(tmp_path: Path) -> None:
    bit = {name: cases.draw(name, shape, 3) for name, shape in shapes.bit(units=(1,), factor=1, classes=2).items()}
    name = "resnet/block1/unit01/b/standardized_conv2d/kernel"
    assert "is (3, 3, 64), not (3, 3, 64, 64)" in refusal(
        saved(tmp_path / "bit.npz", bit | {name: bit[name][:, :, :, 0]})
    )
