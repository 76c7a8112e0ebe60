"""Filters that are standardized once and for all: what a convolution does with fixed weights."""

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.models.resnet import PaddedConv, SameConv, convolve_same, standardize_by_variance


class FixedConv(nn.Module):
    """A standardised convolution whose filters are standardised once."""

    def __init__(self, conv: SameConv | PaddedConv) -> None:
        super().__init__()
        self.same, self.stride, self.padding = isinstance(conv, SameConv), conv.stride[0], conv.padding
        rule = conv.standardize if isinstance(conv, SameConv) else standardize_by_variance
        self.register_buffer("weight", rule(conv.weight.detach(), conv.epsilon))
        self.weight: Tensor

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
