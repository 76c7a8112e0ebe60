"""Next-pixel prediction: nothing later is seen, and every pixel's colour is asked for."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from families import family
from torch import Tensor

import vitrail
from vitrail.cli import main
from vitrail.config import PatchStem, ViTConfig
from vitrail.config.objective import NextPixels
from vitrail.config.recipe import Training
from vitrail.data.source import Batch
from vitrail.errors import ConfigError
from vitrail.models import ViT
from vitrail.models.objectives import NextPixelModel
from vitrail.train.objective import NextPixelPrediction
from vitrail.train.task import Task, foresee_model

CAUSAL = {"stem": PatchStem(patch=1), "image_size": (4, 5), "causal": True, "pooling": "mean"}


def objective(**changes: object) -> NextPixelPrediction:
    generator = torch.Generator().manual_seed(2)
    palette = torch.rand(32, 3, generator=generator) * 2 - 1
    made = NextPixelPrediction(family("vit", **{**CAUSAL, **changes}), NextPixels(), palette)
    with torch.no_grad():
        for name, parameter in made.module.named_parameters():
            if name != "palette":
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return made


def scores(made: NextPixelPrediction, colors: Tensor) -> Tensor:
    with torch.no_grad():
        return made.module(colors)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal-2d", "relative", "none"])
def test_a_prediction_does_not_change_with_later_pixels(positions: str) -> None:
    made = objective(positions=positions)
    colors = torch.randint(0, 32, (2, 4, 5), generator=torch.Generator().manual_seed(5))
    before = scores(made, colors)
    assert before.shape == (2, 20, 32)
    for place in range(20):
        changed = colors.clone()
        changed[0, place // 5, place % 5] = (changed[0, place // 5, place % 5] + 7) % 32
        after = scores(made, changed)
        assert torch.equal(after[0, : place + 1], before[0, : place + 1]), place  # its own score is of those before
        assert torch.equal(after[1], before[1])
        if place < 19:
            assert (after[0, place + 1 :] != before[0, place + 1 :]).any(dim=1).all()


def test_a_causal_model_attends_to_nothing_later_and_to_all_before() -> None:
    model = objective().encoder
    for weights in model.attention_maps(torch.randn(2, 3, 4, 5)):
        assert (weights.triu(1) == 0).all()
        assert (weights.tril() > 0).sum() == 2 * 3 * 20 * 21 / 2
        torch.testing.assert_close(weights.sum(dim=3), torch.ones(2, 3, 20))
    some = model.attention_maps(torch.randn(1, 3, 4, 5), queries=slice(3, 9, 2))[0]
    assert (some[0, 0] > 0).sum(dim=1).tolist() == [4, 6, 8]
    model.train()
    for block in model.blocks:
        block.attention.attention_dropout = 1e-9  # the way in chunks
    images = torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(model.tokens(images), model.eval().tokens(images))


def test_the_loss_is_the_mean_over_all_pixels_and_the_first_has_scores_of_its_own() -> None:
    made = objective()
    module = made.module
    assert isinstance(module, NextPixelModel)
    samples = torch.arange(3)
    part = Batch(torch.rand(3, 3, 4, 5) * 2 - 1, samples, samples, samples, samples[:0], 0, 0, ())
    inputs = made.inputs(part)
    outputs = module(*inputs)
    losses, right = made.compute_loss(outputs, part, inputs)
    for image in range(3):
        expected, hits = [], []
        for place in range(20):
            pixel = part.images[image, :, place // 5, place % 5]
            wanted = int((module.palette - pixel).square().sum(dim=1).argmin())
            given = outputs[image, place].detach().double()
            expected.append(float(torch.logsumexp(given, 0) - given[wanted]))
            hits.append(int(given.argmax()) == wanted)
        assert losses[image].item() == pytest.approx(np.mean(expected), rel=1e-5)
        assert right[image].item() == pytest.approx(np.mean(hits))
    assert torch.equal(outputs[:, 0], module.first.expand(3, -1))
    losses.sum().backward()
    assert module.palette.grad is None
    assert module.first.grad is not None


@pytest.mark.slow
@pytest.mark.parametrize("read_out", [False, True])
def test_a_run_learns_goes_on_and_is_read_out_by_a_linear_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, read_out: bool
) -> None:
    small = [f"model.{field}" for field in ("depth=2", "width=24", "heads=3", "mlp_width=48")]
    fields = [*small, "image_size=8", "rate=5e-3", "save_every=10", "evaluate_every=15", "colours=16"]
    command = ["pretrain", "sample", "--objective", "next-pixel", "--batch", "32", "--workers", "0", "--device", "cpu"]
    command += ["--json", "--quiet", "--steps", "30", *(word for field in fields for word in ("--set", field))]
    whole, again = tmp_path / "whole", tmp_path / "again"
    assert main([*command, "--out", str(whole)]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]
    assert found["loss"] < 0.9 * np.log(16)
    model = vitrail.load(whole)
    assert isinstance(model, ViT)
    assert (model.config.causal, model.config.pooling, model.config.classes) == (True, "mean", None)
    shutil.copytree(whole, again)
    for name in ("summary.json", "weights.safetensors"):
        (again / name).unlink()
    newest = sorted((again / "checkpoints").iterdir())[-1]
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    assert main([*command, "--out", str(again)]) == 0
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, vitrail.load(again).get_parameter(name)), name
    capsys.readouterr()
    if not read_out:
        return
    probe = ["fewshot", str(whole), "sample", "--shots", "all", "--probes", "logistic", "--seeds", "0", "--fresh"]
    assert main([*probe, "--device", "cpu", "--workers", "0", "--json", "--quiet"]) == 0
    last = json.loads(capsys.readouterr().out)
    assert last["results"][0]["value"] > 0.2
    assert main([*probe, "--layer", "1", "--device", "cpu", "--workers", "0", "--json", "--quiet"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (last["layer"], first["layer"]) == (None, 1)
    assert first["results"][0]["value"] != last["results"][0]["value"]


def test_a_pooling_that_is_said_is_kept() -> None:
    for said, found in (({}, "mean"), ({"pooling": "max"}, "max")):
        task = Task(
            command="",
            data="",
            splits={},
            model="ViT-Ti/1",
            training=Training(objective=NextPixels(), steps=1, image_size=(4, 4)),
            out=Path("run"),
            changes=said,
        )
        config = foresee_model(task)
        assert isinstance(config, ViTConfig)
        assert (config.causal, config.pooling) == (True, found)


@pytest.mark.usefixtures("untyped")
def test_what_makes_no_sense_is_refused() -> None:
    for changes, words in (
        ({"stem": PatchStem(patch=2), "image_size": (4, 6)}, "needs a token for every pixel"),
        ({"causal": False}, r"needs a causal model\. Take a name such as ViT-Ti/1"),
        ({"pooling": "token"}, "it sees nothing of the image; got pooling='token'"),
        ({"attention": "axial"}, "take attention='full' with it"),
        ({"causal": "yes"}, "causal must be"),
    ):
        with pytest.raises(ConfigError, match=words):
            objective(**changes)
    with pytest.raises(ConfigError, match="colors must be a whole number, at least 2; got 1"):
        NextPixels(colors=1)
    with pytest.raises(ConfigError, match="a BiT has none"):
        NextPixelPrediction(family("bit"), NextPixels(), torch.zeros(4, 3))
