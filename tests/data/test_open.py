"""Every source by its name or path, through a loader, to what a model reads."""

import gc
import io
import json
import tarfile
from pathlib import Path

import huggingface_hub
import numpy as np
import pyarrow
import pytest
import torch
from files.servers import HubServer
from huggingface_hub import constants
from PIL import Image
from pyarrow import parquet

import vitrail
from vitrail.cli import main
from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation, RandAugment
from vitrail.data.decode import decode
from vitrail.data.feed import Loader
from vitrail.data.open import many_names, open_data, open_split
from vitrail.data.transforms.finish import BatchTransform
from vitrail.data.transforms.resize import EvalTransform, TrainTransform
from vitrail.errors import DataError
from vitrail.figures.measured import SheetRow


def photo(seed: int, height: int = 30, width: int = 41) -> Image.Image:
    return Image.fromarray(np.random.RandomState(seed).randint(0, 256, (height, width, 3)).astype(np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, count in (("train", 6), ("test", 3)):
        for label, name in enumerate(("bee", "ant")):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for index in range(count):
                seed = label * 100 + index + (50 if split == "test" else 0)
                photo(seed).save(tmp_path / "photos" / split / name / f"{index}.png")
    return tmp_path / "photos"


def test_folders_tables_tars_and_packed_arrays_are_recognized(folder: Path, tmp_path: Path) -> None:
    splits = open_data(folder)
    assert {name: len(source) for name, source in splits.items()} == {"train": 12, "test": 6}
    assert splits["train"].class_names == ("ant", "bee")
    lines = ["path,label"] + [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in folder.rglob("*.png")]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    assert len(open_split(tmp_path / "list.csv")) == 18
    with tarfile.open(tmp_path / "shard-000.tar", "w") as shard:
        for index, path in enumerate(sorted(folder.rglob("*.png"))):
            shard.add(path, f"{index:04d}.png")
            label = tarfile.TarInfo(f"{index:04d}.cls")
            label.size = 1
            shard.addfile(label, io.BytesIO(b"1"))
    assert len(open_split(tmp_path / "shard-000.tar")) == 18
    assert list(open_data(tmp_path / "shard-000.tar")) == ["all"]
    assert main(["data", "pack", str(folder), str(tmp_path / "packed"), "--image-size", "16x20"]) == 0
    packed = open_data(tmp_path / "packed")
    assert {name: len(source) for name, source in packed.items()} == {"train": 12, "test": 6}
    pixels = packed["train"].read(3)
    assert isinstance(pixels, np.ndarray)
    assert pixels.shape == (16, 20, 3)
    for name in ("sample", "synthetic"):
        assert set(open_data(name)) == {"train", "test"}
    with pytest.raises(DataError, match=r"there is no data at 'sampel'\. Did you mean 'sample'"):
        open_data("sampel")
    with pytest.raises(DataError, match=r"which split is not said\. There are: "):
        open_split(folder)


def test_names_are_read_without_a_look_for_cycles_which_goes_on_afterwards(folder: Path, tmp_path: Path) -> None:
    with many_names():
        assert not gc.isenabled()
    open_data(folder)
    with pytest.raises(DataError):
        open_data(tmp_path / "nothing")
    assert gc.isenabled()
    gc.disable()
    try:
        open_data(folder)
        assert not gc.isenabled()  # as the caller had it
    finally:
        gc.enable()


def test_training_takes_the_same_part_however_it_is_read(folder: Path) -> None:
    source = open_split(folder, "train")
    take = TrainTransform((16, 16), Augmentation(), seed=3)
    plain = [batch.images for batch in Loader(source, take, batch=4, seed=1).epoch(1)]
    shared = [batch.images for batch in Loader(source, take, batch=4, seed=1, workers=2).epoch(1)]
    assert all(torch.equal(one, other) for one, other in zip(plain, shared, strict=True))
    assert not torch.equal(plain[0], next(iter(Loader(source, take, batch=4, seed=1).epoch(2))).images)


def test_a_part_of_pixels_is_the_part_of_their_file() -> None:
    take = TrainTransform((8, 8), Augmentation(), seed=3)
    buffer = io.BytesIO()
    photo(4).save(buffer, "PNG")
    data = buffer.getvalue()
    for sample in range(20):
        assert torch.equal(take(data, sample, 0), take(decode(data), sample, 0))


def test_evaluation_sees_the_whole_image_squashed() -> None:
    take = EvalTransform((9, 12), Preprocessing())
    buffer = io.BytesIO()
    photo(4).save(buffer, "PNG")
    expected = np.asarray(photo(4).resize((12, 9), Image.Resampling.BILINEAR)).transpose(2, 0, 1).astype(int)
    assert np.abs(take(buffer.getvalue(), 0, 0).numpy() - expected).max() <= 1


def test_the_sample_in_the_box_goes_all_the_way() -> None:
    source = open_split("sample", "train")
    config = Augmentation(randaugment=RandAugment(), mixup=0.2, cutmix=1.0, random_erasing=0.25, mix_block=4)
    loader = Loader(source, TrainTransform((32, 32), config, seed=0), batch=64, block=config.mix_block)
    batch = next(iter(loader.epoch(0)))
    made = BatchTransform(config, Preprocessing(), 10, 0)(batch)
    assert made.targets is not None
    assert made.images.shape == (64, 3, 32, 32)
    assert made.images.abs().max() <= 1
    torch.testing.assert_close(made.targets.sum(dim=1), torch.ones(64))


def test_the_check_finds_faults_and_says_so(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    sheet = tmp_path / "sheet.png"
    assert main(["data", "check", str(folder), "--sheet", str(sheet)]) == 0
    assert "clean" in capsys.readouterr().out
    clean = decode(sheet.read_bytes()).shape
    assert clean[0] > 2 * 90  # a row for each class, with its name beside it
    assert clean[1] > 6 * 90
    (folder / "train" / "ant" / "notes.txt").write_text("")
    assert main(["data", "check", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "train: ignored: 1\n  ant/notes.txt: no image by its suffix\n" in shown
    assert "test: ignored" not in shown
    (folder / "train" / "ant" / "zero.jpg").write_bytes(b"")
    first = (folder / "train" / "bee" / "0.png").read_bytes()
    (folder / "train" / "bee" / "cut.png").write_bytes(first[: len(first) // 2])
    (folder / "test" / "bee" / "leak.png").write_bytes(first)
    (folder / "train" / "ant" / "renamed.jpg").write_bytes((folder / "train" / "ant" / "1.png").read_bytes())
    rows: list[SheetRow] = []
    monkeypatch.setattr("vitrail.verbs.data.draw_sheet", lambda given: rows.extend(given) or b"")
    vitrail.check_data(folder, sheet=sheet)
    assert [row.title for row in rows[:2]] == ["ant", "bee"]
    shown_names = {row.title: list(row.names) for row in rows[2:]}
    assert shown_names["train: empty (1)"] == ["ant/zero.jpg"]
    assert shown_names["train: truncated (1)"] == ["bee/cut.png"]
    assert shown_names["train: copies (1)"] == ["ant/1.png", "ant/renamed.jpg"]
    assert main(["data", "check", str(folder), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    problems = document["splits"]["train"]["problems"]
    assert {"empty", "truncated", "misnamed"} <= problems.keys()
    assert problems["ignored"] == {"count": 1, "examples": ["ant/notes.txt: no image by its suffix"]}
    assert document["clean"] is False
    assert sum(found["count"] for found in document["leaks"].values()) == 1
    assert main(["data", "check", str(folder)]) == 1
    assert "in both" in capsys.readouterr().out
    (folder / "test" / "ant" / "red\x1b[31m.png").write_bytes(b"")
    assert main(["data", "check", str(folder)]) == 1
    assert "red\\x1b[31m.png" in capsys.readouterr().out
    assert main(["data", "check", str(tmp_path / "nowhere")]) == 1
    assert "there is no data at" in capsys.readouterr().err


def test_packing_stops_past_the_limit_of_bad_images(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train" / "ant" / "zero.jpg").write_bytes(b"")
    command = ["data", "pack", str(folder), str(tmp_path / "packed"), "--split", "train", "--image-size", "8"]
    assert main(command) == 1
    told = capsys.readouterr().err
    assert "1 of 13 images cannot be read, over the limit of 1.0%: ant/zero.jpg: empty file" in told
    assert "--bad-image-limit 0.05" in " ".join(told.split())
    assert not (tmp_path / "packed").exists()
    assert main([*command, "--limit", "0.2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)[0]
    assert (document["images"], document["skipped"]) == (12, [{"name": "ant/zero.jpg", "reason": "empty file"}])


def test_a_data_set_of_the_hub_is_opened_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VITRAIL_OFFLINE", "HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    files = {}
    for split, count in (("train", 5), ("validation", 3)):
        rows = []
        for index in range(count):
            buffer = io.BytesIO()
            photo(index).save(buffer, "PNG")
            rows.append({"image": {"bytes": buffer.getvalue(), "path": None}, "label": f"class {index % 2}"})
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
        files[f"data/{split}-00000-of-00001.parquet"] = (tmp_path / "x.parquet").read_bytes()
    server = HubServer("glass/panes", files | {"loader.py": b"import os", "README.md": b"read me"}, "datasets")
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    with server.running():
        splits = open_data("hf:glass/panes")
        huggingface_hub.close_session()
    assert {name: len(source) for name, source in splits.items()} == {"train": 5, "val": 3}
    assert server.fetched() == set(files)
    data = splits["train"].read(3)
    assert isinstance(data, bytes)
    np.testing.assert_array_equal(decode(data), np.asarray(photo(3)))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert len(open_split("hf:glass/panes", "val")) == 3
