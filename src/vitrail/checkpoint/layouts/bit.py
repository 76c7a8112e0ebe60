"""The authors' names for BiT: of the release (big_transfer) and of big_vision."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Entry, Headers
from vitrail.checkpoint.layouts.base import Dialect, Found, Row, common_prefix
from vitrail.checkpoint.layouts.codecs import CONVOLUTION, flax_dense, flax_norm, resnet_parts
from vitrail.config import BiTConfig, ModelConfig
from vitrail.errors import CheckpointError


class Names(NamedTuple):
    """What the parts are called; kernels, scales and biases stand under these."""

    root: str
    unit: str
    convolutions: tuple[str, ...]  # of a unit, the shortcut's first
    norms: tuple[str, ...]
    words: tuple[str, str]  # a norm's scale and bias
    root_norm: str = ""
    last_norm: str = ""
    head: str = ""
    head_axes: int = 2


HYBRID = Names(
    root="conv_root",
    unit="block{}/unit{}",
    convolutions=("conv_proj", "conv1", "conv2", "conv3"),
    norms=("gn_proj", "gn1", "gn2", "gn3"),
    words=("scale", "bias"),
    root_norm="gn_root",
)
NAMES = {
    "release": Names(
        root="root_block/standardized_conv2d",
        unit="block{}/unit{:02d}",
        convolutions=tuple(f"{part}/standardized_conv2d" for part in ("a/proj", "a", "b", "c")),
        norms=("", "a/group_norm", "b/group_norm", "c/group_norm"),
        words=("gamma", "beta"),
        last_norm="group_norm",
        head="head/conv2d",
        head_axes=4,
    ),
    "big_vision": HYBRID._replace(
        root="root_block/conv_root", unit="block{}/unit{:02d}", last_norm="norm-pre-head", head="head"
    ),
}
RELEASE: Dialect = {"prefix": "resnet/", "names": "release", "flat_norms": True, "numbered": {}}
# Some released files number a convolution: .../standardized_conv2d_17/kernel.
NUMBERED = re.compile(r"/standardized_conv2d_\d+/")


def recognize(entries: Mapping[str, Entry]) -> str | None:
    """Find the prefix of a BiT's names."""
    names = {NUMBERED.sub("/standardized_conv2d/", name): entry for name, entry in entries.items()}
    prefixes = [common_prefix(names, f"{known.root}/kernel") for known in NAMES.values()]
    return next((prefix for prefix in prefixes if prefix is not None), None)


def infer(headers: Headers, hints: Request, documents: Mapping[str, Any]) -> Found:
    """Read the configuration off names and shapes."""
    if hints.grid is not None:
        raise CheckpointError(f"a BiT has no position table, so no grid; got grid={hints.grid}. Leave it out.")
    numbered = {NUMBERED.sub("/standardized_conv2d/", name): name for name in headers.shapes if NUMBERED.search(name)}
    for usual, name in numbered.items():
        headers.shapes[usual] = headers.shapes.pop(name)
    names, known = next((names, known) for names, known in NAMES.items() if f"{known.root}/kernel" in headers)
    _, _, channels, root = headers.shape(f"{known.root}/kernel", 4)
    head = f"{known.head}/kernel"
    config = BiTConfig(
        units=headers.units("block", "/unit", start=1),
        width=root,
        classes=headers.shape(head, known.head_axes)[-1] if head in headers else None,
        channels=channels,
        image_size=hints.image_size or (224, 224),
    )
    scale = f"{known.last_norm}/{known.words[0]}"
    dialect = {
        "prefix": headers.prefix,
        "names": names,
        "flat_norms": len(headers.shapes.get(scale, (1,))) == 1,
        "numbered": {headers.prefix + usual: headers.prefix + name for usual, name in numbered.items()},
    }
    return Found(config=config, dialect=dialect, left_out=tuple(headers.outside))


def rows(config: BiTConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter."""
    numbered = dialect["numbered"]
    for row in _rows(config, NAMES[dialect["names"]], flat_norms=dialect["flat_norms"]):
        row = row.under(dialect["prefix"])
        yield row._replace(theirs=tuple(numbered.get(name, name) for name in row.theirs))


def _rows(config: BiTConfig, names: Names, *, flat_norms: bool) -> Iterator[Row]:
    yield from resnet_rows(config, names, flat_norms=flat_norms)
    yield from _norm("norm", names.last_norm, config.representation, names, flat_norms=flat_norms)
    if config.classes:
        shape = (*[1] * (names.head_axes - 2), config.representation, config.classes)
        yield from flax_dense("head", names.head, shape)


def resnet_rows(config: ModelConfig, names: Names, *, flat_norms: bool) -> Iterator[Row]:
    """Give the rows of every convolution of a BiT or of a hybrid's stem, and of their norms."""
    for part in resnet_parts(config):
        kernel, norm, conv = names.root, names.root_norm, part.conv
        if part.place is not None:
            unit = names.unit.format(*(place + 1 for place in part.place))
            kernel, norm = f"{unit}/{names.convolutions[part.number]}", f"{unit}/{names.norms[part.number]}"
        shape = (conv.kernel, conv.kernel, conv.inward, conv.outward)
        yield Row(part.kernel, (f"{kernel}/kernel",), shape, CONVOLUTION)
        if part.norm:
            yield from _norm(part.norm, norm, part.width, names, flat_norms=flat_norms)


def _norm(ours: str, theirs: str, width: int, names: Names, *, flat_norms: bool) -> Iterator[Row]:
    return flax_norm(ours, theirs, (width,) if flat_norms else (1, 1, 1, width), names.words)
