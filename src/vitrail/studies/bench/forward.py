"""Forward passes, fast or plain, of Vitrail and of others."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError, VitrailError
from vitrail.models import Model, create
from vitrail.runtime.fast import FastModel, make_fast
from vitrail.studies.bench.peers import CLASSES, peer_model
from vitrail.studies.bench.table import Forward, Opened, Shape
from vitrail.studies.bench.timing import Clock, held_now, peak_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CALIBRATED = 64  # images, where a precision needs some
WARM = 3


def open_forward(work: Forward, clock: Clock) -> Opened:
    """Make a model fast, or another library's, and see that its logits are numbers."""
    device, held = clock.device, held_now(clock.device)
    images = draw_images(work.shape, device)
    model = stir(make_model(work, device))
    about = {}
    if work.how == "fast":
        assert isinstance(model, Model)
        fast = faster(model, work, images)
        forward, about = fast, {"engine": fast.choice.engine, "precision": fast.choice.precision}
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
    some = images[:CALIBRATED] if work.precision in ("float8", "int8") else None
    return make_fast(model, precision=work.precision, batch_size=work.shape.batch, images=some)


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
