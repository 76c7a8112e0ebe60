"""`predict` and `embed` that were stopped go on: nothing is computed twice, and the answers are those of one go."""

from pathlib import Path
from typing import Any

import pytest
import torch
from evaluating import NAMES, Pictures, guessing, write_folder
from torch import Tensor

import vitrail
from vitrail.models import Model
from vitrail.verbs import kept

IMAGES, BATCH = 29, 3  # kept after six images, two batches


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "BATCHES", 2)
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: min(threads, 1))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = write_folder(tmp_path / "photos", Pictures(IMAGES))
    (root / "b" / "bad.png").write_bytes(b"no image")
    return root


def asked(model: Model, stop: int | None = None) -> list[int]:
    """Count the images that a model is asked about; it may be stopped before so many are answered."""
    counts: list[int] = []
    own = type(model).outputs

    def outputs(images: Tensor, *more: Any) -> Any:
        if stop is not None and sum(counts) + len(images) > stop:
            raise KeyboardInterrupt
        counts.append(len(images))
        return own(model, images, *more)

    model.outputs = outputs  # pyright: ignore[reportAttributeAccessIssue]
    return counts


def predict(model: Model, photos: Path, **options: Any) -> Any:
    return vitrail.predict(model, photos, batch_size=BATCH, workers=0, engine="plain", device="cpu", **options)


def rows(cache: Path) -> list[Path]:
    return [*(cache / "rows").rglob("*.npz")]


def test_a_call_that_was_stopped_goes_on_and_gives_the_same_bits(photos: Path, cache: Path) -> None:
    whole = predict(guessing(names=NAMES), photos, fresh=True)
    assert not (cache / "rows").exists()
    first, again, third = (guessing(names=NAMES) for _ in range(3))
    before = asked(first, stop=20)
    with pytest.raises(KeyboardInterrupt):
        predict(first, photos)
    after = asked(again)
    found = predict(again, photos)
    assert sum(before) + sum(after) - IMAGES < 2 * BATCH  # of the piece that it was stopped in
    assert found.names == whole.names
    assert found.failed == whole.failed
    assert torch.equal(found.logits, whole.logits)
    assert rows(cache) == []  # the answers are given
    anew = asked(third)
    predict(third, photos)
    assert sum(anew) == IMAGES


@pytest.mark.parametrize(
    "change", ["image", *(pytest.param(each, marks=pytest.mark.slow) for each in ("weights", "parts", "fresh"))]
)
def test_what_was_found_of_something_else_is_never_used(change: str, photos: Path) -> None:
    first, again = guessing(names=NAMES), guessing(names=NAMES)
    asked(first, stop=20)
    with pytest.raises(KeyboardInterrupt):
        predict(first, photos)
    if change == "image":
        (photos / "a" / sorted(path.name for path in (photos / "a").iterdir())[0]).write_bytes(b"none")
    elif change == "weights":
        with torch.no_grad():
            next(again.head.parameters())[0, 0] += 0.5
    options = {"features": True} if change == "parts" else {}
    wanted = predict(guessing(names=NAMES) if change != "weights" else again, photos, **options, fresh=True)
    counts = asked(again)
    found = predict(again, photos, **options, fresh=change == "fresh")
    assert (sum(counts) < IMAGES - BATCH) == (change == "image")
    assert [failed.name for failed in found.failed] == [failed.name for failed in wanted.failed]
    assert torch.equal(found.logits, wanted.logits)


def test_images_in_memory_leave_nothing_on_the_disk(photos: Path, cache: Path) -> None:
    model = guessing(names=NAMES)
    paths = [path for path in sorted(photos.rglob("*.png")) if path.name != "bad.png"]
    asked(model, stop=20)
    with pytest.raises(KeyboardInterrupt):
        vitrail.embed(model, [path.read_bytes() for path in paths], batch_size=BATCH, workers=0, engine="plain")
    assert not (cache / "rows").exists()
