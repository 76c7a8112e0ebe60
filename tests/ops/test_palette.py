"""Palettes: the nearest colour, and colours that lie near to all."""

import torch

from vitrail.ops.masking import make_palette, nearest


def test_the_nearest_color_is_the_one_of_the_smallest_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    colors, palette = torch.rand(500, 3, generator=generator), torch.rand(40, 3, generator=generator)
    for color, found in zip(colors.tolist(), nearest(colors, palette).tolist(), strict=True):
        distances = [sum((a - b) ** 2 for a, b in zip(color, other, strict=True)) for other in palette.tolist()]
        assert distances[found] <= min(distances) + 1e-6
    assert nearest(palette, palette).tolist() == list(range(40))
    assert nearest(colors[:0], palette).shape == (0,)


def test_a_palette_has_every_color_where_there_are_no_more() -> None:
    distinct = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
    colors = distinct[torch.randint(0, 5, (300,), generator=torch.Generator().manual_seed(1))]
    for count in (5, 8):  # more than there are: some twice
        palette = make_palette(colors, count, seed=0)
        assert palette.shape == (count, 3)
        assert {tuple(row) for row in palette.tolist()} == {tuple(row) for row in distinct.tolist()}


def test_a_palette_lies_nearer_than_a_grid_and_is_the_same_again() -> None:
    generator = torch.Generator().manual_seed(2)
    colors = 0.5 + 0.1 * torch.randn(5000, 3, generator=generator)
    palette = make_palette(colors, 64, seed=0)
    steps = torch.linspace(0.125, 0.875, 4)
    grid = torch.cartesian_prod(steps, steps, steps)

    def error(palette: torch.Tensor) -> float:
        return float((colors - palette[nearest(colors, palette)]).square().sum(dim=1).mean())

    assert error(palette) < 0.3 * error(grid)
    assert torch.equal(palette, make_palette(colors, 64, seed=0))
    mine = nearest(colors, palette)
    means = torch.stack([colors[mine == number].mean(dim=0) for number in range(64)])
    assert (means - palette).norm(dim=1).max() < 0.03  # each lies in the middle of its own
