"""What a layout is: the names and axes that a library gives to the weights of a model."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Any, NamedTuple

from vitrail.checkpoint.archives import Entry, Shape
from vitrail.checkpoint.layouts.codecs import SAME, Codec
from vitrail.config import Grid, ModelConfig, Resampling, Stem, as_size
from vitrail.config.check import DEEPEST
from vitrail.errors import CheckpointError

Dialect = Mapping[str, Any]  # what a layout leaves open, as one file has it; plain enough for JSON


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
class Asked:
    """What the caller says of a file: what its tensors may leave open."""

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
    infer: Callable[["Headers", Asked, Mapping[str, Any]], Found]
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


# The published models whose heads are not 64 wide, by their own width.
HEADS = {64: 2, 96: 3, 1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16}
NOTE = "vitrail"  # the name of the note that a safetensors file of ours carries


def read_note(documents: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the configuration that we wrote into a file's notes; nothing where there is none."""
    try:
        model = json.loads(documents.get("notes", {}).get(NOTE, "{}"))["model"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return {}
    return model if isinstance(model, dict) else {}


def find_heads(
    width: int, asked: Asked, documents: Mapping[str, Any], known: object = None
) -> tuple[int, tuple[str, ...]]:
    """Find the number of heads, which packed matrices do not show: told, or the published models' of this width."""
    told = asked.fields.get("heads", known or read_note(documents).get("heads"))
    if told is not None:
        if not isinstance(told, int) or isinstance(told, bool) or told < 1 or width % told:
            raise CheckpointError(f"heads must be a whole number that divides the width {width}; got {told!r}.")
        return told, ()
    if width in HEADS:
        return HEADS[width], (f"{HEADS[width]} heads, as the published models of width {width} have",)
    if width % 64 == 0 and width > 64:
        return width // 64, (f"{width // 64} heads of 64, as the published models of width {width} have",)
    raise CheckpointError(
        f"the file does not say how many heads share its width of {width}, and no published model has it. Say heads=..."
    )


def noted_grid(documents: Mapping[str, Any], stem: Stem, asked: Asked) -> Asked:
    """Take the grid of the image size that our own note says, unless the caller says one."""
    size = read_note(documents).get("image_size")
    if asked.grid is not None or size is None:
        return asked
    return replace(asked, grid=stem.grid(*as_size(size)))


def is_square(count: int) -> bool:
    """Tell whether a number of patches makes a square grid."""
    return count > 0 and isqrt(count) ** 2 == count


def file_grid(count: int, stem: Stem, asked: Asked, *, class_entry: bool | None) -> tuple[Grid, bool]:
    """Find the grid of a position table, and whether a class entry stands before it (None: either may be).

    The grid is the one given, a square, or that of the image size asked for.
    """
    choices = [class_entry] if class_entry is not None else [True, False]
    if count - min(choices) < 1:
        raise CheckpointError("the file's position table is empty.")
    if asked.grid is not None:
        needed = asked.grid[0] * asked.grid[1]
        for entry in choices:
            if needed == count - entry:
                return asked.grid, entry
        raise CheckpointError(
            f"grid={tuple(asked.grid)} has {needed} positions; the file's table has {count - choices[0]}. "
            "Give (rows, cols) that make them."
        )
    patches = count - choices[0]
    if is_square(patches):
        return (isqrt(patches), isqrt(patches)), choices[0]
    if asked.image_size is not None:
        rows, cols = stem.grid(*asked.image_size)
        for entry in choices:
            if rows * cols == count - entry:
                return (rows, cols), entry
    side = isqrt(count - choices[-1])
    if is_square(count - choices[-1]) and asked.image_size is None:
        raise CheckpointError(
            f"the file's table has {count} entries: {side}x{side} patches and no class position, or a rectangle of "
            f"{patches} and one. Say which with grid=({side}, {side}) or grid=(rows, cols) of the rectangle."
        )
    if is_square(count - choices[-1]):
        return (side, side), choices[-1]
    if asked.image_size is None:
        raise CheckpointError(
            f"the file's {patches} positions are no square grid. Say which with grid=(rows, cols), "
            "or image_size=(height, width) of the images it was trained on."
        )
    rows, cols = stem.grid(*asked.image_size)
    raise CheckpointError(
        f"the file's {patches} positions are no square grid, and image_size={asked.image_size} has "
        f"{rows}x{cols} = {rows * cols}. Say the file's own with grid=(rows, cols)."
    )


def pair(ours: str, theirs: str, shape: Shape) -> Iterator[Row]:
    """Give the rows of a weight and its bias that a library of torch names as we do."""
    yield Row(f"{ours}.weight", (f"{theirs}.weight",), shape, SAME)
    yield Row(f"{ours}.bias", (f"{theirs}.bias",), shape[:1], SAME)
