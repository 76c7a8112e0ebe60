"""A model as one HTML file that opens from a disk: weights, arithmetic and page inside, no runtime and no network."""

import base64
import html
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail import __version__
from vitrail.checkpoint.fit import parts_of
from vitrail.config import HybridStem, PatchStem
from vitrail.config.check import one_of
from vitrail.errors import ConfigError
from vitrail.files.atomic import write_bytes
from vitrail.inspection.page import TEMPLATE, as_script, fill_template, plain, url_of
from vitrail.inspection.report import in_words
from vitrail.inspection.views import check_weights
from vitrail.models import Model, ViT
from vitrail.models.heads import SHORTEST, CosineHead
from vitrail.models.positions import AddedPositions

Precision = Literal["float32", "float16", "int8"]
MOST_BYTES = 200_000_000  # of weights: browsers give up on pages of a few hundred million
PART = 3_000_000  # bytes of weights in one element of the page; a multiple of 3, so that no text is padded
LARGEST_HALF = float(np.finfo(np.float16).max)
LARGEST_INT8 = 127


class Weight(NamedTuple):
    """A matrix, or one row, and whether it is multiplied with: such alone are stored in fewer bits."""

    name: str
    values: Tensor
    in_product: bool


def write_html(model: Model, path: Path, *, precision: str = "float16") -> Path:
    """Write the page of a model, whole or not at all; what it cannot hold is refused with the reason."""
    kind: Precision = one_of("precision", precision, get_args(Precision))  # pyright: ignore[reportAssignmentType]
    vit = _check(model, kind)
    data, places = _pack(vit, kind)
    parts = (base64.b64encode(data[start : start + PART]).decode() for start in range(0, len(data), PART))
    names = vit.card.class_names or [f"class {number}" for number in range(vit.config.classes or 0)]
    document = {
        "subtitle": f"{in_words(vit)}, {len(names):,} classes",
        "version": __version__,
        "classes": list(names),
        "bytes": len(data),
        "model": {**describe(vit), "weights": places},
    }
    page = files("vitrail.exports") / "page"
    text = fill_template(
        "page.html",
        page,
        TEMPLATE,
        **{"inspector.css": (TEMPLATE / "page.css").read_text(encoding="utf-8")},
        title=html.escape(plain(path.stem)),
        icon=url_of((TEMPLATE / "icon.svg").read_bytes(), "svg+xml"),
        document=as_script(plain(document)),
        weights="\n".join(f'<script type="text/plain" class="weights">{part}</script>' for part in parts),
    )
    write_bytes(path, text.encode())
    return path


def describe(model: ViT) -> dict[str, Any]:
    """Say all that the page must know of a model beside its weights."""
    config, preprocessing = model.config, model.card.preprocessing.for_channels(model.config.channels)
    rows, cols = config.grid
    before = [round(side / preprocessing.crop_share) for side in config.image_size]
    return {
        "size": list(config.image_size),
        "channels": config.channels,
        "patch": config.stem.stride,
        "rows": rows,
        "columns": cols,
        "tokens": config.tokens,
        "width": config.width,
        "heads": config.heads,
        "layers": config.layers,
        "axial": config.attention == "axial",
        "causal": config.causal,
        "norm": config.norm,
        "activation": config.activation,
        "epsilon": config.epsilon,
        "pooling": config.pooling,
        "cosine": config.cosine_scale is not None,
        "temperature": model.card.temperature,
        "positions": [_table_name(model, layer) for layer in range(config.layers)],
        "preprocessing": {
            "mean": list(preprocessing.mean),
            "deviation": list(preprocessing.deviation),
            "resize": preprocessing.resize,
            "interpolation": preprocessing.interpolation,
            "antialias": preprocessing.antialias,
        },
        "before": before,  # the size before its middle is cut out
        "least": 2 * max(before) if preprocessing.antialias else 0,  # pixels that a JPEG's sides keep; 0: all
    }


