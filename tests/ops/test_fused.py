"""Products in one kernel with what follows them, against those written out."""

import pytest
import torch

from vitrail.ops.fused import (
    FLOAT8,
    LARGEST,
    float8_product,
    float8_product_plainly,
    float8_scale,
    fused_gelu_product,
    gelu_product,
    group_norm_by_channel,
    to_float8,
)


def test_gelu_in_a_product_is_the_product_and_then_gelu() -> None:
    tokens, weight, bias = torch.randn(2, 5, 7), torch.randn(11, 7), torch.randn(11)
    products = tokens @ weight.T + bias
    wanted = 0.5 * products * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (products + 0.044715 * products**3)))
    for found in (gelu_product(tokens, weight, bias), fused_gelu_product(tokens, weight, bias)):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("far", [0.0, 1000.0])
def test_a_norm_channel_by_channel_is_that_of_the_group_s_numbers(far: float) -> None:
    features, weight, bias = far + 3 * torch.randn(2, 6, 5, 7), torch.randn(6), torch.randn(6)
    found = group_norm_by_channel(features.to(memory_format=torch.channels_last), 2, weight, bias, 1e-3)
    grouped = features.double().reshape(2, 2, -1)  # by the definition, all numbers of a group together
    deviation = (grouped.var(dim=2, correction=0, keepdim=True) + 1e-3).sqrt()
    wanted = ((grouped - grouped.mean(dim=2, keepdim=True)) / deviation).reshape(features.shape)
    wanted = wanted * weight[:, None, None] + bias[:, None, None]
    torch.testing.assert_close(found.double(), wanted, atol=1e-5 + 1e-6 * far, rtol=1e-5)
    assert group_norm_by_channel(features.bfloat16(), 2, weight, bias, 1e-3).dtype == torch.bfloat16


def test_eight_bits_hold_their_range_and_cut_what_is_beyond() -> None:
    numbers = torch.tensor([-3.0, -0.5, 0.0, 0.01, 2.0, 3.0])
    scale = float8_scale(numbers.abs().amax())
    held = to_float8(numbers, scale)
    assert held.dtype == FLOAT8
    assert held.float().abs().max() == LARGEST
    torch.testing.assert_close(
        held.float() * scale, numbers, atol=1e-4, rtol=2**-4
    )  # three bits and the one that leads
    assert to_float8(torch.tensor([100.0]), scale).float().item() == LARGEST


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_in_eight_bits_is_that_of_the_rounded_numbers(dtype: torch.dtype) -> None:
    tokens, weight, bias = torch.randn(2, 5, 32, dtype=dtype), torch.randn(48, 32), torch.randn(48)
    scale, weight_scale = float8_scale(tokens.abs().amax()), float8_scale(weight.abs().amax())
    eight = to_float8(weight, weight_scale)
    rounded = (tokens.float() / scale).to(FLOAT8).double() * scale.double()
    wanted = rounded @ (eight.double() * weight_scale.double()).T + bias.double()
    for product in (float8_product_plainly, float8_product):
        found = product(tokens, scale, eight, weight_scale, bias)
        assert found.dtype == dtype
        # What is given is rounded to bfloat16, and the bias is.
        torch.testing.assert_close(found.double(), wanted, atol=0.02, rtol=2**-8)
