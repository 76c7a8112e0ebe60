"""Runs that segment or detect: they learn, resume to the bit, are the same on two processes, refuse what they lack."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killed_runs import LOG, Runs, log
from PIL import Image

import vitrail
from vitrail.config.dense import QueryHead
from vitrail.config.recipes import adjust, recipe
from vitrail.data.annotated.others import SceneSource
from vitrail.errors import ConfigError, DataError
from vitrail.models.dense import DenseViT
from vitrail.train.dense import DensePrediction

SIZE = (16, 24)
FIELDS = {"model.depth": 2, "model.width": 24, "model.heads": 3, "model.mlp_width": 29, "image_size": "16x24"}
FIELDS |= {"head.queries": 6, "head.blocks": 2, "head.upscale": 2, "warmup_steps": 2, "dropout": 0.1}
STEPS = 9


def make_scenes(root: Path, count: int = 14) -> Path:
    """Write images with squares of two classes on noise, a mask and a map of numbered objects each."""
    random = np.random.default_rng(3)
    for split in ("train", "val", "test"):
        for name in ("images", "masks", "instances"):
            (root / split / name).mkdir(parents=True)
        for number in range(count if split == "train" else 5):
            pixels = random.integers(0, 90, (*SIZE, 3), dtype=np.uint8)
            mask, objects = np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
            for place, left in enumerate((1, 13)):
                kind, top, side = int(random.integers(1, 3)), int(random.integers(1, 7)), int(random.integers(5, 9))
                part = (slice(top, top + side), slice(left, left + side))
                pixels[part][..., kind] += 150
                mask[part], objects[part] = kind, place + 1
            mask[:, -1] = 255  # which counts nowhere
            for name, array in (("images", pixels), ("masks", mask), ("instances", objects)):
                Image.fromarray(array).save(root / split / name / f"{number}.png")
    (root / "classes.json").write_text(json.dumps({"0": "background", "1": "green", "2": "blue", "255": "void"}))
    return root


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_scenes(tmp_path_factory.mktemp("scenes") / "data")


def request(data: Path, out: Path, task: str, **changed: object) -> list[str]:
    settings = {**FIELDS, "evaluate_every": 5, "save_every": 4, "log_every": 3, **changed}
    if changed.get("head") == "linear":
        settings = {name: value for name, value in settings.items() if not name.startswith("head.")}
    command = ["finetune", str(data), "--model", "ViT-Ti/8", "--task", task, "--out", str(out), "--device", "cpu"]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return [*command, "--steps", str(STEPS), "--batch", "6", "--workers", "0"]


def bits(out: Path) -> dict[str, Any]:
    files = ("weights.safetensors", "metrics.json", "summary.json", "classes.json", "config.json")
    return {name: (out / name).read_bytes() for name in files} | {"log": log(out)}


@pytest.mark.parametrize(
    ("task", "changed"),
    [
        ("segment", {}),
        ("detect", {"micro_batch": 4}),
        pytest.param("segment", {"head": "linear"}, marks=pytest.mark.slow),
        pytest.param("detect", {"micro_batch": 4, "head.masks": True}, marks=pytest.mark.slow),
    ],
)
def test_such_a_run_that_is_killed_ends_with_the_same_bits(
    task: str, changed: dict[str, object], runs: Runs, scenes: Path, tmp_path: Path
) -> None:
    ended = runs(request(scenes, tmp_path / "one", task, **changed))
    assert ended.status == 0, ended.said
    ended = runs(request(scenes, tmp_path / "two", task, **changed), trick=["signal", 6, signal.SIGKILL])
    assert ended.status == -signal.SIGKILL, ended.said
    ended = runs(request(scenes, tmp_path / "two", task, **changed))
    assert ended.status == 0, ended.said
    assert "resuming from step" in ended.said
    assert bits(tmp_path / "one") == bits(tmp_path / "two")
    assert LOG


@pytest.mark.parametrize(
    ("task", "parallel", "more"),
    [
        ("segment", "ddp", {}),
        pytest.param("detect", "fsdp", {}, marks=pytest.mark.slow),
        pytest.param("detect", "ddp", {"head.masks": True}, marks=pytest.mark.slow),
    ],
)
def test_two_processes_equal_one(
    task: str, parallel: str, more: dict[str, object], runs: Runs, scenes: Path, tmp_path: Path
) -> None:
    how = {"parallel": parallel, "precision": "float32", **more}
    one, two = (request(scenes, tmp_path / name, task, **how) for name in ("one", "two"))
    assert runs(one).status == 0
    for ended in runs.all(two, ranks=2):
        assert ended.status == 0, ended.said
    ours, theirs = (vitrail.load(tmp_path / name) for name in ("one", "two"))
    for (name, mine), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-3, rtol=1e-2, msg=lambda text, name=name: f"{name}: {text}")
    metrics = [vitrail.load(tmp_path / name).card.metrics for name in ("one", "two")]
    assert metrics[0].keys() == metrics[1].keys()
    assert metrics[0]["images"] == metrics[1]["images"] == 5
    assert metrics[0]["test_images"] == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "headline", "least"),
    [("segment", "mean_iou", 0.85), ("detect", "ap50", 0.85), ("detect", "mask_ap50", 0.85)],
)
def test_a_head_learns_eight_images_by_heart(task: str, headline: str, least: float, scenes: Path) -> None:
    from vitrail.data.annotated.open import open_annotated
    from vitrail.data.source import Subset

    eight = Subset(open_annotated(scenes, task)["train"], np.arange(8))  # pyright: ignore[reportArgumentType]
    still = {"crop": "squash", "flip": False, "jitter": 0.0, "model.stochastic_depth": 0.0, "ema": None}
    shape = {name: value for name, value in FIELDS.items() if name.startswith("model.")}
    shape["head.masks"] = headline == "mask_ap50"
    run = vitrail.finetune(
        {"train": eight, "val": eight},
        model="ViT-Ti/8",
        task=task,
        steps=240,
        batch_size=8,
        learning_rate=4e-3,
        image_size=SIZE,
        evaluate_every=240,
        workers=0,
        quiet=True,
        **{**shape, **still, "model.width": 48, "head.queries": 6, "head.blocks": 2, "head.upscale": 4},
    )
    assert run.metrics[headline] > least


@pytest.mark.slow  # tests/models/test_dense_mirror.py and tests/data/test_annotated.py say it quickly
def test_masks_of_a_flipped_image_are_the_flipped_masks() -> None:
    from vitrail.data.annotated.feed import annotated_train_feed

    source = SceneSource(6, 16, seed=1, task="segment")
    plain = adjust(recipe("segment").training, {"crop": "squash", "jitter": 0.0, "flip": False}).augmentation
    model = vitrail.create("ViT-Ti/8", classes=7, depth=1, width=24, heads=3, mlp_width=8, image_size=16)
    how = {"preprocessing": model.card.preprocessing, "batch": 6, "seed": 4}
    still, turned = (
        next(annotated_train_feed(source, (16, 16), augmentation=each, **how).epoch(0))  # pyright: ignore
        for each in (plain, adjust(recipe("segment").training, {"crop": "squash", "jitter": 0.0}).augmentation)
    )
    assert still.masks is not None
    assert turned.masks is not None
    flipped = (still.images != turned.images).flatten(1).any(dim=1)
    assert 0 < int(flipped.sum()) < 6
    torch.testing.assert_close(turned.images[flipped], still.images[flipped].flip(3))
    assert torch.equal(turned.masks[flipped], still.masks[flipped].flip(2))
    assert torch.equal(turned.masks[~flipped], still.masks[~flipped])


def test_blocks_are_freed_of_masks_one_after_the_other() -> None:
    shape: dict[str, Any] = {"depth": 3, "width": 24, "heads": 3, "mlp_width": 8, "image_size": 16}
    model = vitrail.create("ViT-Ti/8", classes=3, head=QueryHead(queries=11, blocks=3), **shape)
    assert isinstance(model, DenseViT)
    objective = DensePrediction(model, adjust(recipe("segment").training, {"seed": 2}))
    objective.module.train()
    batch = type("Batch", (), {"images": torch.zeros(5, 3, 16, 16), "samples": torch.arange(5), "epoch": 0})
    shares = []
    for progress in (0.0, 0.4, 0.79):
        objective.progress = lambda progress=progress: progress
        shares.append(objective.inputs(batch)[1].float().mean(dim=(0, 2)))  # pyright: ignore[reportArgumentType]
    assert shares[0].tolist() == [1, 1, 1]
    assert shares[1][0] == 0
    assert 0 < shares[1][1] < 1
    assert shares[1][2] == 1
    assert shares[2].max() < 0.4
    objective.progress = lambda: 0.8
    assert len(objective.inputs(batch)) == 1  # pyright: ignore[reportArgumentType]
    objective.module.eval()
    objective.progress = lambda: 0.0
    assert len(objective.inputs(batch)) == 1  # pyright: ignore[reportArgumentType]


def test_what_masks_cannot_follow_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    def train(**fields: Any) -> None:
        vitrail.finetune("synthetic", quiet=True, steps=1, **fields)

    with pytest.raises(ConfigError, match=r"task=segment moves masks and boxes with their images.*mixup.*Set mixup=0"):
        train(task="segment", mixup=0.2)
    with pytest.raises(ConfigError, match=r"label_smoothing: of images with one class each"):
        train(task="detect", label_smoothing=0.1)
    with pytest.raises(ConfigError, match="head=linear segments alone"):
        train(task="detect", head="linear")
    with pytest.raises(ConfigError, match=r"got a BiT"):
        train(task="segment", model="BiT-R50x1")
    with pytest.raises(DataError, match="found no masks and no boxes"):
        vitrail.finetune(tmp_path, task="segment", quiet=True)


def test_masks_of_another_size_and_images_without_any_are_refused_by_name(tmp_path: Path) -> None:
    root = make_scenes(tmp_path / "data", 9)
    Image.fromarray(np.zeros((16, 23), np.uint8)).save(root / "train" / "masks" / "4.png")
    with pytest.raises(DataError, match=r"images/4\.png: its mask is 16x23, the image 16x24.*data check"):
        vitrail.finetune(root, task="segment", quiet=True, steps=1)
    Image.fromarray(np.full((16, 24), 7, np.uint8)).save(root / "train" / "masks" / "4.png")
    with pytest.raises(DataError, match=r"the mask has 7, which is no class"):
        vitrail.finetune(root, task="segment", quiet=True, steps=1)
    (root / "train" / "masks" / "4.png").unlink()
    with pytest.raises(DataError, match=r"have no file of their name in masks/: 4"):
        vitrail.finetune(root, task="segment", quiet=True, steps=1)
    with pytest.raises(DataError, match=r"has images with masks\. Give task=segment"):
        vitrail.finetune(root, quiet=True, steps=1)
