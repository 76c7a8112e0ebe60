"""A model made fast on an NVIDIA GPU: half precision or eight bits, fused products, compiled, launched as one graph."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models import Model, ViT
from vitrail.models.encoder import Mlp
from vitrail.ops.fused import float8_product, float8_scale, fused_gelu_product, to_float8
from vitrail.runtime.compiled import allow_compilations
from vitrail.runtime.folded import convert, fold_filters, replace_norms
from vitrail.runtime.graphs import Replay, capture
from vitrail.runtime.rebuilt import FastModules, FastPath, Forward, Outputs, rebuild
from vitrail.runtime.scales import Scales, find_scales

FLOAT8_CAPABILITY = (8, 9)  # of a GPU whose matrix units have the format
USUAL_BATCH = 256
WARM = 3  # passes before a graph is captured, as torch asks for
# Of torch's compiler: a BiT's sum of so many features is written, not added up anew by all that read it: 20 % fewer
# bytes with norms by channel (LOG.md).
SUMS_WRITTEN: dict[str, Any] = {"realize_reads_threshold": 2}
SIZES = 64  # of batches and images that one model is compiled for


class FusedMlp(nn.Module):
    """An MLP whose activation is part of its first product."""

    def __init__(self, mlp: Mlp) -> None:
        super().__init__()
        self.expand, self.contract = mlp.expand, mlp.contract

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Transform every token on its own."""
        return self.contract(fused_gelu_product(tokens, self.expand.weight, self.expand.bias))


class Float8Linear(nn.Module):
    """A dense layer in eight bits, with scales that were found before."""

    weight: Tensor
    weight_scale: Tensor
    scale: Tensor
    multiply = staticmethod(float8_product)

    def __init__(self, layer: nn.Linear, read: Float[Tensor, "2"], weight_scale: Float[Tensor, ""]) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        device = layer.weight.device
        self.register_buffer("scale", float8_scale(read.abs().amax()).to(device))
        self.register_buffer("weight_scale", weight_scale.to(device))
        self.register_buffer("weight", to_float8(layer.weight.detach(), self.weight_scale))
        self.bias = layer.bias

    def forward(self, tokens: Float[Tensor, "*B D"]) -> Float[Tensor, "*B E"]:
        """Multiply."""
        return self.multiply(tokens, self.scale, self.weight, self.weight_scale, self.bias)


def check_gpu(model: Model, precision: str) -> str:
    """Choose a precision where it is left open; refuse one that the GPU or the model has not."""
    if precision == "auto":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if precision == "int8":
        raise ConfigError("int8 is of the CPU's products; on a GPU eight bits are float8. Take precision=float8.")
    if precision == "float8":
        device = next(model.parameters()).device
        if torch.cuda.get_device_capability(device) < FLOAT8_CAPABILITY:
            name = torch.cuda.get_device_name(device)
            raise ConfigError(f"{name} has no float8 (GPUs since Ada and Hopper have). Take precision=bfloat16.")
        if not isinstance(model, ViT):
            raise ConfigError("float8 is of a Vision Transformer's products; a BiT has none. Take precision=bfloat16.")
    return precision


def run_on_gpu(
    model: Model, precision: str, batch_size: int | None, scales: Scales, *, compiled: bool = True
) -> Forward:
    """Give the passes of a model made fast."""
    made = modules_for_gpu(model, precision, scales)
    if compiled:
        allow_compilations(SIZES)
    options = None if isinstance(model, ViT) else SUMS_WRITTEN
    forward = torch.compile(made, dynamic=False, fullgraph=True, options=options) if compiled else made
    return Graphs(forward, batch_size or USUAL_BATCH, dtype_of(precision))


def dtype_of(precision: str) -> torch.dtype:
    """Give the precision of what lies between the products."""
    return torch.float32 if precision == "float32" else torch.bfloat16


def modules_for_gpu(model: Model, precision: str, scales: Scales) -> FastModules:
    """Copy a model with its products fused or in eight bits; convolutions have their filters standardized for good."""
    made = copy.deepcopy(model).requires_grad_(requires_grad=False).eval()
    fold_filters(made)  # in single precision, as scales are found
    replace_norms(made)

    def dense(name: str, layer: nn.Linear, part: slice) -> nn.Module:
        return Float8Linear(layer, scales.read[name], scales.weight[name]) if precision == "float8" else layer

    tanh = isinstance(made, ViT) and made.config.activation == "gelu-tanh"
    fused = precision != "float8" and tanh
    rebuilt = rebuild(made, dense, (lambda _, mlp: FusedMlp(mlp)) if fused else None)
    convert(rebuilt, dtype_of(precision), keep=Float8Linear)
    return rebuilt


class Graphs:
    """A forward pass captured as a CUDA graph for each size of images; a smaller batch is filled up with anything."""

    def __init__(
        self,
        forward: Forward,
        batch: int,
        dtype: torch.dtype,
        capture: Callable[[Forward, Tensor], tuple[Replay, Outputs]] | None = None,
    ) -> None:
        self.forward, self.batch, self.dtype, self.capture = forward, batch, dtype, capture or capture_graph
        self.captured: dict[tuple[int, ...], tuple[Tensor, Replay, Outputs]] = {}

    def __call__(self, images: Float[Tensor, "B C H W"]) -> Outputs:
        """Run the graph on all images, as many at a time as it takes."""
        parts = [self._part(part) for part in images.split(self.batch)]
        if len(parts) == 1:
            return parts[0]
        logits = [part for _, part in parts if part is not None]
        return torch.cat([features for features, _ in parts]), torch.cat(logits) if logits else None

    def _part(self, images: Tensor) -> Outputs:
        shape, count = (rows_for(len(images), self.batch), *images.shape[1:]), len(images)
        if shape not in self.captured:
            held = torch.zeros(shape, dtype=self.dtype, device=images.device)
            self.captured[shape] = (held, *self.capture(self.forward, held))
        held, replay, (features, logits) = self.captured[shape]
        held[:count].copy_(images, non_blocking=True)
        replay()
        return features[:count].clone(), None if logits is None else logits[:count].clone()


def rows_for(count: int, batch: int) -> int:
    """Give the least power of two that holds so many images, or the batch."""
    return min(1 << (count - 1).bit_length(), batch)


def capture_graph(forward: Forward, held: Tensor) -> tuple[Replay, Outputs]:
    """Capture a pass over what is in this place as a CUDA graph."""
    aside = torch.cuda.Stream(held.device)
    aside.wait_stream(torch.cuda.current_stream(held.device))
    with torch.inference_mode(), tried_convolutions():
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                forward(held)
        torch.cuda.current_stream(held.device).wait_stream(aside)
        return capture(lambda: forward(held))


@contextmanager
def tried_convolutions() -> Iterator[None]:
    """Let cuDNN try its ways of a convolution at the first pass, and take the fastest."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


GPU = FastPath(
    engine=lambda: "CUDA graphs",
    check=check_gpu,
    why=lambda precision: "the fastest that this GPU has without images to calibrate with",
    find_scales=lambda model, images: find_scales(
        model, images, lambda weight: float8_scale(weight.abs().amax()), torch.bfloat16
    ),
    make=run_on_gpu,
)
