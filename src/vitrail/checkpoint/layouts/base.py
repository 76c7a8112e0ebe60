"""What a layout is: the names and axes that a library gives to the weights of a model. Here is also our own layout."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from torch import Tensor

from vitrail.checkpoint.archives.base import Entry, Shape
from vitrail.config import Grid, ModelConfig, Resampling, ViTConfig, decode
from vitrail.config.check import DEEPEST
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import skeleton
from vitrail.ops.cost.counts import parameters

NOTE = "vitrail"  # the name of the note that a safetensors file of ours carries
Dialect = Mapping[str, Any]  # what a layout leaves open, as one file has it; plain enough for JSON


class Codec(NamedTuple):
    """`read` makes ours of theirs; `write` makes theirs of ours, each of them in the shape given."""

    read: Callable[..., Tensor]
    write: Callable[[Tensor, Shape], tuple[Tensor, ...]]


SAME = Codec(lambda theirs: theirs, lambda ours, shape: (ours,))


class Row(NamedTuple):
    """One parameter of ours: the tensors of theirs that it is made of, the shape of each, and how to go there and back.

    Where a file stacks the layers, `layer` is the one of theirs that is meant.
    """

    ours: str
    theirs: tuple[str, ...]
    shape: Shape
    codec: Codec
    layer: int | None = None


@dataclass(frozen=True, kw_only=True)
class FileHints:
    """What the caller says of a file, where its tensors leave it open."""

    image_size: tuple[int, int] | None = None
    grid: Grid | None = None
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a file holds: the model, how the layout is spoken, what was inferred, and what is left out."""

    config: ModelConfig
    dialect: Dialect
    inferred: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Holds:
    """What a layout can say of a model; a model with anything else does not fit."""

    families: tuple[str, ...] = ("vit",)
    activations: tuple[str, ...] = ("gelu",)
    epsilon: float | None = 1e-6  # None: any
    poolings: tuple[str, ...] = ("token",)
    hidden: str = "yes"  # yes, no, or headless: only where there is no classifier after it
    headless: bool = True
    layer_scale: bool = False
    bias_free: bool = False
    rectangles: bool = True
    resampling: Resampling = "bilinear-corners"  # of positions, at another image size
    stem: Mapping[str, object] = field(default_factory=dict)  # of a hybrid
    bit: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A library's names and axes: how they are recognised, read and written."""

    name: str
    title: str
    recognize: Callable[[Mapping[str, Entry]], str | None]  # the prefix of its names, or nothing
    infer: Callable[["Headers", FileHints, Mapping[str, Any]], Found]
    rows: Callable[[ModelConfig, Dialect], Iterator[Row]]
    dialect: Callable[[ModelConfig], Dialect]
    holds: Holds


class Headers:
    """Names and shapes of a file under one prefix, with an answer or a refusal to each question."""

    def __init__(self, entries: Mapping[str, Entry], prefix: str) -> None:
        self.prefix = prefix
        self.shapes = {
            name.removeprefix(prefix): entry.shape for name, entry in entries.items() if name.startswith(prefix)
        }
        self.everything = {name: entry.shape for name, entry in entries.items()}
        self.outside = tuple(sorted(name for name in entries if not name.startswith(prefix)))

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def shape(self, name: str, axes: int) -> Shape:
        """Give the shape of a tensor that must be there with this many axes."""
        if name not in self.shapes:
            raise CheckpointError(f"the file lacks {self.prefix + name!r}.")
        if len(self.shapes[name]) != axes:
            raise CheckpointError(f"{self.prefix + name!r} must have {axes} axes; its shape is {self.shapes[name]}.")
        return self.shapes[name]

    def count(self, prefix: str, what: str, *, start: int = 0, end: str = "/", most: int = DEEPEST) -> int:
        """Count numbered parts, such as encoderblock_0, encoderblock_1; none may be missing."""
        pattern = re.compile(re.escape(prefix) + r"(\d{1,6})" + re.escape(end))
        found = sorted({int(match[1]) for name in self.shapes if (match := pattern.match(name))})
        if found != list(range(start, start + len(found))) or not 0 < len(found) <= most:
            some = f"{found[:8]}" + (" and more" if len(found) > 8 else "")
            raise CheckpointError(
                f"the file's {what}s {prefix}* must be numbered from {start} without a gap; got {some}."
            )
        return len(found)

    def take(self, *prefixes: str) -> tuple[str, ...]:
        """Take away the tensors that begin so, which no model needs, and give their names."""
        taken = sorted(name for name in self.shapes if name.startswith(prefixes))
        for name in taken:
            del self.shapes[name]
        return tuple(self.prefix + name for name in taken)


def common_prefix(entries: Mapping[str, Entry], anchor: str) -> str | None:
    """Find what stands before a name that every file of a layout has; the shortest where several do."""
    found = [name.removesuffix(anchor) for name in entries if name.endswith(anchor)]
    found = [prefix for prefix in found if prefix == "" or prefix[-1] in "./"]
    return min(found, key=len) if found else None


def read_note(documents: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the configuration that we wrote into a file's notes; nothing where there is none."""
    try:
        model = json.loads(documents.get("notes", {}).get(NOTE, "{}"))["model"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return {}
    return model if isinstance(model, dict) else {}


def _recognize_own(entries: Mapping[str, Entry]) -> str | None:
    """Tell our names, those of the modules, from others'."""
    ours = "blocks.0.attention.qkv.weight" in entries or {"root.weight", "stages.0.0.conv1.weight"} <= entries.keys()
    return "" if ours else None


def _infer_own(headers: Headers, hints: FileHints, documents: Mapping[str, Any]) -> Found:
    """Read the configuration that was written with the weights."""
    document = documents.get("config.json", {}).get("model") or read_note(documents)
    if not document:
        raise CheckpointError(
            "the weights have Vitrail's names but come without their configuration. Give the run folder that holds "
            "config.json and weights.safetensors."
        )
    if hints.grid is not None:
        raise CheckpointError("a file of Vitrail's own says its grid. Leave grid out.")
    try:
        config = decode(document)
    except ConfigError as error:
        raise CheckpointError(f"the configuration beside the weights cannot be: {error}") from error
    _check_size(headers, config)
    return Found(config=config, dialect={})


def _check_size(headers: Headers, config: ModelConfig) -> None:
    """Refuse a configuration that is far larger than the file before a module is made of it."""
    stem = config.stem if isinstance(config, ViTConfig) else config
    parts = sum(getattr(stem, "units", ())) + (config.layers if isinstance(config, ViTConfig) else 0)
    held = sum(prod(shape) for shape in headers.shapes.values())
    stages = len(getattr(stem, "units", ()))
    if parts > 2 * len(headers.shapes) or stages > 16 or parameters(config).total > 2 * held + 10_000_000:
        raise CheckpointError(
            "the configuration beside the weights is of another model, far larger than the file. Copy both again."
        )


def _own_rows(config: ModelConfig, dialect: Dialect) -> Iterator[Row]:
    """Give the row of every parameter: itself."""
    for name, tensor in skeleton(config).state_dict().items():
        yield Row(name, (name,), tuple(tensor.shape), SAME)


OWN = Layout(
    name="vitrail",
    title="Vitrail's own names",
    recognize=_recognize_own,
    infer=_infer_own,
    rows=_own_rows,
    dialect=lambda config: {},
    holds=Holds(),
)
