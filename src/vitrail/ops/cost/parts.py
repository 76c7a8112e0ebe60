"""What the parts beside the paper's own add to a Vision Transformer's counts."""

from typing import assert_never

from vitrail.config import PatchStem, ViTConfig, positions as kinds
from vitrail.ops.positions import count_offsets


def expanded(config: ViTConfig) -> int:
    """Count the features that the first layer of an MLP writes."""
    return config.mlp_width * (2 if config.mlp == "gated" else 1)


def norms_of_block(config: ViTConfig) -> int:
    """Count the weights of a layer's norms and of its layer scale."""
    found = (4 if config.layer_scale is None else 6) * config.width
    found += 4 * config.head_width if config.qk_norm else 0
    found += 2 * config.mlp_width if config.inner_norm != "none" else 0
    return found + (2 * config.head_width * config.heads if config.inner_norm == "both" else 0)


def norms_around(config: ViTConfig) -> int:
    """Count the weights of the norms before and after the layers."""
    found = 2 * config.width * (config.first_norm + (config.last_norm != "none"))
    if isinstance(config.stem, PatchStem) and config.stem.norms:
        found += 2 * (config.stem.patch**2 * config.channels + config.width)
    return found


def readout(config: ViTConfig) -> dict[str, int]:
    """Count the weights between the tokens and the classifier, by what they are."""
    width, wide = config.width, config.mlp_width
    found: dict[str, int] = {}
    if config.pooling == "attention":
        mlp = 2 * width * wide + wide + width
        found["pooling"] = width + 4 * (width + 1) * width + 2 * width + mlp  # the query, four matrices, a norm, an MLP
    if config.pre_logits:
        found["hidden"] = (config.pooled + 1) * config.pre_logits
    if config.projection:
        found["projection"] = (config.pre_logits or config.pooled) * config.projection
    return found


def readout_macs(config: ViTConfig) -> int:
    """Count the multiply-accumulates between the tokens and the classifier."""
    width, (rows, cols) = config.width, config.grid
    found = config.pooled * config.pre_logits if config.pre_logits else 0
    found += (config.pre_logits or config.pooled) * config.projection if config.projection else 0
    if config.pooling == "attention":
        # Query and output of one token; keys and values of the patches, and what the query does with them; the MLP.
        found += 2 * width**2 + rows * cols * (2 * width**2 + 2 * width) + 2 * width * config.mlp_width
    return found


def position_parameters(config: ViTConfig) -> int:
    """Count what is learned of positions."""
    (rows, cols), width = config.grid, config.width
    match config.positions:
        case kinds.NoPositions() | kinds.SinusoidalPositions() | kinds.Sinusoidal2DPositions():
            return 0
        case kinds.LearnedPositions(at=at):
            table = config.tokens * width
        case kinds.RotaryPositions(table=how):
            return config.tokens * width if how else 0
        case kinds.Learned2DPositions(at=at):
            table = (rows + cols) * (width // 2) + config.leading * width
        case kinds.RelativePositions(at=at):
            table = (2 * config.tokens - 1) * width
        case kinds.BiasPositions(at=at, table=how):
            tables = config.layers if at == "layers" else 1
            return tables * count_offsets(config.grid, config.leading) * config.heads + (
                config.tokens * width if how else 0
            )
        case _:
            assert_never(config.positions)
    return table * (config.layers if at == "layers" else 1)


def relative_layers(config: ViTConfig) -> int:
    """Count the layers whose attention has relative keys."""
    if not isinstance(config.positions, kinds.RelativePositions):
        return 0
    return 1 if config.positions.at == "stem" else config.layers
