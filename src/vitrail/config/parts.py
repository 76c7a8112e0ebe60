"""Which parts of a Vision Transformer go together: said where a configuration is made."""

from typing import TYPE_CHECKING

from vitrail.config.dense import QueryHead
from vitrail.config.positions import BiasPositions, PairPositions, RelativePositions, RotaryPositions
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.config.model import ViTConfig


def reads_token(pooling: str) -> bool:
    """Tell whether a pooling reads the class token."""
    return pooling in ("token", "token+mean", "distilled")


def check_parts(config: "ViTConfig") -> None:
    """Refuse parts that do not go together, each with what to take."""
    pooling = config.pooling
    if reads_token(pooling) and not config.class_tokens:
        raise ConfigError(
            f"pooling={pooling!r} reads the class token; got class_token=False. Take pooling='mean', or leave it out."
        )
    if pooling == "distilled" and not config.registers:
        raise ConfigError(
            "pooling='distilled' reads the class token and the first register; got registers=0. Take registers=1."
        )
    if pooling == "distilled" and config.cosine_scale is not None:
        raise ConfigError("pooling='distilled' has two linear classifiers; got cosine_scale too. Leave it out.")
    if config.last_norm == "pooled" and config.pooled != config.width:
        raise ConfigError(f"final_norm='pooled' norms one vector; got pooling={pooling!r}. Take final_norm='tokens'.")
    if config.attention == "axial":
        _check_axial(config)
    if config.causal:
        _check_causal(config)
    if config.head is not None:
        _check_dense(config)
    if isinstance(config.positions, RotaryPositions) and config.head_width % 4:
        raise ConfigError(
            f"rotary positions need heads whose width is a multiple of 4; got {config.head_width}. Take other heads."
        )
    if isinstance(config.positions, BiasPositions) and config.leading > 1:
        raise ConfigError(
            f"biases of offsets are of patches and one class token; got {config.leading} tokens before the patches. "
            "Take no registers, or other positions."
        )


def _check_dense(config: "ViTConfig") -> None:
    if not config.classes:
        raise ConfigError("a head of pixels or objects needs classes; got none. Give classes=..., or head=None.")
    read = {"pre_logits": config.pre_logits, "projection": config.projection, "cosine_scale": config.cosine_scale}
    if said := [f"{name}={value:g}" for name, value in read.items() if value is not None]:
        raise ConfigError(f"a head of pixels or objects reads patches; got {', '.join(said)}. Leave it out.")
    if config.pooling not in ("token", "mean", "max"):
        raise ConfigError(f"a head of pixels or objects pools nothing; got pooling={config.pooling!r}. Take 'mean'.")
    if not isinstance(config.head, QueryHead):
        return
    if config.head.blocks > config.depth:
        raise ConfigError(
            f"queries join the last {config.head.blocks} blocks; the model has {config.depth}. "
            f"Set head.blocks={config.depth}, or fewer."
        )
    if config.attention != "full" or config.causal or isinstance(config.positions, PairPositions):
        raise ConfigError(
            "queries are tokens without a place, which attend to all patches; got "
            f"attention={config.attention}, causal={config.causal}, positions={type(config.positions).__name__}. "
            "Take another model, or head=linear."
        )


def _check_axial(config: "ViTConfig") -> None:
    if config.class_tokens:
        raise ConfigError(
            "axial attention runs along rows and columns, where a class token has no place; "
            f"got pooling={config.pooling!r}. Take pooling='mean' or 'max'."
        )
    if config.registers:
        raise ConfigError("axial attention runs along rows and columns, where registers have no place. Take none.")
    if isinstance(config.positions, PairPositions | RotaryPositions):
        kind = {RelativePositions: "relative", BiasPositions: "bias"}.get(type(config.positions), "rotary")
        raise ConfigError(f"{kind} positions are of the whole sequence; take attention='full' with them.")
    if config.qk_norm or config.inner_norm == "both" or config.attention_width or config.norm == "branch":
        raise ConfigError(
            "axial attention has no qk_norm, inner_norm, attention_width or norm=branch. Take attention='full'."
        )


def _check_causal(config: "ViTConfig") -> None:
    if config.attention == "axial":
        raise ConfigError("a causal model attends to every token before; take attention='full' with it.")
    if config.class_tokens:
        raise ConfigError(
            "the class token comes first, and in a causal model it sees nothing of the image; "
            f"got pooling={config.pooling!r}. Take pooling='mean' or 'max'."
        )
