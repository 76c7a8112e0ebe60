"""Forward passes, fast or plain, of Vitrail and of others; and the products of matrices alone, which bound them."""

import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from vitrail.config import ViTConfig
from vitrail.errors import ConfigError, VitrailError
from vitrail.models import Model, create
from vitrail.ops.fused import FLOAT8, float8_scale, to_float8
from vitrail.runtime.fast import FastModel, make_fast
from vitrail.studies.bench.peers import CLASSES, config_of, peer_model
from vitrail.studies.bench.table import Forward, Opened, Products, Shape
from vitrail.studies.bench.timing import Clock, held_now, peak_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CALIBRATED = 64  # images, where a precision needs some
WARM = 3
Step = Callable[[], object]


def open_forward(work: Forward, clock: Clock) -> Opened:
    """Make a model fast, or another library's, and see that its logits are numbers."""
    device, held = clock.device, held_now(clock.device)
    images = draw_images(work.shape, device)
    model = stir(make_model(work, device))
    about = {}
    if work.how == "fast":
        assert isinstance(model, Model)
        fast = faster(model, work, images)
        forward, about = fast, {"engine": fast.engine, "precision": fast.precision}
    else:
        forward, images = plain(model, work, images)

    def step() -> Tensor:
        with torch.inference_mode():
            return forward(images)

    for _ in range(WARM):
        check_numbers(step())
    return Opened(once=clock.times(step, work.shape.batch), about=about | peak_of(step, device, held))


def faster(model: Model, work: Forward, images: Tensor) -> FastModel:
    """Make a model fast as a user does; the one place that knows how."""
    calibrate = images[:CALIBRATED] if work.precision in ("float8", "int8") else None
    return make_fast(model, precision=work.precision, batch_size=work.shape.batch, calibrate=calibrate)


def plain(model: nn.Module, work: Forward, images: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Give the plain forward pass in a precision: eager, compiled, launched as one graph, or both; and its images."""
    if work.precision not in DTYPES:
        raise ConfigError(f"a plain model is in float32 or bfloat16; got {work.precision}.")
    dtype, gpu = DTYPES[work.precision], images.device.type == "cuda"
    layout = torch.channels_last if gpu else torch.contiguous_format  # of convolutions; products do not mind
    model, images = model.to(dtype=dtype, memory_format=layout), images.to(dtype)  # pyright: ignore[reportCallIssue]
    if work.how == "eager" or not gpu:
        return model, images
    forward = torch.compile(model, dynamic=False) if "compiled" in work.how else model
    if "graph" not in work.how:
        return forward, images
    from vitrail.runtime.gpu import Graphs

    graphs = Graphs(lambda batch: (forward(batch), None), len(images), dtype)
    return lambda batch: graphs(batch)[0], images


def make_model(work: Forward, device: torch.device) -> nn.Module:
    """Make a library's model for inference."""
    return make_any(work.by, work.shape, device).eval().requires_grad_(requires_grad=False)


def make_any(by: str, shape: Shape, device: torch.device) -> nn.Module:
    """Make a library's model on a device."""
    if by == "vitrail":
        return create(shape.model, classes=CLASSES, image_size=shape.image_size, device=device, **shape.fields)
    return peer_model(by, shape).to(device)  # pyright: ignore[reportArgumentType]


def stir(model: nn.Module) -> nn.Module:
    """Draw the parameters that begin at zero, since products of zeros cost less power; those of heads are such."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    return model


def draw_images(shape: Shape, device: torch.device) -> Tensor:
    """Draw images, B C H W."""
    size = (shape.batch, 3, shape.image_size, shape.image_size)
    return torch.randn(size, generator=torch.Generator().manual_seed(1)).to(device)


def check_numbers(found: Tensor) -> None:
    """Refuse what is not finite: nothing that is fast is of use then."""
    if not bool(found.isfinite().all()):
        raise VitrailError("what it gives is not finite.")


def open_products(work: Products, clock: Clock) -> Opened:
    """Draw the matrices of every block, each layer its own weights, and multiply them."""
    device, config = clock.device, config_of(work.shape)
    if not isinstance(config, ViTConfig):
        raise ConfigError("products alone are those of a Vision Transformer's blocks.")
    if work.precision == "float8" and device.type != "cuda":
        raise ConfigError("products in eight bits are of a GPU here.")
    rows, width, wide = work.shape.batch * config.tokens, config.width, config.mlp_width
    draw = partial(_draw, device=device, precision=work.precision)
    narrow, broad = draw(rows, width), draw(rows, wide)
    multiply = partial(_multiply, torch.ones((), device=device), work.precision)
    gradients = {out: draw(rows, out) for out in {3 * width, width, wide}} if work.training else {}
    products: list[Step] = []
    for _, (read, out) in itertools.product(
        range(config.layers), ((narrow, 3 * width), (narrow, width), (narrow, wide), (broad, width))
    ):
        weight = draw(out, read.shape[1])
        products.append(partial(multiply, read, weight.t()))
        if work.training:
            products.append(partial(multiply, gradients[out], weight))
            products.append(partial(multiply, gradients[out].t(), read))

    def step() -> None:
        with torch.inference_mode():
            for product in products:
                product()

    step()
    return Opened(once=clock.times(_launched_once(step, device), work.shape.batch))


def _draw(rows: int, columns: int, *, device: torch.device, precision: str) -> Tensor:
    drawn = torch.randn(rows, columns, device=device)
    match precision:
        case "float8":
            return to_float8(drawn, float8_scale(drawn.abs().amax()))
        case "int8":
            return (drawn * 32).round().clamp(-127, 127).to(torch.int8)
        case _:
            return drawn.to(DTYPES[precision])


def _multiply(scale: Tensor, precision: str, one: Tensor, other: Tensor) -> Tensor:
    if precision == "int8":
        return torch._int_mm(one, other)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    if one.dtype != FLOAT8:
        return one @ other
    return torch._scaled_mm(  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        one, other, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _launched_once(step: Step, device: torch.device) -> Step:
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
