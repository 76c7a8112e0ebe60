"""Gradient checkpointing: trade a second forward pass for the memory of the activations."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def run(module: nn.Module, features: Tensor, *others: object, checkpointing: bool) -> Tensor:
    """Call the module; with checkpointing, its activations are made again in the backward pass."""
    if checkpointing and torch.is_grad_enabled() and not torch.compiler.is_exporting():
        return checkpoint(module, features, *others, use_reentrant=False)
    return module(features, *others)
