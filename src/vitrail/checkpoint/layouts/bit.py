"""The authors' names for BiT: of the release (big_transfer) and of big_vision."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vitrail.checkpoint.archives import Entry
from vitrail.checkpoint.layouts.base import Asked, Dialect, Found, Headers, Row, common_prefix
from vitrail.checkpoint.layouts.codecs import CONVOLUTION, DENSE, FLAT
from vitrail.checkpoint.layouts.units import units_of
from vitrail.config import BiTConfig
from vitrail.errors import CheckpointError
from vitrail.ops.counts import Convolution, convolutions

ROOTS = {"release": "root_block/standardized_conv2d/kernel", "big_vision": "root_block/conv_root/kernel"}
# Some released files number a convolution: .../standardized_conv2d_17/kernel.
NUMBERED = re.compile(r"/standardized_conv2d_\d+/")


def recognise(entries: Mapping[str, Entry]) -> str | None:
    """Find the prefix of a BiT's names."""
    names = {NUMBERED.sub("/standardized_conv2d/", name): entry for name, entry in entries.items()}
    prefixes = [common_prefix(names, root) for root in ROOTS.values()]
    return next((prefix for prefix in prefixes if prefix is not None), None)


def infer(headers: Headers, asked: Asked, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names and shapes."""
    if asked.grid is not None:
        raise CheckpointError(f"a BiT has no position table, so no grid; got grid={asked.grid}. Leave it out.")
    numbered = {NUMBERED.sub("/standardized_conv2d/", name): name for name in headers.shapes if NUMBERED.search(name)}
    for usual, name in numbered.items():
        headers.shapes[usual] = headers.shapes.pop(name)
    names = next(names for names, root in ROOTS.items() if root in headers)
    _, _, channels, root = headers.shape(ROOTS[names], 4)
    stages = headers.count("block", "stage", start=1, most=16)
    head, axes = ("head/conv2d/kernel", 4) if names == "release" else ("head/kernel", 2)
    config = BiTConfig(
        units=tuple(headers.count(f"block{stage}/unit", "unit", start=1) for stage in range(1, stages + 1)),
        width=root,
        classes=headers.shape(head, axes)[-1] if head in headers else None,
        channels=channels,
        image_size=asked.image_size or (224, 224),
    )
    scale = "group_norm/gamma" if names == "release" else "norm-pre-head/scale"
    dialect = {
        "prefix": headers.prefix,
        "names": names,
        "flat_norms": len(headers.shapes.get(scale, (1,))) == 1,
        "numbered": {headers.prefix + usual: headers.prefix + name for usual, name in numbered.items()},
    }
    return Found(config=config, dialect=dialect, left_out=tuple(headers.outside))


def default_dialect() -> Dialect:
    """Speak as the release does."""
    return {"prefix": "resnet/", "names": "release", "flat_norms": True, "numbered": {}}


def rows(config: BiTConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    numbered = dialect["numbered"]
    for row in _release(config, dialect) if dialect["names"] == "release" else _big_vision(config, dialect):
        yield row._replace(theirs=tuple(numbered.get(name, name) for name in row.theirs))


def kernel(ours: str, theirs: str, conv: Convolution) -> Row:
    """Give the row of a convolution's kernel."""
    return Row(ours, (theirs,), (conv.kernel, conv.kernel, conv.inward, conv.outward), CONVOLUTION)


def _release(config: BiTConfig, dialect: Dialect) -> Iterator[Row]:
    prefix = dialect["prefix"]
    root, *others = convolutions(config)
    yield kernel("root.weight", prefix + ROOTS["release"], root)
    for stage, index, unit in units_of(others):
        ours, theirs = f"stages.{stage}.{index}", f"{prefix}block{stage + 1}/unit{index + 1:02d}"
        for part, conv in unit.items():
            if part == "shortcut":
                yield kernel(f"{ours}.shortcut.weight", f"{theirs}/a/proj/standardized_conv2d/kernel", conv)
                continue
            number, letter = {"first": (1, "a"), "second": (2, "b"), "third": (3, "c")}[part]
            yield kernel(f"{ours}.conv{number}.weight", f"{theirs}/{letter}/standardized_conv2d/kernel", conv)
            yield from _norm(f"{ours}.norm{number}", f"{theirs}/{letter}/group_norm", conv.inward, dialect)
    yield from _norm("norm", f"{prefix}group_norm", config.representation, dialect)
    if config.classes:
        yield Row("head.weight", (f"{prefix}head/conv2d/kernel",), (1, 1, config.representation, config.classes), DENSE)
        yield Row("head.bias", (f"{prefix}head/conv2d/bias",), (config.classes,), FLAT)


def _big_vision(config: BiTConfig, dialect: Dialect) -> Iterator[Row]:
    prefix = dialect["prefix"]
    root, *others = convolutions(config)
    yield kernel("root.weight", prefix + ROOTS["big_vision"], root)
    for stage, index, unit in units_of(others):
        ours, theirs = f"stages.{stage}.{index}", f"{prefix}block{stage + 1}/unit{index + 1:02d}"
        for part, conv in unit.items():
            if part == "shortcut":
                yield kernel(f"{ours}.shortcut.weight", f"{theirs}/conv_proj/kernel", conv)
                continue
            number = {"first": 1, "second": 2, "third": 3}[part]
            yield kernel(f"{ours}.conv{number}.weight", f"{theirs}/conv{number}/kernel", conv)
            yield from _norm(f"{ours}.norm{number}", f"{theirs}/gn{number}", conv.inward, dialect)
    yield from _norm("norm", f"{prefix}norm-pre-head", config.representation, dialect)
    if config.classes:
        yield Row("head.weight", (f"{prefix}head/kernel",), (config.representation, config.classes), DENSE)
        yield Row("head.bias", (f"{prefix}head/bias",), (config.classes,), FLAT)


def _norm(ours: str, theirs: str, size: int, dialect: Dialect) -> Iterator[Row]:
    shape = (size,) if dialect["flat_norms"] else (1, 1, 1, size)
    scale, bias = ("gamma", "beta") if dialect["names"] == "release" else ("scale", "bias")
    yield Row(f"{ours}.weight", (f"{theirs}/{scale}",), shape, FLAT)
    yield Row(f"{ours}.bias", (f"{theirs}/{bias}",), shape, FLAT)