def _check(model: Model, precision: Precision) -> ViT:
    """Refuse what the page has no arithmetic for, and what a browser would not open."""
    if not isinstance(model, ViT):
        raise ConfigError("the page computes Vision Transformers; got a BiT ResNet. Export it to onnx or openvino.")
    config = model.config
    match config.stem:
        case HybridStem():
            raise ConfigError(
                "the page cuts patches from pixels; got a hybrid, whose stem is a ResNet. Export it to onnx."
            )
        case PatchStem():
            pass
    if not config.classes:
        raise ConfigError("the page names classes; got a model without a classifier. Fine-tune it first.")
    if config.channels not in (1, 3):
        raise ConfigError(f"images have 1 or 3 channels; the model reads {config.channels}. Export it to onnx.")
    size = (
        sum(parameter.numel() for parameter in model.parameters()) * {"float32": 4, "float16": 2, "int8": 1}[precision]
    )
    if size > MOST_BYTES:
        least = (
            "int8"
            if precision != "int8" and size * {"float32": 0.25, "float16": 0.5}[precision] <= MOST_BYTES
            else None
        )
        hint = f"Take precision={least}." if least else "Export it to onnx or openvino."
        raise ConfigError(
            f"a page holds at most {MOST_BYTES / 1e6:.0f} MB of weights; got {size / 1e6:.0f} MB of {precision}. {hint}"
        )
    strange = [*parts_of(config).values()]
    strange += [] if config.pooling in ("token", "mean", "max") else [f"pooling={config.pooling}"]
    strange += [] if config.activation in ("gelu-tanh", "gelu", "relu") else [f"activation={config.activation}"]
    if getattr(config.positions, "code", "transformer") != "transformer" or strange:
        what = ", ".join(strange) or "positions of this code"
        raise ConfigError(f"the page has no arithmetic for {what}. Export it to onnx.")
    check_weights(model)
    return model


def _pack(model: ViT, precision: Precision) -> tuple[bytes, dict[str, list[Any]]]:
    """Give all weights as bytes, and for each its kind, its first byte, rows and columns."""
    data, places = bytearray(), dict[str, list[Any]]()
    for name, values, in_product in _weights(model):
        kind = precision if in_product else "float32"
        matrix = np.ascontiguousarray(values.detach().float().cpu().reshape(-1, values.shape[-1]).numpy(), "<f4")
        places[name] = [kind, len(data), *matrix.shape]
        data += _encoded(name, matrix, kind)
        data += bytes(-len(data) % 4)  # where the next may begin
    return bytes(data), places


def _encoded(name: str, matrix: NDArray[np.float32], kind: Precision) -> bytes:
    """Give a matrix in its precision; int8 has a factor for each row first."""
    match kind:
        case "float32":
            return matrix.tobytes()
        case "float16":
            if (most := float(np.abs(matrix).max())) > LARGEST_HALF:
                raise ConfigError(f"float16 ends at {LARGEST_HALF:.0f}; {name} has {most:.3g}. Take precision=float32.")
            return matrix.astype("<f2").tobytes()
        case "int8":
            factors = np.abs(matrix).max(axis=1, keepdims=True) / np.float32(LARGEST_INT8)
            whole = np.rint(matrix / np.where(factors > 0, factors, 1)).astype(np.int8)
            return factors.astype("<f4").tobytes() + whole.tobytes()


def _weights(model: ViT) -> Iterator[Weight]:
    """Give what the page computes with; positions as tables at the model's own grid."""
    if model.class_token is not None:
        yield Weight("class_token", model.class_token[None], in_product=False)
    for name, module in model.named_modules():
        if name.startswith(("positions", "head")) or not name:
            continue
        for part, values in module.named_parameters(prefix=name, recurse=False):
            yield Weight(part, values, in_product=isinstance(module, nn.Linear) and values.ndim == 2)
    if isinstance(model.head, CosineHead):
        directions = F.normalize(model.head.directions.weight.float(), dim=1, eps=SHORTEST)
        yield Weight("head.weight", model.head.scale * directions, in_product=True)
    elif isinstance(model.head, nn.Linear):
        yield Weight("head.weight", model.head.weight, in_product=True)
        yield Weight("head.bias", model.head.bias, in_product=False)
    yield from _positions(model)


def _positions(model: ViT) -> Iterator[Weight]:
    config, positions = model.config, model.positions
    like = torch.zeros(config.tokens, config.width)
    written = set[str]()
    for layer in range(config.layers):
        name = _table_name(model, layer)
        if isinstance(positions, AddedPositions) and name and name not in written:
            written.add(name)
            yield Weight(name, positions.vectors(positions.table_of(layer) or 0, config.grid, like), in_product=False)
        keys = positions.keys(layer, config.grid)  # M h d
        if keys is not None:
            yield Weight(f"relative.{layer}", keys.transpose(0, 1).flatten(1), in_product=False)


def _table_name(model: ViT, layer: int) -> str:
    """Name the table that is added before a layer; nothing where there is none."""
    positions = model.positions
    table = positions.table_of(layer) if isinstance(positions, AddedPositions) else None
    return "" if table is None else f"positions.{table}"
