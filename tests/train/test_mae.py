"""Masked autoencoding: the encoder reads visible patches alone, and only hidden ones are asked for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import family

import vitrail
from vitrail.cli import main
from vitrail.config import Learned2DPositions, LearnedPositions, Sinusoidal2DPositions, SinusoidalPositions
from vitrail.config.objective import MaskedAutoencoder, MaskedPatches
from vitrail.data.source import Batch
from vitrail.errors import ConfigError
from vitrail.models import ViT
from vitrail.models.objectives import MaskedAutoencoderModel, decoder_config, encode_visible
from vitrail.train.objective import MaskedAutoencoding, MaskedPatchPrediction


def objective(name: str = "vit", *, changes: dict[str, Any] | None = None, **settings: Any) -> MaskedAutoencoding:
    made = MaskedAutoencoding(family(name, **(changes or {})), MaskedAutoencoder(**settings), seed=3)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in made.module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return made


def batch(count: int = 4) -> Batch:
    samples = torch.arange(7, 7 + count)
    images = torch.randn(count, 3, 12, 20, generator=torch.Generator().manual_seed(0))
    return Batch(images, samples, samples, samples, samples[:0], 2, 0, ())


@pytest.mark.parametrize(
    "positions",
    [
        LearnedPositions(at="stem"),
        LearnedPositions(at="layers"),
        LearnedPositions(at="shared"),
        Learned2DPositions(at="layers"),
        SinusoidalPositions(at="stem"),
        Sinusoidal2DPositions(at="shared"),
        "none",
    ],
)
@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_all_patches_seen_is_the_encoder_itself(positions: object, pooling: str) -> None:
    model = family("vit", positions=positions, pooling=pooling)
    assert isinstance(model, ViT)
    images = batch().images
    every = torch.arange(15).expand(4, -1)
    torch.testing.assert_close(encode_visible(model, images, every, (3, 5)), model.tokens(images))
    larger = torch.randn(2, 3, 16, 24)  # positions are resampled
    every = torch.arange(24).expand(2, -1)
    torch.testing.assert_close(encode_visible(model, larger, every, (4, 6)), model.tokens(larger))


@pytest.mark.parametrize("name", ["vit", "vit-mean", "vit-original", "vit-scaled"])
def test_what_is_predicted_comes_from_the_visible_patches_in_their_places(name: str) -> None:
    made = objective(name)
    module, encoder = made.module, made.encoder
    assert isinstance(module, MaskedAutoencoderModel)
    images, visible, hidden = made.inputs(batch(2))
    assert visible.shape == (2, 4)  # of 15: three quarters hidden, rounded
    found = module(images, visible, hidden)
    lead = encoder.config.class_tokens
    for image in range(2):
        assert sorted([*visible[image].tolist(), *hidden[image].tolist()]) == list(range(15))
        placed = encoder.embed(images[image : image + 1])  # every patch, with its position
        tokens = torch.cat([placed[:, :lead], placed[:, [lead + place for place in visible[image].tolist()]]], dim=1)
        for block in encoder.blocks:
            tokens = block(tokens)
        known = module.projection(encoder.norm(tokens))[0]
        rows = [module.mask] * 15
        for place, patch in enumerate(visible[image].tolist()):
            rows[patch] = known[lead + place]
        decoded = torch.stack([*known[:lead], *rows])[None]
        decoded = module.positions.add(decoded, 0, (3, 5))
        for block in module.blocks:
            decoded = block(decoded)
        expected = module.predictor(module.norm(decoded))[0, lead:][hidden[image]]
        torch.testing.assert_close(found[image], expected)


def test_hidden_pixels_change_nothing_that_is_predicted() -> None:
    made = objective()
    images, visible, hidden = made.inputs(batch(3))
    before = made.module(images, visible, hidden)
    changed = images.clone()
    for image in range(3):
        for patch in hidden[image].tolist():
            changed[image, :, patch // 5 * 4 : patch // 5 * 4 + 4, patch % 5 * 4 : patch % 5 * 4 + 4] = torch.nan
    assert torch.equal(made.module(changed, visible, hidden), before)
    changed = images.clone()
    patch = int(visible[1, 2])
    changed[1, :, patch // 5 * 4, patch % 5 * 4] += 1
    after = made.module(changed, visible, hidden)
    assert torch.equal(after[0], before[0])
    assert (after[1] != before[1]).any(dim=1).all()


@pytest.mark.parametrize("normalized", [True, False])
def test_the_loss_is_of_the_hidden_pixels_each_patch_by_its_own_scale(*, normalized: bool) -> None:
    made = objective(normalized=normalized)
    part = batch()
    inputs = made.inputs(part)
    outputs = made.module(*inputs)
    losses, right = made.compute_loss(outputs, part, inputs)
    for image in range(4):
        squares = []
        for place, patch in enumerate(inputs[2][image].tolist()):
            cut = part.images[image, :, patch // 5 * 4 :, patch % 5 * 4 :][:, :4, :4].permute(1, 2, 0).double().numpy()
            if normalized:
                cut = (cut - cut.mean()) / np.sqrt(cut.var(ddof=1) + 1e-6)
            squares.append(np.square(outputs[image, place].detach().double().numpy() - cut.ravel()).mean())
        assert losses[image].item() == pytest.approx(np.mean(squares), rel=1e-5)
    assert (right == 0).all()


def test_gradients_reach_encoder_decoder_and_mask_and_each_sample_hides_its_own() -> None:
    made = objective()
    part = batch()
    inputs = made.inputs(part)
    made.compute_loss(made.module(*inputs), part, inputs).losses.sum().backward()
    without = [name for name, parameter in made.module.named_parameters() if parameter.grad is None]
    assert without == ["encoder.head.weight", "encoder.head.bias"]
    assert len({tuple(row) for row in inputs[1].tolist()}) > 1
    assert not torch.equal(inputs[1], made.inputs(part._replace(epoch=3))[1])
    alone = part._replace(images=part.images[2:3], samples=part.samples[2:3])
    assert torch.equal(made.inputs(alone)[2][0], inputs[2][2])


@pytest.mark.parametrize(("width", "expected"), [(192, 128), (256, 192), (384, 256), (768, 512), (1280, 512)])
def test_the_decoder_is_narrow_beside_a_narrow_encoder(width: int, expected: int) -> None:
    config = family("vit", width=width, heads=4).config
    found = decoder_config(config, MaskedAutoencoder())  # pyright: ignore[reportArgumentType]
    assert (found.width, found.heads, found.mlp_width, found.depth) == (expected, expected // 64, 4 * expected, 4)


@pytest.mark.slow
def test_a_run_learns_and_hands_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("model.depth=2", "model.width=48", "model.heads=3", "model.mlp_width=96", "decoder_depth=1", "rate=3e-3")
    small = (*small, "evaluate_every=30")
    told = ["--batch", "32", "--workers", "0", "--device", "cpu", "--json", "--quiet"]
    run, tuned = str(tmp_path / "run"), str(tmp_path / "tuned")
    command = ["pretrain", "sample", "--objective", "mae", "--model", "ViT-Ti/7", *told, "--out", run, "--steps", "60"]
    assert main([*command, *(word for field in small for word in ("--set", field))]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["loss"] < 0.85  # the mean of a patch alone gives 1
    assert main(["finetune", "sample", "--model", run, "--out", tuned, "--steps", "3", *told]) == 0
    assert vitrail.load(tuned).config.classes == 10


@pytest.mark.usefixtures("untyped")
def test_what_cannot_be_hidden_from_is_refused() -> None:
    for name, words in (
        ("hybrid", "a hybrid's ResNet sees them all"),
        ("axial", "attention=axial"),
        ("vit-relative", "positions=RelativePositions"),
        ("bit", "a BiT has none"),
    ):
        with pytest.raises(ConfigError, match=words):
            objective(name)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"masked": 1.0}, r"masked=1 of 3 x 5 patches is 15; expected 1 to 14\. Set masked=0\.75"),
        ({"masked": 0.01}, "is 0; expected 1 to 14"),
        ({"masked": 1.2}, "masked must be from 0 to 1; got 1.2"),
        ({"decoder_width": 100}, "decoder_head_width=64 does not divide the decoder's width, a multiple of 100"),
        ({"decoder_head_width": 48}, "decoder_head_width=48 does not divide the decoder's width, a multiple of 64"),
        ({"decoder_depth": 0}, "decoder_depth must be a whole number, at least 1; got 0"),
    )
    for settings, words in wrong:
        with pytest.raises(ConfigError, match=words):
            MaskedAutoencoding(family("vit"), MaskedAutoencoder(**settings), seed=3)
    with pytest.raises(ConfigError, match=r"corrupted=0\.01 of 3 x 5 patches is 0; expected 1 to 15\. Set"):
        MaskedPatchPrediction(family("vit"), MaskedPatches(corrupted=0.01), seed=0)


def test_the_command_says_whose_field_it_is_that_another_objective_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "sample", "--objective", "mae", "--set", "target=mean-color"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "'target' is a field of --objective masked-patch; here objective is mae, whose fields are masked" in said
