"""Products with what follows or precedes them in one kernel, each beside the plain function that it replaces."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0  # number of that format


def gelu_product(
    tokens: Float[Tensor, "*B D"], weight: Float[Tensor, "E D"], bias: Float[Tensor, " E"]
) -> Float[Tensor, "*B E"]:
    """The tanh form of GELU of a dense layer: the plain one."""
    return F.gelu(F.linear(tokens, weight, bias), approximate="tanh")


@torch.library.custom_op("vitrail::fused_gelu_product", mutates_args=())
def _fused_gelu_product(tokens: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if tokens.device.type != "cuda":  # there torch's own is the other form of GELU
        return gelu_product(tokens, weight, bias)
    return torch._addmm_activation(bias, tokens, weight.t(), use_gelu=True)  # pyright: ignore[reportPrivateImportUsage]


@_fused_gelu_product.register_fake
def _(tokens: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return tokens.new_empty(tokens.shape[0], weight.shape[0])


def fused_gelu_product(
    tokens: Float[Tensor, "*B D"], weight: Float[Tensor, "E D"], bias: Float[Tensor, " E"]
) -> Float[Tensor, "*B E"]:
    """`gelu_product`, its GELU computed before the product is written; no gradients. An opaque step to a compiler."""
    return _fused_gelu_product(tokens.flatten(0, -2), weight, bias).unflatten(0, tokens.shape[:-1])


def to_float8(numbers: Float[Tensor, "*B D"], scale: Float[Tensor, ""]) -> Tensor:
    """Numbers in eight bits, in units of a scale; what is beyond the largest is cut there."""
    return (numbers.float() / scale).clamp(-LARGEST, LARGEST).to(FLOAT8)


def float8_scale(largest: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """The unit in which a tensor whose largest magnitude this is fills the range of eight bits."""
    return (largest.float() / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)


def float8_product(
    numbers: Float[Tensor, "*B D"],
    scale: Float[Tensor, ""],
    weight: Tensor,
    weight_scale: Float[Tensor, ""],
    bias: Float[Tensor, " E"] | None,
) -> Float[Tensor, "*B E"]:
    """A dense layer whose numbers and weights are in eight bits; the sum is in the precision of the numbers.

    The scale of the numbers is known before, so that making them small is part of whatever wrote them.
    """
    small = to_float8(numbers, scale).flatten(0, -2)
    product = torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
        small,
        weight.t(),
        scale_a=scale,
        scale_b=weight_scale,
        bias=None if bias is None else bias.to(torch.bfloat16),
        out_dtype=torch.bfloat16,
        use_fast_accum=numbers.device.type == "cuda",
    )
    return product.to(numbers.dtype).unflatten(0, numbers.shape[:-1])


def float8_product_plainly(
    numbers: Float[Tensor, "*B D"],
    scale: Float[Tensor, ""],
    weight: Tensor,
    weight_scale: Float[Tensor, ""],
    bias: Float[Tensor, " E"] | None,
) -> Float[Tensor, "*B E"]:
    """`float8_product` by a product of single precision: the plain one."""
    small = to_float8(numbers, scale).float() * scale
    return F.linear(small, weight.float() * weight_scale, None if bias is None else bias.float()).to(numbers.dtype)
