"""Products by oneDNN, against those written out."""

import pytest
import torch
from torch.nn import functional as F

from vitrail.ops import packed

pytestmark = pytest.mark.skipif(not packed.can_pack(), reason="this torch has no oneDNN")
ACTIVATIONS = ("gelu-tanh", "gelu", "relu", None)


def activated(products: torch.Tensor, activation: str | None) -> torch.Tensor:
    match activation:
        case "gelu-tanh":
            return 0.5 * products * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (products + 0.044715 * products**3)))
        case "gelu":
            return products * 0.5 * (1 + torch.erf(products / 2**0.5))
        case "relu":
            return products.clamp(min=0)
        case _:
            return products


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_packed_product_is_the_plain_one_for_any_number_of_rows(activation: str | None) -> None:
    weight, bias = torch.randn(11, 7), torch.randn(11)
    laid_out = packed.pack(weight, rows=10)
    for tokens in (torch.randn(2, 5, 7), torch.randn(1, 3, 7), torch.randn(13, 7)):
        wanted = activated(tokens.double() @ weight.double().T + bias.double(), activation).float()
        for found in (
            packed.product(tokens, weight, bias, activation),
            packed.packed_product(tokens, laid_out, bias, activation),
        ):
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(packed.packed_product(tokens, laid_out, None, None), tokens @ weight.T)


def test_levels_span_what_is_read_and_zero_is_one_of_them() -> None:
    scale, zero = packed.scale_and_zero(torch.tensor([-1.0, 3.0]))
    levels = packed.to_levels(torch.tensor([-9.0, -1.0, 0.0, 0.011, 3.0, 9.0]), scale, zero)
    assert levels.tolist() == [0, 0, zero, zero + 1, 255, 255]
    assert packed.scale_and_zero(torch.tensor([0.5, 2.55]))[1] == 0  # what is never negative
    half = packed.to_levels(torch.tensor([1.0, 2.0], dtype=torch.bfloat16), scale, zero)
    assert half.tolist() == [round(1 / scale) + zero, round(2 / scale) + zero]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_product_of_levels_is_the_plain_one(activation: str | None) -> None:
    tokens, weight, bias = torch.randn(2, 5, 16), torch.randn(12, 16), torch.randn(12)
    scale, zero = packed.scale_and_zero(torch.stack([tokens.min(), tokens.max()]))
    scales = packed.weight_scales(weight)
    eight, levels = packed.to_int8(weight, scales), packed.to_levels(tokens, scale, zero)
    rounded = (levels.double() - zero) * scale
    wanted = activated(rounded @ (eight.double() * scales.double()[:, None]).T + bias.double(), activation).float()
    torch.testing.assert_close(
        wanted, activated(tokens @ weight.T + bias, activation), atol=0.15, rtol=0
    )  # near to the plain one
    how = (scale, zero, packed.pack_int8(eight, rows=10), scales, bias, activation)
    plain = packed.int8_product_plainly(levels, scale, zero, eight, scales, bias, activation)
    torch.testing.assert_close(plain, wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(packed.int8_product(levels, *how), wanted, atol=1e-4, rtol=0)
    given = packed.scale_and_zero(torch.stack([wanted.min(), wanted.max()]))
    onward = packed.int8_product(levels, *how, dtype=torch.uint8, given=given)
    assert (onward.int() - packed.to_levels(wanted, *given).int()).abs().max() <= 1


@pytest.mark.parametrize("length", [5, packed.LONGEST + 1])
def test_attention_by_products_is_torchs(length: int) -> None:
    query, key, value = (torch.randn(2, 3, length, 8) for _ in range(3))
    wanted = F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(packed.attend_in_halves(query, key, value), wanted, atol=1e-5, rtol=0)
    half = packed.attend_in_halves(query.bfloat16(), key.bfloat16(), value.bfloat16())
    torch.testing.assert_close(half.float(), wanted, atol=0.02, rtol=0)


@pytest.mark.parametrize(("side", "stride", "padding"), [(1, 1, 0), (3, 2, 1), (7, 2, 0)])
def test_a_packed_convolution_is_the_plain_one(side: int, stride: int, padding: int) -> None:
    images, weight = torch.randn(2, 3, 12, 17), torch.randn(16, 3, side, side)
    laid_out = packed.pack_filters(weight, stride, side // 2)
    found = packed.convolve_packed(images, laid_out, None, stride, padding)
    torch.testing.assert_close(found, F.conv2d(images, weight, stride=stride, padding=padding), atol=1e-4, rtol=0)
