"""torchvision's names for ViT: exact GELU, a pre-training layer where there is one."""

from collections.abc import Iterator, Mapping
from typing import Any

from vitrail.checkpoint.archives.base import Entry
from vitrail.checkpoint.layouts.base import SAME, Dialect, FileHints, Found, Headers, Holds, Layout, Row, common_prefix
from vitrail.checkpoint.layouts.codecs import FLAT, PATCHES, TABLE, pair
from vitrail.checkpoint.layouts.inference import file_grid, find_heads, noted_grid
from vitrail.config import LearnedPositions, ModelConfig, PatchStem, ViTConfig
from vitrail.errors import CheckpointError

LAYER = "encoder.layers.encoder_layer_"
# The MLP's two layers, of today and of before version 0.13.
MLPS = {"mlp.0": "mlp.3", "mlp.linear_1": "mlp.linear_2"}


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Find the prefix of a ViT's names."""
    return common_prefix(entries, f"{LAYER}0.self_attention.in_proj_weight")


def infer(headers: Headers, hints: FileHints, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names and shapes."""
    if "conv_proj.weight" not in headers:
        raise CheckpointError(
            "the file's ViT has a stem of convolutions in place of patches, which no paper's ViT has."
        )
    width, channels, patch, across = headers.shape("conv_proj.weight", 4)
    if patch != across:
        raise CheckpointError(f"patches must be square; 'conv_proj.weight' has {patch}x{across}.")
    heads, notes = find_heads(width, hints, documents)
    stem = PatchStem(patch=patch)
    (rows, cols), _ = file_grid(
        headers.shape("encoder.pos_embedding", 3)[1], stem, noted_grid(documents, stem, hints), class_entry=True
    )
    first = next((name for name in MLPS if f"{LAYER}0.{name}.weight" in headers), "mlp.0")
    config = ViTConfig(
        stem=stem,
        depth=headers.count(LAYER, "layer", end="."),
        width=width,
        mlp_width=headers.shape(f"{LAYER}0.{first}.weight", 2)[0],
        heads=heads,
        classes=headers.shape("heads.head.weight", 2)[0] if "heads.head.weight" in headers else None,
        image_size=(rows * patch, cols * patch),
        channels=channels,
        positions=LearnedPositions(resampling=LAYOUT.holds.resampling),
        activation="gelu",
        pre_logits=(headers.shape("heads.pre_logits.weight", 2)[0] if "heads.pre_logits.weight" in headers else None),
    )
    inferred = (*notes, "GELU in its exact form and epsilon 1e-6, as torchvision's ViTs have")
    return Found(
        config=config,
        dialect={"prefix": headers.prefix, "mlp": first, "headless": "heads.head.weight" not in headers},
        inferred=inferred,
        left_out=tuple(headers.outside),
    )


def rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    assert isinstance(config, ViTConfig)
    assert isinstance(config.stem, PatchStem)
    width, side, first = config.width, config.stem.patch, dialect["mlp"]
    prefix = dialect["prefix"]
    patches = (width, config.channels, side, side)
    yield from pair("embedding.projection", f"{prefix}conv_proj", patches, PATCHES)
    yield Row("class_token", (f"{prefix}class_token",), (1, 1, width), FLAT)
    yield Row("positions.table.0", (f"{prefix}encoder.pos_embedding",), (1, config.tokens, width), TABLE)
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"{prefix}{LAYER}{index}"
        attention = f"{theirs}.self_attention"
        yield from pair(f"{ours}.attention_norm", f"{theirs}.ln_1", (width,))
        yield Row(f"{ours}.attention.qkv.weight", (f"{attention}.in_proj_weight",), (3 * width, width), SAME)
        yield Row(f"{ours}.attention.qkv.bias", (f"{attention}.in_proj_bias",), (3 * width,), SAME)
        yield from pair(f"{ours}.attention.out", f"{attention}.out_proj", (width, width))
        yield from pair(f"{ours}.mlp_norm", f"{theirs}.ln_2", (width,))
        yield from pair(f"{ours}.mlp.expand", f"{theirs}.{first}", (config.mlp_width, width))
        yield from pair(f"{ours}.mlp.contract", f"{theirs}.{MLPS[first]}", (width, config.mlp_width))
    yield from pair("norm", f"{prefix}encoder.ln", (width,))
    if config.pre_logits:
        yield from pair("hidden", f"{prefix}heads.pre_logits", (config.pre_logits, width))
    if config.classes:
        yield from pair("head", f"{prefix}heads.head", (config.classes, config.representation))


def default_dialect(config: ModelConfig) -> Dialect:
    """Speak as torchvision does today."""
    return {"prefix": "", "mlp": "mlp.0", "headless": False}


LAYOUT = Layout(
    name="torchvision",
    title="torchvision's names",
    recognize=recognize,
    infer=infer,
    rows=rows,
    dialect=default_dialect,
    holds=Holds(headless=False, rectangles=False, resampling="bicubic-corners"),
)
