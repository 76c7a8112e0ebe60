"""The authors' names for BiT: of the release (big_transfer) and of big_vision."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vitrail.checkpoint.archives.base import Entry
from vitrail.checkpoint.layouts.base import Dialect, FileHints, Found, Headers, Row, common_prefix
from vitrail.checkpoint.layouts.codecs import CONVOLUTION, DENSE, FLAT, units_of
from vitrail.config import BiTConfig
from vitrail.errors import CheckpointError
from vitrail.ops.cost.counts import Convolution, convolutions


class Names(NamedTuple):
    """What the parts are called; kernels, scales and biases stand under these."""

    root: str
    convolutions: tuple[str, str, str]
    norms: tuple[str, str, str]
    shortcut: str
    last_norm: str
    head: str
    head_axes: int
    scale: str
    bias: str


NAMES = {
    "release": Names(
        root="root_block/standardized_conv2d",
        convolutions=("a/standardized_conv2d", "b/standardized_conv2d", "c/standardized_conv2d"),
        norms=("a/group_norm", "b/group_norm", "c/group_norm"),
        shortcut="a/proj/standardized_conv2d",
        last_norm="group_norm",
        head="head/conv2d",
        head_axes=4,
        scale="gamma",
        bias="beta",
    ),
    "big_vision": Names(
        root="root_block/conv_root",
        convolutions=("conv1", "conv2", "conv3"),
        norms=("gn1", "gn2", "gn3"),
        shortcut="conv_proj",
        last_norm="norm-pre-head",
        head="head",
        head_axes=2,
        scale="scale",
        bias="bias",
    ),
}
# Some released files number a convolution: .../standardized_conv2d_17/kernel.
NUMBERED = re.compile(r"/standardized_conv2d_\d+/")


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Find the prefix of a BiT's names."""
    names = {NUMBERED.sub("/standardized_conv2d/", name): entry for name, entry in entries.items()}
    prefixes = [common_prefix(names, f"{known.root}/kernel") for known in NAMES.values()]
    return next((prefix for prefix in prefixes if prefix is not None), None)


def infer(headers: Headers, hints: FileHints, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names and shapes."""
    if hints.grid is not None:
        raise CheckpointError(f"a BiT has no position table, so no grid; got grid={hints.grid}. Leave it out.")
    numbered = {NUMBERED.sub("/standardized_conv2d/", name): name for name in headers.shapes if NUMBERED.search(name)}
    for usual, name in numbered.items():
        headers.shapes[usual] = headers.shapes.pop(name)
    names, known = next((names, known) for names, known in NAMES.items() if f"{known.root}/kernel" in headers)
    _, _, channels, root = headers.shape(f"{known.root}/kernel", 4)
    stages = headers.count("block", "stage", start=1, most=16)
    head = f"{known.head}/kernel"
    config = BiTConfig(
        units=tuple(headers.count(f"block{stage}/unit", "unit", start=1) for stage in range(1, stages + 1)),
        width=root,
        classes=headers.shape(head, known.head_axes)[-1] if head in headers else None,
        channels=channels,
        image_size=hints.image_size or (224, 224),
    )
    scale = f"{known.last_norm}/{known.scale}"
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
    for row in _rows(config, dialect, NAMES[dialect["names"]]):
        yield row._replace(theirs=tuple(numbered.get(name, name) for name in row.theirs))


def kernel(ours: str, theirs: str, conv: Convolution) -> Row:
    """Give the row of a convolution's kernel."""
    return Row(ours, (theirs,), (conv.kernel, conv.kernel, conv.inward, conv.outward), CONVOLUTION)


def _rows(config: BiTConfig, dialect: Dialect, names: Names) -> Iterator[Row]:
    prefix = dialect["prefix"]
    root, *others = convolutions(config)
    yield kernel("root.weight", f"{prefix}{names.root}/kernel", root)
    for stage, index, unit in units_of(others):
        ours, theirs = f"stages.{stage}.{index}", f"{prefix}block{stage + 1}/unit{index + 1:02d}"
        for part, conv in unit.items():
            if part == "shortcut":
                yield kernel(f"{ours}.shortcut.weight", f"{theirs}/{names.shortcut}/kernel", conv)
                continue
            number = ("first", "second", "third").index(part)
            yield kernel(f"{ours}.conv{number + 1}.weight", f"{theirs}/{names.convolutions[number]}/kernel", conv)
            yield from _norm(f"{ours}.norm{number + 1}", f"{theirs}/{names.norms[number]}", conv.inward, dialect)
    yield from _norm("norm", f"{prefix}{names.last_norm}", config.representation, dialect)
    if config.classes:
        shape = (*[1] * (names.head_axes - 2), config.representation, config.classes)
        yield Row("head.weight", (f"{prefix}{names.head}/kernel",), shape, DENSE)
        yield Row("head.bias", (f"{prefix}{names.head}/bias",), (config.classes,), FLAT)


def _norm(ours: str, theirs: str, size: int, dialect: Dialect) -> Iterator[Row]:
    shape = (size,) if dialect["flat_norms"] else (1, 1, 1, size)
    names = NAMES[dialect["names"]]
    yield Row(f"{ours}.weight", (f"{theirs}/{names.scale}",), shape, FLAT)
    yield Row(f"{ours}.bias", (f"{theirs}/{names.bias}",), shape, FLAT)
