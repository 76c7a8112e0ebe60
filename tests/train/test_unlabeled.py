"""Runs that learn from images without labels, wherever they lie; and what labels are asked for."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
from PIL import Image
from pyarrow import parquet

import vitrail
from vitrail.cli import main
from vitrail.data.open import open_data
from vitrail.data.source import Source
from vitrail.errors import VitrailError
from vitrail.train.choice import choose
from vitrail.train.task import choose_parts

Make = Callable[[Path], Path]
COUNT = 24
SMALL = [word for field in ("depth=1", "width=24", "heads=3", "mlp_width=29") for word in ("--set", f"model.{field}")]
SMALL += ["--model", "ViT-Ti/4", "--set", "image_size=12", "--batch", "8", "--workers", "0", "--device", "cpu"]
MASKED = ["--objective", "masked-patch", *SMALL]


def png(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (13, 17, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def flat(root: Path, first: int = 0, count: int = COUNT) -> Path:
    root.mkdir(parents=True)
    for number in range(first, first + count):
        (root / f"{number:02}.png").write_bytes(png(number))
    (root / "notes.txt").write_text("from the garden")
    return root


def partly(root: Path) -> Path:
    for name, first in (("ant", 30), ("bee", 40)):
        flat(root / name, first, 3)
    for number in range(COUNT - 6):
        (root / f"{number:02}.png").write_bytes(png(number))
    return root


def parts(root: Path) -> Path:
    for name, first, count in (("train", 0, 16), ("val", 16, 5), ("test", 21, 3)):
        flat(root / name, first, count)
    return root


def listed(root: Path) -> Path:
    flat(root)
    (root / "list.csv").write_text("path\n" + "".join(f"{number:02}.png\n" for number in range(COUNT)))
    return root / "list.csv"


def listed_in_part(root: Path) -> Path:
    flat(root)
    lines = [{"path": f"{number:02}.png"} | ({"label": "ant"} if number < 4 else {}) for number in range(COUNT)]
    (root / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return root / "list.jsonl"


def rows(root: Path) -> Path:
    """A training file with labels, some of them missing, and a test file without such a column."""
    root.mkdir()
    images = [{"bytes": png(number), "path": None} for number in range(COUNT)]
    labels = [None if number % 3 else number % 2 for number in range(COUNT - 4)]
    parquet.write_table(arrow.table({"image": images[4:], "label": labels}), root / "train.parquet")
    parquet.write_table(arrow.table({"image": images[:4]}), root / "test.parquet")
    return root


def tarred(root: Path) -> Path:
    root.mkdir()
    with tarfile.open(root / "images.tar", "w") as file:
        for number in range(COUNT):
            member = tarfile.TarInfo(f"{number:02}.png")
            data = png(number)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return root / "images.tar"


def packed(root: Path) -> Path:
    out = str(root / "packed")
    assert main(["data", "pack", str(flat(root / "flat")), out, "--image-size", "12", "--unlabeled"]) == 0
    return Path(out)


KINDS: list[Make] = [flat, partly, parts, listed, listed_in_part, rows, tarred, packed]


@pytest.mark.parametrize("make", KINDS)
def test_images_are_learned_from_wherever_they_lie(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = str(make(tmp_path / "data")), tmp_path / "run"
    splits = open_data(data, unlabeled=True)
    assert sum(map(len, splits.values())) == COUNT
    assert all((source.labels >= -1).all() and (source.labels == -1).any() for source in splits.values())
    capsys.readouterr()
    assert main(["pretrain", data, *MASKED, "--steps", "3", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    some: dict[Make, str] = {
        partly: "in 2 classes, 18 of them without a label",
        rows: "in 2 classes, 13 of them without a label",
        listed_in_part: "in 1 class, 20 of them without a label",
    }
    count = len(splits.get("train", splits.get("all", ())))
    assert f"{count} training images {some.get(make, 'without labels')}" in shown.err
    assert "nothing to learn" not in shown.err
    metrics = json.loads((out / "summary.json").read_text())["metrics"]
    assert metrics["images"] == (5 if make is parts else 2)
    tested: dict[Make, int] = {parts: 3, rows: 4}
    assert metrics.get("test_images") == tested.get(make)
    assert vitrail.load(out).config.classes is None
    named = data if make in some else "SOURCE"
    assert f"finetune {named} --model {out}" in " ".join(shown.out.split())


@pytest.mark.parametrize("make", KINDS)
def test_labels_that_are_to_be_learned_are_asked_for(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(make(tmp_path / "data"))
    capsys.readouterr()
    if make is partly:
        splits = open_data(data)
        assert (len(splits["all"]), splits["all"].class_names) == (6, ("ant", "bee"))
        return
    assert main(["finetune", data, *SMALL, "--steps", "3", "--out", str(tmp_path / "run")]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "label" in said
    if make not in (listed_in_part, rows):  # whose line or row is named
        assert "pre-training learns without labels: --objective masked-patch (or mae, next-pixel)." in said


def test_a_run_without_labels_goes_on_to_the_same_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["pretrain", str(flat(tmp_path / "data")), *MASKED, "--set", "save_every=2", "--steps", "6", "--quiet"]
    for name in ("one", "two"):
        assert main([*command, "--out", str(tmp_path / name)]) == 0
    (tmp_path / "two" / "summary.json").unlink()
    last = tmp_path / "two" / "checkpoints" / "step-000000006"
    for path in last.iterdir():
        path.unlink()
    last.rmdir()
    capsys.readouterr()
    assert main([*command, "--out", str(tmp_path / "two"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finished"]
    one, two = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_images_kept_back_are_chosen_by_content(tmp_path: Path) -> None:
    root = flat(tmp_path / "data", count=12)
    for number in range(12):
        (root / f"copy-{number:02}.png").write_bytes(png(number))
    command = ["pretrain", str(root), *MASKED, "--set", "dev=0.25", "--steps", "1", "--quiet"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    source = open_data(root, unlabeled=True)["all"]
    with np.load(tmp_path / "run" / "split.npz") as held:
        found = choose_parts({"all": source}, (held["train"], held["dev"]))
    assert found.val is not None
    assert len(found.val) == 6
    assert not {*map(read(found.train), range(18))} & {*map(read(found.val), range(6))}


def read(source: Source) -> Callable[[int], bytes]:
    def one(index: int) -> bytes:
        data = source.read(index)
        assert isinstance(data, bytes)
        return data

    return one


def test_loose_images_beside_classes_come_first_and_keep_the_labels_of_the_others(tmp_path: Path) -> None:
    root = partly(tmp_path / "data")
    source = open_data(root, unlabeled=True)["all"]
    assert source.labels.tolist() == [-1] * 18 + [0] * 3 + [1] * 3
    assert [source.name(index) for index in (0, 17, 18, 23)] == ["00.png", "17.png", "ant/30.png", "bee/42.png"]
    assert source.read(17) == png(17)
    labeled = open_data(root)["all"]
    assert getattr(labeled, "ignored", None) == 18 + 2
    assert getattr(source, "ignored", None) == 2
    assert choose(labeled, None, pretrained=False, has_val=False).reasons[0] == "6 training images in 2 classes"


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(VitrailError, match=r"expected a folder of images; .* \(1 other files\)\. Check the path"):
        open_data(tmp_path, unlabeled=True)
