"""Images of many sizes in one sequence (NaViT, Dehghani et al., 2023): grids in their shape, attention in blocks."""

from collections.abc import Sequence
from itertools import groupby, product
from math import isqrt, log

import torch
from jaxtyping import Float, Int32, Shaped
from torch import Tensor

from vitrail.errors import ShapeError
from vitrail.ops.attention import fused_attention
from vitrail.ops.patches import patchify


def fit_grid(height: int, width: int, patches: int) -> tuple[int, int]:
    """Rows and columns of at most so many square patches, nearest in shape to an image; of equals the larger."""
    if min(height, width, patches) < 1:
        raise ShapeError(f"an image and a grid have at least one place; got {height}x{width} and {patches} patches.")
    rows, cols = max(isqrt(patches * height // width), 1), max(isqrt(patches * width // height), 1)
    near = product((min(rows, patches), rows + 1), (min(cols, patches), cols + 1))
    return min(
        (grid for grid in near if grid[0] * grid[1] <= patches),
        key=lambda grid: (abs(log(grid[1] * height / (grid[0] * width))), -grid[0] * grid[1]),
    )


def pack_patches(images: Sequence[Shaped[Tensor, "C _ _"]], patch: int) -> Shaped[Tensor, "N PPC"]:
    """The flat patches of images of any sizes, image after image."""
    return torch.cat([patchify(image[None], patch)[0] for image in images])


def attend_in_blocks(
    query: Float[Tensor, "Q h d"],
    key: Float[Tensor, "T h d"],
    value: Float[Tensor, "T h d"],
    queries: Sequence[int],
    keys: Sequence[int],
) -> Float[Tensor, "Q h d"]:
    """Let the tokens of each image attend to its own alone: the plain one, image after image or as many of one length.

    `queries` and `keys` are how many each image has; images of one length beside each other go together.
    """
    mixed, start, begin = [], 0, 0
    for (rows, cols), same in groupby(zip(queries, keys, strict=True)):
        count = len(list(same))
        stop, end = start + count * rows, begin + count * cols
        parts = (query[start:stop], rows), (key[begin:end], cols), (value[begin:end], cols)
        split = (part.unflatten(0, (count, length)).transpose(1, 2) for part, length in parts)  # n h T d
        mixed.append(fused_attention(*split, None, 0.0).transpose(1, 2).flatten(0, 1))
        start, begin = stop, end
    return torch.cat(mixed)


@torch.library.custom_op("vitrail::fused_attend_in_blocks", mutates_args=())
def _fused_attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, queries: Tensor, keys: Tensor, longest_query: int, longest_key: int
) -> Tensor:
    if query.device.type != "cuda":  # where torch has no kernel for it
        return attend_in_blocks(query, key, value, queries.diff().tolist(), keys.diff().tolist())
    from torch.nn.attention.varlen import varlen_attn

    mixed = varlen_attn(query, key, value, queries, keys, longest_query, longest_key)
    assert isinstance(mixed, Tensor)
    return mixed.contiguous()


@_fused_attend_in_blocks.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, queries: Tensor, keys: Tensor, lq: int, lk: int) -> Tensor:
    return query.new_empty(query.shape)


def fused_attend_in_blocks(
    query: Float[Tensor, "Q h d"],
    key: Float[Tensor, "T h d"],
    value: Float[Tensor, "T h d"],
    queries: Int32[Tensor, " ends"],
    keys: Int32[Tensor, " ends"],
    longest: tuple[int, int],
) -> Float[Tensor, "Q h d"]:
    """`attend_in_blocks` in one kernel, which half precision has on a GPU; no gradients. An opaque step to a compiler.

    `queries` and `keys` are where each image begins, and the end; `longest` is at least the most of one image.
    """
    return _fused_attend_in_blocks(query, key, value, queries, keys, *longest)


def has_block_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether `fused_attend_in_blocks` is one kernel here: of flash attention, in half precision."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    try:
        from torch.nn.attention import varlen  # noqa: F401
    except ImportError:
        return False
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)
