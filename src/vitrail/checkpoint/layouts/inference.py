"""What the tensors of other libraries leave open: how many heads there are, and which grid the positions have."""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.layouts.base import read_note
from vitrail.config import Grid, Stem, as_size
from vitrail.errors import CheckpointError

# The published models whose heads are not 64 wide, by their own width.
HEADS = {64: 2, 96: 3, 1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16}


def find_heads(
    width: int, hints: Request, documents: Mapping[str, Any], known: object = None
) -> tuple[int, tuple[str, ...]]:
    """Find the number of heads, which packed matrices do not show: told, or the published models' of this width."""
    told = hints.fields.get("heads", known or read_note(documents).get("heads"))
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


def read_activation(said: Mapping[str, Any], name: str, known: Mapping[str, str]) -> Any:  # noqa: ANN401
    """Read the activation that config.json says in a library's words: exact GELU where it says none."""
    word = said.get(name, "gelu")
    if not isinstance(word, str) or word not in known:
        raise CheckpointError(f"config.json says {name}={word!r}; this ViT has one of {', '.join(known)}.")
    return known[word]


def noted_grid(documents: Mapping[str, Any], stem: Stem, hints: Request) -> Request:
    """Take the grid of the image size that our own note says, unless the caller says one."""
    size = read_note(documents).get("image_size")
    if hints.grid is not None or size is None:
        return hints
    return replace(hints, grid=stem.grid(*as_size(size)))


def is_square(count: int) -> bool:
    """Tell whether a number of patches makes a square grid."""
    return count > 0 and isqrt(count) ** 2 == count


def file_grid(count: int, stem: Stem, hints: Request, *, class_entry: bool | None) -> tuple[Grid, bool]:
    """Find the grid of a position table, and whether a class entry stands before it (None: either may be).

    The grid is the one given, a square, or that of the image size asked for.
    """
    choices = [class_entry] if class_entry is not None else [True, False]
    if count - min(choices) < 1:
        raise CheckpointError("the file's position table is empty.")
    if hints.grid is not None:
        needed = hints.grid[0] * hints.grid[1]
        for entry in choices:
            if needed == count - entry:
                return hints.grid, entry
        raise CheckpointError(
            f"grid={tuple(hints.grid)} has {needed} positions; the file's table has {count - choices[0]}. "
            "Give (rows, cols) that make them."
        )
    patches = count - choices[0]
    if is_square(patches):
        return (isqrt(patches), isqrt(patches)), choices[0]
    if hints.image_size is not None:
        rows, cols = stem.grid(*hints.image_size)
        for entry in choices:
            if rows * cols == count - entry:
                return (rows, cols), entry
    side = isqrt(count - choices[-1])
    if is_square(count - choices[-1]) and hints.image_size is None:
        raise CheckpointError(
            f"the file's table has {count} entries: {side}x{side} patches and no class position, or a rectangle of "
            f"{patches} and one. Say which with grid=({side}, {side}) or grid=(rows, cols) of the rectangle."
        )
    if is_square(count - choices[-1]):
        return (side, side), choices[-1]
    if hints.image_size is None:
        raise CheckpointError(
            f"the file's {patches} positions are no square grid. Say which with grid=(rows, cols), "
            "or image_size=(height, width) of the images it was trained on."
        )
    rows, cols = stem.grid(*hints.image_size)
    raise CheckpointError(
        f"the file's {patches} positions are no square grid, and image_size={hints.image_size} has "
        f"{rows}x{cols} = {rows * cols}. Say the file's own with grid=(rows, cols)."
    )
