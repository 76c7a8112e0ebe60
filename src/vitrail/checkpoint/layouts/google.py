"""The authors' names for ViT and hybrids, in three generations: the first release, linen, and big_vision.

They differ in the numbers inside a block, in where the position table lies, in whether the class token has an entry in
it or its entry is folded into the token, and in whether the layers are stacked along a first axis.
"""

from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from vitrail.checkpoint.archives.base import Entry, Shape
from vitrail.checkpoint.layouts import bit
from vitrail.checkpoint.layouts.base import Dialect, FileHints, Found, Headers, Holds, Layout, Row
from vitrail.checkpoint.layouts.codecs import DENSE, FLAT, PATCH_TABLE, TABLE, THREE_BIASES, THREE_KERNELS, units_of
from vitrail.checkpoint.layouts.inference import file_grid
from vitrail.config import BiTConfig, HybridStem, ModelConfig, PatchStem, Stem, ViTConfig
from vitrail.errors import CheckpointError
from vitrail.ops.cost.counts import Convolution, convolutions

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


def infer(headers: Headers, hints: FileHints, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names and shapes."""
    if "embedding/kernel" not in headers:
        return bit.infer(headers, hints, documents)
    patch, across, channels, width = headers.shape("embedding/kernel", 4)
    if patch != across:
        raise CheckpointError(f"patches must be square; 'embedding/kernel' has {patch}x{across}.")
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
        stages = headers.count("block", "stage", start=1, most=16) if "block1/unit1/conv1/kernel" in headers else 0
        units = tuple(headers.count(f"block{stage}/unit", "unit", start=1) for stage in range(1, stages + 1))
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
        yield from bit.rows(config, dialect)
        return
    width, prefix = config.width, dialect["prefix"]
    match config.stem:
        case PatchStem(patch=side):
            yield from _dense("embedding.projection", f"{prefix}embedding", (side, side, config.channels, width))
        case HybridStem(patch=side) as stem:
            shape = (side, side, stem.channels, width)
            yield from _dense("embedding.patches.projection", f"{prefix}embedding", shape)
            yield from _hybrid_rows(config, dialect)
        case _:
            assert_never(config.stem)
    if config.class_tokens:
        yield Row("class_token", (f"{prefix}cls",), (1, 1, width), FLAT)
    folded = dialect["folded"]
    table = (1, config.tokens - folded, width)
    yield Row("positions.table.0", (prefix + dialect["table"],), table, PATCH_TABLE if folded else TABLE)
    for index in range(config.depth):
        layer = index if dialect["stacked"] else None
        for row in _block_rows(f"blocks.{index}", prefix + _block(index, dialect), config, PARTS[dialect["names"]]):
            shape = (config.depth, *row.shape) if dialect["stacked"] else row.shape
            yield row._replace(shape=shape, layer=layer)
    yield from _norm("norm", f"{prefix}Transformer/encoder_norm", (width,))
    if config.pre_logits:
        yield from _dense("hidden", f"{prefix}pre_logits", (width, config.pre_logits))
    if config.classes:
        yield from _dense("head", f"{prefix}head", (config.representation, config.classes))


def default_dialect(config: ModelConfig) -> Dialect:
    """Speak as the authors' code does today."""
    if isinstance(config, BiTConfig):
        return bit.default_dialect()
    return {
        "prefix": "",
        "names": "linen",
        "table": TABLES[0],
        "stacked": False,
        "folded": False,
        "flat_norms": True,
    }


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
    return {
        "prefix": headers.prefix,
        "names": names,
        "table": table,
        "stacked": stacked,
        "flat_norms": len(norm) == 1,
    }


def _block(index: int, dialect: Dialect) -> str:
    return "Transformer/encoderblock" if dialect["stacked"] else f"Transformer/encoderblock_{index}"


def _block_rows(ours: str, theirs: str, config: ViTConfig, parts: tuple[str, str, str]) -> Iterator[Row]:
    attention, second_norm, mlp = (f"{theirs}/{part}" for part in parts)
    width, heads, size = config.width, config.heads, config.head_width
    kernels = tuple(f"{attention}/{part}/kernel" for part in ("query", "key", "value"))
    biases = tuple(f"{attention}/{part}/bias" for part in ("query", "key", "value"))
    yield from _norm(f"{ours}.attention_norm", f"{theirs}/LayerNorm_0", (width,))
    yield Row(f"{ours}.attention.qkv.weight", kernels, (width, heads, size), THREE_KERNELS)
    yield Row(f"{ours}.attention.qkv.bias", biases, (heads, size), THREE_BIASES)
    yield from _dense(f"{ours}.attention.out", f"{attention}/out", (heads, size, width))
    yield from _norm(f"{ours}.mlp_norm", second_norm, (width,))
    yield from _dense(f"{ours}.mlp.expand", f"{mlp}/Dense_0", (width, config.mlp_width))
    yield from _dense(f"{ours}.mlp.contract", f"{mlp}/Dense_1", (config.mlp_width, width))


def _hybrid_rows(config: ViTConfig, dialect: Dialect) -> Iterator[Row]:
    prefix = dialect["prefix"]
    root, *others = convolutions(config)
    yield _kernel("embedding.resnet.root", f"{prefix}conv_root", root)
    yield from _group_norm("embedding.resnet.root_norm", f"{prefix}gn_root", root.outward, dialect)
    for stage, index, unit in units_of(others):
        ours = f"embedding.resnet.stages.{stage}.{index}"
        theirs = f"{prefix}block{stage + 1}/unit{index + 1}"
        for part, conv in unit.items():
            number = {"first": "1", "second": "2", "third": "3", "shortcut": "_proj"}[part]
            names = ("shortcut.0", "shortcut.1") if part == "shortcut" else (f"conv{number}", f"norm{number}")
            yield _kernel(f"{ours}.{names[0]}", f"{theirs}/conv{number}", conv)
            yield from _group_norm(f"{ours}.{names[1]}", f"{theirs}/gn{number}", conv.outward, dialect)


def _kernel(ours: str, theirs: str, conv: Convolution) -> Row:
    return bit.kernel(f"{ours}.weight", f"{theirs}/kernel", conv)


def _group_norm(ours: str, theirs: str, size: int, dialect: Dialect) -> Iterator[Row]:
    yield from _norm(ours, theirs, (size,) if dialect["flat_norms"] else (1, 1, 1, size))


def _dense(ours: str, theirs: str, shape: Shape) -> Iterator[Row]:
    yield Row(f"{ours}.weight", (f"{theirs}/kernel",), shape, DENSE)
    yield Row(f"{ours}.bias", (f"{theirs}/bias",), shape[-1:], FLAT)


def _norm(ours: str, theirs: str, shape: Shape) -> Iterator[Row]:
    yield Row(f"{ours}.weight", (f"{theirs}/scale",), shape, FLAT)
    yield Row(f"{ours}.bias", (f"{theirs}/bias",), shape, FLAT)


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
