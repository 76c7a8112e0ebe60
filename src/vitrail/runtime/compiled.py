"""Compilation of what is trained; on a GPU so that a step moves and keeps fewer bytes than as torch compiles it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from vitrail.config import ModelConfig, PatchStem, ViTConfig
from vitrail.config.recipe import Training

# Of torch's compiler. Kernels whose loops were reordered to be fused leave others apart that are worth more: the
# backward pass of a ViT-B/16 moves 9 % more bytes so, that of a BiT-R50x1 35 % (LOG.md).
OPTIONS = {"loop_ordering_after_fusion": False}


def compiles(training: Training, device: torch.device) -> bool:
    """Tell whether the model is compiled."""
    return training.compile in ("on", "graphs") or (training.compile == "auto" and device.type == "cuda")


def backend_for(config: ModelConfig, device: torch.device) -> str | Callable[..., Any]:
    """Give the compiler of what is trained.

    A ViT's step keeps less; a ResNet's would have to make three times as much again.
    """
    if device.type != "cuda":
        return "inductor"
    return lean_inductor if isinstance(config, ViTConfig) and isinstance(config.stem, PatchStem) else quick_inductor


def quick_inductor(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Torch's compiler, with these options."""
    from torch._inductor.compile_fx import compile_fx  # imported where it is needed, as it costs every start

    return compile_fx(graph, list(inputs), config_patches=OPTIONS)  # pyright: ignore[reportReturnType]


def lean_inductor(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Torch's compiler; what norms and activations write is made again in the backward pass, not kept for it.

    They stand between products, so torch would keep them: a quarter of what a ViT's step holds. To make them again
    costs no more than to write them again, as their kernels read their inputs there anyway.
    """
    from torch._functorch import config

    with config.patch(ban_recompute_materialized_backward=False):  # pyright: ignore[reportAttributeAccessIssue]
        return quick_inductor(graph, inputs)


def allow_compilations(count: int) -> None:
    """Let a module's code be compiled so many times in this process; beyond that torch runs it as it is, and slowly."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, count)
