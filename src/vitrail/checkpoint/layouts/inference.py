"""What the tensors of other libraries leave open: how many heads there are, and which grid the positions have."""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Headers, Shape
from vitrail.checkpoint.layouts.base import read_note
from vitrail.config import Grid, Stem, as_size
from vitrail.config.zoo import SHAPES
from vitrail.errors import CheckpointError
from vitrail.ops.positions import OF_TOKEN, count_offsets

DOUBT = (
    "layers beside the classifier may answer for it or change it: which of them does is not said, so all are left out"
)
# Heads of the published models by depth, width and MLP width: the paper's, and those that timm has beside them.
PUBLISHED = {shape[:3]: shape.heads for letter, shape in SHAPES.items() if letter != "b"} | {
    (6, 64, 192): 2,  # timm's test_vit, test_vit2, test_vit3 and test_vit4
    (8, 64, 192): 2,
    (9, 96, 192): 3,
    (9, 96, 288): 3,
    (10, 256, 1024): 4,  # xsmall
    (36, 384, 1536): 6,  # small, 36x1
    (12, 512, 2048): 8,  # medium
    (20, 512, 2048): 8,  # mediumd
    (12, 640, 2560): 10,  # betwixt
    (12, 896, 3584): 14,  # base plus
    (21, 832, 2176): 13,  # so150m2
    (18, 896, 2304): 14,  # so150m
    (27, 1152, 4304): 16,  # so400m
    (40, 1536, 6144): 16,  # giantopt
    (14, 256, 1280): 4,  # wee
    (14, 320, 1792): 5,  # little
    (40, 1536, 4096): 24,  # DINOv2's giant
}


DINOV3_HEADS = {(32, 1280, 5120): 20, (40, 4096, 8192): 32}  # not those of a ViT of the same shape


def find_heads(
    shape: tuple[int, int, int],
    hints: Request,
    documents: Mapping[str, Any],
    said: object = None,
    doubt: str = "",
    known: Mapping[tuple[int, int, int], int] = {},  # never changed
) -> tuple[int, tuple[str, ...]]:
    """Find the number of heads, which packed matrices do not show: told, or the published model's of this shape.

    `shape` is depth, width and MLP width; `said` is what a document says; `doubt` says which published models differ,
    where there are two; `known` are those of a family, which come before all others.
    """
    depth, width, mlp_width = shape
    told = hints.fields.get("heads", said or read_note(documents).get("heads"))
    if told is not None:
        if not isinstance(told, int) or isinstance(told, bool) or told < 1 or width % told:
            raise CheckpointError(f"heads must be a whole number that divides the width {width}; got {told!r}.")
        return told, ()
    if doubt:
        raise CheckpointError(doubt)
    if (heads := known.get(shape, PUBLISHED.get(shape))) is None:
        raise CheckpointError(
            f"the file does not say how many heads share its width of {width}, and no published model has this width "
            f"with {depth} layers and an MLP of {mlp_width}. Say heads=..."
        )
    return heads, (f"{heads} heads, as the published model of {depth} layers, width {width} and MLP {mlp_width} has",)


def find_head(shapes: Mapping[str, Shape], prefixes: tuple[str, ...], inward: int) -> tuple[str | None, set[str]]:
    """Find the linear layer that is all of a head, alone or with layers that hold nothing, and what is left out.

    Anything else, such as an MLP, a norm, or a layer without a bias, is no classifier of this ViT.
    """
    held = {name: shape for name, shape in shapes.items() if name.startswith(prefixes)}
    name = next((name.removesuffix(".weight") for name, shape in held.items() if len(shape) == 2), "")
    if held.keys() != {f"{name}.weight", f"{name}.bias"}:
        return None, set(held)
    weight, bias = held[f"{name}.weight"], held[f"{name}.bias"]
    other = weight[1] not in (0, inward) and bias == weight[:1]  # of features that are not the encoder's alone
    return (None, set(held)) if other else (name, set())


def take_beside(headers: Headers, own: tuple[str, ...]) -> tuple[str, ...]:
    """Take away the layers that somebody put beside an encoder's own parts: linear ones and norms, whatever their name.

    What has more axes, or attention in it, may be a part of the encoder, and stays to be refused.
    """
    groups: dict[str, list[str]] = {}
    for name in headers.shapes:
        first, dot, _ = name.partition(".")
        if dot and not name.startswith(own):
            groups.setdefault(f"{first}.", []).append(name)
    plain = [
        first
        for first, names in groups.items()
        if all(len(headers.shapes[name]) <= 2 and "attn" not in name and "attention" not in name for name in names)
    ]
    return headers.take(*plain) if plain else ()


def is_last(headers: Headers, head: str | None, left_out: tuple[str, ...], table: str, channels: int) -> bool:
    """Tell whether no layer that is left out could answer in the place of this classifier, or change what it says.

    Such a layer reads what the classifier reads, or its classes; or it is a norm of these; or it changes the images,
    whose `channels` it gives. Other models in the file, each with a `table` of positions, are no part of this one.
    """
    shape = headers.everything.get(f"{head}.weight", ())
    twins = {name.removesuffix(table) for name in headers.everything if name.endswith(table)} - {headers.prefix}
    for name in left_out:
        each = headers.everything.get(name, ())
        linear = len(each) == 2 and each[1] in shape
        kernel = len(each) == 4 and each[0] == channels
        norm = name.endswith(".bias") and each in (shape[:1], (channels,))
        if linear or kernel or (norm and headers.everything.get(f"{name.removesuffix('bias')}weight") == each):
            cuts = [0, *(place + 1 for place, sign in enumerate(name) if sign == ".")]
            if not any(name[:cut] in twins and name[cut:] in headers.shapes for cut in cuts):
                return False
    return True


def read_activation(said: Mapping[str, Any], name: str, known: Mapping[str, str]) -> Any:  # noqa: ANN401
    """Read the activation that config.json says in a library's words: exact GELU where it says none."""
    word = said.get(name, "gelu")
    if not isinstance(word, str) or word not in known:
        raise CheckpointError(f"config.json says {name}={word!r}; this ViT has one of {', '.join(known)}.")
    return known[word]


def noted(documents: Mapping[str, Any], name: str, usual: Any) -> Any:  # noqa: ANN401
    """Give a field as our own note in the file says it, or what the layout's library means."""
    return read_note(documents).get(name, usual)


def noted_grid(documents: Mapping[str, Any], stem: Stem, hints: Request) -> Request:
    """Take the grid of the image size that our own note says, unless the caller says one."""
    size = read_note(documents).get("image_size")
    if hints.grid is not None or size is None:
        return hints
    return replace(hints, grid=stem.grid(*as_size(size)))


def is_square(count: int) -> bool:
    """Tell whether a number of patches makes a square grid."""
    return count > 0 and isqrt(count) ** 2 == count


def offset_grid(count: int, stem: Stem, hints: Request) -> Grid:
    """Find the grid of biases of offsets and a class token: the one given, a square, or that of the image size."""
    side = isqrt(max(count - OF_TOKEN, 0))
    square = ((side + 1) // 2, (side + 1) // 2)
    asked = stem.grid(*hints.image_size) if hints.image_size is not None else None
    known = [hints.grid] if hints.grid is not None else [square] + ([asked] if asked else [])
    for grid in known:
        if side and count_offsets(grid, 1) == count:
            return grid
    raise CheckpointError(
        f"the file's {count} biases of offsets are those of no square grid with a class token"
        + (f", nor of {known[-1][0]}x{known[-1][1]}" if known[-1] != square else "")
        + ". Say which with grid=(rows, cols)."
    )


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
