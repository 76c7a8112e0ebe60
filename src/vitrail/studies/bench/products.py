"""The products of matrices of a model's blocks alone: what no pass through them can be faster than."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from vitrail.config import ViTConfig
from vitrail.errors import ConfigError
from vitrail.ops.fused import float8_scale, to_float8
from vitrail.ops.packed import can_pack, int8_product, pack, pack_int8, packed_product
from vitrail.studies.bench.peers import config_of
from vitrail.studies.bench.table import Opened, Products
from vitrail.studies.bench.timing import Clock

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LEVEL = 128  # of zero, of numbers in eight bits on a CPU
Step = Callable[[], object]


def open_products(work: Products, clock: Clock) -> Opened:
    """Draw the matrices of every block, each layer its own weights, and multiply them."""
    device, config = clock.device, config_of(work.shape)
    if not isinstance(config, ViTConfig):
        raise ConfigError("products alone are those of a Vision Transformer's blocks.")
    check_precision(work.precision, device)
    rows, width, wide = work.shape.batch * config.tokens, config.width, config.mlp_width
    sizes = {width, wide, 3 * width} if work.training else {width, wide}
    read = {size: small(torch.randn(rows, size, device=device), work.precision) for size in sizes}
    products: list[Step] = []
    for size, out in ((width, 3 * width), (width, width), (width, wide), (wide, width)) * config.layers:
        drawn = torch.randn(out, size, device=device)
        if not work.training:
            products.append(product_of(read[size], drawn, work.precision))
            continue
        tokens, gradients, weight = read[size], read[out], small(drawn, work.precision)
        products += [partial(torch.mm, tokens, weight.t()), partial(torch.mm, gradients, weight)]
        products.append(partial(torch.mm, gradients.t(), tokens))

    def step() -> None:
        with torch.inference_mode():
            for product in products:
                product()

    step()
    return Opened(once=clock.times(launched_once(step, device), work.shape.batch))


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse products that a device has not."""
    if precision == "float8" and device.type == "cpu":
        raise ConfigError("products in float8 are of GPUs.")
    if precision == "int8" and (device.type != "cpu" or not can_pack()):
        raise ConfigError("products in int8 are of CPUs, by oneDNN.")


def small(drawn: Tensor, precision: str) -> Tensor:
    """Give drawn numbers in a precision; in eight bits of a CPU as the levels that a product reads."""
    match precision:
        case "float8":
            return to_float8(drawn, float8_scale(drawn.abs().amax()))
        case "int8":
            return (drawn * 32 + LEVEL).round().clamp(0, 255).to(torch.uint8)
        case _:
            return drawn.to(DTYPES[precision])


def product_of(read: Tensor, drawn: Tensor, precision: str) -> Step:
    """Give the fastest product with a weight that there is in a precision."""
    match precision:
        case "float8":
            scale = torch.ones((), device=read.device)
            multiply = torch._scaled_mm  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
            how = {"scale_a": scale, "scale_b": scale, "out_dtype": torch.bfloat16, "use_fast_accum": True}
            return partial(multiply, read, small(drawn, precision).t(), **how)
        case "int8":
            weight = (drawn * 32).round().clamp(-127, 127).to(torch.int8)
            how = {"dtype": torch.uint8, "given": (float(LEVEL * drawn.shape[1]), LEVEL)}
            packed, scales = pack_int8(weight, len(read)), torch.ones(len(weight))
            return partial(int8_product, read, 1.0, LEVEL, packed, scales, None, None, **how)
        case _:
            weight = small(drawn, precision)
            if read.device.type == "cpu" and can_pack():
                return partial(packed_product, read, pack(weight, len(read)), None, None)
            return partial(torch.mm, read, weight.t())


def launched_once(step: Step, device: torch.device) -> Step:
    """Capture a step as a graph on a GPU, so that launching it costs nothing."""
    if device.type != "cuda":
        return step
    graph = torch.cuda.CUDAGraph()
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream(device).wait_stream(aside)
    with torch.cuda.graph(graph):
        step()
    return graph.replay
