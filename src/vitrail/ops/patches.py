"""Images to sequences of flat patches, and back (Section 3.1)."""

import torch
from jaxtyping import Shaped
from torch import Tensor

from vitrail.errors import ShapeError


def patchify(images: Shaped[Tensor, "B C H W"], patch: int) -> Shaped[Tensor, "B N PPC"]:
    """Cut images into N = HW/P^2 patches of P*P*C values, row by row; inside a patch: row, column, channel."""
    height, width = images.shape[2:]
    if patch < 1 or height % patch or width % patch:
        raise ShapeError(f"image sides must be multiples of the patch side {patch}; got {height}x{width}.")
    pieces = images.unflatten(3, (width // patch, patch)).unflatten(2, (height // patch, patch))  # B C rows P cols P
    return pieces.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # B N PPC


def unpatchify(patches: Shaped[Tensor, "B N PPC"], patch: int, grid: tuple[int, int]) -> Shaped[Tensor, "B C H W"]:
    """Put patches of a grid together again; the inverse of `patchify`."""
    rows, cols = grid
    if patches.shape[1] != rows * cols or patches.shape[2] % (patch * patch):
        raise ShapeError(
            f"{rows}x{cols} patches of side {patch} need {rows * cols} rows of a multiple of {patch * patch} values; "
            f"got {patches.shape[1]} of {patches.shape[2]}."
        )
    pieces = patches.unflatten(2, (patch, patch, patches.shape[2] // patch**2)).unflatten(1, grid)  # B rows cols P P C
    return pieces.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)  # B C H W


def same_size(old: tuple[int, ...], new: tuple[int, ...]) -> bool:
    """Tell whether sizes are equal; a size that an exported program leaves free is never known to be."""
    return not any(isinstance(side, torch.SymInt) for side in (*old, *new)) and old == new
