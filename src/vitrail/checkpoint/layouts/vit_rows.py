"""The parts of a ViT in the names of a library of torch, and the rows of all of them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.checkpoint.archives.base import Shape
from vitrail.checkpoint.layouts.base import Codec, Row
from vitrail.checkpoint.layouts.codecs import FLAT, PATCHES, SAME, THREE, pair
from vitrail.config import BiasPositions, HybridStem, LearnedPositions, ViTConfig
from vitrail.errors import CheckpointError
from vitrail.ops.positions import count_offsets

# Two tensors of theirs one after the other, as a gate and a value, or a key and a value.
TWO = Codec(lambda *theirs: torch.cat(theirs), lambda ours, shape: tuple(part.reshape(shape) for part in ours.chunk(2)))
# A query's matrix, and that of keys and values; all of them in one of ours.
QUERY_AND_OTHERS = Codec(
    lambda *theirs: torch.cat(theirs),
    lambda ours, shape: (ours[: shape[0]].contiguous(), ours[shape[0] :].contiguous()),
)
# A matrix that is multiplied from the other side.
TURNED = Codec(lambda theirs: theirs.T, lambda ours, shape: (ours.T,))


class PoolNames(NamedTuple):
    """What the parts of attention pooling are called: query, then key and value, or all three in one."""

    probe: str
    query: str  # before "weight" and "bias"; of all three where there is no key_value
    key_value: str
    out: str
    norm: str
    expand: str
    contract: str


@dataclass(frozen=True, kw_only=True)
class TorchNames:
    """What a library of torch calls the parts of a ViT; those of a layer stand after `layer` and its number."""

    patches: str
    token: str
    table: str
    layer: str
    attention_norm: str
    qkv: tuple[str, ...]  # packed, or query, key and value; before "weight" and "bias"
    biases: tuple[str, ...] = ()  # of query, key and value, where they have names of their own
    out: str
    mlp_norm: str
    expand: str
    contract: str
    gate: str = ""  # of a gated MLP, where it is apart from the value in `expand`
    scales: tuple[str, ...] = ()  # of attention and MLP
    offsets: str = ""  # the whole name of a layer's biases of offsets
    shared_offsets: str = ""  # and of those of all layers, which stands before no layer
    qk_norms: tuple[str, ...] = ()
    inner_norms: tuple[str, ...] = ()  # of attention and MLP
    norm: str
    hidden: str = ""
    head: str
    second_head: str = ""
    registers: str = ""
    first_norm: str = ""
    pooled_norm: str = ""
    projection: str = ""  # the whole name of its matrix
    turned: bool = False  # it is multiplied from the other side
    pool: PoolNames | None = None
    token_axes: int = 3
    table_axes: int = 3
    point: str = "."  # before "weight" and "bias" of patches


@dataclass(frozen=True, kw_only=True)
class Missing:
    """What a file of this layout lacks: biases, which are zero, and positions of the tokens before the patches."""

    biases: tuple[str, ...] = ()  # by our names, without the block's; attention.query, .key and .value too
    key_bias: bool = False  # that of keys
    placed: int | None = None  # how many of the tokens before the patches have a position; None: all of them

    def has(self, name: str) -> bool:
        """Tell whether a bias is missing."""
        return name in self.biases


NOTHING = Missing()
PARTS = ("query", "key", "value")


def zeros(*shape: int) -> Codec:
    """Make the codec of a bias that a layout lacks."""

    def write(ours: Tensor, _: Shape) -> tuple[Tensor, ...]:
        if ours.any():
            raise CheckpointError(
                "the layout has no place for a bias that training has moved away from zero. Take layout=vitrail."
            )
        return ()

    return Codec(lambda: torch.zeros(shape), write)


def _some_biases(held: tuple[bool, ...]) -> Codec:
    """Make the codec of biases of query, key and value of which a layout has only some: the others are zero."""

    def read(*theirs: Tensor) -> Tensor:
        given = iter(theirs)
        return torch.cat([(next(given) if has else torch.zeros_like(theirs[0])).reshape(-1) for has in held])

    def write(ours: Tensor, shape: Shape) -> tuple[Tensor, ...]:
        parts = ours.chunk(3)
        if lost := [name for name, has, part in zip(PARTS, held, parts, strict=True) if not has and part.any()]:
            raise CheckpointError(
                f"the layout has no biases of {' and '.join(lost)}, and training has moved them. Take layout=vitrail."
            )
        return tuple(part.reshape(shape) for part, has in zip(parts, held, strict=True) if has)

    return Codec(read, write)


def table_codec(placed: int, leading: int, axes: int) -> Codec:
    """Make the codec of positions of which the tokens from `placed` to `leading` have none: zeros stand there."""

    def read(theirs: Tensor) -> Tensor:
        table = theirs.reshape(theirs.shape[-2:])
        empty = table.new_zeros(leading - placed, table.shape[1])
        return torch.cat([table[:placed], empty, table[placed:]]) if leading > placed else table

    def write(ours: Tensor, _: Shape) -> tuple[Tensor, ...]:
        table = torch.cat([ours[:placed], ours[leading:]]) if leading > placed else ours
        return (table[None] if axes == 3 else table,)

    return Codec(read, write)


def linear(ours: str, theirs: str, shape: Shape, missing: Missing, codec: Codec = SAME) -> Iterator[Row]:
    """Give the rows of a weight and its bias, which may be missing; `missing` knows it by its name in a block."""
    yield Row(f"{ours}.weight", (f"{theirs}.weight",), shape, codec)
    short = ours.split(".", 2)[2] if ours.startswith("blocks.") else ours
    if missing.has(short):
        yield Row(f"{ours}.bias", (), shape[:1], zeros(shape[0]))
    else:
        yield Row(f"{ours}.bias", (f"{theirs}.bias",), shape[:1], SAME)


def vit_rows(
    config: ViTConfig, names: TorchNames, stem: Iterable[Row] = (), *, missing: Missing = NOTHING
) -> Iterator[Row]:
    """Give the row of every parameter of a ViT, with those of its stem."""
    width, patch = config.width, config.stem.patch
    if isinstance(config.stem, HybridStem):
        shape = (width, config.stem.channels, patch, patch)
        yield from pair("embedding.patches.projection", names.patches, shape, PATCHES)
    else:
        shape = (width, config.channels, patch, patch)
        yield from linear("embedding.projection", names.patches, shape, missing, PATCHES)
    yield from stem
    yield from _tokens(config, names, missing)
    if isinstance(config.positions, BiasPositions):
        yield from _offsets(config, config.positions, names)
    if config.first_norm:
        yield from pair("first_norm", names.first_norm, (width,))
    for index in range(config.depth):
        yield from _block(f"blocks.{index}", f"{names.layer}{index}.", config, names, missing)
    yield from _ends(config, names)


def _tokens(config: ViTConfig, names: TorchNames, missing: Missing) -> Iterator[Row]:
    width = config.width
    if config.class_tokens:
        yield Row("class_token", (names.token,), (*[1] * (names.token_axes - 1), width), FLAT)
    if config.registers:
        codec = Codec(lambda theirs: theirs[0], lambda ours, shape: (ours[None],))
        yield Row("registers", (names.registers,), (1, config.registers, width), codec)
    if has_table(config):
        placed = config.leading if missing.placed is None else missing.placed
        rows = config.tokens - config.leading + placed
        shape = (*[1] * (names.table_axes - 2), rows, width)
        yield Row("positions.table.0", (names.table,), shape, table_codec(placed, config.leading, names.table_axes))


def _offsets(config: ViTConfig, positions: BiasPositions, names: TorchNames) -> Iterator[Row]:
    shape = (count_offsets(config.grid, config.leading), config.heads)
    own = [f"{names.layer}{layer}.{names.offsets}" for layer in range(config.depth)]
    for index, theirs in enumerate([names.shared_offsets] if positions.at == "shared" else own):
        yield Row(f"positions.biases.{index}", (theirs,), shape, SAME)


def has_table(config: ViTConfig) -> bool:
    """Tell whether a table of positions is added to the tokens."""
    return type(config.positions).__name__ == "LearnedPositions" or getattr(config.positions, "table", None) is not None


def _block(ours: str, theirs: str, config: ViTConfig, names: TorchNames, missing: Missing) -> Iterator[Row]:
    width, wide, mixed = config.width, config.mlp_width, config.head_width * config.heads
    yield from pair(f"{ours}.attention_norm", theirs + names.attention_norm, (width,))
    rows, codec = (3 * mixed, SAME) if len(names.qkv) == 1 else (mixed, THREE)
    weights, biases = (tuple(f"{theirs}{name}{kind}" for name in names.qkv) for kind in ("weight", "bias"))
    yield Row(f"{ours}.attention.qkv.weight", weights, (rows, width), codec)
    biases = tuple(theirs + name for name in names.biases) or biases
    held = tuple(not (missing.has(f"attention.{part}") or (part == "key" and missing.key_bias)) for part in PARTS)
    if config.qkv_bias and not all(held):
        every = biases if len(biases) == 3 else (biases[0], "", biases[-1])
        present = tuple(name for name, has in zip(every, held, strict=True) if has)
        yield Row(f"{ours}.attention.qkv.bias", present, (mixed,), _some_biases(held))
    elif config.qkv_bias:
        yield Row(f"{ours}.attention.qkv.bias", biases, (rows,), codec)
    if config.qk_norm:
        for mine, name in zip(("query_norm", "key_norm"), names.qk_norms, strict=True):
            yield from pair(f"{ours}.attention.{mine}", theirs + name, (config.head_width,))
    if config.inner_norm == "both":
        yield from pair(f"{ours}.attention.inner_norm", theirs + names.inner_norms[0], (mixed,))
    yield from linear(f"{ours}.attention.out", theirs + names.out, (width, mixed), missing)
    yield from pair(f"{ours}.mlp_norm", theirs + names.mlp_norm, (width,))
    if config.mlp == "gated" and names.gate:
        both = (theirs + names.gate, theirs + names.expand)
        yield Row(f"{ours}.mlp.expand.weight", tuple(f"{name}.weight" for name in both), (wide, width), TWO)
        if missing.has("mlp.expand"):
            yield Row(f"{ours}.mlp.expand.bias", (), (), zeros(2 * wide))
        else:
            yield Row(f"{ours}.mlp.expand.bias", tuple(f"{name}.bias" for name in both), (wide,), TWO)
    else:
        first = 2 * wide if config.mlp == "gated" else wide
        yield from linear(f"{ours}.mlp.expand", theirs + names.expand, (first, width), missing)
    if config.inner_norm != "none":
        yield from pair(f"{ours}.mlp.inner_norm", theirs + names.inner_norms[1], (wide,))
    yield from linear(f"{ours}.mlp.contract", theirs + names.contract, (width, wide), missing)
    if config.layer_scale is not None:
        for branch, scale in zip(("attention", "mlp"), names.scales, strict=False):
            yield Row(f"{ours}.{branch}_scale.weight", (f"{theirs}{scale}",), (width,), SAME)


def _ends(config: ViTConfig, names: TorchNames) -> Iterator[Row]:
    width = config.width
    if config.last_norm == "tokens":
        yield from pair("norm", names.norm, (width,))
    elif config.last_norm == "pooled":
        yield from pair("pooled_norm", names.pooled_norm or names.norm, (width,))
    if config.pooling == "attention":
        if names.pool is None:
            raise CheckpointError("the layout has no attention pooling. Take layout=vitrail.")
        yield from _pool(config, names.pool)
    if config.pre_logits:
        yield from pair("hidden", names.hidden, (config.pre_logits, config.pooled))
    if config.projection:
        shape = (config.projection, config.pre_logits or config.pooled)
        turned = shape[::-1] if names.turned else shape
        yield Row("projection.weight", (names.projection,), turned, TURNED if names.turned else SAME)
    if config.classes and config.pooling == "distilled":
        for ours, theirs in (("head.first", names.head), ("head.second", names.second_head)):
            yield from pair(ours, theirs, (config.classes, width))
    elif config.classes:
        yield from pair("head", names.head, (config.classes, config.representation))


def _pool(config: ViTConfig, names: PoolNames) -> Iterator[Row]:
    width, wide = config.width, config.mlp_width
    yield Row("pooling.probe", (names.probe,), (1, 1, width), FLAT)
    for kind, end in (("weight", (width,)), ("bias", ())):
        ours = f"pooling.qkv.{kind}"
        if names.key_value:
            theirs, shapes = (names.query + kind, names.key_value + kind), ((width, *end), (2 * width, *end))
            yield Row(ours, theirs, shapes[0], QUERY_AND_OTHERS, others=shapes[1:])
        else:
            yield Row(ours, (names.query + kind,), (3 * width, *end), SAME)
    yield from pair("pooling.out", names.out, (width, width))
    yield from pair("pooling.mlp_norm", names.norm, (width,))
    yield from pair("pooling.mlp.expand", names.expand, (wide, width))
    yield from pair("pooling.mlp.contract", names.contract, (width, wide))


def alike(config: object) -> ViTConfig:
    """Give a configuration without what changes no answer, or is written beside the weights."""
    assert isinstance(config, ViTConfig)
    positions = config.positions
    if isinstance(positions, LearnedPositions):
        positions = replace(positions, resampling="bicubic")
    elif isinstance(positions, BiasPositions):
        positions = replace(positions, resampling="bilinear", table=positions.table and "bicubic")
    return replace(
        config,
        positions=positions,
        class_token=bool(config.class_tokens),
        final_norm=config.last_norm,
        layer_scale=None if config.layer_scale is None else 1.0,
        dropout=0.0,
        attention_dropout=0.0,
        stochastic_depth=0.0,
        head_bias=0.0,
        checkpointing=False,
    )
