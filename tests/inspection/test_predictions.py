"""What a model that learns without labels is shown and predicts, as pictures."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from families import family
from torch import Tensor

import vitrail
from vitrail.cli import main
from vitrail.config import PatchStem
from vitrail.config.objective import MaskedAutoencoder, MaskedPatches, NextPixels
from vitrail.data.source import Batch
from vitrail.errors import CheckpointError
from vitrail.inspection.predictions import open_objective, predict
from vitrail.models import ViT
from vitrail.ops.masking import KEPT, MASK, OTHER
from vitrail.train.objective import MaskedAutoencoding, MaskedPatchPrediction, NextPixelPrediction


def stirred(made: Any) -> Any:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in made.module.named_parameters():
            if name != "palette":
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return made


def pixels(count: int, height: int = 12, width: int = 20) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator, dtype=torch.uint8)


def batch(images: Tensor) -> Batch:
    samples = torch.arange(len(images))
    return Batch(images, samples, samples, samples, samples[:0], 0, 0, ())


def cut(images: Tensor, image: int, patch: int) -> Tensor:
    top, left = patch // 5 * 4, patch % 5 * 4
    return images[image, :, top : top + 4, left : left + 4]


@pytest.mark.parametrize("target", ["mean-color", "small-colors", "pixels"])
def test_corrupted_patches_are_shown_as_the_model_gets_them_and_painted_as_it_says(target: Any) -> None:
    config = MaskedPatches(target=target, masked=0.4, replaced=0.3)
    made = stirred(MaskedPatchPrediction(family("vit"), config, seed=0))
    shown = pixels(3)
    images = shown.float() / 127.5 - 1
    found = predict(made, images)
    part = batch(images)
    inputs = made.inputs(part)
    outputs = made.module.eval()(*inputs).detach()
    kinds = set()
    for image in range(3):
        asked = dict(zip(inputs[1][image].tolist(), range(8), strict=True))
        for patch in range(15):
            read, painted = cut(found.read, image, patch), cut(found.made, image, patch)
            if patch not in asked:
                assert torch.equal(read, cut(shown, image, patch))
                assert torch.equal(painted, cut(shown, image, patch))
                continue
            kind, other = int(inputs[2][image, asked[patch]]), int(inputs[3][image, asked[patch]])
            kinds.add(kind)
            source = {OTHER: other, KEPT: patch}.get(kind)
            assert (read == 128).all() if kind == MASK else torch.equal(read, cut(shown, image, source or 0))
            values = outputs[image, asked[patch]]
            if target == "pixels":
                wanted = ((values.unflatten(0, (4, 4, 3)).permute(2, 0, 1) + 1) * 127.5).round().clamp(0, 255)
                assert (painted - wanted).abs().max() <= 1
                continue
            for place in range(16):
                scores = values.unflatten(0, (-1, 512))[place if target == "small-colors" else 0]
                number = int(scores.argmax())
                color = [number // 64 * 32 + 16, number // 8 % 8 * 32 + 16, number % 8 * 32 + 16]
                assert painted[:, place // 4, place % 4].tolist() == color
    assert kinds == {MASK, OTHER, KEPT}
    assert (found.right is None) == (target == "pixels")
    torch.testing.assert_close(found.losses, made.compute_loss(outputs, part, inputs).losses)


@pytest.mark.parametrize("normalized", [True, False])
def test_hidden_patches_are_gray_and_then_what_the_decoder_says(*, normalized: bool) -> None:
    config = MaskedAutoencoder(normalized=normalized, decoder_depth=1)
    made = stirred(MaskedAutoencoding(family("vit-mean"), config, seed=0))
    shown = pixels(2)
    images = shown.float() / 127.5 - 1
    found = predict(made, images)
    _, visible, hidden = made.inputs(batch(images))
    outputs = made.module.eval()(images, visible, hidden).detach()
    for image in range(2):
        for patch in visible[image].tolist():
            assert torch.equal(cut(found.read, image, patch), cut(shown, image, patch))
            assert torch.equal(cut(found.made, image, patch), cut(shown, image, patch))
        for place, patch in enumerate(hidden[image].tolist()):
            assert (cut(found.read, image, patch) == 128).all()
            values = outputs[image, place].unflatten(0, (4, 4, 3)).permute(2, 0, 1)
            true = cut(images, image, patch)
            if normalized:
                values = values * true.std() + true.mean()
            wanted = ((values + 1) * 127.5).clamp(0, 255)
            assert (cut(found.made, image, patch) - wanted).abs().max() <= 1
    assert found.right is None


def test_pixels_are_shown_in_the_palette_and_painted_in_the_likeliest_colors() -> None:
    palette = torch.tensor([[-1.0, -1, -1], [1, 1, 1], [1, -1, -1]])
    model = family("vit", stem=PatchStem(patch=1), image_size=(4, 5), causal=True, pooling="mean")
    made = stirred(NextPixelPrediction(model, NextPixels(), palette))
    shown = pixels(2, 4, 5)
    images = shown.float() / 127.5 - 1
    found = predict(made, images)
    levels = ((palette + 1) * 127.5).round().to(torch.uint8)
    colors = torch.stack(
        [(images[0, :, row, col] - palette).square().sum(dim=1) for row in range(4) for col in range(5)]
    )
    nearest = colors.argmin(dim=1)
    assert torch.equal(found.read[0].flatten(1).T, levels[nearest])
    scores = made.module.eval()(nearest.view(1, 4, 5)).detach()
    assert torch.equal(found.made[0].flatten(1).T, levels[scores[0].argmax(dim=1)])
    assert found.right is not None
    assert found.right[0].item() == pytest.approx((scores[0].argmax(dim=1) == nearest).float().mean().item())


SMALL = ["model.depth=1", "model.width=24", "model.heads=3", "model.mlp_width=48", "save_every=2"]
RUN = ["--batch", "16", "--workers", "0", "--device", "cpu", "--json", "--quiet"]
RUN += ["--steps", "4", *(word for field in SMALL for word in ("--set", field))]


WORDS = {"labels": [], "masked-patch": ["--objective", "masked-patch"], "mae": ["--objective", "mae"]}
WORDS |= {"next-pixel": ["--objective", "next-pixel", "--set", "image_size=8", "--set", "colours=16"]}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give the folder of a short run of an objective, trained once."""

    @cache
    def train(word: str) -> Path:
        run = tmp_path_factory.mktemp(word) / "run"
        small = [] if word == "next-pixel" else ["--model", "ViT-Ti/7"]
        assert main(["pretrain", "sample", *WORDS[word], *RUN, *small, "--out", str(run)]) == 0
        return run

    return train


