"""Numbers for offsets of patches: BEiT's order by a slow count, and another grid by hand."""

import pytest
import torch

from vitrail.errors import ShapeError
from vitrail.ops.attention import attend
from vitrail.ops.attention_chunks import attention_weights
from vitrail.ops.positions import count_offsets, offset_numbers, resample_offsets

CPU = torch.device("cpu")


@pytest.mark.parametrize("leading", [0, 1])
def test_every_pair_has_the_number_of_its_offset_and_the_class_token_three_of_its_own(leading: int) -> None:
    rows, cols = 3, 5
    numbers = offset_numbers((rows, cols), leading, CPU)
    assert numbers.shape == (15 + leading, 15 + leading)
    for query in range(15):
        for key in range(15):
            down, across = query // cols - key // cols, query % cols - key % cols
            expected = (down + rows - 1) * (2 * cols - 1) + across + cols - 1
            assert numbers[query + leading, key + leading] == expected
    if leading:
        assert {*numbers[0, 1:].tolist()} == {45}
        assert {*numbers[1:, 0].tolist()} == {46}
        assert numbers[0, 0] == 47 == count_offsets((rows, cols), 1) - 1


def test_a_bilinear_grid_keeps_a_plane_and_the_class_tokens_numbers() -> None:
    down, across = torch.meshgrid(torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 9), indexing="ij")
    table = torch.stack([2 * down - across, across + 3], dim=2).flatten(0, 1)
    found = resample_offsets(torch.cat([table, torch.arange(6.0).reshape(3, 2)]), (3, 5), (3, 7), "bilinear")
    torch.testing.assert_close(found[-3:], torch.arange(6.0).reshape(3, 2))
    inner = found[:-3].unflatten(0, (5, 13))[:, 1:-1]  # half-pixel centres: the ends are held
    along = ((torch.arange(13.0) + 0.5) * (9 / 13) - 0.5) / 4 - 1
    torch.testing.assert_close(inner[..., 1], (along + 3)[1:-1].expand(5, -1))


def test_a_geometric_grid_reads_the_middle_as_it_is_and_ends_at_the_farthest() -> None:
    table = torch.arange(49.0)[:, None] ** 2
    found = resample_offsets(table, (4, 4), (9, 9), "geometric").unflatten(0, (17, 17))[..., 0]
    own = table.unflatten(0, (7, 7))[..., 0]
    torch.testing.assert_close(found[7:10, 7:10], own[2:5, 2:5])  # offsets of -1, 0 and 1 stay where they were
    torch.testing.assert_close(
        found[[0, 0, -1, -1], [0, -1, 0, -1]], own[[0, 0, -1, -1], [0, -1, 0, -1]], atol=0.1, rtol=0
    )


def test_a_table_of_another_grid_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"3x3 has 25 offsets, 28 numbers with a class token; the table has 27"):
        resample_offsets(torch.zeros(27, 2), (3, 3), (4, 4), "bilinear")


@pytest.mark.parametrize("learns", [False, True])
def test_biases_are_added_to_the_logits_before_the_softmax(learns: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    query, key, value = torch.randn(3, 2, 3, 7, 4, generator=generator, dtype=torch.float64)
    biases = torch.randn(1, 3, 7, 7, generator=generator, dtype=torch.float64).requires_grad_(learns)
    expected = (query @ key.mT / 2 + biases).softmax(dim=-1)
    torch.testing.assert_close(attention_weights(query, key, relative=biases), expected)
    torch.testing.assert_close(attention_weights(query, key, queries=slice(2, 6), relative=biases), expected[:, :, 2:6])
    found = attend(query, key, value, dropout=0.0, pairs=biases)
    torch.testing.assert_close(found, expected @ value)
    if learns:
        torch.testing.assert_close(
            torch.autograd.grad(found.square().sum(), biases),
            torch.autograd.grad((expected @ value).square().sum(), biases),
        )
