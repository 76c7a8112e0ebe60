"""Grids in the shape of images, and attention in blocks: against what is obvious."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from vitrail.errors import ShapeError
from vitrail.ops import packing
from vitrail.ops.packing import attend_in_blocks, fit_grid, fused_attend_in_blocks, has_block_kernel, pack_patches
from vitrail.ops.patches import unpatchify


@pytest.mark.parametrize(
    ("height", "width", "patches", "grid"),
    [(224, 224, 196, (14, 14)), (100, 300, 196, (8, 24)), (300, 100, 196, (24, 8)), (480, 640, 196, (12, 16))],
)
def test_a_grid_has_the_shape_of_its_image(height: int, width: int, patches: int, grid: tuple[int, int]) -> None:
    assert fit_grid(height, width, patches) == grid


@given(height=st.integers(1, 5000), width=st.integers(1, 5000), patches=st.integers(1, 700))
def test_a_grid_is_never_too_large_and_its_shape_no_worse_than_that_of_whole_sides(
    height: int, width: int, patches: int
) -> None:
    rows, cols = fit_grid(height, width, patches)
    assert rows >= 1
    assert cols >= 1
    assert rows * cols <= patches
    side = math.sqrt(patches / (height * width))
    floor = (max(int(side * height), 1), max(int(side * width), 1))
    if floor[0] * floor[1] <= patches:
        error, other = (abs(math.log(c * height / (r * width))) for r, c in ((rows, cols), floor))
        assert error <= other + 1e-9


def test_a_very_long_image_is_one_row_of_all_patches() -> None:
    assert fit_grid(1, 65_000, 196) == (1, 196)
    assert fit_grid(9_000, 3, 50) == (50, 1)
    with pytest.raises(ShapeError, match="at least one place; got 0x3 and 196 patches"):
        fit_grid(0, 3, 196)


def test_patches_of_all_images_are_below_each_other() -> None:
    images = [torch.rand(3, 4, 6), torch.rand(3, 8, 2)]
    patches = pack_patches(images, 2)
    assert patches.shape == (10, 12)
    for image, part, grid in zip(images, patches.split([6, 4]), [(2, 3), (4, 1)], strict=True):
        assert torch.equal(unpatchify(part[None], 2, grid)[0], image)


LENGTHS = (2, 3, 3, 3, 5, 2)


@pytest.mark.parametrize("queries", [LENGTHS, (1,) * 6], ids=["all", "one each"])
def test_tokens_attend_to_those_of_their_own_image_alone(queries: tuple[int, ...]) -> None:
    query, key, value = (torch.randn(sum(counts), 3, 4) for counts in (queries, LENGTHS, LENGTHS))
    owner, owned = (torch.repeat_interleave(torch.arange(6), torch.tensor(counts)) for counts in (queries, LENGTHS))
    logits = torch.einsum("qhd,khd->hqk", query, key) / 2
    logits = logits.masked_fill(owner[:, None] != owned, -torch.inf)
    wanted = torch.einsum("hqk,khd->qhd", logits.softmax(2), value)
    assert torch.allclose(attend_in_blocks(query, key, value, queries, LENGTHS), wanted, atol=1e-6)
    begins, ends = (torch.tensor([0, *counts]).cumsum(0).int() for counts in (queries, LENGTHS))
    fused = fused_attend_in_blocks(query, key, value, begins, ends, (max(queries), 5))
    assert torch.allclose(fused, wanted, atol=1e-6)


def test_the_kernel_is_of_half_precision_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert has_block_kernel(gpu, torch.bfloat16)
    assert not has_block_kernel(gpu, torch.float32)
    assert not has_block_kernel(cpu, torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not packing.has_block_kernel(gpu, torch.bfloat16)
