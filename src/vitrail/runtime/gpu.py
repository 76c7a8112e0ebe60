"""A model made fast on an NVIDIA GPU: half precision or eight bits, fused products, compiled, launched as one graph."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models import Model, ViT
from vitrail.models.encoder import Mlp, SelfAttention
from vitrail.ops.fused import float8_product, float8_scale, fused_gelu_product, to_float8
from vitrail.runtime.class_token import ClassTokenBlock, ClassTokenForward, reads_class_token_alone
from vitrail.runtime.fast import FastModel, Outputs
from vitrail.runtime.folded import fold_filters

FLOAT8_CAPABILITY = (8, 9)  # of a GPU whose matrix units have the format
USUAL_BATCH = 256
WARM = 3  # passes before a graph is captured, as torch asks for
PRODUCTS = ("qkv", "out", "expand", "contract")  # layers of a block that are products of matrices
Scales = Mapping[str, Tensor]  # the largest magnitude of what each layer reads, by its name


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

    def __init__(self, layer: nn.Linear, largest: Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach()
        self.register_buffer("scale", float8_scale(largest).to(weight.device))
        self.register_buffer("weight_scale", float8_scale(weight.abs().amax()))
        self.register_buffer("weight", to_float8(weight, self.weight_scale))
        self.bias = layer.bias

    def forward(self, tokens: Float[Tensor, "*B D"]) -> Float[Tensor, "*B E"]:
        """Multiply."""
        return float8_product(tokens, self.scale, self.weight, self.weight_scale, self.bias)


def fast_on_gpu(
    model: Model, precision: str, batch_size: int | None, calibrate: Tensor | None, *, compiled: bool = True
) -> FastModel:
    """Give the model made fast: what it computes does not depend on the other images of a batch."""
    device = next(model.parameters()).device
    precision = check_precision(model, precision, device, calibrated=calibrate is not None)
    scales = largest_inputs(model, calibrate) if precision == "float8" and calibrate is not None else {}
    made = fast_modules(model, precision, scales)
    forward = torch.compile(made, dynamic=False, fullgraph=True) if compiled else made
    graphs = Graphs(forward, batch_size or USUAL_BATCH, dtype_of(precision))
    return FastModel(model, graphs, engine="CUDA graph" + (", compiled" if compiled else ""), precision=precision)


def check_precision(model: Model, precision: str, device: torch.device, *, calibrated: bool) -> str:
    """Choose a precision where it is left open; refuse one that the GPU or the model has not."""
    if precision == "auto":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if precision == "int8":
        raise ConfigError("int8 is of the CPU's engines; on a GPU eight bits are float8. Take precision=float8.")
    if precision == "float8":
        if torch.cuda.get_device_capability(device) < FLOAT8_CAPABILITY:
            name = torch.cuda.get_device_name(device)
            raise ConfigError(f"{name} has no float8 (GPUs since Ada and Hopper have). Take precision=bfloat16.")
        if not isinstance(model, ViT):
            raise ConfigError("float8 is of the products of a Vision Transformer's blocks; this model has none.")
        if not calibrated:
            raise ConfigError("float8 needs images to calibrate with. Give calibrate=..., a folder of images.")
    return precision


def dtype_of(precision: str) -> torch.dtype:
    """Give the precision of what lies between the products."""
    return torch.float32 if precision == "float32" else torch.bfloat16


class FastModules(nn.Module):
    """The copy of a model that is compiled: its outputs are those of its forward pass."""

    def __init__(self, model: nn.Module, outputs: Callable[[Tensor], Outputs]) -> None:
        super().__init__()
        self.model, self.outputs = model, outputs

    def forward(self, images: Float[Tensor, "B C H W"]) -> Outputs:
        """Representation and logits."""
        return self.outputs(images)


def fast_modules(model: Model, precision: str, scales: Scales) -> FastModules:
    """Copy a model with its products fused or in eight bits; convolutions have their filters standardized for good."""
    made = copy.deepcopy(model).requires_grad_(requires_grad=False).eval()
    fold_filters(made)  # in single precision
    made.to(dtype_of(precision), memory_format=torch.channels_last)
    if not isinstance(made, ViT):
        return FastModules(made, made.outputs)
    last = None
    if reads_class_token_alone(made):
        block = made.blocks[len(made.blocks) - 1]
        prefix = f"blocks.{len(made.blocks) - 1}.attention.qkv"
        width = made.config.width
        parts = (part_of(block.attention, slice(None, width)), part_of(block.attention, slice(width, None)))
        if precision == "float8":
            parts = tuple(Float8Linear(part, scales[prefix]) for part in parts)
        last = ClassTokenBlock(block, *parts)
    for name, layer in list(made.named_modules()):
        if isinstance(layer, nn.Linear) and name in scales:
            parent, _, own = name.rpartition(".")
            setattr(made.get_submodule(parent), own, Float8Linear(layer, scales[name]))
    if precision != "float8" and made.config.activation == "gelu-tanh":
        for block in made.blocks:
            block.mlp = FusedMlp(block.mlp)  # pyright: ignore[reportAttributeAccessIssue]
    if last is None:
        return FastModules(made, made.outputs)
    whole = ClassTokenForward(made, last)
    return FastModules(whole, whole.outputs)


def part_of(attention: SelfAttention, part: slice) -> nn.Linear:
    """Give some rows of the packed layer of queries, keys and values as a layer."""
    packed = attention.qkv
    weight = packed.weight[part]
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=packed.bias is not None, device="meta")
    made.weight = nn.Parameter(weight.clone(), requires_grad=False)
    made.bias = None if packed.bias is None else nn.Parameter(packed.bias[part].clone(), requires_grad=False)  # pyright: ignore[reportAttributeAccessIssue]
    return made


@torch.inference_mode()
def largest_inputs(model: Model, images: Float[Tensor, "B C H W"]) -> dict[str, Tensor]:
    """Give the largest magnitude that every product of a block reads, over some images."""
    found: dict[str, Tensor] = {}
    with _watching(model, found), torch.autocast(images.device.type, torch.bfloat16):
        for part in images.split(USUAL_BATCH):
            model.eval().outputs(part)
    return found


@contextmanager
def _watching(model: Model, found: dict[str, Tensor]) -> Iterator[None]:
    """Note what the products of a block read, while models run."""

    def note(name: str, read: Tensor) -> None:
        largest = read.detach().abs().amax().float()
        found[name] = largest if name not in found else torch.maximum(found[name], largest)

    hooks = []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name.startswith("blocks.") and name.rpartition(".")[2] in PRODUCTS:
            hooks.append(layer.register_forward_pre_hook(lambda _, given, name=name: note(name, given[0])))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class Graphs:
    """A forward pass captured as a CUDA graph for each size of images; a smaller batch is filled up with nothing."""

    def __init__(self, forward: Callable[[Tensor], Outputs], batch: int, dtype: torch.dtype) -> None:
        self.forward, self.batch, self.dtype = forward, batch, dtype
        self.captured: dict[tuple[int, ...], tuple[Any, Tensor, Outputs]] = {}

    def __call__(self, images: Float[Tensor, "B C H W"]) -> Outputs:
        """Run the graph on all images, as many at a time as it takes."""
        parts = [self._part(part) for part in images.split(self.batch)]
        if len(parts) == 1:
            return parts[0]
        features, logits = zip(*parts, strict=True)
        return torch.cat(features), None if logits[0] is None else torch.cat(logits)  # pyright: ignore[reportArgumentType]

    def _part(self, images: Tensor) -> Outputs:
        shape = (self._rows(len(images)), *images.shape[1:])
        if shape not in self.captured:
            self.captured[shape] = self._capture(shape, images.device)
        graph, held, (features, logits) = self.captured[shape]
        count = len(images)
        held[:count].copy_(images, non_blocking=True)
        graph.replay()
        return features[:count].clone(), None if logits is None else logits[:count].clone()

    def _rows(self, count: int) -> int:
        """The least power of two that holds them, or the batch."""
        return min(1 << (count - 1).bit_length(), self.batch)

    def _capture(self, shape: tuple[int, ...], device: torch.device) -> tuple[Any, Tensor, Outputs]:
        held = torch.zeros(shape, dtype=self.dtype, device=device)
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.inference_mode(), torch.cuda.stream(aside):
            for _ in range(WARM):
                self.forward(held)
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph):
            outputs = self.forward(held)
        return graph, held, outputs
