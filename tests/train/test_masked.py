"""Masked patch prediction: what goes in, what is asked, where gradients go, and that a run of it hands over."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import family
from torch import Tensor
from torch.nn import functional as F

import vitrail
from vitrail.cli import main
from vitrail.config.objective import MaskedPatches
from vitrail.config.recipe import EMA, Training
from vitrail.config.recipes import recipe
from vitrail.data.source import Batch
from vitrail.errors import ConfigError
from vitrail.models import ViT
from vitrail.models.objectives import MaskedPatchModel
from vitrail.ops.masking import KEPT, MASK, OTHER
from vitrail.ops.random import Purpose, draws
from vitrail.train.objective import MaskedPatchPrediction, cover, draw_patches
from vitrail.train.state import ModelEMA, State, build_optimizer, trainable_names


def objective(name: str = "vit", **changes: Any) -> MaskedPatchPrediction:
    model = family(name, image_size=(24, 40)) if name == "hybrid" else family(name)
    made = MaskedPatchPrediction(model, MaskedPatches(**changes), seed=3)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in made.module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return made


def batch(made: MaskedPatchPrediction, count: int = 4) -> Batch:
    levels = torch.randint(0, 256, (count, 3, *made.encoder.config.image_size)).float()
    samples = torch.arange(7, 7 + count)
    return Batch(levels / 127.5 - 1, samples, samples, samples, samples[:0], 2, 0, ())


def slow_color(levels: Tensor) -> int:
    red, green, blue = (int(float(channel.mean())) // 32 for channel in levels)
    return red * 64 + green * 8 + blue


@pytest.mark.parametrize("name", ["vit", "vit-mean", "hybrid"])
def test_the_loss_is_of_the_mean_colors_of_corrupted_patches(name: str) -> None:
    made = objective(name)
    part = batch(made)
    inputs = made.inputs(part)
    outputs = made.module(*inputs)
    losses, right = made.compute_loss(outputs, part, inputs)
    side = made.encoder.config.stem.stride
    _, cols = made.encoder.grid_of(part.images)
    patches = inputs[1]
    for image in range(4):
        expected, hits = [], []
        for place, patch in enumerate(patches[image].tolist()):
            top, left = patch // cols * side, patch % cols * side
            cut = (part.images[image, :, top : top + side, left : left + side] + 1) * 127.5
            wanted = slow_color(cut + 1e-4)
            scores = outputs[image, place].detach().double()
            expected.append(float(torch.logsumexp(scores, 0) - scores[wanted]))
            hits.append(int(scores.argmax()) == wanted)
        assert losses[image].item() == pytest.approx(np.mean(expected), rel=1e-5)
        assert right[image].item() == pytest.approx(np.mean(hits))


def test_half_of_the_patches_are_asked_for_and_each_sample_has_its_own() -> None:
    made = objective()
    part = batch(made)
    _, patches, kinds, others = made.inputs(part)
    assert patches.shape == (4, 8)  # of 15: half, rounded up
    assert len({tuple(row) for row in patches.tolist()}) > 1
    later = made.inputs(part._replace(epoch=3))[1]
    assert not torch.equal(patches, later)
    alone = part._replace(images=part.images[2:3], samples=part.samples[2:3])
    for one, two in zip(made.inputs(alone)[1:], (patches, kinds, others), strict=True):
        assert torch.equal(one[0], two[2])


def test_what_is_hidden_is_drawn_from_numbers_of_its_own() -> None:
    made = objective()
    part = batch(made)
    found = draw_patches(made.encoder, part, 3, 1)
    same = [purpose for purpose in Purpose if np.array_equal(draws(part.samples.numpy(), 15, 3, 2, purpose), found)]
    assert same == [Purpose.HIDING]


def test_what_goes_through_is_the_model_with_corrupted_embeddings() -> None:
    made = objective()
    module, encoder = made.module, made.encoder
    assert isinstance(module, MaskedPatchModel)
    part = batch(made, 2)
    images, patches, kinds, others = made.inputs(part)
    embeddings = encoder.embedding(images).detach().clone()
    changed = embeddings.clone()
    for image in range(2):
        for patch, kind, other in zip(*(row[image].tolist() for row in (patches, kinds, others)), strict=True):
            if kind == MASK:
                changed[image, patch] = module.mask.detach()
            elif kind == OTHER:
                changed[image, patch] = embeddings[image, other]
    tokens = torch.cat([encoder.get_parameter("class_token").expand(2, 1, -1), changed], dim=1)
    tokens = tokens + encoder.get_parameter("positions.table.0")
    for block in encoder.blocks:
        tokens = block(tokens)
    tokens = encoder.norm(tokens)[:, 1:]
    expected = torch.stack([module.predictor(tokens[image, patches[image]]) for image in range(2)])
    torch.testing.assert_close(module(images, patches, kinds, others), expected)


def test_kept_patches_count_and_uncorrupted_ones_do_not() -> None:
    made = objective(masked=0.0, replaced=0.0)  # all kept: what goes in is the image itself
    part = batch(made, 1)
    inputs = made.inputs(part)
    assert (inputs[2] == KEPT).all()
    outputs = made.module(*inputs).detach()
    before = made.compute_loss(outputs, part, inputs).losses
    for patch in range(15):
        row, col = patch // 5 * 4, patch % 5 * 4
        images = part.images.clone()
        images[:, :, row : row + 4, col : col + 4] *= -1
        after = made.compute_loss(outputs, part, (images, *inputs[1:])).losses
        assert (not torch.equal(before, after)) == (patch in inputs[1][0].tolist())


def test_gradients_reach_the_mask_only_where_something_is_masked() -> None:
    for masked, reached in ((0.0, False), (1.0, True)):
        made = objective(masked=masked, replaced=0.0)
        module = made.module
        assert isinstance(module, MaskedPatchModel)
        part = batch(made)
        inputs = made.inputs(part)
        made.compute_loss(module(*inputs), part, inputs).losses.sum().backward()
        assert module.mask.grad is not None
        assert bool(module.mask.grad.abs().sum() > 0) == reached
        assert made.encoder.head.weight.grad is None if hasattr(made.encoder.head, "weight") else True
        assert made.encoder.get_parameter("blocks.0.attention.qkv.weight").grad is not None


def test_a_hybrid_that_reads_past_the_edge_is_asked_for_what_goes_on_there() -> None:
    images = torch.arange(6.0).reshape(1, 1, 2, 3)
    assert cover(images, 3, 2).tolist() == [[[[0, 1], [3, 4], [3, 4]]]]
    made = MaskedPatchPrediction(family("hybrid"), MaskedPatches(), seed=3)  # 24 x 41 pixels, 8 a patch
    part = batch(made)
    inputs = made.inputs(part)
    assert torch.isfinite(made.compute_loss(made.module(*inputs), part, inputs).losses).all()


def test_small_colors_and_pixels_are_asked_for_patch_by_patch() -> None:
    made = objective(target="small-colors")
    part = batch(made, 2)
    inputs = made.inputs(part)
    outputs = made.module(*inputs)
    assert outputs.shape == (2, 8, 16 * 512)
    patch = int(inputs[1][1, 3])
    cut = (part.images[1, :, patch // 5 * 4 : patch // 5 * 4 + 4, patch % 5 * 4 : patch % 5 * 4 + 4] + 1) * 127.5
    losses = []
    for image in range(2):
        for place, patch in enumerate(inputs[1][image].tolist()):
            cut = (part.images[image, :, patch // 5 * 4 :, patch % 5 * 4 :][:, :4, :4] + 1) * 127.5 + 1e-4
            scores = outputs[image, place].detach().unflatten(0, (16, 512))
            wanted = torch.tensor([slow_color(cut[:, k // 4 : k // 4 + 1, k % 4 : k % 4 + 1]) for k in range(16)])
            losses.append(float(F.cross_entropy(scores, wanted)))
    assert made.compute_loss(outputs, part, inputs).losses.mean().item() == pytest.approx(np.mean(losses), rel=1e-5)
    made = objective(target="pixels")
    inputs = made.inputs(part)
    outputs = made.module(*inputs)
    squares = []
    for place, patch in enumerate(inputs[1][0].tolist()):
        cut = part.images[0, :, patch // 5 * 4 :, patch % 5 * 4 :][:, :4, :4].permute(1, 2, 0).flatten()
        squares.append(float((outputs[0, place].detach() - cut).square().mean()))
    assert made.compute_loss(outputs, part, inputs).losses[0].item() == pytest.approx(np.mean(squares), rel=1e-5)


@pytest.mark.parametrize("average", [None, EMA(decay=0.5)])
def test_a_saved_state_holds_the_objectives_own_parts(average: EMA | None) -> None:
    def state(made: MaskedPatchPrediction) -> State:
        optimizer = build_optimizer(made.module, recipe("small").training.optimizer, None)
        averaged = None if average is None else ModelEMA(made.module)
        return State(
            model=made.encoder,
            module=made.module,
            optimizer=optimizer,
            average=averaged,
            tally=torch.zeros(3, dtype=torch.float64),
        )

    one = state(objective())
    for parameter in one.module.parameters():
        parameter.grad = torch.randn_like(parameter)
    one.optimizer.step()
    if one.average is not None:
        one.average.update(one.module, 0.5)
    one.step = 1
    weights, own, others = one.tensors()
    assert set(weights) == {name for name, _ in one.model.named_parameters()}
    assert set(own) == {"objective.mask", "objective.predictor.weight", "objective.predictor.bias"}
    made = MaskedPatchPrediction(family("vit"), MaskedPatches(), seed=9)
    two = state(made)
    two.restore(one.document(), weights, {**others, **own})
    for (name, first), (_, second) in zip(trainable_names(one.module), trainable_names(two.module), strict=True):
        assert torch.equal(first, second), name
        for word in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(one.optimizer.state[first][word], two.optimizer.state[second][word])
    if one.average is not None and two.average is not None:
        for name, value in one.average.weights.items():
            assert torch.equal(value, two.average.weights[name])


RUN = ["--model", "ViT-Ti/7", "--batch", "32", "--workers", "0", "--device", "cpu", "--json", "--quiet"]
RUN += [word for field in ("depth=2", "width=24", "heads=3", "mlp_width=48") for word in ("--set", f"model.{field}")]


@pytest.mark.slow
def test_a_run_learns_hands_over_and_is_the_same_after_a_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "pretrain",
        "sample",
        "--objective",
        "masked-patch",
        *RUN,
        *("--set", "save_every=10", "--set", "evaluate_every=20", "--set", "rate=5e-3"),
    ]
    whole = tmp_path / "whole"
    assert main([*command, "--out", str(whole), "--steps", "40"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["metrics"]["loss"] < 0.6 * np.log(512)
    assert said["metrics"]["right"] > 0.2
    model = vitrail.load(whole)
    assert model.config.classes is None
    assert isinstance(model, ViT)
    again = tmp_path / "again"
    shutil.copytree(whole, again)
    for name in ("summary.json", "weights.safetensors"):
        (again / name).unlink()
    newest = sorted((again / "checkpoints").iterdir())[-1]
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()  # as if it had been killed before the last checkpoint
    assert main([*command, "--out", str(again), "--steps", "40"]) == 0
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, vitrail.load(again).get_parameter(name))
    capsys.readouterr()
    tuned = ["finetune", "sample", "--model", str(whole), "--out", str(tmp_path / "tuned"), "--steps", "3"]
    assert main([*tuned, "--batch", "32", "--workers", "0", "--device", "cpu", "--json", "--quiet"]) == 0
    assert vitrail.load(tmp_path / "tuned").config.classes == 10


@pytest.mark.slow
def test_next_steps_are_those_of_a_model_without_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in RUN if word not in ("--json", "--quiet")]
    out = str(tmp_path / "run")
    assert main(["pretrain", "sample", "--objective", "masked-patch", *words, "--out", out, "--steps", "2"]) == 0
    shown = capsys.readouterr()
    assert "flips and crops alone, and no labels" in shown.err
    assert f"finetune sample --model {out}" in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "colour"}, "target must be one of 'mean-color', 'small-colors', 'pixels'; got 'colour'"),
        ({"corrupted": 0.0}, "corrupted must be more than 0"),
        ({"corrupted": 1.5}, "corrupted must be from 0 to 1; got 1.5"),
        ({"masked": 0.8, "replaced": 0.3}, "masked and replaced are shares of one whole; got 0.8 and 0.3"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MaskedPatches(**changes)


@pytest.mark.usefixtures("untyped")
def test_models_and_recipes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a BiT has none\. Take"):
        MaskedPatchPrediction(family("bit"), MaskedPatches(), seed=0)
    with pytest.raises(ConfigError, match=r"the model has 1\. Set target=pixels"):
        MaskedPatchPrediction(family("vit", channels=1), MaskedPatches(), seed=0)
    mixing = recipe("scratch").training.augmentation
    with pytest.raises(
        ConfigError, match=r"not changed by mixup and cutmix and random_erasing\. Set mixup=0 and cutmix=0"
    ):
        Training(objective=MaskedPatches(), augmentation=mixing, steps=1)
