import pytest
import torch
from hypothesis import given, strategies as st

from vitrail.errors import ShapeError
from vitrail.ops.patches import patchify, unpatchify


def test_patches_go_row_by_row_and_hold_row_column_channel() -> None:
    images = torch.arange(2 * 5 * 6 * 9.0).unflatten(0, (2, 5, 6, 9))
    patches = patchify(images, 3)
    assert patches.shape == (2, 6, 45)
    assert torch.equal(patches[1, 4].unflatten(0, (3, 3, 5)), images[1, :, 3:6, 3:6].permute(1, 2, 0))


@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 4),
    rows=st.integers(1, 4),
    cols=st.integers(1, 4),
    patch=st.integers(1, 5),
)
def test_unpatchify_inverts_patchify(batch: int, channels: int, rows: int, cols: int, patch: int) -> None:
    images = torch.rand(batch, channels, rows * patch, cols * patch)
    assert torch.equal(unpatchify(patchify(images, patch), patch, (rows, cols)), images)


def test_ragged_sides_and_wrong_grids_are_refused() -> None:
    with pytest.raises(ShapeError, match="multiples of the patch side 3; got 6x8"):
        patchify(torch.rand(1, 3, 6, 8), 3)
    with pytest.raises(ShapeError, match="2x3 patches of side 4 need 6 rows of a multiple of 16 values; got 5 of 48"):
        unpatchify(torch.rand(1, 5, 48), 4, (2, 3))
