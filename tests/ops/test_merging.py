"""Merging tokens: against a slow reference, and what must hold of any mergers."""

from itertools import pairwise

import pytest
import torch
from reference import merging as reference

from vitrail.errors import ConfigError
from vitrail.ops.merging import match_tokens, merge_tokens, merging_schedule, proportional_attention


@pytest.mark.parametrize(("tokens", "count"), [(10, 3), (11, 6), (7, 1), (6, 3)])
def test_tokens_are_merged_as_the_slow_reference_merges_them(tokens: int, count: int) -> None:
    features, values = torch.randn(3, tokens, 5), torch.randn(3, tokens, 4)
    sizes = torch.randint(1, 9, (3, tokens)).float()
    made, grown = merge_tokens(values, sizes, match_tokens(features, sizes, count))
    for image in range(3):
        pairs = [(values[image, place], float(sizes[image, place])) for place in range(tokens)]
        wanted = reference.merge(pairs, [*features[image]], count)
        assert torch.allclose(made[image], torch.stack([token for token, _ in wanted]), atol=1e-6)
        assert grown[image].tolist() == pytest.approx([size for _, size in wanted])


def test_mergers_keep_the_sum_over_all_patches() -> None:
    values, sizes = torch.randn(2, 13, 4), torch.rand(2, 13) + 1
    made, grown = merge_tokens(values, sizes, match_tokens(torch.randn(2, 13, 5), sizes, 4))
    assert made.shape == (2, 9, 4)
    assert torch.allclose(grown.sum(1), sizes.sum(1))
    assert torch.allclose(torch.einsum("bn,bnd->bd", grown, made), torch.einsum("bn,bnd->bd", sizes, values), atol=1e-5)


def test_what_is_merged_hangs_on_the_image_alone() -> None:
    features, sizes = torch.randn(5, 16, 7), torch.ones(5, 16)
    together = match_tokens(features, sizes, 4)
    alone = match_tokens(features[3:4], sizes[3:4], 4)
    assert all(torch.equal(part[3:4], own) for part, own in zip(together, alone, strict=True))


def test_the_cheapest_mergers_are_of_equal_directions_and_then_of_small_tokens() -> None:
    apart = torch.eye(6)
    apart[4] = 3 * apart[1]  # the same direction, longer
    found = match_tokens(apart[None], torch.ones(1, 6), 1)
    assert (found.merged.item(), found.into.item()) == (2, 0)  # of the even ones number 4, of the odd ones number 1
    sizes = torch.tensor([[5.0, 5, 1, 5, 5, 2]])  # all are equally far: the smallest two go together
    found = match_tokens(torch.eye(6)[None], sizes, 1)
    assert (found.merged.item(), found.into.item()) == (1, 2)


def test_proportional_attention_is_attention_to_every_patch_that_was_merged() -> None:
    query, key, value = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4)
    sizes = torch.randint(1, 5, (2, 7)).float()
    found = proportional_attention(query, key, value, sizes)
    for image in range(2):
        for head in range(3):
            ours, theirs, read = (each[image, head] for each in (query, key, value))
            wanted = reference.attention(ours, theirs, read, sizes[image].tolist())
            assert torch.allclose(found[image, head], wanted, atol=1e-6)


@pytest.mark.parametrize(("patches", "layers", "share"), [(64, 7, 0.6), (196, 12, 0.5), (196, 24, 0.7), (576, 32, 0.3)])
def test_a_schedule_merges_the_share_and_fewer_and_fewer(patches: int, layers: int, share: float) -> None:
    schedule = merging_schedule(patches, layers, share)
    merging = [count for count in schedule if count]
    assert len(schedule) == layers
    assert sum(schedule) == round(share * patches)
    assert schedule[0] == schedule[-1] == 0
    assert all(later <= count + 1 for count, later in pairwise(merging))  # rounded
    assert len(merging) <= 14  # of many layers some merge alone


def test_a_schedule_of_few_patches_is_this_one() -> None:
    assert merging_schedule(64, 7, 0.6) == (0, 13, 10, 7, 5, 3, 0)


def test_a_share_that_layers_cannot_merge_is_refused_with_the_most_that_they_can() -> None:
    assert merging_schedule(16, 3, 0.5) == (0, 8, 0)
    with pytest.raises(ConfigError, match=r"token_merging must be at most 0\.5 for 16 patches in 3 layers.*got 0\.6"):
        merging_schedule(16, 3, 0.6)
    with pytest.raises(ConfigError, match="at most 0 for 16 patches in 1 layers"):
        merging_schedule(16, 1, 0.1)
