"""What the standardised convolutions of hybrids and of BiT are made of."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def standardize_by_deviation(
    weight: Float[Tensor, "out in kh kw"], epsilon: float = 1e-5
) -> Float[Tensor, "out in kh kw"]:
    """Centre each filter and divide by its deviation plus epsilon, as the hybrids' stem does."""
    deviation, mean = torch.std_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) / (deviation + epsilon)


def standardize_by_variance(
    weight: Float[Tensor, "out in kh kw"], epsilon: float = 1e-10
) -> Float[Tensor, "out in kh kw"]:
    """Centre each filter and divide by the root of its variance plus epsilon, as BiT does."""
    variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) / (variance + epsilon).sqrt()


def convolve_same(
    images: Float[Tensor, "B C H W"], weight: Float[Tensor, "out C kh kw"], stride: int
) -> Float[Tensor, "B out H2 W2"]:
    """Convolve with SAME padding: an output of ceil(side / stride), the odd pixel of padding last."""
    rows = _same(images.shape[2], weight.shape[2], stride)
    cols = _same(images.shape[3], weight.shape[3], stride)
    if rows[0] == rows[1] and cols[0] == cols[1]:
        return F.conv2d(images, weight, stride=stride, padding=(rows[0], cols[0]))
    return F.conv2d(F.pad(images, (*cols, *rows)), weight, stride=stride)


def max_pool_same(images: Float[Tensor, "B C H W"], window: int, stride: int) -> Float[Tensor, "B C H2 W2"]:
    """Take maxima with SAME padding, which never wins."""
    rows, cols = _same(images.shape[2], window, stride), _same(images.shape[3], window, stride)
    return F.max_pool2d(F.pad(images, (*cols, *rows), value=-torch.inf), window, stride)


def _same(side: int, window: int, stride: int) -> tuple[int, int]:
    total = max(window - (side % stride or stride), 0)
    return total // 2, total - total // 2
