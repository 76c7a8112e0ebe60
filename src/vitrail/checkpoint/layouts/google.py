"""The authors' names for ViT and hybrids, in three generations: the first release, linen, and big_vision.

They differ in the numbers inside a block, in where the position table lies, in whether the class token has an entry in
it or its entry is folded into the token, and in whether the layers are stacked along a first axis.
"""

from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Entry, Headers
from vitrail.checkpoint.layouts import bit
from vitrail.checkpoint.layouts.base import Dialect, Found, Holds, Layout, Row
from vitrail.checkpoint.layouts.codecs import THREE_BIASES, THREE_KERNELS, flax_dense, flax_norm, token_rows
from vitrail.checkpoint.layouts.inference import file_grid
from vitrail.config import BiTConfig, HybridStem, ModelConfig, PatchStem, Stem, ViTConfig
from vitrail.errors import CheckpointError

# Attention, the norm after it, and the MLP, inside a block: numbered by kind, or in the first release by place.
PARTS = {
    "linen": ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
    "first release": ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
}
TABLES = ("Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding", "pos_embedding")
PREFIXES = ("", "params/", "params/img/", "opt/target/", "target/")  # before any other


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Find the prefix of a ViT's names, or of a BiT's."""
    found = {name.removesuffix("embedding/kernel") for name in entries if name.endswith("embedding/kernel")}
    encoders = {name[: name.index("Transformer/")] for name in entries if "Transformer/" in name}
    found = [prefix for prefix in found & encoders if prefix[-1:] in ("", "/")]
    ranked = sorted(found, key=lambda prefix: (PREFIXES.index(prefix) if prefix in PREFIXES else 99, len(prefix)))
    return ranked[0] if ranked else bit.recognize(entries)


def infer(headers: Headers, hints: Request, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names and shapes."""
    if "embedding/kernel" not in headers:
        return bit.infer(headers, hints, documents)
    width, channels, patch = headers.patches("embedding/kernel", flax=True)
    dialect = _dialect(headers)
    block, stacked = _block(0, dialect), int(dialect["stacked"])
    attention, _, mlp = (f"{block}/{part}" for part in PARTS[dialect["names"]])
    blocks = 0 if stacked else headers.count("Transformer/encoderblock_", "block")
    kernel = headers.shape(f"{attention}/query/kernel", 3 + stacked)
    depth = kernel[0] if stacked else blocks
    heads, head_width = kernel[-2:]
    if heads * head_width != width:
        raise CheckpointError(f"heads must divide the width {width}; the file has {heads} heads of {head_width}.")
    stem: Stem = PatchStem(patch=patch)
    if "conv_root/kernel" in headers:
        _, _, channels, root = headers.shape("conv_root/kernel", 4)
        units = headers.units("block", "/unit", start=1) if "block1/unit1/conv1/kernel" in headers else ()
        stem = HybridStem(units=units, width=root, patch=patch)
    token = "cls" in headers
    positions = headers.shape(dialect["table"], 3)[1]
    alone = dialect["table"] == "pos_embedding"  # big_vision's table never has a class entry
    (rows, cols), entry = file_grid(positions, stem, hints, class_entry=token and not alone)
    config = ViTConfig(
        stem=stem,
        depth=depth,
        width=width,
        mlp_width=headers.shape(f"{mlp}/Dense_0/kernel", 2 + stacked)[-1],
        heads=heads,
        classes=headers.shape("head/kernel", 2)[-1] if "head/kernel" in headers else None,
        image_size=(rows * stem.stride, cols * stem.stride),
        channels=channels,
        pooling="token" if token else "mean",
        pre_logits=headers.shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in headers else None,
    )
    folded = token and not entry
    inferred = ("the class token's position is folded into the token",) if folded else ()
    return Found(
        config=config, dialect={**dialect, "folded": folded}, inferred=inferred, left_out=tuple(headers.outside)
    )


def rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    if isinstance(config, BiTConfig):
        return bit.rows(config, dialect)
    return (row.under(dialect["prefix"]) for row in _rows(config, dialect))


