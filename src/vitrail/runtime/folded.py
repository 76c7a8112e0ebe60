"""A ResNet with fixed weights: filters that are standardized once and for all, norms that read channels in a row."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.models.resnet import PaddedConv, SameConv, convolve_same, standardize_by_variance
from vitrail.ops.fused import group_norm_by_channel


class FixedConv(nn.Module):
    """A standardized convolution whose filters are standardized once."""

    weight: Tensor

    def __init__(self, conv: SameConv | PaddedConv) -> None:
        super().__init__()
        self.same, self.stride, self.padding = isinstance(conv, SameConv), conv.stride[0], conv.padding
        rule = conv.standardize if isinstance(conv, SameConv) else standardize_by_variance
        self.register_buffer("weight", rule(conv.weight.detach(), conv.epsilon))

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        """Convolve."""
        if self.same:
            return convolve_same(images, self.weight, self.stride)
        return nn.functional.conv2d(images, self.weight, stride=self.stride, padding=self.padding)


def fold_filters(model: nn.Module) -> None:
    """Replace every standardized convolution by one with its filters as they come out."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, SameConv | PaddedConv):
                setattr(parent, name, FixedConv(child))


class ChannelNorm(nn.Module):
    """A GroupNorm, computed channel by channel."""

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.groups, self.epsilon, self.weight, self.bias = norm.num_groups, norm.eps, norm.weight, norm.bias

    def forward(self, features: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Normalize."""
        return group_norm_by_channel(features, self.groups, self.weight, self.bias, self.epsilon)


def replace_norms(model: nn.Module) -> None:
    """Replace every GroupNorm by one that is computed channel by channel."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.GroupNorm):
                setattr(parent, name, ChannelNorm(child))


def convert(model: nn.Module, dtype: torch.dtype, keep: type[nn.Module] | tuple[type[nn.Module], ...] = ()) -> None:
    """Put all numbers of a model into a precision, but for modules of some kinds; filters with their channels last."""
    for module in model.modules():
        if isinstance(module, keep):
            continue
        for held in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if held.is_floating_point():
                order = torch.channels_last if held.ndim == 4 else torch.preserve_format
                held.data = held.data.to(dtype, memory_format=order)
