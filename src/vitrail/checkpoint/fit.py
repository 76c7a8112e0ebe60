"""Whether a layout can hold a model: what would be lost, and what can be done about it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from vitrail.checkpoint.adapt import Weights
from vitrail.checkpoint.layouts.base import Dialect, Layout
from vitrail.config import BiTConfig, HybridStem, LearnedPositions, ModelConfig, ViTConfig
from vitrail.errors import CheckpointError

Cure = Callable[[ModelConfig, Weights], tuple[ModelConfig, Weights]]


class Misfit(NamedTuple):
    """Something of a model that a layout does not hold, and how to write the model without it, where one can."""

    what: str
    cure: Cure | None


def fit(
    config: ModelConfig, weights: Weights, layout: Layout, dialect: Dialect, *, lossy: bool
) -> tuple[ModelConfig, Weights, tuple[str, ...]]:
    """Give the model as the layout holds it, with what is lost; anything lost is refused unless it may be."""
    found = check_fit(config, layout, dialect, lossy=lossy)
    for misfit in found:
        assert misfit.cure is not None
        config, weights = misfit.cure(config, weights)
    return config, weights, tuple(misfit.what for misfit in found)


def check_fit(config: ModelConfig, layout: Layout, dialect: Dialect, *, lossy: bool) -> list[Misfit]:
    """Give what would be lost where it may be; refuse it otherwise, and what cannot be written at all."""
    found = [] if layout.name == "vitrail" else list(misfits(config, layout, dialect))
    lost = "; ".join(misfit.what for misfit in found)
    if stuck := [misfit.what for misfit in found if misfit.cure is None]:
        raise CheckpointError(
            f"the layout {layout.name} cannot hold this model: {'; '.join(stuck)}. Take the layout vitrail, which can."
        )
    if found and not lossy:
        raise CheckpointError(
            f"the layout {layout.name} would lose something of this model: {lost}. Take the layout vitrail, which "
            "loses nothing, or say that it may: lossy=True."
        )
    return found


def misfits(config: ModelConfig, layout: Layout, dialect: Dialect) -> Iterator[Misfit]:
    """List all that a layout does not hold."""
    holds = layout.holds
    if family_of(config) not in holds.families:
        yield Misfit(f"it is a {family_of(config)}, and the layout has {', '.join(holds.families)} alone", None)
        return
    if not config.classes and not holds.headless and not dialect.get("headless"):
        yield Misfit("it has no classifier, which every model of the layout has", _as_it_is)
    if config.classes and config.cosine_scale is not None:
        yield Misfit("its classifier is by cosines, which the layout has none of", _without_head)
    if isinstance(config, BiTConfig):
        yield from _constants(config, holds.bit)
        return
    if isinstance(config.stem, HybridStem):
        yield from _constants(config.stem, holds.stem)
    if config.norm != "pre" or config.attention != "full" or config.causal:
        blocks = f"norm={config.norm}, attention={config.attention}, causal={config.causal}"
        yield Misfit(f"its blocks have {blocks}", None)
    if not isinstance(config.positions, LearnedPositions) or config.positions.at != "stem":
        yield Misfit(f"its positions are {config.positions}, not one learned table before the first layer", None)
    if config.pooling not in holds.poolings:
        yield Misfit(f"its pooling is {config.pooling}, and the layout has {', '.join(holds.poolings)} alone", None)
    if not holds.rectangles and config.grid[0] != config.grid[1]:
        yield Misfit(f"its grid is {config.grid[0]}x{config.grid[1]}, and the layout's models take squares", _as_it_is)
    if config.activation not in holds.activations:
        yield Misfit(f"its activation is {config.activation}, and the layout means {holds.activations[0]}", _as_it_is)
    if holds.epsilon is not None and config.epsilon != holds.epsilon:
        yield Misfit(f"its epsilon is {config.epsilon:g}, and the layout means {holds.epsilon:g}", _as_it_is)
    if config.layer_scale is not None and not holds.layer_scale:
        yield Misfit("its layer scale, which is multiplied into the weights", fold_layer_scale)
    if not config.qkv_bias and not holds.bias_free:
        yield Misfit("it has no biases of query, key and value, and zeros are written", _zero_biases)
    if config.pre_logits is not None:
        if holds.hidden == "headless" and config.classes:
            yield Misfit("its classifier, since the layout has no tanh layer before one", _without_head)
        elif holds.hidden == "no" and not dialect.get("hidden"):
            yield Misfit(
                "its pre-training head, the tanh layer and the classifier after it",
                partial(_without_head, pre_logits=None),
            )


def family_of(config: ModelConfig) -> str:
    """Tell ViT, hybrid and BiT apart."""
    if isinstance(config, BiTConfig):
        return "bit"
    return "hybrid" if isinstance(config.stem, HybridStem) else "vit"


def fold_layer_scale(config: ModelConfig, weights: Weights) -> tuple[ModelConfig, Weights]:
    """Multiply every residual branch's factors into its last layer: the same function without them."""
    assert isinstance(config, ViTConfig)
    folded = {name: tensor for name, tensor in weights.items() if not name.endswith("_scale.weight")}
    for scale, layer in (("attention_scale", "attention.out"), ("mlp_scale", "mlp.contract")):
        for index in range(config.layers):
            factor = weights[f"blocks.{index}.{scale}.weight"]
            for part in ("weight", "bias"):
                name = f"blocks.{index}.{layer}.{part}"
                folded[name] = weights[name] * (factor[:, None] if part == "weight" else factor)
    return replace(config, layer_scale=None), folded


def fold_class_position(weights: Weights) -> Weights:
    """Add the class token's position to the token, and leave zero behind: the same function."""
    table = weights["positions.table.0"]
    return weights | {
        "class_token": weights["class_token"] + table[0],
        "positions.table.0": torch.cat([torch.zeros_like(table[:1]), table[1:]]),
    }


def _as_it_is(config: ModelConfig, weights: Weights) -> tuple[ModelConfig, Weights]:
    return config, weights


def _zero_biases(config: ModelConfig, weights: Weights) -> tuple[ModelConfig, Weights]:
    assert isinstance(config, ViTConfig)
    names = [f"blocks.{index}.attention.qkv" for index in range(config.layers)]
    zeros = {f"{name}.bias": weights[f"{name}.weight"].new_zeros(3 * config.width) for name in names}
    return replace(config, qkv_bias=True), weights | zeros


def _without_head(config: ModelConfig, weights: Weights, **fields: None) -> tuple[ModelConfig, Weights]:
    gone = ("head.", "hidden.") if "pre_logits" in fields else "head."
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(gone)}
    return replace(config, classes=None, cosine_scale=None, **fields), kept


def _constants(part: object, held: Any) -> Iterator[Misfit]:  # noqa: ANN401
    for name, value in held.items():
        own = getattr(part, name)
        if own != value:
            yield Misfit(f"its {name} is {own}, and the layout means {value}", _as_it_is)