@pytest.mark.parametrize(
    "word", ["masked-patch", *(pytest.param(word, marks=pytest.mark.slow) for word in ("mae", "next-pixel"))]
)
def test_a_run_is_opened_with_what_predicts_and_so_is_its_checkpoint(
    word: str, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    run = run_of(word)
    model = vitrail.load(run)
    found = open_objective(run, model)
    assert found is not None
    images = torch.rand(2, 3, *model.config.image_size) * 2 - 1
    newest = sorted((run / "checkpoints").iterdir())[-1]
    again = open_objective(newest, vitrail.load(newest))
    assert again is not None
    assert torch.equal(predict(found, images).losses, predict(again, images).losses)
    if word == "mae":
        return  # its page is as the first one's
    out = tmp_path / "report"
    assert main(["inspect", str(run), "sample", "--images", "2", "--no-bias", "--out", str(out), "--quiet"]) == 0
    assert (out / "figures/predictions.png").is_file()
    said = json.loads((out / "inspection.json").read_text())
    assert len(said["predictions"]["losses"]) == 2
    assert len(said["predictions"]["right"]) == 2
    assert "What it predicts without labels" in (out / "report.html").read_text()


@pytest.mark.slow
def test_a_model_of_labels_predicts_nothing_and_a_file_that_does_not_fit_is_refused(
    run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    labels, masked = run_of("labels"), Path(shutil.copytree(run_of("mae"), tmp_path / "masked"))
    assert open_objective(labels, vitrail.load(labels)) is None
    assert not (labels / "objective.safetensors").exists()
    assert open_objective("vitrail-ti8", vitrail.load("vitrail-ti8")) is None
    other = family("vit")
    assert isinstance(other, ViT)
    with pytest.raises(CheckpointError, match="does not fit"):
        open_objective(masked, other)
    (masked / "objective.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError):
        vitrail.load(masked)
