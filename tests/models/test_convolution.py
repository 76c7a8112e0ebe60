import math

import torch
from hypothesis import given, strategies as st
from torch.nn import functional as F

from vitrail.models.resnet import convolve_same, max_pool_same, standardize_by_deviation, standardize_by_variance

WINDOWS = st.sampled_from([(1, 1), (1, 2), (3, 1), (3, 2), (7, 2)])


@given(height=st.integers(1, 17), width=st.integers(1, 17), window=WINDOWS)
def test_same_padding_is_zeros_around_centered_windows(height: int, width: int, window: tuple[int, int]) -> None:
    kernel, stride = window
    images, weight = torch.randn(2, 3, height, width), torch.randn(5, 3, kernel, kernel)
    rows, cols = math.ceil(height / stride), math.ceil(width / stride)
    ours = convolve_same(images, weight, stride)
    assert ours.shape == (2, 5, rows, cols)
    canvas = torch.zeros(2, 3, height + 20, width + 20)
    canvas[:, :, 10 : 10 + height, 10 : 10 + width] = images
    top = max((rows - 1) * stride + kernel - height, 0) // 2
    left = max((cols - 1) * stride + kernel - width, 0) // 2
    expected = F.conv2d(canvas[:, :, 10 - top :, 10 - left :], weight, stride=stride)[:, :, :rows, :cols]
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


@given(height=st.integers(1, 12), width=st.integers(1, 12))
def test_the_padding_of_a_max_pool_never_wins(height: int, width: int) -> None:
    images = -1 - torch.rand(1, 2, height, width)
    pooled = max_pool_same(images, 3, 2)
    assert pooled.shape[2:] == (math.ceil(height / 2), math.ceil(width / 2))
    assert pooled.max() == images.max()
    assert torch.isfinite(pooled).all()


def test_standardized_filters_have_no_mean_and_unit_deviation() -> None:
    weight = 3 + 0.01 * torch.randn(7, 5, 3, 3, dtype=torch.float64)
    flat = weight.flatten(1)
    centered = flat - flat.mean(1, keepdim=True)
    variance = centered.square().mean(1, keepdim=True)
    by_deviation, by_variance = standardize_by_deviation(weight, 1e-5), standardize_by_variance(weight, 1e-10)
    torch.testing.assert_close(by_deviation.flatten(1), centered / (variance.sqrt() + 1e-5))
    torch.testing.assert_close(by_variance.flatten(1), centered / (variance + 1e-10).sqrt())
    assert (by_deviation - by_variance).abs().max() > 1e-4
