"""Finished batches, and a folder with every fault that folders have."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation, RandAugment
from vitrail.data import feed
from vitrail.data.feed import evaluation_feed, train_feed
from vitrail.data.open import open_split
from vitrail.data.source import Subset
from vitrail.data.sources.folder import FolderSource
from vitrail.data.sources.memory import MemorySource
from vitrail.data.sources.packed import PackedSource, pack
from vitrail.errors import DataError

STRONG = Augmentation(
    randaugment=RandAugment(layers=2, magnitude=15), jitter=0.3, random_erasing=0.3, mixup=0.4, cutmix=1.0, mix_block=4
)


def source(count: int = 45) -> MemorySource:
    images = np.random.RandomState(3).randint(0, 256, (count, 20, 26, 3)).astype(np.uint8)
    return MemorySource(images, np.arange(count) % 3, ("a", "b", "c"))


@pytest.mark.parametrize("workers", [1, 2])
def test_finishing_in_workers_changes_nothing(workers: int) -> None:
    def feed(workers: int) -> list[torch.Tensor]:
        made = train_feed(
            source(), (16, 12), batch=8, augmentation=STRONG, preprocessing=Preprocessing(), seed=2, workers=workers
        )
        return [part for batch in made.epoch(1) for part in (batch.images, batch.targets) if part is not None]

    alone, shared = feed(0), feed(workers)
    assert len(alone) == len(shared) == 12
    assert all(torch.equal(one, other) for one, other in zip(alone, shared, strict=True))


def test_ranks_together_see_what_one_sees() -> None:
    def feed(batch: int, rank: int, ranks: int) -> list[torch.Tensor]:
        made = train_feed(
            source(48),
            (16, 12),
            batch=batch,
            augmentation=STRONG,
            preprocessing=Preprocessing(),
            seed=2,
            rank=rank,
            ranks=ranks,
        )
        return [batch.images for batch in made.epoch(0)]

    whole = torch.cat(feed(16, 0, 1))
    parts = [feed(16, rank, 2) for rank in (0, 1)]
    together = torch.cat([part for step in zip(*parts, strict=True) for part in step])
    assert torch.equal(whole, together)
    assert torch.equal(whole, torch.cat(feed(8, 0, 1)))  # nor does the size of a batch change an image


def test_evaluation_gives_every_image_once_in_order() -> None:
    preprocessing = Preprocessing(mean=(0.4, 0.5, 0.6), deviation=(0.2, 0.3, 0.4))
    made = evaluation_feed(source(), (20, 26), batch=10, preprocessing=preprocessing)
    batches = list(made.epoch(0))
    assert torch.cat([batch.samples for batch in batches]).tolist() == list(range(45))
    images = torch.cat([batch.images for batch in batches])
    pixels = np.stack([np.asarray(source().read(index)) for index in range(45)]).transpose(0, 3, 1, 2) / 255
    expected = (pixels - np.array([0.4, 0.5, 0.6])[:, None, None]) / np.array([0.2, 0.3, 0.4])[:, None, None]
    np.testing.assert_allclose(images.numpy(), expected, atol=1e-5)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def test_a_folder_with_every_fault_is_read_or_told_about(tmp_path: Path) -> None:
    photo = Image.fromarray(np.random.RandomState(0).randint(0, 256, (40, 50, 3)).astype(np.uint8))
    good, bad = tmp_path / "photos" / "good", tmp_path / "photos" / "bad"
    good.mkdir(parents=True)
    bad.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    alpha = photo.copy()
    alpha.putalpha(128)
    frames = [photo, photo.rotate(90)]
    animated = io.BytesIO()
    frames[0].save(animated, "GIF", save_all=True, append_images=frames[1:])
    deep = Image.fromarray(np.arange(2000, dtype=np.uint16).reshape(40, 50) * 30)
    for name, data in {
        "plain.jpg": encoded(photo, "JPEG"),
        "cmyk.jpg": encoded(photo.convert("CMYK"), "JPEG"),
        "grey.png": encoded(photo.convert("L"), "PNG"),
        "deep.png": encoded(deep, "PNG"),
        "alpha.png": encoded(alpha, "PNG"),
        "palette.png": encoded(photo.quantize(9), "PNG"),
        "turned.jpg": encoded(photo, "JPEG", exif=exif),
        "animated.gif": animated.getvalue(),
        "really-a-png.jpg": encoded(photo, "PNG"),
        "lossless.webp": encoded(photo, "WEBP", lossless=True),
    }.items():
        (good / name).write_bytes(data)
    whole = encoded(photo, "JPEG", quality=95)
    (bad / "empty.jpg").write_bytes(b"")
    (bad / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (bad / "text.png").write_text("not an image")
    (bad / "bomb.png").write_bytes(encoded(Image.new("1", (12_000, 9_000)), "PNG"))
    os.symlink(tmp_path / "photos", good / "loop")
    os.symlink(tmp_path / "nothing.jpg", bad / "gone.jpg")
    (good / "notes.txt").write_text("hello")
    found = open_split(tmp_path / "photos")
    assert isinstance(found, FolderSource)
    made = evaluation_feed(found, (16, 16), batch=4, preprocessing=Preprocessing(), bad_image_limit=0.5)
    batches = list(made.epoch(0))
    names = {found.name(int(sample)).rsplit("/", 1)[-1] for batch in batches for sample in batch.samples}
    assert names == {path.name for path in good.iterdir() if path.is_file() and path.suffix != ".txt"}
    reasons = {skip.name.rsplit("/", 1)[-1]: skip.reason for skip in made.bad.values() if skip}
    assert reasons.keys() >= {"empty.jpg", "cut.jpg", "text.png", "bomb.png"}
    assert "empty file" in reasons["empty.jpg"]
    assert "truncated" in reasons["cut.jpg"]
    assert "12000x9000 pixels" in reasons["bomb.png"]
    with pytest.raises(DataError, match=r"images cannot be read, over the limit of 1\.0%"):
        list(evaluation_feed(found, (16, 16), batch=4, preprocessing=Preprocessing()).epoch(0))


def test_a_rank_without_a_share_of_the_last_step_gets_an_empty_batch() -> None:
    for rank in range(4):
        made = train_feed(
            source(17),
            (16, 12),
            batch=16,
            augmentation=STRONG,
            preprocessing=Preprocessing(),
            rank=rank,
            ranks=4,
        )
        batches = list(made.epoch(0))
        assert len(batches) == 2
        last = batches[-1]
        assert last.images.shape[1:] == (3, 16, 12)
        assert last.images.dtype == torch.float32
        assert last.targets is not None
        assert last.targets.shape == (len(last.images), 3)


@pytest.mark.parametrize(
    ("batch", "ranks", "block"), [(1, 1, 1), (4, 1, 4), (12, 1, 6), (12, 3, 4), (13, 1, 13), (22, 2, 11), (32, 2, 8)]
)
def test_images_of_any_batch_mix_in_blocks_that_divide_it(batch: int, ranks: int, block: int) -> None:
    images = np.random.RandomState(3).randint(0, 256, (batch, 8, 8, 3)).astype(np.uint8)
    each = MemorySource(images, np.arange(batch), tuple(map(str, range(batch))))  # a class of its own
    kinds = Augmentation(mixup=1.0)
    for rank in range(ranks):
        made = train_feed(
            each, (8, 8), batch=batch, augmentation=kinds, preprocessing=Preprocessing(), rank=rank, ranks=ranks
        )
        (found,) = made.epoch(0)
        assert found.targets is not None
        assert len(found.labels) == batch // ranks
        for index in range(len(found.labels)):
            start = index // block * block
            partner = start + (index - start + 1) % block
            assert found.targets[index, found.labels[[index, partner]]].unique().sum() == pytest.approx(1)


@pytest.mark.parametrize(("batch", "ranks"), [(10, 4), (3, 4), (1, 2), (13, 2)])
def test_any_batch_is_shared_by_any_number_of_processes(batch: int, ranks: int) -> None:
    options: Any = {"batch": batch, "augmentation": Augmentation(mixup=0.0), "preprocessing": Preprocessing()}
    whole = next(train_feed(source(), (8, 8), **options).epoch(0))
    parts = [next(train_feed(source(), (8, 8), **options, rank=rank, ranks=ranks).epoch(0)) for rank in range(ranks)]
    assert [sample for part in parts for sample in part.samples.tolist()] == whole.samples.tolist()
    assert max(len(part.samples) for part in parts) == -(-batch // ranks)
    options["augmentation"] = STRONG
    mixed = [next(train_feed(source(), (8, 8), **options, rank=rank, ranks=ranks).epoch(0)) for rank in range(ranks)]
    assert sum(len(part.samples) for part in mixed) == batch


def test_a_very_long_image_costs_no_more_than_another() -> None:
    pixels = np.random.RandomState(0).randint(0, 256, (30_000, 2, 3)).astype(np.uint8)
    long = MemorySource(pixels[None], np.array([0]), ("a",))
    made = evaluation_feed(long, (32, 32), batch=1, preprocessing=Preprocessing(resize="crop"))
    assert next(made.epoch(0)).images.shape == (1, 3, 32, 32)


def test_gray_is_weighed_from_pixels_as_from_files() -> None:
    green = np.zeros((1, 9, 9, 3), dtype=np.uint8)
    green[..., 1] = 255
    made = evaluation_feed(
        MemorySource(green, np.array([0]), ("a",)), (9, 9), batch=1, preprocessing=Preprocessing(), channels=1
    )
    torch.testing.assert_close(next(made.epoch(0)).images, torch.full((1, 1, 9, 9), 150 / 127.5 - 1))


def test_pixels_that_are_only_copied_are_read_without_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(source(7), tmp_path / "packed", (20, 26), overwrite=False)
    packed = Subset(PackedSource(tmp_path / "packed"), np.arange(7))
    monkeypatch.setattr(feed, "DataLoader", None)  # which starts them

    def read(size: tuple[int, int]) -> torch.Tensor:
        fed = evaluation_feed(packed, size, preprocessing=Preprocessing(), batch=3, workers=2)
        return torch.cat([batch.images for batch in fed.epoch(0)])

    pixels = np.stack([source(7).read(index) for index in range(7)])
    np.testing.assert_allclose(read((20, 26)).permute(0, 2, 3, 1).numpy(), pixels / 127.5 - 1, atol=1e-6)
    with pytest.raises(TypeError):  # another size is made in workers
        read((10, 13))
