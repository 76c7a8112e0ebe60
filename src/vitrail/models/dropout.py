"""Dropout and stochastic depth whose masks are functions of the sample, where its key is given."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import ShapeError
from vitrail.ops import keep_mask, salted


class SampleRandom(nn.Module):
    """A module that draws while training: by the samples' keys, or from torch's generator where there are none."""

    keys: Tensor | None = None  # the module's own of the batch's samples, from `give_keys`; in no state dict

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def kept(self, keys: Tensor, features: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Say what of these samples is kept."""
        if keys.shape[0] != features.shape[0]:
            raise ShapeError(
                f"a batch of {features.shape[0]} needs a key for each of its samples; got {keys.shape[0]} keys. "
                "Give those of this batch first: give_keys(model, keys); or none: give_keys(model, None)."
            )
        return keep_mask(keys, shape, self.rate)

    def extra_repr(self) -> str:
        """Show the rate."""
        return f"rate={self.rate:g}"


class Dropout(SampleRandom):
    """Leave random features out while training (Srivastava et al., 2014)."""

    def forward(self, features: Float[Tensor, "B ..."]) -> Float[Tensor, "B ..."]:
        """Give each feature, or nothing; the expectation stays."""
        if not self.training or self.rate == 0:
            return features
        if self.keys is None:
            return F.dropout(features, self.rate)
        kept = self.kept(self.keys, features, features.shape[1:])
        return torch.where(kept, features, 0).mul_(1 / (1 - self.rate))  # autograd keeps the truths alone


class StochasticDepth(SampleRandom):
    """Leave a residual branch out for a random part of the images while training (Huang et al., 2016)."""

    def forward(self, branch: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Give the branch, or nothing, by image; the expectation stays."""
        if not self.training or self.rate == 0:
            return branch
        if self.keys is None:
            kept = torch.empty_like(branch[:, :1, :1]).bernoulli_(1 - self.rate)
        else:
            kept = self.kept(self.keys, branch, (1, 1)).to(branch.dtype)
        return branch * (kept / (1 - self.rate))


def give_keys(model: nn.Module, keys: Int64[Tensor, " B"] | None) -> None:
    """Let everything random in a model, wrapped or not, depend on these keys of the next batch's samples alone.

    Gradient checkpointing draws again in the backward pass: the keys must stay until it is done. Dropout inside
    attention's fused kernels goes on with torch's generator.
    """
    # Salts are counted here, so that none is there twice: names change with wrappers, a copied layer has its twin's.
    # They go into the keys, since a number on a module is a constant to torch.compile: every block would be another.
    for salt, module in enumerate(part for part in model.modules() if isinstance(part, SampleRandom)):
        module.keys = None if keys is None else salted(keys, salt)
