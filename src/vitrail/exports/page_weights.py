"""The weights of a page as bytes: halves, or int8, and 12 bits where that costs too much, measured on images."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float16, Float32, Int, Int16
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.data.source import Subset
from vitrail.errors import ConfigError
from vitrail.exports.int8 import LOSS, RANKED_ON, STEPS, calibration_source
from vitrail.inspection.views import has_classes_of, spread
from vitrail.models import ViT, eval_mode
from vitrail.models.heads import SHORTEST, CosineHead
from vitrail.models.positions import AddedPositions
from vitrail.ops.metrics import log_probabilities
from vitrail.runtime.inference import feed_of, inference_options
from vitrail.runtime.machine import Group
from vitrail.runtime.reporter import Reporter

Precision = Literal["float32", "float16", "int8"]
Kind = Literal["float32", "float16", "int8", "int12"]  # of one weight
GROUP = 32  # whole numbers of a weight that share a factor
LARGEST = {"int8": 127, "int12": 2047}
LARGEST_HALF = float(np.finfo(np.float16).max)
MEASURED_ON = {"float16": 32, "int8": 512}  # images


@dataclass(frozen=True, kw_only=True)
class Rounded:
    """How the weights of a page are kept, and what that changes on some images."""

    precision: Precision
    matrices: int
    wider: tuple[str, ...]  # that have 12 bits, the most costly in 8 first
    images: int
    same: int  # whose first class stays
    farthest: float  # that any probability moves
    accuracy: tuple[float, float] | None  # before and after, where the images have labels

    @property
    def loss(self) -> float:
        """Points of accuracy that are lost; without labels, how many first classes of a hundred change."""
        before, after = self.accuracy or (1.0, self.same / max(self.images, 1))
        return 100 * (before - after)

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        what = f"weights in {self.precision}"
        if self.wider:
            what = f"weights in int8 in {self.matrices - len(self.wider)} of {self.matrices} matrices, else in 12 bits"
        if not self.images:
            return what
        if not self.farthest:
            return f"{what}; the same answers as the model on {self.images:,} images"
        found = f"the same first class on {self.same:,}, probabilities within {self.farthest:.1e}"
        if self.accuracy is not None:
            found += f", accuracy {self.accuracy[1]:.2%} (the model's {self.accuracy[0]:.2%})"
        return f"{what}; compared with the model on {self.images:,} images: {found}"


class Weight(NamedTuple):
    """A matrix, or one row, and the layer that multiplies with it: the weights of layers are stored in fewer bits."""

    name: str
    values: Tensor
    layer: nn.Linear | None


class Packed(NamedTuple):
    """All weights as bytes, and for each its kind, its first byte, rows and columns."""

    data: bytes
    places: dict[str, list[Any]]


def pack(model: ViT, precision: Precision, wider: Sequence[str] = ()) -> Packed:
    """Give all weights as bytes; of int8, the matrices that are named have 12 bits."""
    data, places = bytearray(), dict[str, list[Any]]()
    for name, values, layer in weights_of(model):
        kind: Kind = "float32" if layer is None else "int12" if name in wider else precision
        matrix = np.ascontiguousarray(values.detach().float().cpu().reshape(-1, values.shape[-1]).numpy(), "<f4")
        places[name] = [kind, len(data), *matrix.shape]
        data += _encoded(name, matrix, kind)
        data += bytes(-len(data) % 4)  # where the next may begin
    return Packed(bytes(data), places)


def _encoded(name: str, matrix: NDArray[np.float32], kind: Kind) -> bytes:
    """Give a matrix in its precision; whole numbers have their factors first, and the low 4 of 12 bits last."""
    most, end = float(np.abs(matrix).max()), LARGEST_HALF * LARGEST.get(kind, 1)
    if kind != "float32" and most > end:
        hint = "Take precision=int8." if kind == "float16" else "Export it to onnx."
        raise ConfigError(f"{kind} ends at {end:.3g} here; {name} has {most:.3g}. {hint}")
    match kind:
        case "float32":
            return matrix.tobytes()
        case "float16":
            return matrix.astype("<f2").tobytes()
        case "int8":
            factors, whole = quantize(matrix, kind)
            return factors.astype("<f2").tobytes() + whole.astype(np.int8).tobytes()
        case "int12":
            factors, whole = quantize(matrix, kind)
            low = np.pad(whole & 15, (0, len(whole) % 2)).reshape(-1, 2)
            last = (low[:, 0] | low[:, 1] << 4).astype(np.uint8).tobytes()
            return factors.astype("<f2").tobytes() + (whole >> 4).astype(np.int8).tobytes() + last


def quantize(
    matrix: Float32[np.ndarray, "rows cols"], kind: Kind
) -> tuple[Float16[np.ndarray, "G"], Int16[np.ndarray, "N"]]:
    """Round a matrix, row after row, to whole numbers times a factor, one for every 32 of them."""
    flat = matrix.reshape(-1)
    groups = np.pad(flat, (0, -len(flat) % GROUP)).reshape(-1, GROUP)
    most = np.abs(groups).max(axis=1)
    factors = (most / LARGEST[kind]).astype(np.float16)
    factors = np.where(factors * np.float32(LARGEST[kind]) < most, np.nextafter(factors, np.float16(np.inf)), factors)
    steps = np.where(factors > 0, factors, 1).astype(np.float32)[:, None]
    return factors, np.rint(groups / steps).astype(np.int16).reshape(-1)[: len(flat)]


def rounded(weight: Float[Tensor, "rows cols"], kind: Kind) -> Float[Tensor, "rows cols"]:
    """Give a matrix as the page reads it."""
    match kind:
        case "float32":
            return weight
        case "float16":
            return weight.half().float()
        case "int8" | "int12":
            factors, whole = quantize(weight.detach().float().cpu().numpy(), kind)
            spread_out = np.repeat(factors.astype(np.float32), GROUP)[: len(whole)]
            return torch.from_numpy(spread_out * whole).view_as(weight)


def choose_weights(
    model: ViT, precision: Precision, calibrate: object, loss: float | None, report: Reporter
) -> Rounded:
    """Choose the matrices that need 12 bits: the costliest, until at most `loss` points are lost on some images."""
    layers = {name: layer for name, _, layer in weights_of(model) if layer is not None}
    found = Rounded(precision=precision, matrices=len(layers), wider=(), images=0, same=0, farthest=0.0, accuracy=None)
    if precision == "float32":
        return found
    images, labels = _images(model, calibrate, MEASURED_ON[precision])
    exact, most = _probabilities(model, images), LOSS if loss is None else loss
    with report.working("ranking the layers"):
        ranked = _rank(model, layers, images[:RANKED_ON]) if precision == "int8" else []
    step, count = max(-(-len(ranked) // STEPS), 1), 0
    while True:
        kinds: dict[nn.Linear, Kind] = dict.fromkeys(layers.values(), precision)
        kinds |= {layers[name]: "int12" for name in ranked[:count]}
        with report.working("measuring"), _weights_rounded(kinds):
            now = _probabilities(model, images)
        found = _compared(replace(found, wider=tuple(ranked[:count])), exact, now, labels)
        if found.loss <= most or precision == "float16":
            return found
        if count == len(ranked):
            raise ConfigError(
                f"12 bits in every matrix still lose {found.loss:.2g} points, of {most:g} that are allowed. "
                "Take precision=float16."
            )
        report.note(f"{found.loss:.2f} points lost: 12 bits for {step} more matrices")
        count = min(count + step, len(ranked))


def _compared(of: Rounded, exact: Tensor, now: Tensor, labels: Int[Tensor, " B"]) -> Rounded:
    before, after = exact.argmax(dim=1), now.argmax(dim=1)
    known = labels >= 0
    right = [float((first == labels)[known].float().mean()) for first in (before, after)] if known.any() else None
    return replace(
        of,
        images=len(labels),
        same=int((before == after).sum()),
        farthest=float((now - exact).abs().max()),
        accuracy=None if right is None else (right[0], right[1]),
    )


def _images(model: ViT, calibrate: object, count: int) -> tuple[Float[Tensor, "B C H W"], Int[Tensor, " B"]]:
    """Give images spread over a source (the sample in the box where none is given), and their classes in the model."""
    source = calibration_source(calibrate, "a page is compared with its model", model)
    options = inference_options(Group(device=torch.device("cpu")), workers=0)
    batches = list(feed_of(model, Subset(source, spread(len(source), count)), options).epoch(0))
    labels = torch.cat([batch.labels for batch in batches])
    images = torch.cat([batch.images for batch in batches])
    return images, labels if has_classes_of(model, source) else torch.full_like(labels, -1)


def _probabilities(model: ViT, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
    with eval_mode(model):
        parts = [model(part) for part in images.split(RANKED_ON)]
        return log_probabilities(torch.cat(parts), model.card.temperature).exp()


def _rank(model: ViT, layers: Mapping[str, nn.Linear], images: Tensor) -> list[str]:
    """Rank matrices by how far int8 in each alone moves the logits, for each of its numbers."""
    with eval_mode(model):
        exact, costs = model(images), dict[str, float]()
        for name, layer in layers.items():
            with _weights_rounded({layer: "int8"}):
                costs[name] = float((model(images) - exact).square().mean()) / layer.weight.numel()
    return sorted(layers, key=lambda name: -costs[name])


@contextmanager
def _weights_rounded(kinds: Mapping[nn.Linear, Kind]) -> Iterator[None]:
    """Let layers compute with rounded weights for a while."""
    before = {layer: layer.weight.data for layer in kinds}
    try:
        for layer, kind in kinds.items():
            layer.weight.data = rounded(before[layer], kind)
        yield
    finally:
        for layer, weight in before.items():
            layer.weight.data = weight


def weights_of(model: ViT) -> Iterator[Weight]:
    """Give what the page computes with; positions as tables at the model's own grid."""
    if model.class_token is not None:
        yield Weight("class_token", model.class_token[None], None)
    for name, module in model.named_modules():
        if name.startswith(("positions", "head")) or not name:
            continue
        for part, values in module.named_parameters(prefix=name, recurse=False):
            yield Weight(part, values, module if isinstance(module, nn.Linear) and values.ndim == 2 else None)
    if isinstance(model.head, CosineHead):  # of lengths that rounding would change
        directions = F.normalize(model.head.directions.weight.float(), dim=1, eps=SHORTEST)
        yield Weight("head.weight", model.head.scale * directions, None)
    elif isinstance(model.head, nn.Linear):
        yield Weight("head.weight", model.head.weight, model.head)
        yield Weight("head.bias", model.head.bias, None)
    yield from _positions(model)


def _positions(model: ViT) -> Iterator[Weight]:
    config, positions = model.config, model.positions
    like = torch.zeros(config.tokens, config.width)
    written = set[str]()
    for layer in range(config.layers):
        name = table_name(model, layer)
        if isinstance(positions, AddedPositions) and name and name not in written:
            written.add(name)
            yield Weight(name, positions.vectors(positions.table_of(layer) or 0, config.grid, like), None)
        keys = positions.keys(layer, config.grid)  # M h d
        if keys is not None:
            yield Weight(f"relative.{layer}", keys.transpose(0, 1).flatten(1), None)


def table_name(model: ViT, layer: int) -> str:
    """Name the table that is added before a layer; nothing where there is none."""
    positions = model.positions
    table = positions.table_of(layer) if isinstance(positions, AddedPositions) else None
    return "" if table is None else f"positions.{table}"
