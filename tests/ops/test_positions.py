import math

import pytest
import torch
from hypothesis import given, strategies as st
from reference import cases
from torch.nn import functional as F

from vitrail.errors import ShapeError
from vitrail.ops.positions import resample_positions

GRID = st.tuples(st.integers(1, 9), st.integers(1, 9))


@pytest.mark.parametrize("case", cases.read("position_interpolation"), ids=lambda case: f"{case['old']}to{case['new']}")
def test_squares_resample_as_the_authors_do(case: dict[str, object]) -> None:
    old, new = (case["old"], case["old"]), (case["new"], case["new"])
    ours = resample_positions(torch.tensor(case["before"]), old, new)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(ours, torch.tensor(case["after"]), atol=5e-6, rtol=0)


@given(old=GRID, new=GRID, leading=st.integers(0, 1), seed=st.integers(0, 99))
def test_rectangles_resample_as_torch_interpolates(
    old: tuple[int, int], new: tuple[int, int], leading: int, seed: int
) -> None:
    table = torch.randn(leading + old[0] * old[1], 7, generator=torch.Generator().manual_seed(seed))
    ours = resample_positions(table, old, new)
    image = table[leading:].unflatten(0, old).permute(2, 0, 1)[None]
    expected = F.interpolate(image, size=new, mode="bilinear", align_corners=True)[0].flatten(1).T
    torch.testing.assert_close(ours[leading:], expected)
    assert torch.equal(ours[:leading], table[:leading])


@given(old=GRID, new=GRID)
def test_a_plane_stays_a_plane(old: tuple[int, int], new: tuple[int, int]) -> None:
    def plane(grid: tuple[int, int]) -> torch.Tensor:
        rows = torch.linspace(0, 1, grid[0]) if grid[0] > 1 else torch.zeros(1)
        cols = torch.linspace(0, 1, grid[1]) if grid[1] > 1 else torch.zeros(1)
        return (2 * rows[:, None] - 3 * cols + 1).flatten()[:, None]

    if all(before > 1 or after == 1 for before, after in zip(old, new, strict=True)):
        torch.testing.assert_close(resample_positions(plane(old), old, new), plane(new))


def test_the_same_grid_gives_the_same_table_and_another_leaves_it_alone() -> None:
    table = torch.randn(16, 5, requires_grad=True)
    assert resample_positions(table, (3, 5), (3, 5)) is table
    before = table.detach().clone()
    resample_positions(table, (3, 5), (7, 2)).sum().backward()
    assert torch.equal(table, before)
    assert table.grad is not None
    assert math.isclose(table.grad.sum().item(), (14 + 1) * 5, rel_tol=1e-6)


def test_a_first_call_in_inference_mode_does_not_break_training() -> None:
    table = torch.randn(12, 5, requires_grad=True)
    with torch.inference_mode():
        resample_positions(table, (3, 4), (11, 13))
    resample_positions(table, (3, 4), (11, 13)).sum().backward()
    assert table.grad is not None


def test_half_precision_tables_are_resampled_in_float32() -> None:
    table = torch.randn(15, 8).bfloat16()
    expected = resample_positions(table.float(), (3, 5), (4, 9)).bfloat16()
    assert torch.equal(resample_positions(table, (3, 5), (4, 9)), expected)


def test_taps_are_kept_by_device_and_are_exact() -> None:
    from vitrail.ops.positions import _taps

    low, high, share = _taps(14, 24, torch.device("cpu"))
    assert _taps(14, 24, torch.device("cpu"))[0] is low
    assert _taps(14, 24, torch.device("meta"))[0].device.type == "meta"
    assert share.dtype == torch.float64
    assert (low[0], high[-1]) == (0, 13)
    assert low[-1] + share[-1] == pytest.approx(13, abs=1e-12)


def test_a_grid_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"at least one row and one column; got \(0, 5\)"):
        resample_positions(torch.randn(1, 4), (0, 5), (4, 4))
    with pytest.raises(ShapeError, match="a grid of 3x5 has 15 positions, 16 with a class token; the table has 17"):
        resample_positions(torch.randn(17, 4), (3, 5), (4, 4))
