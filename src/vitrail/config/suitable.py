"""Which models an objective can teach: a check of two configurations, before anything is made or read."""

from typing import assert_never

from vitrail.config.model import ModelConfig, PatchStem, ViTConfig
from vitrail.config.objective import Labels, MaskedAutoencoder, MaskedPatches, NextPixels, Objective, count_of
from vitrail.config.positions import RelativePositions
from vitrail.errors import ConfigError


def check_suitable(config: ModelConfig, objective: Objective) -> None:
    """Refuse a model that cannot learn what is asked."""
    if isinstance(objective, Labels):
        return
    if not isinstance(config, ViTConfig):
        raise ConfigError(
            "patches and pixels are hidden from a Vision Transformer; a BiT has none. Take another model."
        )
    if config.pre_logits is not None:
        raise ConfigError(
            "the tanh layer before the head is of labels: nothing would train it. Set model.pre_logits=none, "
            "or take a checkpoint without it."
        )
    match objective:
        case MaskedPatches():
            _check_colors(config, objective)
            _check_share(config, "corrupted", objective.corrupted, usual=0.5)
        case MaskedAutoencoder():
            _check_alone(config)
            _check_share(config, "masked", objective.masked, usual=0.75, leaves=1)
        case NextPixels():
            _check_pixels(config)
        case _:
            assert_never(objective)


def _check_colors(config: ViTConfig, objective: MaskedPatches) -> None:
    """Refuse to ask for colours where there are none."""
    if config.channels != 3 and objective.target != "pixels":
        raise ConfigError(f"colours are of images with 3 channels; the model has {config.channels}. Set target=pixels.")


def _check_share(config: ViTConfig, name: str, share: float, *, usual: float, leaves: int = 0) -> None:
    """Refuse a share of the patches that is none of them, or leaves fewer than it must; and a single patch."""
    rows, cols = config.grid
    if rows * cols < 2:
        raise ConfigError("an image is one patch, and nothing is left to predict it from. Give larger images.")
    allowed = range(1, rows * cols - leaves + 1)
    if (count := count_of(share, rows * cols)) not in allowed:
        cure = usual if count_of(usual, rows * cols) in allowed else 0.5
        raise ConfigError(
            f"{name}={share:g} of {rows} x {cols} patches is {count}; expected 1 to {allowed[-1]}. "
            f"Set {name}={cure:g}, or give larger images."
        )


def _check_alone(config: ViTConfig) -> None:
    """Refuse what cannot read some patches without the others."""
    if not isinstance(config.stem, PatchStem):
        raise ConfigError(
            "a masked autoencoder reads visible patches alone, and a hybrid's ResNet sees them all. "
            "Take a ViT, or --objective masked-patch."
        )
    if config.attention != "full" or isinstance(config.positions, RelativePositions) or config.causal:
        raise ConfigError(
            "a masked autoencoder leaves patches out, so that rows, columns and offsets of tokens mean nothing; got "
            f"attention={config.attention}, positions={type(config.positions).__name__}, causal={config.causal}. "
            "Set model.attention=full, model.positions=sinusoidal-2d and model.causal=false."
        )


def _check_pixels(config: ViTConfig) -> None:
    """Refuse a model whose tokens are no pixels, or that sees what comes later."""
    if config.stem != PatchStem(patch=1):
        raise ConfigError(
            "next-pixel prediction needs a token for every pixel: patches of side 1, as of ViT-Ti/1. Take such a model."
        )
    if not config.causal:
        raise ConfigError("next-pixel prediction needs a causal model. Take a name such as ViT-Ti/1, or a run of it.")
