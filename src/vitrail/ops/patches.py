"""Images to sequences of flat patches, and back (Section 3.1)."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

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


def resample_patches(kernel: Float[Tensor, "D PPC"], old: int, new: int) -> Float[Tensor, "D QQC"]:
    """Give the kernel of patches of another side whose embeddings of resized patches are the old ones.

    FlexiViT (Beyer et al., 2023), Section 3.4: the pseudo-inverse of a bilinear resize; exact where the patch grows.
    """
    if old == new:
        return kernel
    basis = torch.eye(old * old, dtype=torch.float64).unflatten(1, (1, old, old))  # of patches: PP 1 P P
    resize = F.interpolate(basis, size=(new, new), mode="bilinear", align_corners=False).flatten(1)  # PP QQ
    back = torch.linalg.pinv(resize).to(kernel.device)  # QQ PP
    flat = kernel.unflatten(1, (old * old, kernel.shape[1] // old**2)).double()  # D PP C
    return torch.einsum("qp,dpc->dqc", back, flat).flatten(1).to(kernel.dtype)


def same_size(old: tuple[int, ...], new: tuple[int, ...]) -> bool:
    """Tell whether sizes are equal; a size that an exported program leaves free is never known to be."""
    return not any(isinstance(side, torch.SymInt) for side in (*old, *new)) and old == new
