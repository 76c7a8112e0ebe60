"""Outputs and gradients of every weight against the slow reference, in float64."""

import numpy as np
import pytest
import torch
from families import FAMILIES, RELEASED
from reference import cases, models, shapes
from torch import Tensor
from torch.nn import functional as F

from vitrail.checkpoint.layouts.google import default_dialect, rows
from vitrail.config import BiTConfig, HybridStem, ModelConfig, override
from vitrail.models import build


def reference_shapes(config: ModelConfig) -> shapes.Shapes:
    assert config.classes is not None
    if isinstance(config, BiTConfig):
        return shapes.bit(units=config.units, factor=config.width // 64, classes=config.classes)
    stem = config.stem if isinstance(config.stem, HybridStem) else None
    return shapes.vit(
        width=config.width,
        depth=config.depth,
        heads=config.heads,
        mlp=config.mlp_width,
        patch=config.stem.patch,
        tokens=config.tokens,
        classes=config.classes,
        token=config.pooling == "token",
        hidden=config.pre_logits,
        units=stem and stem.units,
        root=stem.width if stem else 64,
    )


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("name", RELEASED)
def test_outputs_and_gradients_equal_the_slow_reference(name: str, checkpointing: bool) -> None:
    config = override(FAMILIES[name], {"checkpointing": checkpointing})
    arrays = {name: cases.draw(name, shape, seed=9) for name, shape in reference_shapes(config).items()}
    images = torch.from_numpy(np.random.RandomState(4).uniform(-1, 1, (2, *config.image_size, 3)))
    labels = torch.tensor([1, 5])

    theirs = {name: torch.from_numpy(array).double().requires_grad_() for name, array in arrays.items()}
    reference = models.bit if isinstance(config, BiTConfig) else models.vit
    expected = reference(theirs, images)
    F.cross_entropy(expected, labels).backward()

    model = build(config, seed=0).double()
    layout = list(rows(config, default_dialect(config)))
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    model.load_state_dict({row.ours: row.codec.read(*[tensors[name] for name in row.theirs]) for row in layout})
    logits = model(images.permute(0, 3, 1, 2))
    torch.testing.assert_close(logits, expected, atol=1e-10, rtol=1e-10)
    F.cross_entropy(logits, labels).backward()

    for row in layout:
        ours = model.get_parameter(row.ours).grad
        assert ours is not None
        read = row.codec.read(*[_gradient(theirs[name]) for name in row.theirs])
        torch.testing.assert_close(ours, read, atol=1e-9, rtol=1e-8, msg=row.ours)


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("name", ["vit", "bit"])
def test_the_reference_gradients_are_finite_differences(name: str) -> None:
    config = FAMILIES[name]
    weights = {
        name: torch.from_numpy(cases.draw(name, shape, seed=9)).double()
        for name, shape in reference_shapes(config).items()
    }
    images = torch.from_numpy(np.random.RandomState(4).uniform(-1, 1, (1, *config.image_size, 3)))
    reference = models.bit if isinstance(config, BiTConfig) else models.vit

    def loss() -> Tensor:
        return F.cross_entropy(reference(weights, images), torch.tensor([1]))

    step = 1e-6
    for weight in list(weights.values())[::7]:
        weight.requires_grad_()
        loss().backward()
        gradient, place = weight.grad, tuple(side // 2 for side in weight.shape)
        assert gradient is not None
        weight.requires_grad_(False)
        weight[place] += step
        above = loss()
        weight[place] -= 2 * step
        below = loss()
        weight[place] += step
        torch.testing.assert_close(gradient[place], (above - below) / (2 * step), atol=1e-7, rtol=1e-5)
