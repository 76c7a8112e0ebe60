"""Functions that a GPU computes faster than the plain ones beside them: products with what is around them, norms."""

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


def group_norm_by_channel(
    features: Float[Tensor, "B C H W"],
    groups: int,
    weight: Float[Tensor, " C"],
    bias: Float[Tensor, " C"],
    epsilon: float,
) -> Float[Tensor, "B C H W"]:
    """`F.group_norm`, from the mean and variance of every channel: where channels are last, all are read in a row.

    A compiled `F.group_norm` reads the few channels of a group at every place, apart from those of the next.
    """
    variance, mean = torch.var_mean(features.float(), dim=(2, 3), correction=0)
    means, variances = mean.unflatten(1, (groups, -1)), variance.unflatten(1, (groups, -1))
    center = means.mean(dim=2, keepdim=True)
    spread = variances.mean(dim=2, keepdim=True) + (means - center).square().mean(dim=2, keepdim=True)
    scale = (spread + epsilon).rsqrt().expand_as(means).flatten(1) * weight
    shift = bias - center.expand_as(means).flatten(1) * scale
    return (features.float() * scale[:, :, None, None] + shift[:, :, None, None]).to(features.dtype)


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