def _rows(config: ViTConfig, dialect: Dialect) -> Iterator[Row]:
    width = config.width
    match config.stem:
        case PatchStem(patch=side):
            yield from flax_dense("embedding.projection", "embedding", (side, side, config.channels, width))
        case HybridStem(patch=side) as stem:
            yield from flax_dense("embedding.patches.projection", "embedding", (side, side, stem.channels, width))
            yield from bit.resnet_rows(config, bit.HYBRID, flat_norms=dialect["flat_norms"])
        case _:
            assert_never(config.stem)
    yield from token_rows(config, "cls", dialect["table"], folded=dialect["folded"])
    for index in range(config.depth):
        for row in _block_rows(f"blocks.{index}", _block(index, dialect), config, PARTS[dialect["names"]]):
            stacked = row._replace(shape=(config.depth, *row.shape), layer=index)
            yield stacked if dialect["stacked"] else row
    yield from flax_norm("norm", "Transformer/encoder_norm", (width,))
    if config.pre_logits:
        yield from flax_dense("hidden", "pre_logits", (width, config.pre_logits))
    if config.classes:
        yield from flax_dense("head", "head", (config.representation, config.classes))


def default_dialect(config: ModelConfig) -> Dialect:
    """Speak as the authors' code does today."""
    if isinstance(config, BiTConfig):
        return bit.RELEASE
    return {"prefix": "", "names": "linen", "table": TABLES[0], "stacked": False, "folded": False, "flat_norms": True}


def _dialect(headers: Headers) -> dict[str, Any]:
    stacked = any(name.startswith("Transformer/encoderblock/") for name in headers.shapes)
    block = _block(0, {"stacked": stacked})
    names = next((names for names, parts in PARTS.items() if f"{block}/{parts[0]}/query/kernel" in headers), "linen")
    table = next((table for table in TABLES if table in headers), None)
    if table is None:
        raise CheckpointError(
            f"the file lacks '{TABLES[0]}' (or '{TABLES[1]}' or '{TABLES[2]}'), its position table. big_vision "
            "computes 'sincos2d' positions instead of storing them: store that table under 'pos_embedding' first."
        )
    norm = headers.shapes.get("gn_root/scale", (1,))
    return {"prefix": headers.prefix, "names": names, "table": table, "stacked": stacked, "flat_norms": len(norm) == 1}


def _block(index: int, dialect: Dialect) -> str:
    return "Transformer/encoderblock" if dialect["stacked"] else f"Transformer/encoderblock_{index}"


def _block_rows(ours: str, theirs: str, config: ViTConfig, parts: tuple[str, str, str]) -> Iterator[Row]:
    attention, second_norm, mlp = (f"{theirs}/{part}" for part in parts)
    width, heads, size = config.width, config.heads, config.head_width
    kernels = tuple(f"{attention}/{part}/kernel" for part in ("query", "key", "value"))
    biases = tuple(f"{attention}/{part}/bias" for part in ("query", "key", "value"))
    yield from flax_norm(f"{ours}.attention_norm", f"{theirs}/LayerNorm_0", (width,))
    yield Row(f"{ours}.attention.qkv.weight", kernels, (width, heads, size), THREE_KERNELS)
    yield Row(f"{ours}.attention.qkv.bias", biases, (heads, size), THREE_BIASES)
    yield from flax_dense(f"{ours}.attention.out", f"{attention}/out", (heads, size, width))
    yield from flax_norm(f"{ours}.mlp_norm", second_norm, (width,))
    yield from flax_dense(f"{ours}.mlp.expand", f"{mlp}/Dense_0", (width, config.mlp_width))
    yield from flax_dense(f"{ours}.mlp.contract", f"{mlp}/Dense_1", (config.mlp_width, width))


LAYOUT = Layout(
    name="google",
    title="the authors' names",
    recognize=recognize,
    infer=infer,
    rows=rows,
    dialect=default_dialect,
    holds=Holds(
        families=("vit", "hybrid", "bit"),
        activations=("gelu-tanh",),
        poolings=("token", "mean"),
        stem={"epsilon": 1e-6, "filter_rule": "deviation", "filter_epsilon": 1e-5},
        bit={"epsilon": 1e-5, "filter_epsilon": 1e-10},
    ),
)
