"""Products of a CPU by oneDNN, weights laid out once; each beside the plain function that it replaces. No gradients."""

from typing import Any

import torch
from jaxtyping import Float, Int8, UInt8
from torch import Tensor
from torch.nn import functional as F

LEVELS = 255  # between the least and the greatest number that a product in eight bits reads
LARGEST = 127  # of a weight in eight bits
LONGEST = 768  # tokens whose weights of attention are formed: of more, torch's kernel is as fast, and holds less
# An activation by its name, as oneDNN's and as torch's.
FOLLOWING = {"gelu-tanh": ("gelu", "tanh"), "gelu": ("gelu", "none"), "relu": ("relu", ""), None: ("none", "")}
NEEDED = (("mkldnn", "_linear_pointwise"), ("mkldnn", "_reorder_linear_weight"), ("mkldnn", "_convolution_pointwise"))
NEEDED += (("mkldnn", "_reorder_convolution_weight"), ("onednn", "qlinear_pointwise"), ("onednn", "qlinear_prepack"))


def can_pack() -> bool:
    """Tell whether this torch has oneDNN's products."""
    return torch.backends.mkldnn.is_available() and all(hasattr(getattr(torch.ops, of), name) for of, name in NEEDED)


def activate(features: Float[Tensor, "*B E"], activation: str | None) -> Float[Tensor, "*B E"]:
    """Apply an activation by its name."""
    match activation:
        case None:
            return features
        case "relu":
            return F.relu(features)
        case _:
            return F.gelu(features, approximate=FOLLOWING[activation][1])


def product(
    tokens: Float[Tensor, "*B D"],
    weight: Float[Tensor, "E D"],
    bias: Float[Tensor, " E"] | None,
    activation: str | None,
) -> Float[Tensor, "*B E"]:
    """A dense layer and what follows it: the plain one."""
    return activate(F.linear(tokens, weight, bias), activation)


def pack(weight: Float[Tensor, "E D"], rows: int) -> Tensor:
    """Lay out a weight for products of so many rows; others are right too."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)


def packed_product(
    tokens: Float[Tensor, "*B D"], packed: Tensor, bias: Float[Tensor, " E"] | None, activation: str | None
) -> Float[Tensor, "*B E"]:
    """`product` of a weight that `pack` laid out, its activation computed before the product is written."""
    return torch.ops.mkldnn._linear_pointwise(tokens, packed, bias, *_follow(activation))


def scale_and_zero(read: Float[Tensor, "2"]) -> tuple[float, int]:
    """The unit of eight bits between the least and the greatest number that is read, and the level of zero."""
    low, high = min(float(read[0]), 0.0), max(float(read[1]), 0.0)
    scale = max((high - low) / LEVELS, 1e-12)
    return scale, round(-low / scale)


def to_levels(numbers: Float[Tensor, "*B"], scale: float, zero: int) -> UInt8[Tensor, "*B"]:
    """Numbers as levels, the nearest one; what is beyond the range is cut there."""
    shifted = torch.add(numbers.new_tensor(zero + 0.5, dtype=torch.float32), numbers.float(), alpha=1 / scale)
    return shifted.clamp_(0, LEVELS).to(torch.uint8)


def weight_scales(weight: Float[Tensor, "E D"]) -> Float[Tensor, " E"]:
    """The unit in which the largest weight of each output fills the range of eight bits."""
    return (weight.detach().abs().amax(dim=1) / LARGEST).clamp(min=1e-12)


def to_int8(weight: Float[Tensor, "E D"], scales: Float[Tensor, " E"]) -> Int8[Tensor, "E D"]:
    """Weights in eight bits, in units of their output's scale."""
    return (weight.detach() / scales[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8)


def int8_product_plainly(
    levels: UInt8[Tensor, "*B D"],
    scale: float,
    zero: int,
    weight: Int8[Tensor, "E D"],
    scales: Float[Tensor, " E"],
    bias: Float[Tensor, " E"] | None,
    activation: str | None,
) -> Float[Tensor, "*B E"]:
    """A dense layer of levels and of weights in eight bits, and what follows it: the plain one."""
    numbers = (levels.float() - zero) * scale
    return product(numbers, weight.float() * scales[:, None], bias, activation)


def pack_int8(weight: Int8[Tensor, "E D"], rows: int) -> Tensor:
    """Lay out weights in eight bits for products of so many rows; others are right too."""
    return torch.ops.onednn.qlinear_prepack(weight.contiguous(), [rows, weight.shape[1]])


def int8_product(
    levels: UInt8[Tensor, "*B D"],
    scale: float,
    zero: int,
    packed: Tensor,
    scales: Float[Tensor, " E"],
    bias: Float[Tensor, " E"] | None,
    activation: str | None,
    *,
    dtype: torch.dtype = torch.float32,
    given: tuple[float, int] = (1.0, 0),
) -> Tensor:
    """`int8_product_plainly` of a weight that `pack_int8` laid out; uint8 are levels of the scale and zero `given`."""
    none = torch.zeros(len(scales), dtype=torch.int32)
    how: Any = (bias, *given, dtype, *_follow(activation))
    return torch.ops.onednn.qlinear_pointwise(levels, scale, zero, packed, scales, none, *how)


def attend_in_halves(
    query: Float[Tensor, "B h T d"], key: Float[Tensor, "B h T d"], value: Float[Tensor, "B h T d"]
) -> Float[Tensor, "B h T d"]:
    """Mix the values (eqs. 6 and 7) in bfloat16 by products over all heads: twice as fast there as torch's kernel."""
    batch, heads, length, width = query.shape
    if length > LONGEST:
        return F.scaled_dot_product_attention(query, key, value)
    every = [part.reshape(batch * heads, -1, width) for part in (query, key, value)]
    logits = torch.baddbmm(every[0].new_zeros(()), every[0], every[1].transpose(1, 2), beta=0, alpha=width**-0.5)
    return torch.bmm(logits.softmax(dim=2), every[2]).unflatten(0, (batch, heads))


def pack_filters(weight: Float[Tensor, "out C kh kw"], stride: int, padding: int) -> Tensor:
    """Lay out the filters of a convolution."""
    sizes = [padding, padding], [stride, stride], [1, 1], 1
    return torch.ops.mkldnn._reorder_convolution_weight(weight.detach().contiguous(), *sizes)


def convolve_packed(
    images: Float[Tensor, "B C H W"], packed: Tensor, bias: Float[Tensor, " out"] | None, stride: int, padding: int
) -> Float[Tensor, "B out H2 W2"]:
    """`torch.nn.functional.conv2d` of filters that `pack_filters` laid out."""
    sizes = [padding, padding], [stride, stride], [1, 1], 1
    return torch.ops.mkldnn._convolution_pointwise(images, packed, bias, *sizes, "none", [], "")


def _follow(activation: str | None) -> tuple[str, list[Any], str]:
    """Say an activation in oneDNN's words."""
    name, form = FOLLOWING[activation]
    return name, [], form
